"""Picks the kind of group that suits a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cclfp.core.scenarios import ClassMask
from cclfp.engine.group import Group
from cclfp.engine.parallel import ParallelGroup
from cclfp.engine.stacked import KernelGroup, StackedGroup
from cclfp.learner import Learner


def make_group(trainers: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, *, kernels: bool = True) -> Group:
    """Trainers whose task has begun, as a group. With ``kernels=False`` our own kernels are not used."""
    if not is_normalised(trainers[0].psi):
        return StackedGroup(trainers, masks, pool)
    kind = KernelGroup if kernels and has_kernels(trainers, pool) else ParallelGroup
    return kind(trainers, masks, pool)


def has_kernels(trainers: Sequence[Learner], pool: Tensor) -> bool:
    """Whether there are kernels for these trainers as one network. There must be two or more of them."""
    layout = trainers[0].algorithm.net.layout
    return len(trainers) > 1 and layout is not None and layout.takes(trainers[0].for_testing(pool[:1]))


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm, or another layer that keeps statistics."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in psi.modules())
