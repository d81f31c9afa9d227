"""Stacked replicas of ResNet18 run as one network, in kernels of our own. Here: which networks have kernels.

From what the engine uses down to what runs on the GPU:

- :class:`~cclfp.engine.groups.KernelGroup`: replicas that train together, whose method is given a ``StackedResNet``;
- :mod:`~cclfp.engine.kernels.stacked_resnet`: psi(x), in training and in eval mode, and SGD, with a vmap rule each;
- :mod:`~cclfp.engine.kernels.passes`: forward and backward passes of all replicas, as sequences of kernels;
- :mod:`~cclfp.engine.kernels.arrange`: how the replicas' tensors lie in memory, and side streams;
- ``triton_convolution``, ``triton_norm``, ``triton_others``: the Triton kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util

import torch
from torch import Tensor, nn

from cclfp.nets.modules import ResNet18

WIDTH = 64  # numbers of channels are multiples of it
SIDES = (16, 32, 64)  # of the images, in pixels

Tensors = dict[str, Tensor]
Parts = list[list[Tensor]]  # filters, gamma, beta, running mean, running variance; one tensor per layer each


class NotStackable(Exception):
    """A step does something to psi that the kernels do not support."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution and its BatchNorm: their names in psi, and the convolution's shape (see ``Conv``)."""

    conv: str
    norm: str
    shape: tuple[int, int, int, int, int]  # input and output channels, kernel size, stride, image side / input side


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layers of a ResNet18 that the kernels can compute: one for the stem, then two or three per block."""

    layers: tuple[Layer, ...]
    blocks: tuple[tuple[int, ...], ...]  # the layers of each block: first, second and, if it has one, the shortcut
    dtype: torch.dtype

    @classmethod
    def of(cls, psi: nn.Module, mode: dict[str, list[str]], dtype: torch.dtype | None) -> Layout | None:
        """The layout of psi, trained in ``mode`` and computed in ``dtype``; None if there are no kernels for it."""
        if type(psi) is not ResNet18 or dtype != torch.bfloat16:
            return None
        norms = [module for module in psi.modules() if isinstance(module, nn.BatchNorm2d)]
        whole = len(mode["trained"]) == len(list(psi.parameters()))
        training = len(mode["training"]) == len(list(psi.modules()))
        usual = all((norm.eps, norm.momentum, norm.affine) == (1e-5, 0.1, True) for norm in norms)
        plain = all(p.dtype == torch.float32 for p in psi.parameters()) and _is_unchanged(psi)
        width, channels = psi.stem.out_channels, psi.stem.in_channels
        if not (whole and training and usual and plain) or width % WIDTH or width & (width - 1) or channels != 3:
            return None
        layers, blocks, shrunk = [Layer("stem", "norm", (32, width, 1, 1, 1))], [], 1
        for number, block in enumerate(psi.blocks):
            assert isinstance(block.conv1, nn.Conv2d)
            (stride, _), C, K = block.conv1.stride, block.conv1.in_channels, block.conv1.out_channels
            name, first = f"blocks.{number}", len(layers)
            layers.append(Layer(f"{name}.conv1", f"{name}.norm1", (C, K, 3, stride, shrunk)))
            layers.append(Layer(f"{name}.conv2", f"{name}.norm2", (K, K, 3, 1, shrunk * stride)))
            if stride != 1 or C != K:
                layers.append(Layer(f"{name}.shortcut.0", f"{name}.shortcut.1", (C, K, 1, stride, shrunk)))
            blocks.append(tuple(range(first, len(layers))))
            shrunk *= stride
        return cls(tuple(layers), tuple(blocks), dtype)

    def takes(self, x: Tensor) -> bool:
        """Whether the kernels can compute psi(x) on the device of x."""
        square = x.ndim >= 3 and x.shape[-3:] in [(3, side, side) for side in SIDES]
        return square and x.dtype == torch.float32 and _has_kernels(x.device)

    @property
    def filters(self) -> list[str]:
        """The names of the parameters that are rounded to the precision of the kernels."""
        return [f"{layer.conv}.weight" for layer in self.layers]

    def tensors(self, params: Tensors, buffers: Tensors) -> list[Tensor]:
        """Every tensor that psi reads, grouped by kind, in the order of the layers."""
        names = [layer.norm for layer in self.layers]
        return [
            *(params[name] for name in self.filters),
            *(params[f"{name}.weight"] for name in names),
            *(params[f"{name}.bias"] for name in names),
            *(buffers[f"{name}.running_mean"] for name in names),
            *(buffers[f"{name}.running_var"] for name in names),
        ]


@functools.cache
def _has_kernels(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU or newer and Triton is installed."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return importlib.util.find_spec("triton") is not None


def _is_unchanged(psi: ResNet18) -> bool:
    """Whether psi still has the layers it was built with, and no hooks."""
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in psi.modules())
    return str(psi) == _layers(**psi.arguments) and not any(hooks)


@functools.cache
def _layers(channels: int, width: int) -> str:
    """The layers of a ResNet18 as text."""
    return str(ResNet18(channels, width))
