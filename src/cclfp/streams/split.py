"""Streams that divide the classes of a dataset among tasks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from cclfp.core.memory import Examples
from cclfp.data import Dataset
from cclfp.errors import InputError
from cclfp.streams.stream import Stream
from cclfp.transforms import Normalise, Scale


def split(data: Dataset, scenario: str, order: Sequence[int], sizes: Sequence[int]) -> Stream:
    """Split a dataset into tasks: task t has the next ``sizes[t]`` classes of ``order``. Class ids stay the same."""
    if sum(sizes) != data.num_classes or min(sizes, default=0) < 1:
        raise InputError(f"sizes={list(sizes)}: expected the number of classes per task, {data.num_classes} in total")
    ends = list(itertools.accumulate(sizes))
    classes = [list(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    task_of = torch.empty(data.num_classes, dtype=torch.int64)
    for task, members in enumerate(classes):
        task_of[members] = task
    train = Examples(data.train_images, data.train_labels, task_of[data.train_labels])
    test = Examples(data.test_images, data.test_labels, task_of[data.test_labels])
    tasks = range(len(classes))
    return Stream(
        scenario=scenario,
        num_classes=data.num_classes,
        classes=classes,
        train=train,
        train_rows=[(train.task == task).nonzero().flatten() for task in tasks],
        test=[test.rows((test.task == task).nonzero().flatten()) for task in tasks],
        transform=Scale() if data.mean is None or data.std is None else Normalise(data.mean, data.std),
    )


def even_sizes(num_classes: int, tasks: int) -> tuple[int, ...]:
    """The number of classes per task, as even as possible; the first tasks have one more.

    >>> even_sizes(10, 4)
    (3, 3, 2, 2)
    """
    if not 1 <= tasks <= num_classes:
        raise InputError(f"tasks={tasks}: expected a whole number from 1 to {num_classes}, the number of classes")
    return tuple(num_classes // tasks + (task < num_classes % tasks) for task in range(tasks))
