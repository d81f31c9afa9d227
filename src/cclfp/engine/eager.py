"""The reference engine: one replica, one step after the other, in plain PyTorch. Slow and obviously correct."""

from __future__ import annotations

from collections.abc import Callable

from cclfp.core.memory import Examples, Replayed
from cclfp.core.scenarios import ClassMask
from cclfp.engine.plan import Plan
from cclfp.learner import Learner


def train(
    learner: Learner, pool: Examples, mask: ClassMask, plan: Plan, progress: Callable[[int], None] = lambda step: None
) -> None:
    """All steps of a task that has begun, as planned, on the examples of a stream.

    ``progress`` is called with the number of steps done, after each of them.
    """
    for step, (current, replayed) in enumerate(plan.sizes):
        size = current + replayed
        raw = pool.rows(plan.rows[step, :size])
        table = None if plan.augment is None else plan.augment[step, :size]
        replayed_from = Replayed(plan.slots[step, :replayed], plan.settled[step, :replayed])
        learner.train_step(raw, mask.train(raw.task), current, replayed_from, table)
        progress(step + 1)
