"""The reservoir and what the memory holds."""

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
from cclfp.errors import InputError
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule

CPU = torch.device("cpu")


def contents_by_hand(size: int, stream: list[list[int]], seed: int) -> list[int]:
    """What a memory of ``size`` holds after these batches, from the slots the schedule gives."""
    reservoir, held = Reservoir(size, seed), dict[int, int]()
    for batch in stream:
        for example, slot in zip(batch, reservoir.place([0] * len(batch)), strict=True):
            if slot >= 0:
                held[slot] = example
    return [held[slot] for slot in range(len(reservoir))]


def test_every_example_is_kept_with_the_same_probability() -> None:
    counts = Counter[int]()
    for seed in range(3000):
        counts.update(contents_by_hand(4, [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9], [10], [11]], seed))
    expected = 3000 * 4 / 12
    assert len(counts) == 12
    assert all(abs(count - expected) < 5 * (expected * 2 / 3) ** 0.5 for count in counts.values()), counts


def test_every_set_is_drawn_with_the_same_probability() -> None:
    reservoir = Reservoir(5, seed=0)
    reservoir.place([0] * 5)
    counts = Counter(frozenset(reservoir.draw(2)) for _ in range(10_000))
    assert len(counts) == 10
    assert all(abs(count - 1000) < 5 * 900**0.5 for count in counts.values()), counts


@pytest.mark.slow
@given(st.integers(1, 12), st.lists(st.integers(1, 9), max_size=12), st.integers(0, 99))
def test_slots_do_not_depend_on_how_the_stream_is_cut(size: int, cuts: list[int], seed: int) -> None:
    n = sum(cuts)
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(list(range(start, start + cut)))
        start += cut
    assert contents_by_hand(size, pieces, seed) == contents_by_hand(size, [[i] for i in range(n)], seed)


@given(size=st.integers(1, 12), n=st.integers(0, 40), seed=st.integers(0, 99))
def test_a_reservoir_is_algorithm_r(size: int, n: int, seed: int) -> None:
    g, held = generator(seed, "memory"), dict[int, int]()
    for example in range(n):
        u = torch.rand(1, dtype=torch.float64, generator=g).item()
        slot = example if example < size else int(u * (example + 1))
        if slot < size:
            held[slot] = example
    reservoir = Reservoir(size, seed)
    placed = reservoir.place([0] * n)
    assert {slot: example for example, slot in enumerate(placed) if slot >= 0} == held
    assert reservoir.written == [held[slot] for slot in range(len(held))]


@given(sizes=st.lists(st.integers(0, 50), max_size=8), seed=st.integers(0, 99))
def test_uniform_numbers_are_the_same_in_one_call_as_in_several(sizes: list[int], seed: int) -> None:
    one, several = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    numbers = torch.rand(sum(sizes), dtype=torch.float64, generator=one).tolist()
    assert sum([torch.rand(n, dtype=torch.float64, generator=several).tolist() for n in sizes], []) == numbers
    assert torch.equal(one.get_state(), several.get_state())


@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 15))
def test_draws_are_different_filled_slots(size: int, n: int, k: int) -> None:
    reservoir = Reservoir(size, seed=3)
    reservoir.place([0] * n)
    slots = reservoir.draw(k)
    assert len(slots) == len(set(slots)) == min(k, n, size)
    assert all(0 <= slot < len(reservoir) for slot in slots)


def examples(rows: range) -> Examples:
    x = torch.tensor(rows, dtype=torch.float32)[:, None]
    return Examples(x, torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))


def test_memory_holds_what_the_schedule_says() -> None:
    memory = Memory(Reservoir(4, seed=0), CPU)
    batches = [range(3), range(3, 10), range(10, 11), range(11, 30)]
    for batch in batches:
        memory.make_room(examples(batch))
        memory.write(examples(batch), memory.schedule.place([0] * len(batch)))
    held = memory.examples()
    assert held.y.tolist() == contents_by_hand(4, [list(batch) for batch in batches], seed=0)
    assert held.x[:, 0].tolist() == held.y.tolist()


def test_rows_of_a_stream_become_copies_when_written_to() -> None:
    memory, pool = Memory(Reservoir(4, seed=0), CPU), examples(range(100))
    memory.schedule.place([0] * 4)
    memory.point_to(pool, torch.tensor([7, 5, 3, 1]), memory.schedule, torch.tensor([7, 5, 3, 1]))
    assert memory.examples().y.tolist() == [7, 5, 3, 1]
    assert memory.rows.tolist() == [7, 5, 3, 1]
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
    assert other.schedule.draw(3) == memory.schedule.draw(3)
    assert other.schedule.place([0] * 9) == memory.schedule.place([0] * 9)
    if copies:
        with pytest.raises(InputError, match="not rows of the stream"):
            _ = other.rows
    else:
        assert other.rows.tolist() == [7, 5, 3, 1]


def test_storage_grows_with_what_comes() -> None:
    memory = Memory(Reservoir(10**12, seed=0), CPU)
    for start in range(0, 100, 7):
        new = examples(range(start, start + 7))
        memory.make_room(new)
        memory.write(new, memory.schedule.place([0] * 7))
    assert memory.examples().y.tolist() == list(range(105))


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
    lengths=st.lists(st.integers(1, 15), min_size=1, max_size=6),
    known=st.booleans(),
    cut=st.integers(1, 7),
)
def test_a_ring_holds_the_most_recent_of_each_task_in_equal_shares(
    size: int, lengths: list[int], known: bool, cut: int
) -> None:
    tasks = [task for task, n in enumerate(lengths) for _ in range(n)]
    num_tasks = len(lengths) if known else None
    if known and len(lengths) > size:
        with pytest.raises(InputError, match=f"a memory of {size} cannot be split over {len(lengths)} tasks"):
            Ring(size, 0, num_tasks)
        return
    ring, held = Ring(size, 0, num_tasks), dict[int, int]()
    for start in range(0, len(tasks), cut):
        for i, slot in enumerate(ring.place(tasks[start : start + cut])):
            if slot >= 0:
                held[slot] = start + i
    wanted = ring_by_hand(size, tasks, num_tasks)
    assert sorted(held.values()) == sorted(example for members in wanted.values() for example in members)
    assert sorted(held) == list(range(len(ring)))
    assert {task: [held[slot] for slot in slots] for task, slots in ring.slots.items()} == wanted
    if known:
        shares = [min(n, size // len(lengths)) for n in lengths]
        assert [len(members) for members in wanted.values()] == shares
        for (task, members), share in zip(wanted.items(), shares, strict=True):
            of_task = [i for i, t in enumerate(tasks) if t == task]
            assert members == of_task[-share:]
    else:
        assert len(ring) == min(size, len(tasks))  # always full


@given(
    size=st.integers(1, 12),
    tasks=st.lists(st.integers(0, 5), max_size=60),
    num_tasks=st.none() | st.integers(1, 6),
    cut=st.integers(1, 9),
)
def test_a_ring_takes_tasks_in_any_order(size: int, tasks: list[int], num_tasks: int | None, cut: int) -> None:
    ring, held = Ring(size, 0, None if num_tasks is None else min(num_tasks, size)), dict[int, int]()
    for start in range(0, len(tasks), cut):
        for i, slot in enumerate(ring.place(tasks[start : start + cut])):
            if slot >= 0:
                held[slot] = start + i
    assert ring.place([]) == []
    assert {task: [held[slot] for slot in slots] for task, slots in ring.slots.items()} == ring_by_hand(
        size, tasks, ring.num_tasks
    )
    assert ring.written == [held[slot] for slot in range(len(held))]


def test_a_past_ring_replays_other_tasks_only() -> None:
    ring = PastRing(6, seed=0)
    ring.place([0] * 9)
    assert ring.draw(4, [0]) == []
    ring.place([1] * 3)
    assert set(ring.draw(10, [1])) == set(ring.slots[0])
    assert set(ring.draw(10, [0])) == set(ring.slots[1])
    assert len(ring.draw(10, [2])) == 4  # task 2 is to have two of the six
    assert set(ring.draw(10, [0, 1])) == set()


@pytest.mark.parametrize("kind", [Reservoir, Ring, PastRing, Exemplars])
def test_every_schedule_is_saved_and_copied_whole(kind: type[Schedule]) -> None:
    ours = kind(8, 3, 4)
    if isinstance(ours, Exemplars):
        ours.keep(5)
    ours.place([0] * 5 + [1] * 3)
    ours.end_task()
    ours.draw(3, [1])
    ours.place([1] * 4)
    other, twin = kind(8, 0, 4), copy.deepcopy(ours)
    other.load_state_dict(ours.state_dict())
    position = ours.position()
    first = ours.draw(5, [2])
    ours.rewind(position)
    assert ours.draw(5, [2]) == first == other.draw(5, [2]) == twin.draw(5, [2])
    placed = [schedule.place([2, 2, 0, 1, 3]) for schedule in (ours, other, twin)]
    assert placed[0] == placed[1] == placed[2]
    from_past_task = [
        [schedule.is_from_past_task(slot) for slot in range(len(schedule))] for schedule in (ours, other, twin)
    ]
    assert from_past_task[0] == from_past_task[1] == from_past_task[2]


class Latest(Schedule):
    """A schedule of a user's own, which looks at what it holds: each example takes the slot of the oldest."""

    def _slot(self, number: int, task: int) -> int:
        return number % self.size if len(self) < self.size else self.written.index(min(self.written))


class Biased(Reservoir):
    """A reservoir that replays its first slots."""

    def draw(self, k: int, tasks: Sequence[int] = ()) -> list[int]:
        return list(range(min(k, len(self))))


class Reversed:
    def place(self, tasks: Sequence[int]) -> list[int]:
        return super().place(tasks[::-1])  # type: ignore[no-any-return, misc]


class ReversedRing(Reversed, Ring):
    """A ring whose batches come in backwards."""


KINDS = (Reservoir, Ring, PastRing, Exemplars, Latest, Biased, ReversedRing)


def same_state(a: Schedule, b: Schedule) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else repr(value) == repr(theirs[name])
        for name, value in ours.items()
    )


@st.composite
def streams(draw: Any) -> list[tuple[list[int], int]]:
    """Several trainings: the tasks of their examples, mostly many of one in a row, and the size of a batch."""
    runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=4)
    return [
        ([task for task, n in run for _ in range(n)], batch)
        for run, batch in draw(st.lists(st.tuples(runs, st.integers(1, 9)), min_size=1, max_size=4))
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 15),
    num_tasks=st.none() | st.integers(1, 4),
    seed=st.integers(0, 99),
    k=st.integers(0, 18),
    draws=st.integers(1, 3),
    stream=streams(),
    between=st.sampled_from(["nothing", "copied", "saved and loaded", "no end of task"]),
)
def test_ahead_is_step_by_step(
    kind: type[Schedule],
    size: int,
    num_tasks: int | None,
    seed: int,
    k: int,
    draws: int,
    stream: list[tuple[list[int], int]],
    between: str,
) -> None:
    arguments = (size, seed, None if num_tasks is None else min(num_tasks, size))
    ahead, steps = kind(*arguments), kind(*arguments)
    for tasks, batch in stream:
        batches = [tasks[start : start + batch] for start in range(0, len(tasks), batch)]
        sizes = np.array([len(b) for b in batches], dtype=np.int64)
        ours = ahead.ahead(np.array(tasks, dtype=np.int64), sizes, k, draws)
        assert [table.dtype for table in ours] == [np.int64, bool, np.int64]
        placed, longest = [], 0
        for step, of in enumerate(batches):
            drawn = [slot for _ in range(draws) for slot in steps.draw(k, of)]
            longest = max(longest, len(drawn))
            rest = ours.slots.shape[1] - len(drawn)
            assert ours.slots[step].tolist() == drawn + [-1] * rest
            assert (
                ours.from_past_task[step].tolist() == [steps.is_from_past_task(slot) for slot in drawn] + [False] * rest
            )
            placed += steps.place(of)
        assert ours.slots.shape == ours.from_past_task.shape == (len(batches), longest)
        assert ours.placed.tolist() == placed
        assert same_state(ahead, steps)
        if between != "no end of task":
            for schedule in (ahead, steps):
                schedule.end_task()
        if isinstance(ahead, Exemplars) and isinstance(steps, Exemplars):
            for exemplars in (ahead, steps):
                exemplars.keep(min(size, len(tasks)))
        if between == "copied":
            ahead = copy.deepcopy(ahead)
        elif between == "saved and loaded":
            state, ahead = ahead.state_dict(), kind(size, seed + 1, arguments[2])
            ahead.load_state_dict(state)


def test_only_what_a_schedule_says_of_its_own_is_done_at_once() -> None:
    class Named(Reservoir):
        """Changes nothing that a step does."""

    loops: list[type[Schedule]] = [Latest, Biased, ReversedRing]
    arrays: list[type[Schedule]] = [Reservoir, Named, Ring, PastRing, Exemplars]
    assert all(kind.ahead is Schedule.ahead for kind in loops)
    assert not any(kind.ahead is Schedule.ahead for kind in arrays)


def test_what_came_before_the_current_task_is_from_a_past_task() -> None:
    ring = Ring(6, seed=0, num_tasks=3)
    ring.place([0] * 5)
    assert not any(map(ring.is_from_past_task, range(len(ring))))
    ring.end_task()
    assert all(map(ring.is_from_past_task, range(len(ring))))
    ring.place([1] * 2)
    assert [ring.is_from_past_task(slot) for slot in range(len(ring))] == [True, True, False, False]


@pytest.mark.parametrize("online", [True, False])
def test_exemplars_are_what_was_kept(online: bool) -> None:
    memory, pool = Memory(Exemplars(6, seed=0), CPU, keeps_task=True), examples(range(100))

    def train(rows: range) -> None:
        if online:
            for start in range(0, len(rows), 4):
                new = examples(rows[start : start + 4])
                memory.make_room(new)
                memory.write(new, memory.schedule.place([0] * len(new.y)))
                memory.hold(new)
        else:
            memory.point_to(pool, memory.rows, memory.schedule, torch.tensor(rows))
        assert memory.current().y.tolist() == list(rows)

    train(range(10, 20))
    assert len(memory) == 0
    memory.keep(torch.tensor([], dtype=torch.int64), torch.tensor([3, 1, 5]))
    memory.end_task()
    assert memory.examples().y.tolist() == [13, 11, 15]
    assert len(memory.current().y) == 0
    train(range(20, 27))
    again = Memory(Exemplars(6, seed=0), CPU, keeps_task=True)
    again.load_state_dict(memory.state_dict(copies=True))
    assert again.current().y.tolist() == list(range(20, 27))
    memory.keep(torch.tensor([2, 0]), torch.tensor([6, 0]))
    memory.end_task()
    assert memory.examples().y.tolist() == [15, 13, 26, 20]
    assert sorted(memory.schedule.draw(10)) == [0, 1, 2, 3]
    assert memory.read([3, 0]).y.tolist() == [20, 15]
