"""The plans of all replicas of a group as tables: one row per step, with the replicas side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cclfp.core.memory import Examples
from cclfp.engine.plan import Plan


class Row(NamedTuple):
    """What one step of all replicas uses. In :class:`Tables` each field has the steps as a dimension in front."""

    rows: Tensor  # replicas x examples: which of the pool's inputs
    y: Tensor  # replicas x examples
    task: Tensor  # replicas x examples
    slots: Tensor  # replicas x replayed
    from_past_task: Tensor  # replicas x replayed
    placed: Tensor  # replicas x current examples
    augment: Tensor  # replicas x examples x what the augmentation draws; empty where there is none


class Tables:
    """The plans of one task of all replicas. Each step has the same number of examples in all of them.

    ``offsets`` says where the inputs of each replica's stream begin in the pool. The tables have at least ``room``
    rows, so that those of all tasks can have the same shape.
    """

    def __init__(
        self, plans: Sequence[Plan], streams: Sequence[Examples], offsets: Sequence[int], room: int = 0
    ) -> None:
        self.sizes = plans[0].sizes
        if any(plan.sizes != self.sizes for plan in plans):
            raise ValueError("their tasks are of different sizes")
        # Replicas may share a plan. Streams that share their inputs may still differ in the task of a class.
        kinds = list(zip(map(id, plans), map(id, streams), offsets, strict=True))
        distinct = list(dict.fromkeys(kinds))
        chosen = [(plans[i], streams[i], offsets[i]) for i in map(kinds.index, distinct)]
        augmented = [plan.augment for plan, _, _ in chosen if plan.augment is not None]
        tables = Row(
            torch.stack([plan.rows + offset for plan, _, offset in chosen], 1),
            torch.stack([stream.y[plan.rows] for plan, stream, _ in chosen], 1),
            torch.stack([stream.task[plan.rows] for plan, stream, _ in chosen], 1),
            torch.stack([plan.slots for plan, _, _ in chosen], 1),
            torch.stack([plan.from_past_task for plan, _, _ in chosen], 1),
            torch.stack([plan.placed for plan, _, _ in chosen], 1),
            torch.stack(augmented, 1) if augmented else torch.empty(len(self.sizes), len(chosen), 0),
        )
        index = torch.tensor([distinct.index(kind) for kind in kinds], device=tables.rows.device)
        self.tables = Row(*(_lengthen(t.to(index.device).index_select(1, index), room) for t in tables))

    def row(self, step: int) -> list[Tensor]:
        """The row of a step."""
        return self._cut([t[step] for t in self.tables], *self.sizes[step])

    def row_at(self, counter: Tensor, like: int) -> list[Tensor]:
        """The row of the step in ``counter``, a (1,) tensor. Its sizes must be those of step ``like``."""
        return self._cut([t.index_select(0, counter).squeeze(0) for t in self.tables], *self.sizes[like])

    def segments(self) -> list[range]:
        """The steps, split where their sizes change."""
        starts = [i for i, size in enumerate(self.sizes) if i == 0 or size != self.sizes[i - 1]]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.sizes)], strict=True)]

    def _cut(self, row: list[Tensor], current: int, replayed: int) -> list[Tensor]:
        size = current + replayed
        widths = (size, size, size, replayed, replayed, current, size)
        return [t[:, :width] for t, width in zip(row, widths, strict=True)]


def _lengthen(table: Tensor, steps: int) -> Tensor:
    """The table with rows of zeros up to this number of steps."""
    if len(table) >= steps:
        return table
    return torch.cat([table, table.new_zeros(steps - len(table), *table.shape[1:])])
