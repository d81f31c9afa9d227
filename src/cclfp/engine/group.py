"""Replicas that take their steps together: flat lists of tensors, and one function that takes a step of all of them.

The function can run as it is, compiled, or in a CUDA graph. There are three kinds of groups (:func:`make_group` in
:mod:`cclfp.engine.grouping` picks one):

- :class:`~cclfp.engine.stacked.StackedGroup` has the replicas side by side in each tensor, so that one operation serves
  all of them (vmap).
- :class:`~cclfp.engine.parallel.ParallelGroup` keeps their tensors apart and lets them run at the same time. It is for
  BatchNorm, whose statistics each network updates in place, and for large convolutions, which PyTorch does not make
  faster when it stacks them.
- :class:`~cclfp.engine.kernels.group.KernelGroup` is for ResNet18 in bf16 on a GPU that has our own kernels
  (:mod:`cclfp.engine.kernels`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from cclfp.core.scenarios import ClassMask
from cclfp.engine.agreement import compare_steps, perturb, pick_replicas, refuse_randomness, tolerance_of
from cclfp.engine.tables import Tables
from cclfp.learner import Learner
from cclfp.learner.checks import not_finite
from cclfp.methods import Batch, Method

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]  # changing, fixed, row -> changing
Compile = Callable[..., Step]  # takes a step, and three arguments like those that it will be called with


class Group:
    """Base of all groups. The trainers' task has begun."""

    changing: list[Tensor]  # what their steps change
    fixed: list[Tensor]  # what their steps only read; the first two are the pool of inputs and the tables of masks

    def __init__(self, trainers: Sequence[Learner]) -> None:
        self.trainers = trainers
        specs = [tree_flatten(trainer.model)[1] for trainer in trainers]
        if any(spec != specs[0] for spec in specs):
            raise ValueError("their states differ in structure")
        self.spec = specs[0]
        self._hyper_spec = tree_flatten(dataclasses.asdict(trainers[0].hyper_tensors))[1]

    @property
    def structure(self) -> str:
        """What distinguishes the program of one step from that of another, besides the shapes of its tensors."""
        return f"{type(self).__name__} {self.trainers[0].algorithm.name} {self.spec} {self._hyper_spec}"

    def make_step(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        """A function that takes steps of the same sizes as step ``like``, for all replicas.

        It is compiled if a compiler is given. An error here means that such a step cannot be taken together.
        """
        raise NotImplementedError

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        """A replica's part of the tensors that change."""
        raise NotImplementedError

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        """The tensors that change, from all replicas' parts of them."""
        raise NotImplementedError

    def perturbed(self) -> list[Tensor]:
        """The tensors that change, each changed a little (see :func:`perturb`)."""
        return perturb(self.changing)

    def check_step(self, step: Step, tables: Tables, like: int) -> None:
        """ValueError where a step taken together is not the one that each replica takes alone.

        They differ where a step reads something that is not among its arguments: a frozen layer drawn from the
        learner's seed, or an attribute that another task, or another replica, has set.
        """
        current, row = tables.sizes[like][0], tables.row(like)
        before = self.perturbed()
        new = step([t.clone() for t in before], self.fixed, row)
        prepared = prepare_batches(self.trainers[0], self.fixed, row)
        tolerance = tolerance_of(self.trainers[0], row[0].device)
        for replica in pick_replicas(self.trainers):
            own = self.part_of(before, replica)
            alone = self._step_alone(replica, [t.clone() for t in own], prepared, current)
            params: dict[str, Tensor] = tree_unflatten(alone, self.spec)[0]
            if not_finite(list(params.values())):  # it diverges: there is nothing to compare
                continue
            compare_steps(own, self.part_of(new, replica), alone, tolerance)

    def make_steps_alone(self, tables: Tables, like: int) -> Step:
        """A function that takes the same steps as that of :meth:`make_step`, but one replica after the other."""
        current, replicas = tables.sizes[like][0], range(len(self.trainers))

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(self.trainers[0], fixed, row)
            return self.join([self._step_alone(i, self.part_of(changing, i), prepared, current) for i in replicas])

        row = tables.row(like)
        refuse_randomness(lambda: step([t.clone() for t in self.changing], self.fixed, row), row[0].device)
        return step

    def _step_alone(self, replica: int, own: list[Tensor], prepared: list[Tensor], current: int) -> list[Tensor]:
        """A step of one replica on its part of the prepared batches."""
        trainer, batch = self.trainers[replica], make_batch([t[replica] for t in prepared], current)
        return flat_step(trainer.algorithm, own, self.spec, batch, trainer.hyper_tensors)

    def write_back(self, changing: list[Tensor], steps: int) -> None:
        """Update the trainers with what ``steps`` steps made of ``changing``: all of them or, on an error, none."""
        after = []
        for replica in range(len(self.trainers)):
            params, buffers, state = tree_unflatten(self.part_of(changing, replica), self.spec)
            after.append((params, buffers, tree_map(torch.clone, state)))
        for trainer, (params, buffers, state) in zip(self.trainers, after, strict=True):
            trainer.update(params, buffers, state, steps)
        self.changing, self.fixed = [], []  # step functions of this task may be kept, and with them this group


def flat_step(method: Method, changing: list[Tensor], spec: TreeSpec, batch: Batch, hyper: Any) -> list[Tensor]:
    """A step of one replica on flat lists. The loss that it may return is dropped."""
    params, buffers, state = tree_unflatten(changing, spec)
    new, new_spec = tree_flatten(method.step(params, buffers, state, batch, hyper)[:3])
    if new_spec != spec:
        raise TypeError(f"a step of {method.name} gave a state of another structure than it took")
    return new


def prepare_batches(trainer: Learner, fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
    """The tensors of :func:`make_batch`, replicas first. All trainers of a group prepare their inputs alike."""
    pool, masks = fixed[:2]
    rows, y, task, slots, from_past_task, placed, augment = row
    x = trainer.for_training(pool[rows.flatten()], augment.flatten(0, 1) if augment.numel() else None)
    replicas = torch.arange(len(rows), device=rows.device)[:, None]
    return [x.unflatten(0, (len(rows), -1)), y, task, masks[replicas, task], slots, from_past_task, placed]


def make_batch(tensors: Sequence[Tensor], current: int) -> Batch:
    """A minibatch of one replica, whose first ``current`` examples are new."""
    x, y, task, mask, *slots = tensors
    return Batch(x, y, task, mask, current, *slots)


def mask_table(mask: ClassMask) -> Tensor:
    """tasks x classes: the mask of an example of each task."""
    return mask.train(torch.arange(len(mask.classes_of), device=mask.classes_of.device))


def stack_leaves(trees: Sequence[Any]) -> tuple[list[Tensor], TreeSpec]:
    """The leaves of trees of equal structure, each stacked over the trees, and that structure."""
    leaves, specs = zip(*(tree_flatten(tree) for tree in trees), strict=True)
    if any(spec != specs[0] for spec in specs):
        raise ValueError("their states differ in structure")
    return [torch.stack([leaf.detach() for leaf in several]) for several in zip(*leaves, strict=True)], specs[0]
