"""The feature extractors psi that ship with the package, and their layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cclfp.core.randomness import generator
from cclfp.errors import InputError


def linear(inputs: int, outputs: int, g: torch.Generator, dtype: torch.dtype | None = None) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and zero biases: closer to the paper's numbers than PyTorch's default.

    It draws only from ``g``; ``nn.Linear(...)`` would first draw from the global generator.
    """
    layer = nn.Linear(inputs, outputs, dtype=dtype, device="meta")
    allocate(layer)
    nn.init.xavier_uniform_(layer.weight, generator=g)
    nn.init.zeros_(layer.bias)
    return layer


def convolution(inputs: int, outputs: int, kernel: int, stride: int, g: torch.Generator) -> nn.Conv2d:
    """A padded convolution without bias, which changes the size only by its stride; PyTorch's weights, from ``g``."""
    layer = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False, dtype=torch.float32, device="meta"
    )
    allocate(layer)
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=g)
    return layer


def allocate(layer: nn.Module) -> None:
    """Give a layer that was made on torch's meta device memory for its parameters.

    ``nn.utils.skip_init`` does the same, but imports torch's symbolic shapes, which takes half a second.
    """
    for name, parameter in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))


class MLP(nn.Module):
    """The paper's network for the MNIST streams: flatten, then one linear layer with ReLU per width.

    >>> MLP(inputs=784)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 100])
    """

    width = 100  # of both layers

    def __init__(self, inputs: int, widths: Sequence[int] = (width, width), *, seed: int = 0) -> None:
        super().__init__()
        self.arguments = {"inputs": inputs, "widths": list(widths)}
        g = generator(seed, "initialisation")
        sizes = itertools.pairwise([inputs, *widths])
        self.layers = nn.ModuleList(linear(a, b, g, torch.float32) for a, b in sizes)

    @classmethod
    def for_images(cls, shape: Sequence[int], width: int, seed: int) -> MLP:
        """The network for images of a shape (channels, height, width)."""
        return cls(math.prod(shape), (width, width), seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


SMALLEST = 9  # pixels; below, the last stage has one value per channel, too few for BatchNorm's statistics


class ResNet18(nn.Module):
    """The paper's network for CIFAR and Tiny ImageNet: a 3×3 stem, no max-pool, average-pooled to 8 × width features.

    >>> ResNet18(width=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    width = 64  # of the first of four stages; each stage doubles it

    def __init__(self, channels: int = 3, width: int = width, *, seed: int = 0) -> None:
        super().__init__()
        self.arguments = {"channels": channels, "width": width}
        g = generator(seed, "initialisation")
        self.stem = convolution(channels, width, 3, 1, g)
        self.norm = nn.BatchNorm2d(width, dtype=torch.float32)
        blocks, inputs = [], width
        for stage in range(4):
            for block in range(2):
                outputs, stride = width * 2**stage, 2 if stage > 0 and block == 0 else 1
                blocks.append(_Block(inputs, outputs, stride, g))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)

    @classmethod
    def for_images(cls, shape: Sequence[int], width: int, seed: int) -> ResNet18:
        """The network for images of a shape (channels, height, width); InputError if they are too small."""
        if len(shape) != 3 or min(shape[1:]) < SMALLEST:
            shown = "×".join(map(str, shape))
            raise InputError(f"resnet18 takes images of {SMALLEST}×{SMALLEST} pixels or more, not {shown}: try mlp")
        return cls(shape[0], width, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)


class _Block(nn.Module):
    """Two 3×3 convolutions added to the input, which is projected if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, g: torch.Generator) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride, g)
        self.norm1 = nn.BatchNorm2d(outputs, dtype=torch.float32)
        self.conv2 = convolution(outputs, outputs, 3, 1, g)
        self.norm2 = nn.BatchNorm2d(outputs, dtype=torch.float32)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            projection = convolution(inputs, outputs, 1, stride, g)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


BACKBONES: dict[str, type[MLP] | type[ResNet18]] = {"mlp": MLP, "resnet18": ResNet18}
