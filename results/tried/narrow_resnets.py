"""Narrow ResNet18s with other inputs or other initial values than ours, which is ``resnet18:width=8``.

RESULTS.md has the numbers, below the table of the components.

    cclfp run er split-cifar10 --backbone results/tried/narrow_resnets.py:he --engine eager
"""

import torch
from torch import Tensor, nn

from cclfp.data import get_dataset
from cclfp.nets import ResNet18

WIDTH = 8


class Unnormalised(nn.Module):
    """ResNet18 on pixels between 0 and 1, without the normalisation of each channel that its inputs had."""

    mean: Tensor
    std: Tensor

    def __init__(self, psi: nn.Module) -> None:
        super().__init__()
        self.psi = psi
        cifar10 = get_dataset("cifar10")
        self.register_buffer("mean", torch.tensor(cifar10.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(cifar10.std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.psi(x * self.std + self.mean)
        return z


def unnormalised() -> nn.Module:
    """Our network on inputs that are not normalised. `cclfp run` seeds torch, and ResNet18 draws from a seed."""
    return Unnormalised(ResNet18(width=WIDTH, seed=torch.initial_seed()))


def he() -> nn.Module:
    """Convolutions with the normal initial values of He et al. (2015), as in torchvision."""
    psi = ResNet18(width=WIDTH)
    for module in psi.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return psi
