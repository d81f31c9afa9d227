"""The reservoir and what the memory holds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cclfp.errors import InputError
from cclfp.memory import Examples, Memory, Reservoir

CPU = torch.device("cpu")


def contents_by_hand(size: int, stream: list[list[int]], seed: int) -> list[int]:
    """What a memory of ``size`` holds after these batches, from the slots the schedule gives."""
    reservoir, held = Reservoir(size, seed), dict[int, int]()
    for batch in stream:
        for example, slot in zip(batch, reservoir.place(len(batch)), strict=True):
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
    reservoir.place(5)
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
    reservoir.place(n)
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
        memory.write(examples(batch), memory.schedule.place(len(batch)))
    held = memory.examples()
    assert held.y.tolist() == contents_by_hand(4, [list(batch) for batch in batches], seed=0)
    assert held.x[:, 0].tolist() == held.y.tolist()


def test_rows_of_a_stream_become_copies_when_written_to() -> None:
    memory, pool = Memory(Reservoir(4, seed=0), CPU), examples(range(100))
    memory.schedule.place(4)
    memory.point_to(pool, torch.tensor([7, 5, 3, 1]), memory.schedule)
    assert memory.examples().y.tolist() == [7, 5, 3, 1]
    assert memory.rows.tolist() == [7, 5, 3, 1]
    memory.make_room(examples(range(50, 51)))
    memory.write(examples(range(50, 51)), [2])
    assert memory.examples().y.tolist() == [7, 5, 50, 1]
    assert pool.y.tolist() == list(range(100))


@pytest.mark.parametrize("copies", [True, False])
def test_state_goes_there_and_back(copies: bool) -> None:
    pool, memory, other = examples(range(100)), Memory(Reservoir(4, 0), CPU), Memory(Reservoir(4, 0), CPU)
    memory.schedule.place(9)
    memory.point_to(pool, torch.tensor([7, 5, 3, 1]), memory.schedule)
    other.load_state_dict(memory.state_dict(copies=copies), pool)
    assert torch.equal(other.examples().x, memory.examples().x)
    assert other.schedule.draw(3) == memory.schedule.draw(3)
    assert other.schedule.place(9) == memory.schedule.place(9)
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
        memory.write(new, memory.schedule.place(7))
    assert memory.examples().y.tolist() == list(range(105))
