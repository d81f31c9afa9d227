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

    transform = {"name": "scale"}  # noqa: RUF012  how learners save it

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() / 255


TRANSFORMS = {"scale": Scale}


Transform = Callable[[Tensor], Tensor]


def describe(transform: Transform | None) -> Any:
    """What a learner saves of its transform: a description, "custom" for a user's own, None for none."""
    return None if transform is None else getattr(transform, "transform", "custom")


def build_transform(transform: dict[str, Any]) -> Scale:
    """A transform from its description, as learners save it."""
    arguments = dict(transform)
    name = arguments.pop("name")
    if name not in TRANSFORMS:
        raise unknown("transform", name, TRANSFORMS)
    return TRANSFORMS[name](**arguments)
