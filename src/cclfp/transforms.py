"""Transforms that ship with the package: from raw (uint8) images to what psi takes, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from cclfp.errors import unknown


class Scale:
    """Pixels divided by 255.

    >>> import torch
    >>> Scale()(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() / 255


TRANSFORMS = {"scale": Scale}


Transform = Callable[[Tensor], Tensor]


def describe(transform: Transform | None) -> Any:
    """What a learner saves of its transform: a description, "custom" for a user's own, None for none."""
    if transform is None:
        return None
    name = next((name for name, kind in TRANSFORMS.items() if type(transform) is kind), None)
    return "custom" if name is None else {"name": name}


def build_transform(transform: dict[str, Any]) -> Scale:
    """A transform from its description, as learners save it."""
    name = transform["name"]
    if name not in TRANSFORMS:
        raise unknown("transform", name, TRANSFORMS)
    return TRANSFORMS[name]()
