"""The traced engine: many replicas step as one network on the CPU, by a step that was traced once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor, fx

from cclfp.engine.groups import Group, StackedGroup, perturb, prepare_batches
from cclfp.engine.operations import TracedStep
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import is_same, write_alike

SHORTEST = 20  # steps of one kind in a task that are worth tracing, which takes as long as hundreds of eager ones


class Tracer:
    """Trains tasks with traced steps, which are kept from task to task, by the shapes of their arguments."""

    def __init__(self, shortest: int = SHORTEST) -> None:
        self._shortest = shortest
        self._steps: dict[Hashable, tuple[fx.GraphModule, TracedStep]] = {}

    def train(self, group: Group, tables: StepTables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the learners. Where the steps are too few, do nothing and return False.

        Some steps of other sizes, at a task's beginning or end, are taken by one replica after the other.
        """
        if all(len(segment) < self._shortest for segment in tables.segments()):
            return False
        if not isinstance(group, StackedGroup):
            raise TypeError("networks with BatchNorm are not traced")
        changing = [t.clone() for t in group.changing]
        with torch.no_grad():
            for segment in tables.segments():
                for i, new in zip(segment, self._take(segment, group, tables, changing), strict=True):
                    changing = new
                    progress(i + 1)
        group.write_back(changing, len(tables.sizes))
        return True

    def _take(
        self, segment: range, group: StackedGroup, tables: StepTables, changing: list[Tensor]
    ) -> Iterator[list[Tensor]]:
        """What the tensors that change are after each step of a segment."""
        if len(segment) < self._shortest:
            for i in segment:
                changing = group.step_each(changing, tables.row(i), tables.sizes[i][0])
                yield changing
            return
        step = self._checked_step(segment, group, tables)
        for start in range(segment.start, segment.stop, step.at_once):
            some = range(start, min(start + step.at_once, segment.stop))
            for new in step.run(changing, group.fixed, tables.rows(some)):
                yield (changing := new)

    def _checked_step(self, segment: range, group: StackedGroup, tables: StepTables) -> TracedStep:
        """The steps of a segment, compared with the step of each replica alone."""
        key, operations = group.kind_of_step(tables, segment), written_down(segment, group, tables)
        if key not in self._steps or not is_same(operations, self._steps[key][0]):
            step = group.stacked(lambda *lists: operations(*(t for tensors in lists for t in tensors)))
            self._steps[key] = operations, TracedStep(step, group.changing, group.fixed, tables.row(segment[0]))
        traced = self._steps[key][1]
        group.check_step(traced, tables, segment[0])
        return traced


def written_down(segment: range, group: StackedGroup, tables: StepTables) -> fx.GraphModule:
    """What each replica computes in the steps of a segment; ValueError where some compute something else."""
    rows = [tables.row(i) for i in (segment[0], segment[-1], segment[0])]
    *batches, again = (prepare_batches(group.learners[0], group.fixed, row) for row in rows)
    if not all(map(torch.equal, batches[0], again)):
        raise ValueError("a transform gives something else for the same inputs")
    hypers = group.fixed[2:]
    first = group.changing, hypers, batches[0]
    other = group.perturbed(), perturb(hypers), batches[1]  # other values, of which nothing may depend
    methods = [learner.algorithm for learner in group.learners]
    before = [dict(vars(method)) for method in methods]
    operations = write_alike(
        (
            group.step_of(methods[replica], tables.sizes[segment[0]][0]),
            [[t[replica] for t in tensors] for tensors in lists],
        )
        for replica, lists in [*((replica, first) for replica in range(len(methods))), (0, other)]
    )
    for method, attributes in zip(methods, before, strict=True):
        if any(attributes.get(name) is not value for name, value in vars(method).items()):
            raise ValueError("a step changes its method's attributes")
    return operations
