"""The reference engine: one replica, one step after the other, in plain PyTorch. Slow and obviously correct."""

from __future__ import annotations

from collections.abc import Callable

from cclfp.core.memory import Examples
from cclfp.core.scenarios import ClassMask
from cclfp.engine.plan import Plan
from cclfp.learner import Learner
from cclfp.methods import Batch


def train(
    learner: Learner, pool: Examples, mask: ClassMask, plan: Plan, progress: Callable[[int], None] = lambda step: None
) -> None:
    """Take all planned steps of a task that has begun, on the examples of a stream.

    ``progress`` is called after each step, with the number of steps taken.
    """
    for step, (current, replayed) in enumerate(plan.sizes):
        size = current + replayed
        raw = pool.rows(plan.rows[step, :size])
        slots = plan.slots[step, :replayed], plan.from_past_task[step, :replayed], plan.placed[step, :current]
        table = None if plan.augment is None else plan.augment[step, :size]
        after, _ = learner.step(Batch(*raw, mask.train(raw.task), current, *slots), table)
        learner.update(after, steps=1)
        progress(step + 1)
