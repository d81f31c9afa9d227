"""Replicas that train together in our own kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cclfp.core import trees
from cclfp.core.scenarios import ClassMask
from cclfp.engine.groups import StackedGroup, perturb
from cclfp.engine.kernels import Layout
from cclfp.engine.kernels.arrange import round_all, rounded
from cclfp.engine.kernels.stacked_resnet import on_kernels
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import Step
from cclfp.learner import Learner


class KernelGroup(StackedGroup):
    """Replicas of ResNet18 as one network, in kernels of our own: their method sees a :class:`StackedResNet`.

    The tensors that change are followed by copies of the networks' filters among them, rounded to what the kernels
    read. A state that holds an old network holds its BatchNorm statistics too. Other tensors with the name of a
    parameter, such as SI's importances, are not read by any kernel.
    """

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, layout: Layout) -> None:
        super().__init__(learners, masks, pool)
        self.method = on_kernels(learners[0].algorithm, layout)
        names = {f"psi.{name}" for name in layout.filters}
        params, buffers, _ = learners[0].model
        keys = [path[-1] for path, _ in trees.walk(learners[0].model)]
        in_state = range(len(params) + len(buffers), len(keys))
        filters = [i for i, key in enumerate(keys) if key in names]
        has_old_network = any(keys[i] in buffers for i in in_state)
        self._dtype, self._leaves = layout.dtype, len(keys)
        self._filters = [i for i in filters if has_old_network or i not in in_state]
        lying = [_channels_last(t) if i in filters else t for i, t in enumerate(self.changing)]
        self.changing = self._with_copies(lying)

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return super().part_of(tensors[: self._leaves], replica)

    def perturbed(self) -> list[Tensor]:
        return self._with_copies(perturb(self.changing[: self._leaves]))

    def _with_copies(self, leaves: list[Tensor]) -> list[Tensor]:
        return [*leaves, *round_all([leaves[i] for i in self._filters], self._dtype)]

    def make_step(self, tables: StepTables, like: int) -> Step:
        plain, filters = super().make_step(tables, like), self._filters

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            leaves = changing[: self._leaves]
            with rounded([leaves[i] for i in filters], changing[self._leaves :], leaves) as copies:
                new = plain(leaves, fixed, row)
            known = [copies.get(new[i]) for i in filters]
            missing = [new[i] for i, copy in zip(filters, known, strict=True) if copy is None]
            made = iter(round_all(missing, self._dtype))
            return [*new, *(next(made) if copy is None else copy for copy in known)]

        return step


def _channels_last(t: Tensor) -> Tensor:
    """Stacked filters whose channels are contiguous in memory."""
    return t.movedim(2, -1).contiguous().movedim(-1, 2)
