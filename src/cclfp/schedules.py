"""How a memory is filled and replayed, as schedules of slots.

A schedule never looks at the model: it sees how many examples pass, and of which tasks. So a whole task can be
scheduled before it is trained. Draws come one by one from their own generators, so that scheduling ahead and step by
step give the same slots.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from cclfp.errors import InputError
from cclfp.randomness import generator


class Schedule:
    """Base of all schedules: uniform replay of what is held. ``place`` says what is held."""

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        self.size = size
        self.seen = 0  # examples that passed
        self.written: list[int] = []  # for each filled slot, which of them it holds
        self.settled = 0  # how many had passed when the last task ended
        self._draws = generator(seed, "replay")

    def __len__(self) -> int:
        """How many slots are filled; they are the first ones."""
        return len(self.written)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        """The slots to replay beside a batch of these tasks: k different ones, or all there are."""
        return self._choose(range(len(self)), k)

    def place(self, tasks: Sequence[int]) -> list[int]:
        """The slot each of the next examples, of these tasks, goes to; -1: not kept, or overwritten at once."""
        slots = [self._slot(self.seen + i, task) for i, task in enumerate(tasks)]
        for i, slot in enumerate(slots):
            if slot == len(self.written):
                self.written.append(self.seen + i)
            elif slot >= 0:
                self.written[slot] = self.seen + i
        self.seen += len(tasks)
        last = {slot: i for i, slot in enumerate(slots)}
        return [slot if last[slot] == i else -1 for i, slot in enumerate(slots)]

    def position(self) -> torch.Tensor:
        """Where in its draws the schedule is; ``rewind`` goes back there."""
        return self._draws.get_state()

    def rewind(self, position: torch.Tensor) -> None:
        self._draws.set_state(position)

    def end_task(self) -> None:
        self.settled = self.seen

    def is_settled(self, slot: int) -> bool:
        """Whether the slot holds what it held when the last task ended."""
        return self.written[slot] < self.settled

    def _slot(self, number: int, task: int) -> int:
        """The slot of one example, the ``number``-th of all."""
        raise NotImplementedError

    def _choose(self, slots: Sequence[int], k: int) -> list[int]:
        """min(k, all) of the slots, every set of them equally likely (Floyd's algorithm)."""
        n = len(slots)
        k = min(k, n)
        chosen: list[int] = []
        for top, u in zip(range(n - k, n), _uniform(k, self._draws), strict=True):
            i = int(u * (top + 1))
            chosen.append(top if i in chosen else i)
        return [slots[i] for i in chosen]

    def __deepcopy__(self, memo: object) -> Schedule:
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            is_generator = isinstance(value, torch.Generator)
            setattr(twin, name, _copy_of(value) if is_generator else copy.deepcopy(value))
        return twin

    def state_dict(self) -> dict[str, Any]:
        """All that changes; generators as their states."""
        return {
            name: value.get_state() if isinstance(value, torch.Generator) else copy.deepcopy(value)
            for name, value in vars(self).items()
            if name != "size"
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in vars(self).items():
            if isinstance(value, torch.Generator):
                value.set_state(state[name].cpu())
            elif name != "size":
                setattr(self, name, copy.deepcopy(state[name]))


class Reservoir(Schedule):
    """Reservoir sampling (Vitter's algorithm R): all that passed are held with the same probability.

    >>> reservoir = Reservoir(size=3, seed=0)
    >>> reservoir.place([0, 0]), len(reservoir)
    ([0, 1], 2)
    >>> sorted(reservoir.draw(10))
    [0, 1]
    """

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)
        self._places = generator(seed, "memory")
        self._drawn: list[float] = []

    def place(self, tasks: Sequence[int]) -> list[int]:
        self._drawn = _uniform(len(tasks), self._places)
        return super().place(tasks)

    def _slot(self, number: int, task: int) -> int:
        u = self._drawn[number - self.seen]
        slot = number if number < self.size else int(u * (number + 1))
        return slot if slot < self.size else -1


class Ring(Schedule):
    """The most recent examples of each task, in equal shares.

    With ``num_tasks`` each task has its share from the start. Without, the shares of past tasks shrink as tasks come:
    a new task takes the oldest example of the task that has most, so that the memory is always full.

    >>> ring = Ring(size=4, seed=0, num_tasks=2)
    >>> ring.place([0, 0, 0]), ring.place([1, 1, 1, 1])
    ([-1, 1, 0], [-1, -1, 2, 3])
    >>> ring = Ring(size=4, seed=0)
    >>> ring.place([0, 0, 0, 0]), ring.place([1, 1, 1])
    ([0, 1, 2, 3], [-1, 1, 0])
    """

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)
        if num_tasks is not None and num_tasks > size:
            raise InputError(f"a memory of {size} cannot be split over {num_tasks} tasks: one example each at least")
        self.num_tasks = num_tasks
        self.slots: dict[int, list[int]] = {}  # task -> its slots, the oldest example's first

    def _slot(self, number: int, task: int) -> int:
        mine = self.slots.setdefault(task, [])
        used = sum(map(len, self.slots.values()))
        share = self.size // max(self.num_tasks or 0, len(self.slots)) or 1
        if used < self.size and (self.num_tasks is None or len(mine) < share):
            slot = used
        elif len(mine) >= share:
            slot = mine.pop(0)
        else:
            others = {other: slots for other, slots in self.slots.items() if other != task}
            slot = max(others.values(), key=len).pop(0)
        mine.append(slot)
        return slot


class PastRing(Ring):
    """A ring whose memory is always full, replayed from tasks other than the current batch's."""

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        past = sorted(slot for task, slots in self.slots.items() if task not in tasks for slot in slots)
        return self._choose(past, k)


class Exemplars(Schedule):
    """What a method chose at the end of a task (``Memory.keep``); nothing enters the memory during one."""

    def keep(self, n: int) -> None:
        self.written = [-1] * n

    def _slot(self, number: int, task: int) -> int:
        return -1


def _uniform(n: int, g: torch.Generator) -> list[float]:
    # float64: u * (count + 1) keeps every slot reachable for any stream length.
    return torch.rand(n, dtype=torch.float64, generator=g).tolist()


def _copy_of(g: torch.Generator) -> torch.Generator:
    twin = torch.Generator()
    twin.set_state(g.get_state())
    return twin
