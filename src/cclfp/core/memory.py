"""The replay memory: examples in the slots of a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclfp.core.layouts import Like, check_layout, check_value
from cclfp.core.schedules import Exemplars, Schedule
from cclfp.errors import DamagedError, InputError


class Examples(NamedTuple):
    """Raw examples, as they were given: no transform applied."""

    x: Tensor
    y: Tensor
    task: Tensor

    def rows(self, index: Tensor) -> Examples:
        return Examples(self.x[index], self.y[index], self.task[index])

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device), self.task.to(device))


class Replayed(NamedTuple):
    """Where replayed examples come from: their slots, and whether each came before the current task began."""

    slots: Tensor
    from_past_task: Tensor


class Memory:
    """Examples in the slots of a schedule: copies of its own, or rows of a stream that is in memory anyway.

    With ``keeps_task`` it holds the current task besides, until the task's end, for a method that chooses then what to
    keep of it.
    """

    def __init__(self, schedule: Schedule, device: torch.device, *, keeps_task: bool = False) -> None:
        self.schedule = schedule
        self.device = device
        self.keeps_task = keeps_task
        self._pool: Examples | None = None
        self._rows: Tensor | None = None  # slot -> row of the pool; None: the pool is the memory's own, slot = row
        self._current: list[Examples] = []  # of the current task, as it came
        self._current_rows: Tensor | None = None  # the same as rows of the pool, where it is a stream's

    @property
    def size(self) -> int:
        return self.schedule.size

    def __len__(self) -> int:
        return len(self.schedule)

    def examples(self) -> Examples:
        """What the memory holds, in slot order."""
        if self._pool is None or not len(self):
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return Examples(empty, empty, empty)
        if self._rows is not None:
            return self._pool.rows(self._rows)
        return Examples(*(tensor[: len(self)] for tensor in self._pool))

    def read(self, slots: list[int]) -> Examples:
        assert self._pool is not None, "reading from an empty memory"
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        return self._pool.rows(index if self._rows is None else self._rows[index])

    def position(self) -> tuple[dict[str, Any], Tensor]:
        """What it holds and where in its draws its schedule is; ``rewind`` goes back there."""
        return dict(vars(self)), self.schedule.position()

    def rewind(self, position: tuple[dict[str, Any], Tensor]) -> None:
        held, drawn = position
        vars(self).update(held)
        self.schedule.rewind(drawn)

    def make_room(self, new: Examples) -> None:
        """Have room for ``new`` (and what is held) in storage of the memory's own, which grows with what comes."""
        if self.keeps_task:  # nothing enters the memory during a task
            return
        needed = min(self.size, len(self) + len(new.y))
        if len(self) and self._rows is None and self._pool is not None and len(self._pool.y) >= needed:
            return
        held = self.examples() if len(self) else new.rows(torch.empty(0, dtype=torch.int64))
        rows = min(self.size, max(needed, 2 * len(held.y)))

        def grown(held: Tensor) -> Tensor:
            full = torch.zeros((rows, *held.shape[1:]), dtype=held.dtype, device=self.device)
            full[: len(held)] = held
            return full

        self._pool, self._rows = Examples(*map(grown, held)), None

    def write(self, new: Examples, slots: list[int]) -> None:
        """Copy ``new`` into ``slots`` (-1: not kept), as ``schedule.place`` gave them, after ``make_room``."""
        if self.keeps_task:
            return
        assert self._pool is not None
        kept = [i for i, slot in enumerate(slots) if slot >= 0]
        source = torch.tensor(kept, dtype=torch.int64, device=self.device)
        target = torch.tensor([slots[i] for i in kept], dtype=torch.int64, device=self.device)
        for ours, theirs in zip(self._pool, new, strict=True):
            ours[target] = theirs[source]

    def point_to(self, pool: Examples, rows: Tensor, schedule: Schedule, current: Tensor) -> None:
        """Hold rows of ``pool`` (one a filled slot) instead of copies, as a schedule that has moved on says.

        ``current`` are the rows of the task that was trained, in the order they came.
        """
        self._pool, self._rows, self.schedule = pool, rows, schedule
        self._current_rows = current if self.keeps_task else None

    def hold(self, new: Examples) -> None:
        """Keep these until the task's end."""
        if self.keeps_task:
            self._current.append(new)

    def current(self) -> Examples:
        """The current task so far, in the order it came."""
        if self._current_rows is not None:
            assert self._pool is not None
            return self._pool.rows(self._current_rows)
        if not self._current:
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return Examples(empty, empty, empty)
        return Examples(*(torch.cat(tensors) for tensors in zip(*self._current, strict=True)))

    def keep(self, slots: Tensor, current: Tensor) -> None:
        """Hold what these slots held and, after it, these of the current task: a method's choice at a task's end."""
        assert isinstance(self.schedule, Exemplars), "only exemplars are chosen by the method"
        if self._current_rows is not None:
            assert self._rows is not None
            self._rows = torch.cat([self._rows[slots], self._current_rows[current]])
        else:
            held, new = self.examples(), self.current().rows(current)
            parts = [held.rows(slots), new] if len(held.y) else [new]
            self._pool = Examples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        self.schedule.keep(len(slots) + len(current))

    def end_task(self) -> None:
        """Let go of the task that ended."""
        self._current, self._current_rows = [], None
        self.schedule.end_task()

    @property
    def rows(self) -> Tensor:
        """The stream's row in each filled slot; InputError where the memory holds copies from ``observe`` instead."""
        if self._rows is not None:
            return self._rows
        if len(self):
            raise InputError("this learner remembers examples it observed, which are no rows of the stream to train on")
        return torch.empty(0, dtype=torch.int64)

    def to(self, device: torch.device) -> None:
        if self._pool is not None:
            self._pool, self._rows = self.examples().to(device), None
        self._current = [part.to(device) for part in self._current]
        self.device = device

    def state_dict(self, *, copies: bool) -> dict[str, Any]:
        """All of it: with the examples themselves, or (``copies=False``) the rows they have in their stream."""
        if not copies and self._rows is not None:
            return {"schedule": self.schedule.state_dict(), "rows": self._rows}
        held = {name: tensor.clone() for name, tensor in self.examples()._asdict().items()}  # not the room beside them
        state = {"schedule": self.schedule.state_dict(), "examples": held}
        return state | ({"current": self.current()._asdict()} if self.keeps_task else {})

    def load_state_dict(self, state: dict[str, Any], pool: Examples | None = None) -> None:
        """Take over what :meth:`state_dict` gave; ``pool`` is the stream's examples where these are rows of it."""
        check_value("memory.schedule", state["schedule"], dict)
        self.schedule.load_state_dict(state["schedule"])
        held = len(self)
        self._current, self._current_rows = [], None
        if "rows" in state:
            if pool is None:
                raise DamagedError("memory has rows of a stream, expected examples")
            check_layout("memory.rows", state["rows"], Like((held,), torch.int64, 0, len(pool.y) - 1))
            self._pool, self._rows = pool, state["rows"].to(self.device)
        else:
            stored = _loaded("memory.examples", state["examples"])
            if len(stored.y) != held:
                raise DamagedError(f"memory.examples are {len(stored.y)}, expected {held} as in its schedule")
            self._pool = stored.to(self.device) if held else None
            self._rows = None
            if self.keeps_task and len((current := _loaded("memory.current", state["current"])).y):
                self._current = [current.to(self.device)]


def _loaded(name: str, state: dict[str, Tensor]) -> Examples:
    """A copy of examples from a file, once their types and lengths are checked."""
    check_value(name, state, dict)
    examples = Examples(**state)
    n = len(examples.y)
    shape = tuple(examples.x.shape[1:])
    whole = Like((n,), torch.int64, low=0)
    check_layout(name, state, {"x": Like((n, *shape), examples.x.dtype), "y": whole, "task": whole})
    return Examples(*(tensor.detach().clone() for tensor in examples))
