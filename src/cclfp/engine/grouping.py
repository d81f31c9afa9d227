"""Picks the kind of group that suits a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cclfp.core.scenarios import ClassMask
from cclfp.engine.group import Group
from cclfp.engine.kernels import Layout
from cclfp.engine.kernels.group import KernelGroup
from cclfp.engine.parallel import ParallelGroup
from cclfp.engine.stacked import StackedGroup
from cclfp.learner import Learner


def make_group(trainers: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, *, kernels: bool = True) -> Group:
    """Trainers whose task has begun, as a group. With ``kernels=False`` our own kernels are not used."""
    if not is_normalised(trainers[0].psi):
        return StackedGroup(trainers, masks, pool)
    layout = kernels_for(trainers, pool) if kernels else None
    return ParallelGroup(trainers, masks, pool) if layout is None else KernelGroup(trainers, masks, pool, layout)


def kernels_for(trainers: Sequence[Learner], pool: Tensor) -> Layout | None:
    """The layout of these trainers' network, if there are kernels for two or more of them as one network."""
    first = trainers[0]
    layout = Layout.of(first.psi, first.psi_mode, first.autocast) if len(trainers) > 1 else None
    return layout if layout is not None and layout.takes(first.for_testing(pool[:1])) else None


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm, or another layer that keeps statistics."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in psi.modules())
