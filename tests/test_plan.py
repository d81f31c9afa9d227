"""Plans: every example once an epoch, replay from the memory as it was."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cclfp.engine.plan import plan_task
from cclfp.memory import Memory
from cclfp.methods import METHODS
from cclfp.randomness import generator
from cclfp.schedules import Reservoir
from cclfp.testing import Case

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
        assert not plan.settled[step].any()  # no task has ended yet
        seen |= set(now)
        passed += now
    for epoch in range(epochs):
        assert sorted(passed[epoch * n : epoch * n + n]) == rows.tolist()
    assert len(memory) == 0  # a plan changes nothing
    assert plan.schedule is not None
    assert len(plan.memory) == min(size, epochs * n) == len(plan.schedule)
    assert set(plan.memory.tolist()) <= set(rows.tolist())
    assert plan.current.tolist() == passed


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
