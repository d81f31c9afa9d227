"""A plan: for one seed and one task, which examples, replayed examples and augmentations each step uses.

Sampling never looks at the model, so the whole schedule is known before the task starts. The draws are those that
``Learner.observe`` would make, in the same order.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cclfp.memory import Memory
from cclfp.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tables of a task: which of a stream's training examples each step takes, and how they are augmented."""

    rows: Tensor  # steps x (batch + replay): a step's current rows, then its replayed rows, then -1
    sizes: list[tuple[int, int]]  # how many current and how many replayed examples a step has
    memory: Tensor  # the row in each filled slot after the last step
    schedule: Schedule | None  # the memory's schedule after the last step
    slots: Tensor  # steps x replay: the slot of each replayed example, then -1
    settled: Tensor  # steps x replay: whether it was there when the last task ended
    augment: Tensor | None  # steps x (batch + replay) x what the augmentation draws for an example; None: no change

    def to(self, device: torch.device) -> Plan:
        augment = None if self.augment is None else self.augment.to(device)
        tables = {name: getattr(self, name).to(device) for name in ("rows", "memory", "slots", "settled")}
        return dataclasses.replace(self, **tables, augment=augment)

    @property
    def current(self) -> Tensor:
        """The rows of the task, in the order they are trained."""
        return torch.cat([self.rows[step, :current] for step, (current, _) in enumerate(self.sizes)])


def plan_task(
    rows: Tensor,
    tasks: Tensor,
    *,
    batch: int,
    epochs: int,
    replay: int,
    memory: Memory | None,
    order: torch.Generator,
    augment: Callable[[int, int], Tensor | None] = lambda step, n: None,
) -> Plan:
    """Plan the training on the examples ``rows``, in a fresh order each epoch; the last, incomplete batch is used.

    ``tasks`` has the task of every example of the stream. With ``replay=0`` nothing is replayed.
    ``augment`` draws the table for the n examples of a step, counted from the task's first.

    Nothing is changed: the plan has a schedule of its own, which the memory takes over at the task's end.
    """
    schedule = copy.deepcopy(memory.schedule) if memory is not None else None
    held = dict(enumerate(memory.rows.tolist())) if memory is not None else {}
    task_of = tasks.tolist()
    steps: list[list[int]] = []
    sizes: list[tuple[int, int]] = []
    slots: list[list[int]] = []
    settled: list[list[bool]] = []
    for _ in range(epochs):
        shuffled = rows[torch.randperm(len(rows), generator=order)].tolist()
        for start in range(0, len(shuffled), batch):
            current = shuffled[start : start + batch]
            drawn: list[int] = []
            replayed: list[int] = []
            if schedule is not None:
                of = [task_of[row] for row in current]
                drawn = schedule.draw(replay, of)
                replayed = [held[slot] for slot in drawn]
                settled.append([schedule.is_settled(slot) for slot in drawn])
                for row, slot in zip(current, schedule.place(of), strict=True):
                    if slot >= 0:
                        held[slot] = row
            slots.append(drawn)
            steps.append(current + replayed)
            sizes.append((len(current), len(replayed)))
    table = _padded(steps, -1, torch.int64)
    return Plan(
        rows=table,
        sizes=sizes,
        memory=torch.tensor([held[slot] for slot in range(len(held))], dtype=torch.int64),
        schedule=schedule,
        slots=_padded(slots, -1, torch.int64),
        settled=_padded(settled or slots, False, torch.bool),
        augment=_tables(sizes, table.shape[1], augment),
    )


def _padded(lines: list[list[Any]], value: Any, dtype: torch.dtype) -> Tensor:
    """The lines as a table, each filled up to the longest."""
    width = max(map(len, lines), default=0)
    table = [line + [value] * (width - len(line)) for line in lines]
    return torch.tensor(table, dtype=dtype).reshape(len(lines), width)


def _tables(sizes: list[tuple[int, int]], width: int, draw: Callable[[int, int], Tensor | None]) -> Tensor | None:
    drawn = [draw(step, current + replayed) for step, (current, replayed) in enumerate(sizes)]
    tables = [table for table in drawn if table is not None]
    if not tables:
        return None
    full = tables[0].new_zeros((len(tables), width, *tables[0].shape[1:]))
    for step, table in enumerate(tables):
        full[step, : len(table)] = table
    return full
