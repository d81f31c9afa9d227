"""One random generator a purpose, derived from the seed, never the global one.

A result then depends on its seed and hyperparameters alone: not on the engine, on the replicas beside it, or on how
often it is evaluated.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def derived_seed(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed for one purpose (and place in it) of one run."""
    text = "/".join(map(str, (seed, purpose, *index)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *index: int, reuse: torch.Generator | None = None) -> torch.Generator:
    """A CPU generator for ``purpose``: "stream", "initialisation", "order", "replay", "memory", ...

    With ``reuse`` it is that one, seeded anew: cheaper where a generator serves for one short draw.

    >>> a, b = generator(0, "replay"), generator(0, "replay")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    return (torch.Generator() if reuse is None else reuse).manual_seed(derived_seed(seed, purpose, *index))


@contextlib.contextmanager
def seeded(seed: int, purpose: str, index: int, device: torch.device) -> Iterator[None]:
    """Random layers and transforms inside draw from (seed, purpose, index); the global generators are left alone."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    saved = [g.get_state() for g in generators]
    try:
        for g in generators:
            g.manual_seed(derived_seed(seed, purpose, index))
        yield
    finally:
        for g, state in zip(generators, saved, strict=True):
            g.set_state(state)
