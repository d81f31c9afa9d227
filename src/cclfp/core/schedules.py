"""How a memory is filled and replayed, as schedules of slots.

A schedule never looks at the model: it sees how many examples pass, and of which tasks. So a whole task can be
scheduled before it is trained. Draws come one by one from their own generators, so that scheduling ahead and step by
step give the same slots: torch's uniform numbers are the same in one call as in several.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cclfp.core.layouts import check_value
from cclfp.core.randomness import generator
from cclfp.errors import DamagedError, InputError

MOST = 2**53  # examples that can pass: as many as a float64 counts
SAVED_AS = {"seen_before_task": "settled"}  # attributes that have another name in files


class ScheduledSteps(NamedTuple):
    """Many steps of a schedule."""

    slots: np.ndarray  # steps x replayed: the slots each step replays, then -1
    from_past_task: np.ndarray  # steps x replayed: whether each slot held an example of a task that had ended
    placed: np.ndarray  # the slot each example goes to; -1: not kept, or overwritten at once


class Schedule:
    """Base of all schedules: uniform replay of what is held. ``place`` says what is held.

    A schedule of your own defines ``_slot``, or ``draw`` and ``place``; ``ahead`` then goes through them step by step.
    """

    def __init_subclass__(cls) -> None:
        """Who changes what a step does inherits no ``ahead`` that does not know of it."""
        super().__init_subclass__()

        def depth(name: str) -> int:
            return next(i for i, base in enumerate(cls.__mro__) if name in vars(base))

        step = ("draw", "place", "is_from_past_task", "__len__", "_slot", "_slots", "_choose")
        if min(map(depth, step)) < depth("ahead"):
            cls.ahead = Schedule.ahead  # type: ignore[method-assign]

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        self.size = size
        self.seen = 0  # examples that passed
        self.written: list[int] = []  # for each filled slot, which of them it holds
        self.seen_before_task = 0  # how many had passed when the last task ended
        self._draws = generator(seed, "replay")

    def __len__(self) -> int:
        """How many slots are filled; they are the first ones."""
        return len(self.written)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        """The slots to replay beside a batch of these tasks: k different ones, or all there are."""
        return self._choose(range(len(self)), k)

    def place(self, tasks: Sequence[int]) -> list[int]:
        """The slot each of the next examples, of these tasks, goes to; -1: not kept, or overwritten at once."""
        slots: list[int] = self._slots(np.array(tasks, dtype=np.int64)).tolist()
        for i, slot in enumerate(slots):
            if slot == len(self.written):
                self.written.append(self.seen + i)
            elif slot >= 0:
                self.written[slot] = self.seen + i
        self.seen += len(tasks)
        last = {slot: i for i, slot in enumerate(slots)}
        return [slot if last[slot] == i else -1 for i, slot in enumerate(slots)]

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        """``draw(k)`` and ``place`` for many steps, the i-th of which has the next ``sizes[i]`` examples, one at least.

        ``tasks`` has the task of every example.
        """
        slots: list[list[int]] = []
        from_past_task: list[list[bool]] = []
        placed: list[int] = []
        for of in np.split(tasks, np.cumsum(sizes)[:-1]) if len(sizes) else []:
            slots.append(self.draw(k, of.tolist()))
            from_past_task.append([self.is_from_past_task(slot) for slot in slots[-1]])
            placed += self.place(of.tolist())
        return ScheduledSteps(_padded(slots, -1), _padded(from_past_task, False), np.array(placed, dtype=np.int64))

    def position(self) -> torch.Tensor:
        """Where in its draws the schedule is; ``rewind`` goes back there."""
        return self._draws.get_state()

    def rewind(self, position: torch.Tensor) -> None:
        self._draws.set_state(position)

    def end_task(self) -> None:
        self.seen_before_task = self.seen

    def is_from_past_task(self, slot: int) -> bool:
        """Whether the slot holds an example that came before the current task began."""
        return self.written[slot] < self.seen_before_task

    def _slot(self, number: int, task: int) -> int:
        """The slot of one example, the ``number``-th of all."""
        raise NotImplementedError

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        """The slots of the next examples, in the order they are written to; -1: not kept."""
        slots = [self._slot(self.seen + i, task) for i, task in enumerate(tasks.tolist())]
        return np.array(slots, dtype=np.int64)

    def _choose(self, slots: Sequence[int], k: int) -> list[int]:
        """min(k, all) of the slots, every set of them equally likely (Floyd's algorithm)."""
        n = len(slots)
        k = min(k, n)
        chosen: list[int] = []
        for top, u in zip(range(n - k, n), _uniform(k, self._draws).tolist(), strict=True):
            i = int(u * (top + 1))
            chosen.append(top if i in chosen else i)
        return [slots[i] for i in chosen]

    def _at_once(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        """:meth:`ahead` in arrays, where ``_slots`` needs to know of no step and all that is held may be drawn."""
        slots = self._slots(tasks)
        return self._passed(slots, sizes, self._choose_often(self._held(slots, sizes), k))

    def _held(self, slots: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """How many slots are filled when each step begins, the examples of all steps going to ``slots``."""
        after = np.maximum.accumulate(np.concatenate([[len(self)], slots + 1]))  # after so many examples
        held: np.ndarray = after[np.cumsum(sizes) - sizes]
        return held

    def _choose_often(self, counts: np.ndarray, k: int) -> np.ndarray:
        """A line for each count: ``_choose(range(count), k)``, then -1."""
        ks = np.minimum(k, counts)
        width = int(ks.max(initial=0))
        is_drawn = np.arange(width) < ks[:, None]
        u = np.zeros(is_drawn.shape)
        u[is_drawn] = _uniform(int(ks.sum()), self._draws)
        chosen = np.empty((width, len(counts)), dtype=np.int64)
        for j in range(width):
            top = counts - ks + j
            i = (u[:, j] * (top + 1)).astype(np.int64)
            chosen[j] = np.where((chosen[:j] == i).any(0), top, i)
        return np.where(is_drawn, chosen.T, -1)

    def _passed(self, slots: np.ndarray, sizes: np.ndarray, drawn: np.ndarray) -> ScheduledSteps:
        """Let the examples of many steps pass, which go to ``slots`` while ``drawn`` are replayed."""
        kept = np.flatnonzero(slots >= 0)
        new = int(slots.max(initial=-1)) + 1 - len(self)
        written = np.concatenate([self.written, np.full(max(0, new), self.seen)]).astype(np.int64)
        until = np.full(len(written), len(slots))  # which example is the first to be written to a slot
        until[slots[kept][::-1]] = kept[::-1]
        starts = (np.cumsum(sizes) - sizes)[:, None]
        from_past_task = (drawn >= 0) & (written[drawn] < self.seen_before_task) & (starts <= until[drawn])
        placed = slots.copy()
        step = np.repeat(np.arange(len(sizes)), sizes)
        first, second = _successive(slots)
        placed[first[step[first] == step[second]]] = -1
        written[slots[kept]] = self.seen + kept
        self.written = written.tolist()
        self.seen += len(slots)
        return ScheduledSteps(drawn, from_past_task, placed)

    def __deepcopy__(self, memo: object) -> Schedule:
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            is_generator = isinstance(value, torch.Generator)
            setattr(twin, name, _copy_of(value) if is_generator else copy.deepcopy(value))
        return twin

    def state_dict(self) -> dict[str, Any]:
        """All that changes; generators as their states."""
        return {
            SAVED_AS.get(name, name): value.get_state() if isinstance(value, torch.Generator) else copy.deepcopy(value)
            for name, value in vars(self).items()
            if name != "size"
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; DamagedError where this schedule cannot come to that."""
        if is_shipped(self):
            self._check(state)
        for name, value in vars(self).items():
            if isinstance(value, torch.Generator):
                value.set_state(state[name].cpu())
            elif name != "size":
                setattr(self, name, copy.deepcopy(state[SAVED_AS.get(name, name)]))

    def _check(self, state: dict[str, Any]) -> None:
        seen, settled, written = state["seen"], state["settled"], state["written"]
        check_value("schedule.seen", seen, int, 0, MOST)
        check_value("schedule.settled", settled, int, 0, seen)
        check_value("schedule.written", written, list)
        for number in written:
            check_value("schedule.written", number, int, -1, seen - 1)
        self._check_slots(state, len(written))

    def _check_slots(self, state: dict[str, Any], held: int) -> None:
        """Refuse slots that do not hold as many of the examples that passed as there is room for."""
        if held != min(state["seen"], self.size) or len(set(state["written"]) - {-1}) != held:
            raise DamagedError(f"schedule.written does not fit {state['seen']} examples in {self.size} slots")


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

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        return self._at_once(tasks, sizes, k)

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        numbers = self.seen + np.arange(len(tasks))
        u = _uniform(len(tasks), self._places)
        slots = np.where(numbers < self.size, numbers, (u * (numbers + 1)).astype(np.int64))
        return np.where(slots < self.size, slots, -1)


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

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        return self._at_once(tasks, sizes, k)

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        slots = np.empty(len(tasks), dtype=np.int64)
        start = 0
        for end in (np.flatnonzero(np.diff(tasks, append=tasks[-1:] + 1)) + 1).tolist():  # of one task in a row
            task = int(tasks[start])
            while start < end and not self._takes_turns(task):
                slots[start] = self._grow(task)
                start += 1
            if start < end:  # from here on nothing but the turn changes
                mine = self.slots[task]
                slots[start:end] = np.resize(mine[: end - start], end - start)
                turn = (end - start) % len(mine)
                mine += mine[:turn]
                del mine[:turn]
            start = end
        return slots

    def _check_slots(self, state: dict[str, Any], held: int) -> None:
        """Refuse slots that are not each of one task; the most recent example is always held."""
        check_value("schedule.slots", state["slots"], dict)
        slots: list[int] = []
        for task, mine in state["slots"].items():
            check_value("a task of schedule.slots", task, int, 0)
            check_value("schedule.slots", mine, list)
            slots += mine
        for slot in slots:
            check_value("schedule.slots", slot, int, 0, held - 1)
        if not len(slots) == len(set(slots)) == held <= self.size:
            raise DamagedError(f"schedule.slots are not {held} of {self.size} slots, each of one task")
        if len(set(state["written"])) != held or max(state["written"], default=-1) != state["seen"] - 1:
            raise DamagedError(f"schedule.written are not the last of {state['seen']} examples")
        if state["num_tasks"] != self.num_tasks:
            raise DamagedError(f"schedule.num_tasks is {state['num_tasks']!r}, expected {self.num_tasks}")

    def _takes_turns(self, task: int) -> bool:
        """Whether a task has all it may have, so that its next example takes the place of its oldest."""
        mine = self.slots.setdefault(task, [])
        share = self.size // max(self.num_tasks or 0, len(self.slots)) or 1
        return len(mine) >= share and (self.num_tasks is not None or self._used() == self.size)

    def _grow(self, task: int) -> int:
        """One more slot for a task: an empty one, else from the task that has most."""
        slot = self._used()
        if slot == self.size:
            slot = max((slots for other, slots in self.slots.items() if other != task), key=len).pop(0)
        self.slots[task].append(slot)
        return slot

    def _used(self) -> int:
        return sum(map(len, self.slots.values()))


class PastRing(Ring):
    """A ring whose memory is always full, replayed from tasks other than the current batch's."""

    def __init__(self, size: int, seed: int, num_tasks: int | None = None) -> None:
        super().__init__(size, seed)

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        past = sorted(slot for task, slots in self.slots.items() if task not in tasks for slot in slots)
        return self._choose(past, k)

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        known = {task: list(mine) for task, mine in self.slots.items()}
        slots = self._slots(tasks)
        owner = np.empty(len(self) + len(tasks), dtype=np.int64)  # slot -> the task of its example, else of its first
        owner[slots[::-1]] = tasks[::-1]
        for task, mine in known.items():
            owner[mine] = task
        ends, held = np.cumsum(sizes), self._held(slots, sizes)
        starts = ends - sizes
        # While all steps are of one task, and no slot passes to it from another, the past stays what it is.
        previous = owner[slots]
        first, second = _successive(slots)
        previous[second] = tasks[first]
        events = np.cumsum(np.concatenate([[0], (previous != tasks) | (np.diff(tasks, prepend=tasks[:1]) != 0)]))
        changed = np.ones(len(sizes), dtype=bool)
        changed[1:] = events[ends[1:]] > events[starts[:-1]]
        spans = list(itertools.pairwise([*np.flatnonzero(changed).tolist(), len(sizes)]))
        pasts = []
        for step, until in spans:
            past = np.flatnonzero(~np.isin(owner[: held[step]], tasks[starts[step] : ends[step]]))
            pasts.append(np.append(past, -1))  # what is not drawn (-1) is the last
            passed = slice(starts[step], ends[until - 1])
            owner[slots[passed]] = tasks[passed]
        counts = [len(past) - 1 for (step, until), past in zip(spans, pasts, strict=True) for _ in range(step, until)]
        drawn = self._choose_often(np.array(counts, dtype=np.int64), k)
        for (step, until), past in zip(spans, pasts, strict=True):
            drawn[step:until] = past[drawn[step:until]]
        return self._passed(slots, sizes, drawn)


class Exemplars(Schedule):
    """What a method chose at the end of a task (``Memory.keep``); nothing enters the memory during one."""

    def keep(self, n: int) -> None:
        self.written = [-1] * n

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int) -> ScheduledSteps:
        return self._at_once(tasks, sizes, k)

    def _check_slots(self, state: dict[str, Any], held: int) -> None:
        if held > self.size or set(state["written"]) - {-1}:
            raise DamagedError(f"schedule.written is not that of {held} exemplars in {self.size} slots")

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        return np.full(len(tasks), -1)


def is_shipped(schedule: Schedule) -> bool:
    """Whether it is known what the schedule counts; one of a user's own may count otherwise."""
    return type(schedule) in (Reservoir, Ring, PastRing, Exemplars)


def _uniform(n: int, g: torch.Generator) -> np.ndarray:
    # float64: u * (count + 1) keeps every slot reachable for any stream length.
    return torch.rand(n, dtype=torch.float64, generator=g).numpy()


def _padded(lines: Sequence[Sequence[Any]], value: Any) -> np.ndarray:
    """The lines as a table, each filled up to the longest."""
    width = max(map(len, lines), default=0)
    table = [[*line, *[value] * (width - len(line))] for line in lines]
    return np.array(table, dtype=type(value)).reshape(len(lines), width)


def _successive(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of examples of which the second is the next to go to the slot of the first."""
    order = np.argsort(slots, kind="stable")
    first, second = order[:-1], order[1:]
    same = slots[first] == slots[second]
    return first[same], second[same]


def _copy_of(g: torch.Generator) -> torch.Generator:
    twin = torch.Generator()
    twin.set_state(g.get_state())
    return twin
