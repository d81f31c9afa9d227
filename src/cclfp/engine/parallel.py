"""Groups of replicas that run at the same time, each on tensors of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from cclfp.core.scenarios import ClassMask
from cclfp.engine.agreement import refuse_randomness
from cclfp.engine.group import Compile, Group, Step, flat_step, make_batch, mask_table, prepare_batches
from cclfp.engine.tables import Tables
from cclfp.learner import Learner

Arguments = tuple[list[Tensor], list[Tensor], list[Tensor]]  # of one replica's step: changing, hyperparameters, batch


class ParallelGroup(Group):
    """Replicas side by side, on a GPU each on a CUDA stream of its own."""

    def __init__(self, trainers: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(trainers)
        leaves = [tree_flatten(trainer.model)[0] for trainer in trainers]
        hypers = [tree_flatten(dataclasses.asdict(trainer.hyper_tensors))[0] for trainer in trainers]
        self._leaves, self._hypers = len(leaves[0]), len(hypers[0])
        self.changing = [leaf.detach() for own in leaves for leaf in own]
        self.fixed = [pool, torch.stack([mask_table(mask) for mask in masks]), *(h for own in hypers for h in own)]
        self._streams = [torch.cuda.Stream(pool.device) for _ in trainers] if pool.is_cuda else []

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return tensors[replica * self._leaves : (replica + 1) * self._leaves]

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        return [t for own in parts for t in own]

    def make_step(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        first, current, row = self.trainers[0], tables.sizes[like][0], tables.row(like)
        steps = [self._step_of(trainer, current) for trainer in self.trainers]
        changing, *others = self._arguments(0, self.changing, self.fixed, prepare_batches(first, self.fixed, row))
        refuse_randomness(lambda: steps[0]([t.clone() for t in changing], *others), row[0].device)
        if compile is not None:
            steps = [compile(steps[0], changing, *others)] * len(steps)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(first, fixed, row)
            return self._run(steps, [self._arguments(i, changing, fixed, prepared) for i in range(len(steps))])

        return step

    def _step_of(self, trainer: Learner, current: int) -> Step:
        """The step of one replica."""
        spec, hyper_spec = self.spec, self._hyper_spec

        def step(changing: list[Tensor], hypers: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
            hyper = type(trainer.hyper)(**tree_unflatten(hypers, hyper_spec))
            return flat_step(trainer.algorithm, changing, spec, make_batch(batch, current), hyper)

        return step

    def _arguments(
        self, replica: int, changing: list[Tensor], fixed: list[Tensor], prepared: list[Tensor]
    ) -> Arguments:
        """What a replica's step takes."""
        hypers = fixed[2 + replica * self._hypers : 2 + (replica + 1) * self._hypers]
        return self.part_of(changing, replica), hypers, [t[replica] for t in prepared]

    def _run(self, steps: Sequence[Step], arguments: Sequence[Arguments]) -> list[Tensor]:
        """Take the steps of all replicas, at the same time where there are CUDA streams."""
        new: list[Tensor] = []
        if not self._streams:
            for step, given in zip(steps, arguments, strict=True):
                new += step(*given)
            return new
        for stream, step, given in zip(self._streams, steps, arguments, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                new += step(*given)
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)
        return new
