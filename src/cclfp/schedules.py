"""How a memory is filled and replayed, as schedules of slots. A method names one of these classes as its ``schedule``.

A schedule never looks at the model. It only sees how many examples pass, and of which tasks, so an engine can plan a
whole task before it is trained. Each purpose has its own generator, and torch draws the same uniform numbers in one
call as in several.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cclfp.core.randomness import copy_generator, generator
from cclfp.errors import InputError

SAVED_AS = {"seen_before_task": "settled"}  # attributes that have another name in files


class Schedule:
    """Base of all schedules: ``place`` chooses what is stored, and ``draw`` replays it uniformly.

    A schedule of your own defines ``next_slots``, or ``draw`` and ``place``.
    """

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        self.size = size
        self.seen = 0  # how many examples have passed
        self.written: list[int] = []  # for each filled slot, the number of the example in it
        self.seen_before_task = 0  # ``seen`` at the end of the last task
        self._draws = generator(seed, "replay")

    def __len__(self) -> int:
        """The number of filled slots, which are the first ones."""
        return len(self.written)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        """The slots to replay with a batch of these tasks: k different ones, or all filled slots if there are fewer."""
        return self._choose(range(len(self)), k)

    def place(self, tasks: Sequence[int]) -> list[int]:
        """The slots of the next examples, which are of these tasks; -1: not kept, or overwritten in the same call."""
        slots: list[int] = self.next_slots(np.array(tasks, dtype=np.int64)).tolist()
        for i, slot in enumerate(slots):
            if slot == len(self.written):
                self.written.append(self.seen + i)
            elif slot >= 0:
                self.written[slot] = self.seen + i
        self.seen += len(tasks)
        last = {slot: i for i, slot in enumerate(slots)}
        return [slot if last[slot] == i else -1 for i, slot in enumerate(slots)]

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        """The slots of the next examples, in the order in which they are written; -1: not kept."""
        raise NotImplementedError

    def uniform(self, n: int) -> np.ndarray:
        """The next n random numbers that choose what is drawn."""
        return _uniform(n, self._draws)

    def keep(self, n: int) -> None:
        """Fill n slots with examples that the method has chosen."""
        raise TypeError("a method chooses examples only with the schedule Exemplars")

    def end_task(self) -> None:
        self.seen_before_task = self.seen

    def is_from_past_task(self, slot: int) -> bool:
        """Whether the slot holds an example that came before the current task began."""
        return self.written[slot] < self.seen_before_task

    def _choose(self, slots: Sequence[int], k: int) -> list[int]:
        """min(k, len(slots)) of the slots, every subset equally likely (Floyd's algorithm)."""
        n = len(slots)
        k = min(k, n)
        chosen: dict[int, None] = {}  # in the order they were drawn
        for top, u in zip(range(n - k, n), self.uniform(k).tolist(), strict=True):
            i = int(u * (top + 1))
            chosen[top if i in chosen else i] = None
        return [slots[i] for i in chosen]

    def __deepcopy__(self, memo: object) -> Schedule:
        twin = copy.copy(self)
        for name, value in vars(self).items():
            how = copy_generator if isinstance(value, torch.Generator) else copy.deepcopy
            setattr(twin, name, list(value) if name == "written" else how(value))  # many numbers, at every observe
        return twin

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes; generators as their states."""
        return {
            SAVED_AS.get(name, name): value.get_state() if isinstance(value, torch.Generator) else copy.deepcopy(value)
            for name, value in vars(self).items()
            if name != "size"
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Generator):
                value.set_state(state[name].cpu())
            elif name != "size":
                setattr(self, name, copy.deepcopy(state[SAVED_AS.get(name, name)]))


class Reservoir(Schedule):
    """Reservoir sampling (Vitter's algorithm R): every example so far is stored with the same probability.

    >>> reservoir = Reservoir(size=3, seed=0)
    >>> reservoir.place([0, 0]), len(reservoir)
    ([0, 1], 2)
    >>> sorted(reservoir.draw(10))
    [0, 1]
    """

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)
        self._places = generator(seed, "memory")

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        numbers = self.seen + np.arange(len(tasks))
        u = _uniform(len(tasks), self._places)
        slots = np.where(numbers < self.size, numbers, (u * (numbers + 1)).astype(np.int64))
        return np.where(slots < self.size, slots, -1)


class Ring(Schedule):
    """The most recent examples of each task, in equal shares.

    With ``num_tasks`` each task has a fixed share. Without it, the shares of past tasks shrink as new tasks arrive: a
    new task replaces the oldest example of the task that has the most, so the memory stays full.

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
            raise InputError(
                f"a memory of {size} cannot be split over {num_tasks} tasks: each needs at least one example"
            )
        self.num_tasks = num_tasks
        self.slots: dict[int, list[int]] = {}  # task -> its slots, that of the oldest example first

    def share(self, tasks: int) -> int:
        """How many examples of each task there is room for, once there are so many tasks."""
        return self.size // max(self.num_tasks or 1, tasks) or 1

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        return np.array([self._next_slot(task) for task in tasks.tolist()], dtype=np.int64)

    def _next_slot(self, task: int) -> int:
        """The slot of a task's next example: that of its oldest one, as soon as the task has its full share."""
        mine = self.slots.setdefault(task, [])
        used = sum(map(len, self.slots.values()))
        if len(mine) >= self.share(len(self.slots)) and (self.num_tasks is not None or used == self.size):
            slot = mine.pop(0)
        elif used < self.size:
            slot = used
        else:  # the oldest of the task that has the most
            slot = max((slots for other, slots in self.slots.items() if other != task), key=len).pop(0)
        mine.append(slot)
        return slot


class PastRing(Ring):
    """A ring without fixed shares that replays only tasks other than those of the current batch.

    It draws at most as many examples as remain once the tasks of the batch have their shares, so that the number of
    replayed examples does not change within a task.

    >>> ring = PastRing(size=6, seed=0)
    >>> ring.place([0] * 6)[:2], len(ring.draw(9, [1])), len(ring.draw(2, [1]))
    ([0, 1], 3, 2)
    """

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        past = sorted(slot for task, slots in self.slots.items() if task not in tasks for slot in slots)
        current = set(tasks)
        share = self.share(len(current.union(self.slots)))
        return self._choose(past, min(k, max(0, self.size - len(current) * share)))


class Exemplars(Schedule):
    """Examples that a method chooses at the end of a task (``Memory.keep``). Nothing is stored during a task."""

    def keep(self, n: int) -> None:
        self.written = [-1] * n

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        return np.full(len(tasks), -1)


def _uniform(n: int, g: torch.Generator) -> np.ndarray:
    # float64, so that u * (count + 1) can reach every slot for any stream length.
    return torch.rand(n, dtype=torch.float64, generator=g).numpy()
