"""How a memory is filled and replayed, as schedules of slots. A method names one of these classes as its ``schedule``.

A schedule never looks at the model. It only sees how many examples pass, and of which tasks, so a whole task can be
planned before it is trained. Planning ahead and going step by step give the same slots: each purpose has its own
generator, and torch draws the same uniform numbers in one call as in several.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cclfp.core.randomness import copy_generator, generator
from cclfp.errors import InputError

PARTS = {"draw", "place", "is_from_past_task", "__len__", "_slot", "_slots", "_choose"}  # of a step
SAVED_AS = {"seen_before_task": "settled"}  # attributes that have another name in files


class PlannedReplay(NamedTuple):
    """What a schedule replays and stores in many steps, planned before they are trained."""

    slots: np.ndarray  # steps x replayed: the slots that each step replays, padded with -1
    from_past_task: np.ndarray  # steps x replayed: whether the slot held an example of a task that had ended
    placed: np.ndarray  # the slot of each example; -1: not kept, or overwritten in the same step


class Schedule:
    """Base of all schedules: ``place`` chooses what is stored, and ``draw`` replays it uniformly.

    A schedule of your own defines ``_slot``, or ``draw`` and ``place``. The generic ``ahead`` calls them step by step.
    """

    def __init_subclass__(cls) -> None:
        """A subclass that overrides part of a step, such as ``draw`` or ``place``, gets the generic ``ahead``."""
        super().__init_subclass__()
        planned = next(depth for depth, base in enumerate(cls.__mro__) if "ahead" in vars(base))
        if any(PARTS & vars(base).keys() for base in cls.__mro__[:planned]):
            cls.ahead = Schedule.ahead  # type: ignore[method-assign]

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
        slots: list[int] = self._slots(np.array(tasks, dtype=np.int64)).tolist()
        for i, slot in enumerate(slots):
            if slot == len(self.written):
                self.written.append(self.seen + i)
            elif slot >= 0:
                self.written[slot] = self.seen + i
        self.seen += len(tasks)
        last = {slot: i for i, slot in enumerate(slots)}
        return [slot if last[slot] == i else -1 for i, slot in enumerate(slots)]

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int, draws: int = 1) -> PlannedReplay:
        """``draw(k)``, as often as ``draws`` says, and ``place`` for many steps.

        Step i has the next ``sizes[i]`` examples, at least one. ``tasks`` has the task of every example.
        """
        slots: list[list[int]] = []
        from_past_task: list[list[bool]] = []
        placed: list[int] = []
        for of in np.split(tasks, np.cumsum(sizes)[:-1]) if len(sizes) else []:
            slots.append([slot for _ in range(draws) for slot in self.draw(k, of.tolist())])
            from_past_task.append([self.is_from_past_task(slot) for slot in slots[-1]])
            placed += self.place(of.tolist())
        return PlannedReplay(pad(slots, -1), pad(from_past_task, False), np.array(placed, dtype=np.int64))

    def keep(self, n: int) -> None:
        """Fill n slots with examples that the method has chosen."""
        raise TypeError("a method chooses examples only with the schedule Exemplars")

    def position(self) -> torch.Tensor:
        """The state of the generator that draws, for ``rewind``."""
        return self._draws.get_state()

    def rewind(self, position: torch.Tensor) -> None:
        """Go back to a :meth:`position`."""
        self._draws.set_state(position)

    def end_task(self) -> None:
        self.seen_before_task = self.seen

    def is_from_past_task(self, slot: int) -> bool:
        """Whether the slot holds an example that came before the current task began."""
        return self.written[slot] < self.seen_before_task

    def _slot(self, number: int, task: int) -> int:
        """The slot of example ``number``, counted from 0 over the whole stream; -1: not kept."""
        raise NotImplementedError

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        """The slots of the next examples, in the order in which they are written; -1: not kept."""
        slots = [self._slot(self.seen + i, task) for i, task in enumerate(tasks.tolist())]
        return np.array(slots, dtype=np.int64)

    def _choose(self, slots: Sequence[int], k: int) -> list[int]:
        """min(k, len(slots)) of the slots, every subset equally likely (Floyd's algorithm)."""
        n = len(slots)
        k = min(k, n)
        chosen: dict[int, None] = {}  # in the order they were drawn
        for top, u in zip(range(n - k, n), _uniform(k, self._draws).tolist(), strict=True):
            i = int(u * (top + 1))
            chosen[top if i in chosen else i] = None
        return [slots[i] for i in chosen]

    def _vectorised_ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int, draws: int = 1) -> PlannedReplay:
        """A vectorised :meth:`ahead`, if ``_slots`` does not depend on the steps and every filled slot may be drawn."""
        slots = self._slots(tasks)
        return self._advance(slots, sizes, self._choose_many(self._filled_before(slots, sizes), k, draws))

    def _filled_before(self, slots: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The number of filled slots at the start of each step, if the examples of all steps go to ``slots``."""
        after = np.maximum.accumulate(np.concatenate([[len(self)], slots + 1]))  # indexed by the number of examples
        held: np.ndarray = after[np.cumsum(sizes) - sizes]
        return held

    def _choose_many(self, counts: np.ndarray, k: int | np.ndarray, draws: int) -> np.ndarray:
        """One row per count: ``_choose(range(count), k)``, ``draws`` times, padded with -1. ``k`` may differ."""
        steps, counts = len(counts), np.repeat(counts, draws)
        ks = np.minimum(np.repeat(k, draws) if isinstance(k, np.ndarray) else k, counts)
        width = int(ks.max(initial=0))
        is_drawn = np.arange(width) < ks[:, None]
        u = np.zeros(is_drawn.shape)
        u[is_drawn] = _uniform(int(ks.sum()), self._draws)
        chosen = np.empty((width, len(counts)), dtype=np.int64)
        for j in range(width):
            top = counts - ks + j
            i = (u[:, j] * (top + 1)).astype(np.int64)
            chosen[j] = np.where((chosen[:j] == i).any(0), top, i)
        rows = np.where(is_drawn, chosen.T, -1).reshape(steps, draws * width)
        return rows if draws == 1 else np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), 1)

    def _advance(self, slots: np.ndarray, sizes: np.ndarray, drawn: np.ndarray) -> PlannedReplay:
        """Advance by many steps, in which the examples go to ``slots`` and the slots ``drawn`` are replayed."""
        kept = np.flatnonzero(slots >= 0)
        new = int(slots.max(initial=-1)) + 1 - len(self)
        written = np.concatenate([self.written, np.full(max(0, new), self.seen)]).astype(np.int64)
        until = np.full(len(written), len(slots))  # the first example that is written to each slot
        until[slots[kept][::-1]] = kept[::-1]
        starts = (np.cumsum(sizes) - sizes)[:, None]
        from_past_task = (drawn >= 0) & (written[drawn] < self.seen_before_task) & (starts <= until[drawn])
        placed = slots.copy()
        step = np.repeat(np.arange(len(sizes)), sizes)
        first, second = consecutive_writes(slots)
        placed[first[step[first] == step[second]]] = -1
        written[slots[kept]] = self.seen + kept
        self.written = written.tolist()
        self.seen += len(slots)
        return PlannedReplay(drawn, from_past_task, placed)

    def __deepcopy__(self, memo: object) -> Schedule:
        twin = object.__new__(type(self))
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

    ahead = Schedule._vectorised_ahead

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
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

    ahead = Schedule._vectorised_ahead

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        slots = np.empty(len(tasks), dtype=np.int64)
        start = 0
        ends = np.flatnonzero(np.diff(tasks, append=tasks[-1:] + 1)) + 1  # of runs of examples of the same task
        for end in ends.tolist():
            task = int(tasks[start])
            while start < end and not self._has_full_share(task):
                slots[start] = self._add_slot(task)
                start += 1
            if start < end:  # the rest overwrite the task's own slots in turn
                mine = self.slots[task]
                slots[start:end] = np.resize(mine[: end - start], end - start)
                turn = (end - start) % len(mine)
                mine += mine[:turn]
                del mine[:turn]
            start = end
        return slots

    def _has_full_share(self, task: int) -> bool:
        """Whether a task has its full share, so that its next example replaces its oldest."""
        mine = self.slots.setdefault(task, [])
        share = self.size // max(self.num_tasks or 0, len(self.slots)) or 1
        return len(mine) >= share and (self.num_tasks is not None or self._used() == self.size)

    def _add_slot(self, task: int) -> int:
        """Give a task one more slot: an empty one, or the oldest of the task that has the most."""
        slot = self._used()
        if slot == self.size:
            slot = max((slots for other, slots in self.slots.items() if other != task), key=len).pop(0)
        self.slots[task].append(slot)
        return slot

    def _used(self) -> int:
        return sum(map(len, self.slots.values()))


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
        return self._choose(past, min(k, self._staying(set(self.slots), set(tasks))))

    def _staying(self, known: set[int], current: set[int]) -> int:
        """How many slots the others of the known tasks keep at least, once the current tasks have their shares."""
        return max(0, self.size - len(current) * (self.size // max(1, len(known | current)) or 1))

    def ahead(self, tasks: np.ndarray, sizes: np.ndarray, k: int, draws: int = 1) -> PlannedReplay:
        known = {task: list(mine) for task, mine in self.slots.items()}
        slots = self._slots(tasks)
        # slot -> the task of its example, or of the first one to come
        owner = np.empty(len(self) + len(tasks), dtype=np.int64)
        owner[slots[::-1]] = tasks[::-1]
        for task, mine in known.items():
            owner[mine] = task
        ends, held = np.cumsum(sizes), self._filled_before(slots, sizes)
        starts = ends - sizes
        # The slots of past tasks stay the same while all steps are of one task and it takes no slot from another.
        previous = owner[slots]
        first, second = consecutive_writes(slots)
        previous[second] = tasks[first]
        events = np.cumsum(np.concatenate([[0], (previous != tasks) | (np.diff(tasks, prepend=tasks[:1]) != 0)]))
        changed = np.ones(len(sizes), dtype=bool)
        changed[1:] = events[ends[1:]] > events[starts[:-1]]
        spans = list(itertools.pairwise([*np.flatnonzero(changed).tolist(), len(sizes)]))
        pasts, staying, seen = [], [], set(known)
        for step, until in spans:
            current = set(tasks[starts[step] : ends[step]].tolist())
            staying.append(self._staying(seen, current))
            seen |= current
            past = np.flatnonzero(~np.isin(owner[: held[step]], tasks[starts[step] : ends[step]]))
            pasts.append(np.append(past, -1))  # index -1, not drawn, stays -1
            passed = slice(starts[step], ends[until - 1])
            owner[slots[passed]] = tasks[passed]
        lengths = [until - step for step, until in spans]
        counts = np.repeat([len(past) - 1 for past in pasts], lengths)
        drawn = self._choose_many(counts, np.minimum(k, np.repeat(staying, lengths)), draws)
        for (step, until), past in zip(spans, pasts, strict=True):
            drawn[step:until] = past[drawn[step:until]]
        return self._advance(slots, sizes, drawn)


class Exemplars(Schedule):
    """Examples that a method chooses at the end of a task (``Memory.keep``). Nothing is stored during a task."""

    def keep(self, n: int) -> None:
        self.written = [-1] * n

    ahead = Schedule._vectorised_ahead

    def _slots(self, tasks: np.ndarray) -> np.ndarray:
        return np.full(len(tasks), -1)


def _uniform(n: int, g: torch.Generator) -> np.ndarray:
    # float64, so that u * (count + 1) can reach every slot for any stream length.
    return torch.rand(n, dtype=torch.float64, generator=g).numpy()


def pad(rows: Sequence[Sequence[Any]], value: Any) -> np.ndarray:
    """The rows as one table, each padded with ``value`` to the length of the longest."""
    width = max(map(len, rows), default=0)
    table = [[*row, *[value] * (width - len(row))] for row in rows]
    return np.array(table, dtype=type(value)).reshape(len(rows), width)


def consecutive_writes(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of examples of which the second is the next one written to the slot of the first."""
    order = np.argsort(slots, kind="stable")
    first, second = order[:-1], order[1:]
    same = slots[first] == slots[second]
    return first[same], second[same]
