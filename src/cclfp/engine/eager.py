"""The reference engine: one replica, one step after the other, in plain PyTorch. Slow and obviously correct."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cclfp.engine.plan import Plan
from cclfp.learner import Learner
from cclfp.memory import Replayed
from cclfp.streams import Stream


def train_task(
    learner: Learner, stream: Stream, task: int, plan: Plan, progress: Callable[[int], None] = lambda step: None
) -> None:
    """Train a learner on one task of a stream as planned, and end the task.

    ``progress`` is called with the number of steps done, after each of them.
    """
    learner.prepare_for(stream.train)
    mask = learner.expect(torch.tensor(stream.task_ids(task), device=learner.device))
    learner.begin_task()
    for step, (current, replayed) in enumerate(plan.sizes):
        size = current + replayed
        raw = stream.train.rows(plan.rows[step, :size])
        table = None if plan.augment is None else plan.augment[step, :size]
        replayed_from = Replayed(plan.slots[step, :replayed], plan.settled[step, :replayed])
        learner.train_step(raw, mask.train(raw.task), current, replayed_from, table)
        progress(step + 1)
    if learner.memory is not None and plan.schedule is not None:
        learner.memory.point_to(stream.train, plan.memory, plan.schedule, plan.current)
    learner.end_task()
