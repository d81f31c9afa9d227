"""A plan: for one seed and one task, which examples, replayed examples and augmentations each step uses.

Sampling never looks at the model, so the whole schedule is known before the task starts. The draws are those that
``Learner.observe`` would make, in the same order.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from cclfp.memory import Memory, Reservoir


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tables of a task: which of a stream's training examples each step takes, and how they are augmented."""

    rows: Tensor  # steps x (batch + replay): a step's current rows, then its replayed rows, then -1
    sizes: list[tuple[int, int]]  # how many current and how many replayed examples a step has
    memory: Tensor  # the row in each filled slot after the last step
    schedule: Reservoir | None  # the memory's schedule after the last step
    augment: Tensor | None  # steps x (batch + replay) x what the augmentation draws for an example; None: no change

    def to(self, device: torch.device) -> Plan:
        augment = None if self.augment is None else self.augment.to(device)
        return dataclasses.replace(self, rows=self.rows.to(device), memory=self.memory.to(device), augment=augment)


def plan_task(
    rows: Tensor,
    *,
    batch: int,
    epochs: int,
    replay: int,
    memory: Memory | None,
    order: torch.Generator,
    augment: Callable[[int, int], Tensor | None] = lambda step, n: None,
) -> Plan:
    """Plan the training on the examples ``rows``, in a fresh order each epoch; the last, incomplete batch is used.

    ``augment`` draws the table for the n examples of a step, counted from the task's first.

    Nothing is changed: the plan has a schedule of its own, which the memory takes over at the task's end.
    """
    schedule = copy.deepcopy(memory.schedule) if memory is not None else None
    held = dict(enumerate(memory.rows.tolist())) if memory is not None else {}
    steps: list[list[int]] = []
    sizes: list[tuple[int, int]] = []
    for _ in range(epochs):
        shuffled = rows[torch.randperm(len(rows), generator=order)].tolist()
        for start in range(0, len(shuffled), batch):
            current = shuffled[start : start + batch]
            replayed: list[int] = []
            if schedule is not None:
                replayed = [held[slot] for slot in schedule.draw(replay)]
                for row, slot in zip(current, schedule.place(len(current)), strict=True):
                    if slot >= 0:
                        held[slot] = row
            steps.append(current + replayed)
            sizes.append((len(current), len(replayed)))
    width = max(map(len, steps), default=0)
    table = torch.tensor([step + [-1] * (width - len(step)) for step in steps], dtype=torch.int64)
    slots = torch.tensor([held[slot] for slot in range(len(held))], dtype=torch.int64)
    return Plan(table.reshape(len(steps), width), sizes, slots, schedule, _tables(sizes, width, augment))


def _tables(sizes: list[tuple[int, int]], width: int, draw: Callable[[int, int], Tensor | None]) -> Tensor | None:
    drawn = [draw(step, current + replayed) for step, (current, replayed) in enumerate(sizes)]
    tables = [table for table in drawn if table is not None]
    if not tables:
        return None
    full = tables[0].new_zeros((len(tables), width, *tables[0].shape[1:]))
    for step, table in enumerate(tables):
        full[step, : len(table)] = table
    return full
