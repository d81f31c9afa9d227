"""The replay memory: which slots are read and written (a schedule that never looks at the model), what they hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclfp.errors import InputError
from cclfp.randomness import generator


class Examples(NamedTuple):
    """Raw examples, as they were given: no transform applied."""

    x: Tensor
    y: Tensor
    task: Tensor

    def rows(self, index: Tensor) -> Examples:
        return Examples(self.x[index], self.y[index], self.task[index])

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device), self.task.to(device))


class Reservoir:
    """Reservoir sampling (Vitter's algorithm R) and uniform replay, as a schedule of slots.

    It sees only how many examples pass, so a whole task can be scheduled before it is trained; draws come one by one
    from their own generators, so scheduling ahead and step by step give the same slots.

    >>> reservoir = Reservoir(size=3, seed=0)
    >>> reservoir.place(2), len(reservoir)
    ([0, 1], 2)
    >>> sorted(reservoir.draw(10))
    [0, 1]
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seen = 0
        self._draws = generator(seed, "replay")
        self._places = generator(seed, "memory")

    def __len__(self) -> int:
        return min(self.seen, self.size)

    def draw(self, k: int) -> list[int]:
        """min(k, filled) different filled slots, every set of them equally likely (Floyd's algorithm)."""
        filled = len(self)
        k = min(k, filled)
        chosen: list[int] = []
        for top, u in zip(range(filled - k, filled), _uniform(k, self._draws), strict=True):
            slot = int(u * (top + 1))
            chosen.append(top if slot in chosen else slot)
        return chosen

    def place(self, n: int) -> list[int]:
        """The slot each of the next n examples goes to, or -1 where it is not kept (or is overwritten at once)."""
        slots: list[int] = []
        for count, u in zip(range(self.seen, self.seen + n), _uniform(n, self._places), strict=True):
            slot = count if count < self.size else int(u * (count + 1))
            slots.append(slot if slot < self.size else -1)
        self.seen += n
        taken: set[int] = set()
        for i in reversed(range(n)):
            if slots[i] in taken:
                slots[i] = -1
            taken.add(slots[i])
        return slots

    def __deepcopy__(self, memo: object) -> Reservoir:
        twin = type(self)(self.size, 0)
        twin.load_state_dict(self.state_dict())
        return twin

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "draws": self._draws.get_state(), "places": self._places.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
        self._draws.set_state(state["draws"].cpu())
        self._places.set_state(state["places"].cpu())


def _uniform(n: int, g: torch.Generator) -> list[float]:
    # float64: u * (count + 1) keeps every slot reachable for any stream length.
    return torch.rand(n, dtype=torch.float64, generator=g).tolist()


class Memory:
    """Examples in the slots of a schedule: copies of its own, or rows of a stream that is in memory anyway."""

    def __init__(self, schedule: Reservoir, device: torch.device) -> None:
        self.schedule = schedule
        self.device = device
        self._pool: Examples | None = None
        self._rows: Tensor | None = None  # slot -> row of the pool; None: the pool is the memory's own, slot = row

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

    def make_room(self, new: Examples) -> None:
        """Have room for ``new`` (and what is held) in storage of the memory's own, which grows with what comes."""
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
        assert self._pool is not None
        kept = [i for i, slot in enumerate(slots) if slot >= 0]
        source = torch.tensor(kept, dtype=torch.int64, device=self.device)
        target = torch.tensor([slots[i] for i in kept], dtype=torch.int64, device=self.device)
        for ours, theirs in zip(self._pool, new, strict=True):
            ours[target] = theirs[source]

    def point_to(self, pool: Examples, rows: Tensor, schedule: Reservoir) -> None:
        """Hold rows of ``pool`` (one a filled slot) instead of copies, as a schedule that has moved on says."""
        self._pool, self._rows, self.schedule = pool, rows, schedule

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
        self.device = device

    def state_dict(self, *, copies: bool) -> dict[str, Any]:
        """All of it: with the examples themselves, or (``copies=False``) the rows they have in their stream."""
        if not copies and self._rows is not None:
            return {"schedule": self.schedule.state_dict(), "rows": self._rows}
        held = {name: tensor.clone() for name, tensor in self.examples()._asdict().items()}  # not the room beside them
        return {"schedule": self.schedule.state_dict(), "examples": held}

    def load_state_dict(self, state: dict[str, Any], pool: Examples | None = None) -> None:
        self.schedule.load_state_dict(state["schedule"])
        if "rows" in state:
            assert pool is not None, "these are rows of a stream, which must be given"
            self._pool, self._rows = pool, state["rows"].to(self.device)
        else:
            stored = Examples(**state["examples"])
            self._pool = Examples(*(t.clone() for t in stored)).to(self.device) if len(stored.y) else None
            self._rows = None
