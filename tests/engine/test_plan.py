"""Plans: every example once an epoch, replay from the memory as it was."""

from __future__ import annotations

import copy
import threading
from typing import Any
from unittest import mock

import pytest
import torch
from cohorts import replica, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cclfp.core.memory import Examples, Memory
from cclfp.core.randomness import generator
from cclfp.engine import eager
from cclfp.engine.plan import Plan, plan_task
from cclfp.engine.replica import Planner
from cclfp.methods import METHODS
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule
from cclfp.testing import Case, toy_stream
from cclfp.transforms import CropFlip

TABLES = ("rows", "current", "memory", "slots", "from_past_task", "placed")


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_plans_are_what_a_loop_over_the_steps_gives(data: st.DataObject) -> None:
    """Several tasks one after the other, as Replica trains them, from shuffled rows of a stream."""
    kind: type[Schedule] | None = data.draw(st.sampled_from([None, Reservoir, Ring, PastRing, Exemplars]))
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    ends = {"size": (1, 20), "batch": (1, 12), "epochs": (1, 3), "replay": (0, 9), "draws": (1, 3), "seed": (0, 99)}
    size, batch, epochs, replay, draws, seed = (data.draw(st.integers(*ends[name]), name) for name in ends)
    mixed = data.draw(st.booleans())
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
        before = dict(held)
        protocol = {"batch": batch, "epochs": epochs, "replay": replay, "draws": draws}
        plan = plan_task(part, tasks, **protocol, memory=memory, order=g, augment=drawn)
        shuffled = [part[torch.randperm(len(part), generator=twin)] for _ in range(epochs)]
        steps = [now.tolist() for epoch in shuffled for now in epoch.split(batch) if len(now)]
        assert plan.current.tolist() == sum(steps, [])
        assert len(plan.sizes) == len(plan.rows) == len(plan.slots) == len(plan.from_past_task) == len(steps)
        assert plan.rows.shape[1] == max([sum(sizes) for sizes in plan.sizes], default=0)
        for step, now in enumerate(steps):
            slots, from_past_task, old, placed = list[int](), list[bool](), list[int](), [-1] * len(now)
            if schedule is not None:
                of = tasks[now].tolist()
                slots = [slot for _ in range(draws) for slot in schedule.draw(replay, of)]
                from_past_task = [schedule.is_from_past_task(slot) for slot in slots]
                old = [held[slot] for slot in slots]
                placed = schedule.place(of)
                held |= {slot: row for row, slot in zip(now, placed, strict=True) if slot >= 0}
            n, m = len(now) + len(old), len(old)
            assert plan.sizes[step] == (len(now), m)
            for table, values in ((plan.rows, now + old), (plan.slots, slots), (plan.placed, placed)):
                assert table[step].tolist() == values + [-1] * (table.shape[1] - len(values))
            assert plan.from_past_task[step].tolist() == from_past_task + [False] * (plan.slots.shape[1] - m)
            assert plan.augment is not None
            assert torch.equal(plan.augment[step, :n], drawn(step, n))
            assert not plan.augment[step, n:].any()
        assert plan.memory.tolist() == [held[slot] for slot in range(len(held))]
        assert (plan.rows.dtype, plan.slots.dtype, plan.memory.dtype) == (torch.int64,) * 3
        assert plan.from_past_task.dtype == torch.bool
        if memory is not None and plan.schedule is not None:
            assert dict(enumerate(memory.rows.tolist())) == before  # a plan changes nothing
            memory.point_to(pool, plan.memory, plan.schedule, plan.current)
            if kind is Exemplars:
                new = min(len(part), size // len(lengths))
                memory.keep(torch.arange(len(memory) + new))
            memory.end_task()


def test_a_plan_of_the_whole_stream_moves_to_a_device() -> None:
    plan = next(Case(METHODS["er"], "class", {}).replica().plans()).to(torch.device("meta"))
    tables = (plan.rows, plan.current, plan.memory, plan.slots, plan.from_past_task)
    assert {table.device.type for table in tables} == {"meta"}


def test_orders_differ_between_seeds_epochs_and_tasks() -> None:
    def order(seed: int, task: int) -> list[int]:
        protocol = {"batch": 10, "epochs": 2, "replay": 0}
        g = generator(seed, "order", task)
        plan = plan_task(torch.arange(25), torch.zeros(25, dtype=torch.int64), **protocol, memory=None, order=g)  # type: ignore[arg-type]
        assert plan.sizes == [(10, 0), (10, 0), (5, 0)] * 2  # without memory nothing is replayed
        return plan.current.tolist()

    first = order(0, 0)
    assert first == order(0, 0)
    assert sorted(first[:25]) == sorted(first[25:]) == list(range(25))
    assert len({tuple(part) for part in (first[:25], first[25:], order(1, 0)[:25], order(0, 1)[:25])}) == 4


def test_plans_are_made_once_a_seed() -> None:
    stream = toy_stream("class")
    with mock.patch("cclfp.engine.replica.plan_task", wraps=plan_task) as planned:
        trained([replica("er", "class", seed, stream=stream, lr=lr) for seed in (0, 1) for lr in (0.1, 0.05)], "traced")
    assert planned.call_count == 2 * stream.num_tasks


@pytest.mark.parametrize(
    ("method", "is_ahead"), [("er", True), ("ccl-fp+", True), ("a-gem", True), ("hal", True), ("icarl", False)]
)
def test_plans_made_in_the_background_are_the_same(method: str, is_ahead: bool) -> None:
    """As on a GPU, where the next task is planned while one is trained."""
    threads: set[threading.Thread] = set()

    def noted(*arguments: Any, **options: Any) -> Plan:
        threads.add(threading.current_thread())
        return plan_task(*arguments, **options)

    def planned(*, in_advance: bool) -> list[Plan]:
        replicas, plans = [replica(method, "class", seed) for seed in (0, 1)], list[Plan]()
        planner = Planner(replicas, torch.device("cpu"))
        while not replicas[0].is_done:
            fresh = [next(one.plans()) for one in replicas]  # from what the memory holds when the task comes
            plans += planner.next_plans(in_advance=True) if in_advance else fresh
            for one, plan in zip(replicas, plans[-2:], strict=True):
                eager.train(one.learner, one.stream.train, one.begin_task(), plan)
                one.end_task(plan)
        return plans

    alone = planned(in_advance=False)
    with mock.patch("cclfp.engine.replica.plan_task", noted):
        ahead = planned(in_advance=True)
    assert len(threads - {threading.current_thread()}) == is_ahead
    for ours, theirs in zip(ahead, alone, strict=True):
        assert (ours.sizes, ours.augment) == (theirs.sizes, None) == (theirs.sizes, theirs.augment)
        for name in TABLES:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
