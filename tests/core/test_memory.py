"""Schedules, step by step and planned, and what the memory holds."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cclfp.core.memory import Examples, Memory
from cclfp.core.randomness import generator
from cclfp.engine.plan import plan_replay
from cclfp.errors import InputError
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule
from cclfp.testing.case import equal

CPU = torch.device("cpu")


def held_by(schedule: Schedule, tasks: Sequence[int], cut: int) -> dict[int, int]:
    """The example in each slot after examples of these tasks, ``cut`` at a time."""
    held: dict[int, int] = {}
    for start in range(0, len(tasks), cut):
        for i, slot in enumerate(schedule.place(tasks[start : start + cut])):
            if slot >= 0:
                held[slot] = start + i
    assert schedule.written == [held[slot] for slot in range(len(held))]
    return held


# -- the reservoir ------------------------------------------------------------------------------------------------


def test_every_example_is_kept_and_every_set_drawn_with_the_same_probability() -> None:
    counts = Counter[int]()
    for seed in range(3000):
        counts.update(held_by(Reservoir(4, seed), [0] * 12, 5).values())
    expected = 3000 * 4 / 12
    assert len(counts) == 12
    assert all(abs(count - expected) < 5 * (expected * 2 / 3) ** 0.5 for count in counts.values()), counts
    reservoir = Reservoir(5, seed=0)
    reservoir.place([0] * 5)
    drawn = Counter(frozenset(reservoir.draw(2)) for _ in range(10_000))
    assert len(drawn) == 10
    assert all(abs(count - 1000) < 5 * 900**0.5 for count in drawn.values()), drawn


@given(size=st.integers(1, 12), n=st.integers(0, 40), cut=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_reservoir_is_algorithm_r(size: int, n: int, cut: int, seed: int) -> None:
    g, held = generator(seed, "memory"), dict[int, int]()
    for example in range(n):
        u = torch.rand(1, dtype=torch.float64, generator=g).item()
        slot = example if example < size else int(u * (example + 1))
        if slot < size:
            held[slot] = example
    assert held_by(Reservoir(size, seed), [0] * n, cut) == held


@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 15))
def test_draws_are_different_filled_slots(size: int, n: int, k: int) -> None:
    reservoir = Reservoir(size, seed=3)
    reservoir.place([0] * n)
    slots = reservoir.draw(k)
    assert len(slots) == len(set(slots)) == min(k, n, size)
    assert all(0 <= slot < len(reservoir) for slot in slots)


# -- rings --------------------------------------------------------------------------------------------------------


def ring_by_hand(size: int, tasks: list[int], num_tasks: int | None) -> dict[int, list[int]]:
    """For each task the examples a ring holds, oldest first: computed from the rules, not from slots."""
    held: dict[int, list[int]] = {}
    for example, task in enumerate(tasks):
        mine = held.setdefault(task, [])
        share = max(1, size // max(num_tasks or 0, len(held)))
        full = sum(map(len, held.values())) == size
        if len(mine) >= share and (full or num_tasks is not None):
            mine.pop(0)
        elif full:
            max((members for other, members in held.items() if other != task), key=len).pop(0)
        mine.append(example)
    return held


@given(
    size=st.integers(1, 12),
    tasks=st.lists(st.integers(0, 5), max_size=60) | st.lists(st.integers(0, 3), max_size=60).map(sorted),
    num_tasks=st.none() | st.integers(1, 6),
    cut=st.integers(1, 9),
)
def test_a_ring_holds_the_most_recent_of_each_task_in_equal_shares(
    size: int, tasks: list[int], num_tasks: int | None, cut: int
) -> None:
    if num_tasks is not None and num_tasks > size:
        with pytest.raises(InputError, match=f"a memory of {size} cannot be split over {num_tasks} tasks"):
            Ring(size, 0, num_tasks)
        return
    ring = Ring(size, 0, num_tasks)
    held = held_by(ring, tasks, cut)
    wanted = ring_by_hand(size, tasks, num_tasks)
    assert {task: [held[slot] for slot in slots] for task, slots in ring.slots.items()} == wanted
    assert num_tasks is not None or len(ring) == min(size, len(tasks))  # always full


def test_a_past_ring_replays_other_tasks_only() -> None:
    ring = PastRing(6, seed=0)
    ring.place([0] * 9)
    assert ring.draw(4, [0]) == []
    ring.place([1] * 3)
    assert set(ring.draw(10, [1])) == set(ring.slots[0])
    assert set(ring.draw(10, [0])) == set(ring.slots[1])
    assert len(ring.draw(10, [2])) == 4  # task 2 is to have two of the six
    assert set(ring.draw(10, [0, 1])) == set()


# -- planned ------------------------------------------------------------------------------------------------------


class Latest(Schedule):
    """A schedule of a user's own, which looks at what it holds: each example takes the slot of the oldest."""

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        free = self.size - len(self)
        oldest = sorted(range(len(self)), key=self.written.__getitem__)
        slots = [*range(len(self), self.size), *oldest] if free else oldest
        return np.resize(slots, len(tasks))


class Biased(Reservoir):
    """A reservoir that replays its first slots."""

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        return list(range(min(k, len(self))))


class ReversedRing(Ring):
    """A ring whose batches come in backwards."""

    def place(self, tasks: Sequence[int]) -> list[int]:
        return super().place(tasks[::-1])


@st.composite
def streams(draw: Any) -> list[tuple[list[int], int]]:
    """Several trainings: the tasks of their examples, mostly many of one in a row, and the size of a batch."""
    runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=4)
    return [
        ([task for task, n in run for _ in range(n)], batch)
        for run, batch in draw(st.lists(st.tuples(runs, st.integers(1, 9)), min_size=1, max_size=4))
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    kind=st.sampled_from([Reservoir, Ring, PastRing, Exemplars, Latest, Biased, ReversedRing]),
    size=st.integers(1, 15),
    num_tasks=st.none() | st.integers(1, 4),
    k=st.integers(0, 18),
    draws=st.integers(1, 3),
    stream=streams(),
    between=st.sampled_from(["nothing", "copied", "saved and loaded", "no end of task"]),
)
def test_planned_is_step_by_step(
    kind: type[Schedule],
    size: int,
    num_tasks: int | None,
    k: int,
    draws: int,
    stream: list[tuple[list[int], int]],
    between: str,
) -> None:
    arguments = (size, 3, None if num_tasks is None else min(num_tasks, size))
    ahead, steps = kind(*arguments), kind(*arguments)
    for tasks, batch in stream:
        batches = [tasks[start : start + batch] for start in range(0, len(tasks), batch)]
        sizes = np.array([len(b) for b in batches], dtype=np.int64)
        ours = plan_replay(ahead, np.array(tasks, dtype=np.int64), sizes, k, draws)
        assert [table.dtype for table in ours] == [np.int64, bool, np.int64]
        placed, longest = [], 0
        for step, of in enumerate(batches):
            drawn = [slot for _ in range(draws) for slot in steps.draw(k, of)]
            longest, rest = max(longest, len(drawn)), ours.slots.shape[1] - len(drawn)
            is_past = [steps.is_from_past_task(slot) for slot in drawn]
            assert ours.slots[step].tolist() == drawn + [-1] * rest
            assert ours.from_past_task[step].tolist() == is_past + [False] * rest
            placed += steps.place(of)
        assert ours.slots.shape == ours.from_past_task.shape == (len(batches), longest)
        assert ours.placed.tolist() == placed
        assert equal(ahead.state_dict(), steps.state_dict())
        for schedule in (ahead, steps):
            if between != "no end of task":
                schedule.end_task()
            if isinstance(schedule, Exemplars):
                schedule.keep(min(size, len(tasks)))
        if between == "copied":
            ahead = copy.deepcopy(ahead)
        elif between == "saved and loaded":
            state, ahead = ahead.state_dict(), kind(size, 4, arguments[2])
            ahead.load_state_dict(state)


# -- the memory ---------------------------------------------------------------------------------------------------


def examples(rows: range) -> Examples:
    x = torch.tensor(rows, dtype=torch.float32)[:, None]
    return Examples(x, torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))


def observe(memory: Memory, rows: range) -> None:
    memory.make_room(examples(rows))
    memory.write(examples(rows), memory.schedule.place([0] * len(rows)))


@pytest.mark.parametrize("size", [4, 10**12])
def test_memory_holds_what_the_schedule_says_in_storage_that_grows(size: int) -> None:
    memory = Memory(Reservoir(size, seed=0), CPU)
    for start in range(0, 105, 7):
        observe(memory, range(start, start + 7))
    held = held_by(Reservoir(size, seed=0), [0] * 105, 7)
    wanted = [held[slot] for slot in range(min(size, 105))]
    assert memory.examples().y.tolist() == memory.examples().x[:, 0].tolist() == wanted


def test_rows_of_a_stream_become_copies_when_written_to() -> None:
    memory, pool = Memory(Reservoir(4, seed=0), CPU), examples(range(100))
    memory.schedule.place([0] * 4)
    memory.point_to(pool, torch.tensor([7, 5, 3, 1]), memory.schedule, torch.tensor([7, 5, 3, 1]))
    assert memory.examples().y.tolist() == memory.rows.tolist() == [7, 5, 3, 1]
    memory.make_room(examples(range(50, 51)))
    memory.write(examples(range(50, 51)), [2])
    assert memory.examples().y.tolist() == [7, 5, 50, 1]
    assert pool.y.tolist() == list(range(100))


@pytest.mark.parametrize("copies", [True, False])
def test_state_goes_there_and_back(copies: bool) -> None:
    pool, memory, other = examples(range(100)), Memory(Reservoir(4, 0), CPU), Memory(Reservoir(4, 0), CPU)
    memory.schedule.place([0] * 9)
    memory.point_to(pool, torch.tensor([7, 5, 3, 1]), memory.schedule, torch.tensor([7, 5, 3, 1]))
    other.load_state_dict(memory.state_dict(copies=copies), pool)
    assert torch.equal(other.examples().x, memory.examples().x)
    assert equal(other.schedule.state_dict(), memory.schedule.state_dict())
    if not copies:
        assert other.rows.tolist() == [7, 5, 3, 1]


@pytest.mark.parametrize("online", [True, False])
def test_exemplars_are_what_was_kept(online: bool) -> None:
    memory, pool = Memory(Exemplars(6, seed=0), CPU, keeps_task=True), examples(range(100))

    def train(rows: range) -> None:
        for start in range(0, len(rows) if online else 0, 4):
            observe(memory, rows[start : start + 4])
        if not online:
            memory.point_to(pool, memory.rows, memory.schedule, torch.tensor(rows))
        assert memory.current().y.tolist() == list(rows)

    train(range(10, 20))
    assert len(memory) == 0
    memory.keep(torch.tensor([3, 1, 5]))
    memory.end_task()
    assert memory.examples().y.tolist() == [13, 11, 15]
    assert len(memory.current().y) == 0
    train(range(20, 27))
    again = Memory(Exemplars(6, seed=0), CPU, keeps_task=True)
    again.load_state_dict(memory.state_dict(copies=True))
    assert again.current().y.tolist() == list(range(20, 27))
    memory.keep(torch.tensor([2, 0, 9, 3]))
    memory.end_task()
    assert memory.examples().y.tolist() == [15, 13, 26, 20]
    assert sorted(memory.schedule.draw(10)) == [0, 1, 2, 3]
    assert memory.read([3, 0]).y.tolist() == [20, 15]
