"""The replay memory: examples stored in the slots of a schedule."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cclfp.schedules import Schedule


class Examples(NamedTuple):
    """Raw examples as the user gave them, without any transform."""

    x: Tensor
    y: Tensor
    task: Tensor

    def rows(self, index: Tensor) -> Examples:
        """The examples at these indices."""
        return Examples(self.x[index], self.y[index], self.task[index])

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device), self.task.to(device))


class Memory:
    """Examples in the slots of a schedule: either copies, or rows of a stream that is in RAM anyway.

    With ``keeps_task`` it also holds the examples of the current task until its end, when the method chooses which of
    them to keep.
    """

    def __init__(self, schedule: Schedule, device: torch.device, *, keeps_task: bool = False) -> None:
        self.schedule = schedule
        self.device = device
        self.keeps_task = keeps_task
        self._pool = self._nothing()
        self._rows: Tensor | None = None  # slot -> row of the pool; None: the pool holds copies, and slot = row
        self._current: list[Examples] = []  # the batches of the current task
        self._current_rows: Tensor | None = None  # the same as rows of the pool, if that is a stream

    @property
    def size(self) -> int:
        return self.schedule.size

    def __len__(self) -> int:
        return len(self.schedule)

    def examples(self) -> Examples:
        """The stored examples, in slot order."""
        if not len(self):
            return self._nothing()
        return Examples(*(t[: len(self)] for t in self._pool)) if self._rows is None else self._pool.rows(self._rows)

    def read(self, slots: list[int]) -> Examples:
        """The examples in these slots."""
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        return self._pool.rows(index if self._rows is None else self._rows[index])

    def copy(self) -> Memory:
        """The same memory with a schedule of its own, so that this one does not change before something is written."""
        twin = copy.copy(self)
        twin.schedule = copy.deepcopy(self.schedule)
        return twin

    def make_room(self, new: Examples) -> None:
        """Make sure that the memory's own storage, which grows on demand, has room for ``new``."""
        needed = min(self.size, len(self) + len(new.y))
        has_room = len(self) > 0 and self._rows is None and len(self._pool.y) >= needed
        if has_room or self.keeps_task:  # during a task nothing is stored
            return
        held = self.examples() if len(self) else new.rows(torch.empty(0, dtype=torch.int64))
        free = min(self.size, max(needed, 2 * len(held.y))) - len(held.y)
        self._pool = _joined([held, Examples(*(t.new_zeros(free, *t.shape[1:]) for t in held))])
        self._rows = None

    def write(self, new: Examples, slots: list[int]) -> None:
        """Copy ``new`` to the slots that ``schedule.place`` returned (-1: not kept), after ``make_room``.

        With ``keeps_task`` they are the current task's, until its end.
        """
        if self.keeps_task:
            self._current = [*self._current, Examples(*(t.clone() for t in new))]  # they may be the caller's tensors
            return
        kept = [i for i, slot in enumerate(slots) if slot >= 0]
        source = torch.tensor(kept, dtype=torch.int64, device=self.device)
        target = torch.tensor([slots[i] for i in kept], dtype=torch.int64, device=self.device)
        for ours, theirs in zip(self._pool, new.rows(source), strict=True):
            ours[target] = theirs

    def point_to(self, pool: Examples, rows: Tensor, schedule: Schedule, current: Tensor) -> None:
        """Hold rows of ``pool``, one per filled slot, instead of copies, with the schedule that chose them.

        ``current`` are the rows of the current task, in training order.
        """
        self._pool, self._rows, self.schedule = pool, rows, schedule
        self._current_rows = current if self.keeps_task else None

    def current(self) -> Examples:
        """The examples of the current task so far, in training order."""
        if self._current_rows is not None:
            return self._pool.rows(self._current_rows)
        return _joined(self._current) if self._current else self._nothing()

    def keep(self, chosen: Tensor) -> None:
        """Keep only these examples: numbers below len(self) are stored ones, the others the current task's."""
        if self._current_rows is not None and self._rows is not None:
            self._rows = torch.cat([self._rows, self._current_rows])[chosen]
        else:
            parts = [part for part in (self.examples(), self.current()) if len(part.y)]
            self._pool, self._rows = _joined(parts).rows(chosen), None
        self.schedule.keep(len(chosen))

    def end_task(self) -> None:
        """Discard the examples of the current task, and end it in the schedule."""
        self._current, self._current_rows = [], None
        self.schedule.end_task()

    @property
    def rows(self) -> Tensor:
        """The stream's row in each filled slot, where the memory holds rows of a stream."""
        assert self._rows is not None or not len(self), "the memory holds copies of observed examples"
        return torch.empty(0, dtype=torch.int64) if self._rows is None else self._rows

    def to(self, device: torch.device) -> None:
        self._pool, self._rows = self.examples().to(device), None
        self._current = [part.to(device) for part in self._current]
        self.device = device

    def state_dict(self, *, copies: bool) -> dict[str, Any]:
        """The whole state: with the examples themselves or, with ``copies=False``, their rows in the stream."""
        if not copies and self._rows is not None:
            return {"schedule": self.schedule.state_dict(), "rows": self._rows}
        held = {name: tensor.clone() for name, tensor in self.examples()._asdict().items()}  # not the unused storage
        state = {"schedule": self.schedule.state_dict(), "examples": held}
        return state | ({"current": self.current()._asdict()} if self.keeps_task else {})

    def load_state_dict(self, state: dict[str, Any], pool: Examples | None = None) -> None:
        """Restore what :meth:`state_dict` returned; ``pool`` has the stream's examples if the state has rows of it."""
        self.schedule.load_state_dict(state["schedule"])
        self._current, self._current_rows = [], None
        if pool is not None and "rows" in state:
            self._pool, self._rows = pool, state["rows"].to(self.device)
            return
        names = ("examples", "current") if self.keeps_task else ("examples",)
        parts = [Examples(**state[name]) for name in names]
        held, *current = (Examples(*(t.detach().to(self.device, copy=True) for t in part)) for part in parts)
        self._pool, self._rows = held, None
        self._current = [part for part in current if len(part.y)]

    def _nothing(self) -> Examples:
        empty = torch.empty(0, dtype=torch.int64, device=self.device)
        return Examples(empty, empty, empty)


def _joined(parts: list[Examples]) -> Examples:
    return Examples(*map(torch.cat, zip(*parts, strict=True)))
