"""From raw (uint8) images to the inputs of psi, one batch at a time on its device.

An augmentation changes training images at random, as a table of random numbers says, which is drawn in advance. A
transform treats every image alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from cclfp.core.arguments import check_whole
from cclfp.errors import InputError

Transform = Callable[[Tensor], Tensor]


class Scale:
    """Pixels divided by 255.

    >>> Scale()(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() / 255


class Normalise:
    """Pixels divided by 255, then standardised with the mean and standard deviation of each channel.

    >>> Normalise(mean=[0.5], std=[0.25])(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item()
    2.0
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        wrong = InputError(f"mean={mean!r}, std={std!r}: expected one finite number per channel, and std above 0")
        try:
            self.arguments: dict[str, Any] = {"mean": [float(m) for m in mean], "std": [float(s) for s in std]}
        except (TypeError, ValueError) as error:
            raise wrong from error
        self._mean, self._std = (torch.tensor(values)[:, None, None] for values in self.arguments.values())
        are_finite = self._mean.isfinite().all() and self._std.isfinite().all()
        if len(self._mean) != len(self._std) or not are_finite or not (self._std > 0).all():
            raise wrong

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[-3] != len(self._mean):
            raise InputError(f"Normalise expects images with {len(self._mean)} channels, not of shape {tuple(x.shape)}")
        if self._mean.device != x.device:  # only once: copying to the device in every step would synchronise with it
            self._mean, self._std = self._mean.to(x.device), self._std.to(x.device)
        return (x.float() / 255 - self._mean) / self._std


class Augmentation(Protocol):
    """A random change of training images, in two parts, so that all random numbers can be drawn before training."""

    def draw(self, n: int, g: torch.Generator) -> Tensor:
        """Random numbers for n images: a table on the CPU with one row per image."""

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        """The raw images, each changed as its row of the table says."""


class CropFlip:
    """Pad the image with ``padding`` black pixels, crop it at a random place, and mirror it with probability 1/2.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> augment = CropFlip(padding=1)
    >>> augment(image, torch.tensor([[1, 1, 1]])).tolist()  # the centre, mirrored
    [[[[2, 1], [4, 3]]]]
    >>> augment(image, torch.tensor([[0, 1, 0]])).tolist()  # from the top
    [[[[0, 0], [1, 2]]]]
    """

    def __init__(self, padding: int = 4) -> None:
        self.padding = check_whole("padding", padding, at_least=0)
        self.arguments: dict[str, Any] = {"padding": self.padding}
        self._values = torch.tensor([2.0 * self.padding + 1, 2.0 * self.padding + 1, 2.0], dtype=torch.float64)

    def draw(self, n: int, g: torch.Generator) -> Tensor:
        """One row per image: the crop's first row and column in the padded image, and 1 to mirror it or 0."""
        return torch.rand(n, 3, dtype=torch.float64, generator=g).mul_(self._values).long()

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        if x.ndim != 4:
            raise InputError(f"CropFlip takes images (N, channels, height, width), not {tuple(x.shape)}")
        if table.shape != (x.shape[0], 3):
            raise InputError(f"CropFlip takes a table of {x.shape[0]} rows and 3 columns, not {tuple(table.shape)}")
        (height, width), channels = x.shape[2:], x.shape[1]
        down, right, mirror = table.unbind(1)
        padded = F.pad(x, [self.padding] * 4)
        across = torch.arange(width, device=x.device)
        # The row and column of the padded image that each pixel comes from.
        rows = down[:, None] + torch.arange(height, device=x.device)
        columns = right[:, None] + torch.where(mirror[:, None] == 1, across.flip(0), across)
        pixels = (rows * padded.shape[3])[:, :, None] + columns[:, None, :]
        taken = padded.flatten(2).gather(2, pixels.flatten(1)[:, None].expand(-1, channels, -1))
        cropped: Tensor = taken.unflatten(2, (height, width))
        return cropped


TRANSFORMS: dict[str, Callable[..., Any]] = {"scale": Scale, "normalise": Normalise, "crop+flip": CropFlip}
