"""The plans of a cohort: for each replica, what every step of its next task uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from cclfp.engine.plan import Plan
from cclfp.engine.replica import Replica


class Planner:
    """Plans the tasks of replicas, one task after the other.

    Replicas of one seed have the same stream and memory, and share their plans.
    """

    def __init__(self, replicas: Sequence[Replica], device: torch.device) -> None:
        self._replicas = replicas
        self._device = device
        self._executor = ThreadPoolExecutor(1)  # starts its thread when it is first used
        self._next: Future[list[Plan]] | None = None  # plans that are made in advance

    def next_plans(self, *, in_advance: bool) -> list[Plan]:
        """The plans of the next task. With ``in_advance``, those of the task after it are made in the background."""
        plans = _plan_maker(self._replicas)() if self._next is None else self._next.result()
        self._next = None
        if in_advance and self._replicas[0].can_plan_ahead:
            self._next = self._executor.submit(_plan_maker(self._replicas, plans))
        on_device = {id(plan): plan.to(self._device) for plan in plans}
        return [on_device[id(plan)] for plan in plans]


def _plan_maker(replicas: Sequence[Replica], after: Sequence[Plan] | None = None) -> Callable[[], list[Plan]]:
    """A function that makes the plans of the next task or, given these, of the task ``after`` it."""
    makers: dict[Hashable, Callable[[], Plan]] = {}
    keys = [replica.plan_key for replica in replicas]
    for number, (key, replica) in enumerate(zip(keys, replicas, strict=True)):
        if key not in makers:
            makers[key] = replica.plan_maker(None if after is None else after[number])

    def make() -> list[Plan]:
        plans = {key: maker() for key, maker in makers.items()}
        return [plans[key] for key in keys]

    return make
