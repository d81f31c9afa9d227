"""Checks of the batches that users give to a learner. A refused batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.core.arguments import as_tensor
from cclfp.core.memory import Examples
from cclfp.errors import InputError
from cclfp.learner.trainer import Trainer

Task = int | Sequence[int] | Tensor

MAX_TASKS = 10_000  # the table of each task's classes has one row per id, up to the largest id


def check_batch(trainer: Trainer, x: Any, y: Any, task: Task | None) -> Examples:
    """A labelled batch as raw examples on the trainer's device. Without ``task``, it is of the current task."""
    x, y = _check_format(trainer, as_tensor("x", x)), as_tensor("y", y)
    if len(x) == 0:
        raise InputError(f"x is empty (shape {tuple(x.shape)}): a batch has at least one example")
    y = _check_labels(y, len(x), trainer.settings.num_classes)
    _check_finite(x)
    ids = check_task(trainer, _current_task(trainer) if task is None else task, len(x))
    x, y = x.to(trainer.device), y.to(trainer.device)
    if trainer.classes.declared:
        foreign = ~trainer.classes.classes_of[ids, y]
        if foreign.any():
            i = int(foreign.nonzero()[0])
            raise InputError(f"label {int(y[i])} is not among the classes declared for task {int(ids[i])}")
    return Examples(x, y, ids)


def check_inputs(trainer: Trainer, x: Any) -> Tensor:
    """Inputs without labels, on the trainer's device."""
    return _check_finite(_check_format(trainer, as_tensor("x", x))).to(trainer.device)


def check_task(trainer: Trainer, task: Task, n: int) -> Tensor:
    """The task of each of n examples: ``task`` is one id for all of them or one id per example."""
    ids = as_tensor("task", task)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.shape not in ((), (n,)):
        raise InputError(f"task must be one whole number or one for each of the {n} examples, not {task!r}")
    ids = ids.long().to(trainer.device).expand(n)
    if n and not 0 <= int(ids.min()) <= int(ids.max()) < MAX_TASKS:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"task {wrong} is out of range: tasks are counted from 0 to {MAX_TASKS - 1:,}")
    known = len(trainer.classes.classes_of)
    if trainer.classes.declared and n and int(ids.max()) >= known:
        raise InputError(f"task {int(ids.max())} is not one of the {known} declared tasks (counted from 0)")
    return ids


def _current_task(trainer: Trainer) -> int:
    """The id of the task that follows those that have ended."""
    if trainer.settings.scenario == "task":
        raise InputError("the task scenario needs the task of each batch: observe(x, y, task=...)")
    task = trainer.tasks_done
    if trainer.classes.declared and task >= len(trainer.classes.classes_of):
        raise InputError(f"all {task} declared tasks are ended: say which task this batch is of, task=...")
    return task


def _check_labels(y: Tensor, n: int, num_classes: int) -> Tensor:
    if y.shape != (n,):
        raise InputError(f"y must hold one label for each of the {n} examples, but its shape is {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y must hold whole numbers (class ids), not {y.dtype}")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise InputError(f"label {wrong} is out of range: this learner has classes 0 to {num_classes - 1}")
    return y


def _check_finite(x: Tensor) -> Tensor:
    if x.is_floating_point() and not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x.flatten(1) if x.ndim > 1 else x[:, None])).any(1).nonzero()[0])
        raise InputError(f"x has NaN or infinite values (the first in example {bad} of the batch)")
    return x


def _check_format(trainer: Trainer, x: Tensor) -> Tensor:
    """Examples must have the shape and dtype of the first batch; floats of another precision are converted."""
    if x.ndim == 0:
        raise InputError("x must be a batch of examples, not a single number")
    if trainer.example is None:
        return x
    shape, dtype = trainer.example
    if x.shape[1:] != shape:
        raise InputError(f"examples must have the shape {tuple(shape)} of the first batch, not {tuple(x.shape[1:])}")
    if x.dtype != dtype and not (x.is_floating_point() and dtype.is_floating_point):
        raise InputError(f"examples must be {dtype} like the first batch, not {x.dtype}")
    return x.to(dtype)
