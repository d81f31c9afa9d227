"""A stream in memory: raw tensors, and which of them belong to which task."""

from __future__ import annotations

import dataclasses
import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.transforms import Scale, Transform

VALIDATION_SHARE = 10

# Inputs -> their copies on other devices, while a stream has them: streams that share their inputs share these too.
_copies = WeakTensorKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Stream:
    """An ordered list of tasks. ``joint()`` gives the same examples as one task."""

    scenario: str
    num_classes: int
    classes: list[list[int]]  # of each task
    train: Examples  # of all tasks
    train_rows: list[Tensor]  # the rows of ``train`` that are trained on together, in this order: one tensor a task
    test: list[Examples]  # of each task
    transform: Transform = dataclasses.field(default_factory=Scale)

    @property
    def num_tasks(self) -> int:
        return len(self.classes)

    def joint(self) -> Stream:
        """All tasks at once, for the upper bound; tested task by task as before."""
        return dataclasses.replace(self, train_rows=[torch.cat(self.train_rows)])

    def validation(self, seed: int) -> Stream:
        """The stream for choosing hyperparameters: tested on a tenth of each task's training examples, held out."""
        kept, test = [], []
        for task, rows in enumerate(self.train_rows):
            order = torch.randperm(len(rows), generator=generator(seed, "validation", task))
            held_out = max(1, len(rows) // VALIDATION_SHARE)
            test.append(self.train.rows(rows[order[:held_out]]))
            kept.append(rows[order[held_out:].sort().values])
        return dataclasses.replace(self, train_rows=kept, test=test)

    def task_ids(self, position: int) -> list[int]:
        """The tasks trained at a position of the stream: one, or all of them in a joint stream."""
        return [position] if len(self.train_rows) == self.num_tasks else list(range(self.num_tasks))

    def to(self, device: torch.device) -> Stream:
        train = self.train._replace(x=_copy(self.train.x, device)).to(device)
        return dataclasses.replace(self, train=train, test=[t.to(device) for t in self.test])


def _copy(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, one copy for all who ask."""
    copies = _copies.setdefault(x, weakref.WeakValueDictionary())
    there: Tensor | None = copies.get(device)
    if there is None:
        copies[device] = there = x.to(device)
    return there
