"""The reference engine: one replica, one step after the other, in plain PyTorch. Slow and obviously correct."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from cclfp.core.memory import Examples
from cclfp.core.scenarios import ClassMask
from cclfp.engine.plan import Plan
from cclfp.engine.replica import Replica
from cclfp.learner import Learner

WARM_UP = 2  # steps that are slower than those after them
TIMED = 10  # steps that show how long a step takes


def train(
    learner: Learner, pool: Examples, mask: ClassMask, plan: Plan, progress: Callable[[int], None] = lambda step: None
) -> None:
    """Take all planned steps of a task that has begun, on the examples of a stream.

    ``progress`` is called after each step, with the number of steps taken.
    """
    for step, (current, replayed) in enumerate(plan.sizes):
        size = current + replayed
        raw = pool.rows(plan.rows[step, :size])
        table = None if plan.augment is None else plan.augment[step, :size]
        slots = plan.slots[step, :replayed], plan.from_past_task[step, :replayed], plan.placed[step, :current]
        learner.train_step(raw, mask.train(raw.task), current, slots, table)
        progress(step + 1)


def seconds_per_step(replica: Replica) -> float:
    """How long this engine takes for one step of a replica, which cannot be used afterwards."""
    plan = replica.plan()
    mask = replica.begin_task()
    began = 0.0

    def progress(step: int) -> None:
        nonlocal began
        if step == min(WARM_UP, len(plan.sizes)):
            began = _now(replica)

    short = dataclasses.replace(plan, sizes=plan.sizes[: WARM_UP + TIMED])
    train(replica.learner, replica.stream.train, mask, short, progress)
    return (_now(replica) - began) / max(1, len(short.sizes) - WARM_UP)


def _now(replica: Replica) -> float:
    if replica.learner.device.type == "cuda":
        torch.cuda.synchronize(replica.learner.device)
    return time.perf_counter()
