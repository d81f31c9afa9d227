"""Many replicas as one: their tensors side by side, and one pure function that takes a step for all of them.

What a step reads and writes is in flat lists of tensors, so that the same function runs as it is, compiled, or in a
CUDA graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from cclfp.engine.plan import Plan
from cclfp.learner import Learner
from cclfp.memory import Examples
from cclfp.methods import Batch
from cclfp.scenarios import ClassMask


class Row(NamedTuple):
    """What one step of all replicas is made of: a line of their plans' tables, replicas first."""

    rows: Tensor  # replicas x examples: which of the pool's inputs
    y: Tensor  # replicas x examples
    task: Tensor  # replicas x examples
    slots: Tensor  # replicas x replayed
    settled: Tensor  # replicas x replayed
    augment: Tensor  # replicas x examples x what the augmentation draws; empty where there is none


class Tables:
    """The plans of one task of all replicas, of the same sizes at every step."""

    def __init__(self, plans: Sequence[Plan], streams: Sequence[Examples], offsets: Sequence[int]) -> None:
        """``offsets`` says where in the pool the inputs of each replica's stream begin."""
        self.sizes = plans[0].sizes
        if any(plan.sizes != self.sizes for plan in plans):
            raise ValueError("their tasks are of different sizes")
        self.rows = torch.stack([plan.rows + offset for plan, offset in zip(plans, offsets, strict=True)], 1)
        # Streams that share their inputs may still differ in what task a class belongs to.
        pairs = list(zip(plans, streams, strict=True))
        self.y = torch.stack([stream.y[plan.rows] for plan, stream in pairs], 1)
        self.task = torch.stack([stream.task[plan.rows] for plan, stream in pairs], 1)
        self.slots = torch.stack([plan.slots for plan in plans], 1)
        self.settled = torch.stack([plan.settled for plan in plans], 1)
        tables = [plan.augment for plan in plans if plan.augment is not None]
        self.augment = torch.stack(tables, 1) if tables else self.rows[:, :, :0]

    def row(self, step: int) -> Row:
        current, replayed = self.sizes[step]
        size = current + replayed
        return Row(
            self.rows[step, :, :size],
            self.y[step, :, :size],
            self.task[step, :, :size],
            self.slots[step, :, :replayed],
            self.settled[step, :, :replayed],
            self.augment[step, :, :size],
        )

    def segments(self) -> list[range]:
        """The steps in runs of equal sizes."""
        starts = [i for i, size in enumerate(self.sizes) if i == 0 or size != self.sizes[i - 1]]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.sizes)], strict=True)]


class Stack:
    """The learners of a cohort in a task: what their steps change, and what they only read.

    Made when the task has begun; ``put_back`` gives the learners what the steps made of it. ``pool`` has the training
    inputs of all their streams.
    """

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        self.learners = learners
        self._first = learners[0]
        self.changing, self._spec = _stacked([learner.model for learner in learners])
        hypers, self._hyper_spec = _stacked([dataclasses.asdict(learner.hyper_tensors) for learner in learners])
        tasks = torch.arange(len(masks[0].classes_of), device=pool.device)
        self.fixed = [pool, torch.stack([mask.train(tasks) for mask in masks]), *hypers]

    @property
    def structure(self) -> str:
        """What tells the program of one step from that of another, besides the shapes of its tensors."""
        return f"{self._first.method_name} {self._spec} {self._hyper_spec}"

    def step(self, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor], current: int) -> list[Tensor]:
        """One step of all replicas, ``current`` of whose examples are new: what is changing after it."""
        first, hyper_spec, kind = self._first, self._hyper_spec, type(self._first.hyper)
        hypers, batches = fixed[2:], self._batches(fixed, row)

        def one(changing: list[Tensor], hypers: list[Tensor], *batch: Tensor) -> list[Tensor]:
            params, buffers, state = tree_unflatten(changing, self._spec)
            hyper = kind(**tree_unflatten(hypers, hyper_spec))
            new, spec = tree_flatten(first.method.step(params, buffers, state, _batch(batch, current), hyper))
            if spec != self._spec:
                raise TypeError(f"a step of {first.method_name} gave a state of another structure than it took")
            return new

        new: list[Tensor] = torch.func.vmap(one)(changing, hypers, *batches)
        return new

    def check(self, tables: Tables) -> None:
        """Take the first step, forget it, and see that it is the one that each learner takes by itself.

        It is not where a step reads something of a learner's own that is not stacked: a frozen layer drawn from its
        seed, an attribute of psi or of the method. An error here is one of a step that cannot be stacked.
        """
        row, current = list(tables.row(0)), tables.sizes[0][0]
        with torch.no_grad():
            together = self.step([t.clone() for t in self.changing], self.fixed, row, current)
            batches = self._batches(self.fixed, row)
            for replica, learner in enumerate(self.learners):
                batch = _batch([t[replica] for t in batches], current)
                params, buffers, state = tree_map(torch.clone, learner.model)
                alone, _ = tree_flatten(learner.method.step(params, buffers, state, batch, learner.hyper_tensors))
                for ours, theirs in zip(together, alone, strict=True):
                    if not torch.allclose(ours[replica].double(), theirs.double(), 1e-2, 1e-4, equal_nan=True):
                        raise ValueError("a step reads something that differs between them and is not in its arguments")

    def put_back(self, changing: list[Tensor], steps: int) -> None:
        for replica, learner in enumerate(self.learners):
            own = [t[replica].clone() for t in changing]
            params, buffers, state = tree_unflatten(own, self._spec)
            learner.take(params, buffers, state, steps)

    def _batches(self, fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        """The tensors of a minibatch (see :func:`_batch`), replicas first."""
        pool, masks = fixed[:2]
        rows, y, task, slots, settled, augment = row
        images = self._first.prepare_training(pool[rows.flatten()], augment.flatten(0, 1) if augment.numel() else None)
        replicas = torch.arange(len(rows), device=rows.device)[:, None]
        return [images.unflatten(0, (len(rows), -1)), y, task, masks[replicas, task], slots, settled]


def _batch(tensors: Sequence[Tensor], current: int) -> Batch:
    x, y, task, mask, slots, settled = tensors
    return Batch(x, y, task, mask, current, slots, settled)


def _stacked(trees: Sequence[Any]) -> tuple[list[Tensor], Any]:
    """The leaves of equal trees, each stacked over them."""
    leaves, specs = zip(*(tree_flatten(tree) for tree in trees), strict=True)
    if any(spec != specs[0] for spec in specs):
        raise ValueError("their states differ in structure")
    return [torch.stack([leaf.detach() for leaf in several]) for several in zip(*leaves, strict=True)], specs[0]
