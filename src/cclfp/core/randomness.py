"""Random generators: one per purpose, derived from the seed and independent of the state of the global generators.

A result therefore depends only on its seed and hyperparameters, not on the engine, on replicas that train at the same
time, or on how often it is evaluated.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def derived_seed(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed for one purpose of one run, and optionally an index within the purpose."""
    text = "/".join(map(str, (seed, purpose, *index)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *index: int) -> torch.Generator:
    """A CPU generator for ``purpose``: "stream", "initialisation", "order", "replay", "memory", ...

    >>> a, b = generator(0, "replay"), generator(0, "replay")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *index))


def global_generators(device: torch.device) -> list[torch.Generator]:
    """The generators that random layers on a device draw from."""
    on_device = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *on_device]


@contextlib.contextmanager
def seeded(seed: int, purpose: str, index: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators for random layers and transforms in the block, and restore them afterwards."""
    generators = global_generators(device)
    saved = [g.get_state() for g in generators]
    try:
        for g in generators:
            g.manual_seed(derived_seed(seed, purpose, index))
        yield
    finally:
        for g, state in zip(generators, saved, strict=True):
            g.set_state(state)


def copy_generator(g: torch.Generator) -> torch.Generator:
    """A generator that draws the same numbers from here on."""
    twin = torch.Generator()
    twin.set_state(g.get_state())
    return twin
