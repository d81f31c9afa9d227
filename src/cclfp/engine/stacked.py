"""Groups of replicas that are stacked: each tensor has one dimension more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from cclfp.core.scenarios import ClassMask
from cclfp.engine.group import Compile, Group, Step, flat_step, make_batch, mask_table, prepare_batches, stack_leaves
from cclfp.engine.tables import Tables
from cclfp.learner import Learner


class StackedGroup(Group):
    """Replicas as one network with one dimension more."""

    def __init__(self, trainers: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(trainers)
        self.method = trainers[0].algorithm  # which takes the steps
        leaves, _ = stack_leaves([trainer.model for trainer in trainers])
        self._arrange = (lambda t: t) if pool.is_cuda else _columns_first
        self.changing = [self._arrange(t) for t in leaves]
        hypers, _ = stack_leaves([dataclasses.asdict(trainer.hyper_tensors) for trainer in trainers])
        self.fixed = [pool, torch.stack([mask_table(mask) for mask in masks]), *hypers]

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return [t[replica] for t in tensors]

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        return [self._arrange(torch.stack(several)) for several in zip(*parts, strict=True)]

    def make_step(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        current, first, method = tables.sizes[like][0], self.trainers[0], self.method
        spec, hyper_spec = self.spec, self._hyper_spec

        def step_one(changing: list[Tensor], hypers: list[Tensor], *batch: Tensor) -> list[Tensor]:
            hyper = type(first.hyper)(**tree_unflatten(hypers, hyper_spec))
            return flat_step(method, changing, spec, make_batch(batch, current), hyper)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(first, fixed, row)
            new: list[Tensor] = torch.func.vmap(step_one)(changing, fixed[2:], *prepared)
            return new

        return step if compile is None else compile(step, self.changing, self.fixed, tables.row(like))


def _columns_first(t: Tensor) -> Tensor:
    """Stacked matrices whose columns are contiguous in memory.

    A CPU then multiplies a minibatch with a layer's weights in a third of the time.
    """
    return t.mT.contiguous().mT if t.ndim == 3 else t
