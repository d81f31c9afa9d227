"""Plans: every example once an epoch, replay from the memory as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cclfp.core.memory import Examples, Memory
from cclfp.core.randomness import generator
from cclfp.engine.plan import plan_task
from cclfp.methods import METHODS
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule
from cclfp.testing import Case
from cclfp.transforms import CropFlip

TASKS = torch.zeros(200, dtype=torch.int64)


@settings(deadline=None)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    size=st.integers(1, 20),
    seed=st.integers(0, 9),
)
def test_plan(n: int, batch: int, epochs: int, size: int, seed: int) -> None:
    memory = Memory(Reservoir(size, seed), torch.device("cpu"))
    rows = torch.arange(100, 100 + n)
    plan = plan_task(
        rows, TASKS, batch=batch, epochs=epochs, replay=7, memory=memory, order=generator(seed, "order", 0)
    )
    assert len(plan.sizes) == epochs * -(-n // batch)
    seen: set[int] = set()
    passed: list[int] = []
    for step, (current, replayed) in enumerate(plan.sizes):
        line = plan.rows[step].tolist()
        now, old = line[:current], line[current : current + replayed]
        assert line[current + replayed :] == [-1] * (len(line) - current - replayed)
        assert len(old) == min(7, size, len(passed))
        assert set(old) <= seen
        slots = plan.slots[step].tolist()
        assert len(set(slots[:replayed])) == replayed
        assert slots[replayed:] == [-1] * (len(slots) - replayed)
        assert not plan.from_past_task[step].any()  # no task has ended yet
        seen |= set(now)
        passed += now
    for epoch in range(epochs):
        assert sorted(passed[epoch * n : epoch * n + n]) == rows.tolist()
    assert len(memory) == 0  # a plan changes nothing
    assert plan.schedule is not None
    assert len(plan.memory) == min(size, epochs * n) == len(plan.schedule)
    assert set(plan.memory.tolist()) <= set(rows.tolist())
    assert plan.current.tolist() == passed


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    kind=st.sampled_from([None, Reservoir, Ring, PastRing, Exemplars]),
    size=st.integers(1, 20),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    replay=st.integers(0, 9),
    draws=st.integers(1, 3),
    mixed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_plans_are_what_a_loop_over_the_steps_gives(
    kind: type[Schedule] | None,
    size: int,
    lengths: list[int],
    batch: int,
    epochs: int,
    replay: int,
    draws: int,
    mixed: bool,
    seed: int,
) -> None:
    """Several tasks one after the other, as Replica trains them, from shuffled rows of a stream."""
    tasks = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    rows = list(torch.randperm(len(tasks), generator=generator(seed, "rows")).split(lengths))
    if not mixed:
        rows = [(tasks == task).nonzero().flatten() for task in range(len(lengths))]
    pool = Examples(tasks, tasks, tasks)
    memory = None if kind is None else Memory(kind(size, seed), torch.device("cpu"), keeps_task=kind is Exemplars)
    augment = CropFlip(4)

    def drawn(step: int, n: int) -> Tensor:
        return augment.draw(n, generator(seed, "augmentation", step))

    for position, part in enumerate(rows):
        g, twin = (generator(seed, "order", position) for _ in range(2))
        schedule = None if memory is None else copy.deepcopy(memory.schedule)
        held = {} if memory is None else dict(enumerate(memory.rows.tolist()))
        protocol = {"batch": batch, "epochs": epochs, "replay": replay, "draws": draws}
        plan = plan_task(part, tasks, **protocol, memory=memory, order=g, augment=drawn)
        shuffled = [part[torch.randperm(len(part), generator=twin)] for _ in range(epochs)]
        steps = [now.tolist() for epoch in shuffled for now in epoch.split(batch) if len(now)]
        assert plan.current.tolist() == sum(steps, [])
        assert len(plan.sizes) == len(plan.rows) == len(plan.slots) == len(plan.from_past_task) == len(steps)
        assert plan.rows.shape[1] == max([sum(sizes) for sizes in plan.sizes], default=0)
        for step, now in enumerate(steps):
            slots, from_past_task, old = list[int](), list[bool](), list[int]()
            if schedule is not None:
                of = tasks[now].tolist()
                slots = [slot for _ in range(draws) for slot in schedule.draw(replay, of)]
                from_past_task = [schedule.is_from_past_task(slot) for slot in slots]
                old = [held[slot] for slot in slots]
                placed = schedule.place(of)
                for row, slot in zip(now, placed, strict=True):
                    if slot >= 0:
                        held[slot] = row
            else:
                placed = [-1] * len(now)
            assert plan.placed[step].tolist() == placed + [-1] * (plan.placed.shape[1] - len(now))
            n = len(now) + len(old)
            assert plan.sizes[step] == (len(now), len(old))
            assert plan.rows[step].tolist() == now + old + [-1] * (plan.rows.shape[1] - n)
            assert plan.slots[step].tolist() == slots + [-1] * (plan.slots.shape[1] - len(old))
            assert plan.from_past_task[step].tolist() == from_past_task + [False] * (
                plan.from_past_task.shape[1] - len(old)
            )
            assert plan.augment is not None
            assert torch.equal(plan.augment[step, :n], drawn(step, n))
            assert not plan.augment[step, n:].any()
        assert plan.memory.tolist() == [held[slot] for slot in range(len(held))]
        assert (plan.rows.dtype, plan.slots.dtype, plan.memory.dtype) == (torch.int64,) * 3
        assert plan.from_past_task.dtype == torch.bool
        if memory is not None and plan.schedule is not None:
            memory.point_to(pool, plan.memory, plan.schedule, plan.current)
            if kind is Exemplars:
                new = min(len(part), size // len(lengths))
                memory.keep(torch.arange(len(memory)), torch.arange(new))
            memory.end_task()


def test_a_plan_of_the_whole_stream_moves_to_a_device() -> None:
    plan = Case(METHODS["er"], "class", {}).replica().plan().to(torch.device("meta"))
    tables = (plan.rows, plan.current, plan.memory, plan.slots, plan.from_past_task)
    assert {table.device.type for table in tables} == {"meta"}


def test_without_memory_nothing_is_replayed() -> None:
    plan = plan_task(torch.arange(25), TASKS, batch=10, epochs=1, replay=0, memory=None, order=generator(0, "order", 0))
    assert plan.sizes == [(10, 0), (10, 0), (5, 0)]
    assert len(plan.memory) == 0


def test_the_seed_orders_the_examples() -> None:
    def current(seed: int) -> list[int]:
        plan = Case(METHODS["er"], "class", {}).replica(seed).plan()
        return [row for step, (n, _) in enumerate(plan.sizes) for row in plan.rows[step, :n].tolist()]

    assert current(0) == current(0) != current(1)
    assert sorted(current(0)) == sorted(current(1))


def test_orders_differ_between_epochs_and_tasks() -> None:
    def order(task: int) -> list[int]:
        plan = plan_task(
            torch.arange(20), TASKS, batch=20, epochs=2, replay=0, memory=None, order=generator(0, "order", task)
        )
        return plan.rows.flatten().tolist()

    assert order(0) == order(0) != order(1)
    assert order(0)[:20] != order(0)[20:]
