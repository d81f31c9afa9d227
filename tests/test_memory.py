"""The reservoir and what the memory holds."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cclfp.errors import InputError
from cclfp.memory import Examples, Memory
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


@given(st.integers(1, 12), st.lists(st.integers(1, 9), max_size=12), st.integers(0, 99))
def test_slots_do_not_depend_on_how_the_stream_is_cut(size: int, cuts: list[int], seed: int) -> None:
    n = sum(cuts)
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(list(range(start, start + cut)))
        start += cut
    assert contents_by_hand(size, pieces, seed) == contents_by_hand(size, [[i] for i in range(n)], seed)


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
        with pytest.raises(InputError, match="no rows of the stream"):
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
    """For each task the examples a ring holds, oldest first: told by the rules, not by slots."""
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


def test_a_past_ring_replays_other_tasks_only() -> None:
    ring = PastRing(6, seed=0)
    ring.place([0] * 9)
    assert ring.draw(4, [0]) == []
    ring.place([1] * 3)
    assert set(ring.draw(10, [1])) == set(ring.slots[0])
    assert set(ring.draw(10, [0])) == set(ring.slots[1])
    assert len(ring.draw(10, [2])) == 6
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
    settled = [[schedule.is_settled(slot) for slot in range(len(schedule))] for schedule in (ours, other, twin)]
    assert settled[0] == settled[1] == settled[2]


def test_settled_is_what_was_there_when_the_last_task_ended() -> None:
    ring = Ring(6, seed=0, num_tasks=3)
    ring.place([0] * 5)
    assert not any(map(ring.is_settled, range(len(ring))))
    ring.end_task()
    assert all(map(ring.is_settled, range(len(ring))))
    ring.place([1] * 2)
    assert [ring.is_settled(slot) for slot in range(len(ring))] == [True, True, False, False]


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
