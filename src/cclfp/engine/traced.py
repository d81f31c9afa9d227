"""The traced engine: many replicas step as one network on the CPU, by a step that was traced once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from cclfp.engine.groups import Group, StackedGroup
from cclfp.engine.operations import TracedStep
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import Operations

SHORTEST = 20  # steps of one kind in a task that are worth tracing, which takes as long as hundreds of eager ones


class Tracer:
    """Trains tasks with traced steps, which are kept from task to task, by the shapes of their arguments."""

    def __init__(self, shortest: int = SHORTEST) -> None:
        self.has_trained = False
        self._shortest = shortest
        self._steps: dict[Hashable, tuple[Operations, TracedStep]] = {}

    def train(self, group: Group, tables: StepTables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the learners. Where the steps are too few, do nothing and return False.

        Some steps of other sizes, at a task's beginning or end, are taken by one replica after the other.
        """
        if all(len(segment) < self._shortest for segment in tables.segments()):
            return False
        changing = [t.clone() for t in group.changing]
        with torch.no_grad():
            for segment in tables.segments():
                if len(segment) < self._shortest:
                    alone = group.make_steps_alone(tables, segment[0])
                    for i in segment:
                        changing = alone(changing, group.fixed, tables.row(i))
                        progress(i + 1)
                    continue
                step = self._checked_step(group, tables, segment)
                for start in range(segment.start, segment.stop, step.at_once):
                    some = range(start, min(start + step.at_once, segment.stop))
                    taken = step.run(changing, group.fixed, tables.rows(some))
                    for i, new in zip(some, taken, strict=True):
                        changing = new
                        progress(i + 1)
        group.write_back(changing, len(tables.sizes))
        self.has_trained = True
        return True

    def _checked_step(self, group: Group, tables: StepTables, segment: range) -> TracedStep:
        """The steps of a segment, compared with the step of each replica alone."""
        if not isinstance(group, StackedGroup):
            raise TypeError("networks with BatchNorm are not traced")
        key, operations = group.kind_of_step(tables, segment), group.operations(tables, segment)
        if key not in self._steps or not operations.equals(self._steps[key][0]):
            self._steps[key] = operations, group.trace_step(operations, tables.row(segment[0]))
        step = self._steps[key][1]
        group.check_step(step, tables, segment[0])
        return step
