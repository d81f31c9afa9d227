"""A stream in RAM: raw tensors, and the examples of each task."""

from __future__ import annotations

import dataclasses
import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.transforms import Scale, Transform

VALIDATION_SHARE = 10  # one of this many training examples is held out

# Inputs -> their copies on other devices, while a stream uses them. Streams that share inputs share the copies too.
_copies = WeakTensorKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Stream:
    """An ordered list of tasks. ``joint()`` returns a stream with the same examples as one task."""

    scenario: str
    num_classes: int
    classes: list[list[int]]  # one list per task
    train: Examples  # of all tasks
    train_rows: list[Tensor]  # the rows of ``train`` to train on: one tensor per task, a single one if joint
    test: list[Examples]  # one entry per task
    transform: Transform = dataclasses.field(default_factory=Scale)

    @property
    def num_tasks(self) -> int:
        return len(self.classes)

    def joint(self) -> Stream:
        """The stream with all tasks trained as one, for the upper bound; the test sets stay the same."""
        return dataclasses.replace(self, train_rows=[torch.cat(self.train_rows)])

    def validation(self, seed: int) -> Stream:
        """The stream for tuning hyperparameters: a tenth of each task's training examples is held out for testing."""
        kept, test = [], []
        for task, rows in enumerate(self.train_rows):
            order = torch.randperm(len(rows), generator=generator(seed, "validation", task))
            held_out = max(1, len(rows) // VALIDATION_SHARE)
            test.append(self.train.rows(rows[order[:held_out]]))
            kept.append(rows[order[held_out:].sort().values])
        return dataclasses.replace(self, train_rows=kept, test=test)

    def task_ids(self, position: int) -> list[int]:
        """The tasks trained at a position of the stream: one, or all tasks of a joint stream."""
        return [position] if len(self.train_rows) == self.num_tasks else list(range(self.num_tasks))

    def to(self, device: torch.device) -> Stream:
        """The stream on a device."""
        train = self.train._replace(x=_copy(self.train.x, device)).to(device)
        return dataclasses.replace(self, train=train, test=[t.to(device) for t in self.test])


def _copy(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device: the same copy in every call."""
    copies = _copies.setdefault(x, weakref.WeakValueDictionary())
    there: Tensor | None = copies.get(device)
    if there is None:
        copies[device] = there = x.to(device)
    return there
