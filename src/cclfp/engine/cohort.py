"""A cohort: replicas of one method on one benchmark that train together, task by task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cclfp.engine import eager
from cclfp.engine.compiled import Programs, first_line
from cclfp.engine.plan import Plan
from cclfp.engine.replica import Replica
from cclfp.engine.stack import Tables, together
from cclfp.scenarios import ClassMask

Progress = Callable[[int], None]


class Cohort:
    """Trains replicas side by side, all at the same place of their streams.

    They may differ in seed and hyperparameters, and in nothing else. ``engine`` is ``"eager"``, one replica after the
    other, or ``"compiled"``, all in one program. What cannot be done so is done eagerly, and ``note`` is told why.
    """

    def __init__(
        self, replicas: Sequence[Replica], engine: str = "eager", note: Callable[[str], None] = lambda text: None
    ) -> None:
        self.replicas = replicas
        self._note = note
        self._programs = None if engine == "eager" else Programs(note)
        self._pool, self._offsets = _pool([replica.stream.train.x for replica in replicas])

    @property
    def engine(self) -> str:
        """What trained the last task."""
        return "eager" if self._programs is None else "compiled"

    @property
    def is_done(self) -> bool:
        return self.replicas[0].is_done

    def advance(self, progress: Progress = lambda step: None) -> None:
        """Train the next task of all replicas and test them."""
        for replica in self.replicas:
            replica.test_untrained()
        began = time.perf_counter()
        plans = [replica.plan() for replica in self.replicas]
        masks = [replica.begin_task() for replica in self.replicas]
        if not self._train_together(plans, masks, progress):
            for replica, plan, mask in zip(self.replicas, plans, masks, strict=True):
                eager.train(replica.learner, replica.stream.train, mask, plan, progress)
        for replica, plan in zip(self.replicas, plans, strict=True):
            replica.end_task(plan)
        seconds = (time.perf_counter() - began) / len(self.replicas)
        for replica in self.replicas:
            replica.train_seconds += seconds
            replica.test()

    def _train_together(self, plans: Sequence[Plan], masks: Sequence[ClassMask], progress: Progress) -> bool:
        """Whether all steps could be taken; if not, none was."""
        if self._programs is None:
            return False
        try:
            tables = Tables(plans, [replica.stream.train for replica in self.replicas], self._offsets)
            stack = together([replica.learner for replica in self.replicas], masks, self._pool)
            self._programs.train(stack, tables, progress)
        except Exception as error:  # noqa: BLE001  whatever a user's method or network may raise
            self._note(f"its replicas cannot be stacked ({first_line(error)}): going on eagerly")
            self._programs = None
            return False
        return True


def _pool(streams: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """The inputs of several streams as one tensor, those that are the same tensor once, and where each begins."""
    distinct = {x.data_ptr(): x for x in streams}
    starts, total = {}, 0
    for pointer, x in distinct.items():
        starts[pointer], total = total, total + len(x)
    pool = torch.cat(list(distinct.values())) if len(distinct) > 1 else streams[0]
    return pool, [starts[x.data_ptr()] for x in streams]
