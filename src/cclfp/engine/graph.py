"""The graph engine: a step of many replicas is recorded as a CUDA graph, which the device replays.

The graph finds the row of its step in the tables with a counter on the device. The host only launches the graph again
and again, and does not wait for the device between the first and the last step of a task.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.engine.groups import Group
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import Step
from cclfp.nets.network import copy_all

SHORTEST = 8  # steps of one segment that are worth recording
KEPT = 2  # graphs that stay recorded
MARK_EVERY = 32  # steps between two marks that show how far the device is


class Graphs:
    """Trains tasks with graphs, which are kept from task to task."""

    def __init__(self) -> None:
        self._recorded: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()

    def train(self, group: Group, tables: StepTables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the learners."""
        changing, marks = group.changing, _Marks(progress)
        with torch.no_grad():
            for segment, step, recorded in [self._ready(group, tables, segment) for segment in tables.segments()]:
                if recorded is None:
                    for i in segment:
                        changing = step(changing, group.fixed, tables.row(i))
                else:
                    recorded.run(changing, group.fixed, tables, segment, marks)
                    changing = recorded.changing
            marks.finish(len(tables.sizes))
        group.write_back(changing, len(tables.sizes))
        return True

    def _ready(self, group: Group, tables: StepTables, segment: range) -> tuple[range, Step, _Recorded | None]:
        """What takes the steps of a segment, once it is checked: a step function, and a graph if it is long enough."""
        step = group.make_step(tables, segment[0])
        recorded = self._record(group, step, tables, segment) if len(segment) >= SHORTEST else None
        group.check_step(step if recorded is None else recorded.once(tables, segment), tables, segment[0])
        return segment, step, recorded

    def _record(self, group: Group, step: Step, tables: StepTables, segment: range) -> _Recorded:
        shapes = tuple(t.shape for t in tables.tables)
        key = (group.kind_of_step(tables, segment), shapes, group.fixed[0].data_ptr(), *map(id, group.learners))
        if key not in self._recorded:
            while len(self._recorded) >= KEPT:
                self._recorded.popitem(last=False)
            self._recorded[key] = _Recorded(step, group, tables, segment, self._pool)
        self._recorded.move_to_end(key)
        return self._recorded[key]


class _Recorded:
    """A graph of one step, and the tensors that it reads and writes."""

    def __init__(self, step: Step, group: Group, tables: StepTables, segment: range, pool: Any) -> None:
        self.step = step  # kept, so that no other step gets its id
        self.changing = [t.clone() for t in group.changing]
        self._fixed = [group.fixed[0], *(t.clone() for t in group.fixed[1:])]
        self._tables = tables  # later tasks' tables are copied into these
        self._counter = torch.full((1,), segment[0], device=group.fixed[0].device)

        def rehearse() -> None:
            step([t.clone() for t in self.changing], self._fixed, self._row(segment))

        def take_step() -> None:
            overwrite(self.changing, step(self.changing, self._fixed, self._row(segment)))
            self._counter.add_(1)

        self.graph = capture(take_step, rehearse, self._counter.device, pool)

    def once(self, tables: StepTables, segment: range) -> Step:
        """A step function that takes the first step of a segment with the graph."""

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            self._load(changing, fixed, tables, segment)
            self.graph.replay()
            return self.changing

        return step

    def run(
        self, changing: list[Tensor], fixed: list[Tensor], tables: StepTables, segment: range, marks: _Marks
    ) -> None:
        """Take all steps of a segment."""
        self._load(changing, fixed, tables, segment)
        for i in segment:
            self.graph.replay()
            marks.launched(i + 1)

    def _load(self, changing: list[Tensor], fixed: list[Tensor], tables: StepTables, segment: range) -> None:
        copy_all([*self.changing, *self._fixed[1:]], [*changing, *fixed[1:]])
        for ours, theirs in zip(self._tables.tables, tables.tables, strict=True):
            ours.copy_(theirs)
        self._counter.fill_(segment[0])

    def _row(self, segment: range) -> list[Tensor]:
        return self._tables.row_at(self._counter, segment[0])


class _Marks:
    """Reports how many steps the device has taken, without making it wait."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._marks: deque[tuple[int, torch.cuda.Event]] = deque()

    def launched(self, step: int) -> None:
        """The host has launched a step."""
        if step % MARK_EVERY == 0:
            self._mark(step)
        self._report()

    def finish(self, step: int) -> None:
        """The host has launched the last ``step``: wait for the device, and report its progress meanwhile."""
        self._mark(step)
        while self._marks:
            self._report()
            time.sleep(0.0005)

    def _mark(self, step: int) -> None:
        event = torch.cuda.Event()
        event.record()
        self._marks.append((step, event))

    def _report(self) -> None:
        done = None
        while self._marks and self._marks[0][1].query():
            done, _ = self._marks.popleft()
        if done is not None:
            self._progress(done)


# -- recording ---------------------------------------------------------------------------------------------------------


def capture(
    work: Callable[[], None], rehearse: Callable[[], None], device: torch.device, pool: Any
) -> torch.cuda.CUDAGraph:
    """A graph of what ``work`` launches, without running it. The graph's memory is in the pool.

    ``rehearse`` runs before, so that libraries allocate workspaces and choose kernels. If ``work`` raises, nothing is
    left of the attempt.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            rehearse()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    here, generator = torch.cuda.current_stream(stream.device), torch.cuda.default_generators[stream.device_index]
    drawn, reason = generator.get_state(), None
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            try:
                work()
            except BaseException as error:
                reason = error
                raise
    except BaseException as error:  # noqa: BLE001  raised again
        if error is not reason:  # torch's own beginning or end failed: it does not clean up then, and hides the reason
            torch.cuda.set_stream(here)
            with contextlib.suppress(RuntimeError):  # raised if the recording had ended: the graph releases its pool
                torch._C._cuda_endAllocateToPool(stream.device_index, pool)
                torch._C._cuda_releasePool(stream.device_index, pool)
            # The generator still takes part in the recording, and cannot be drawn from: give it a new state.
            generator.graphsafe_set_state(torch.Generator(stream.device).graphsafe_get_state())
            generator.set_state(drawn)
        try:
            raise (error if reason is None else reason) from None
        finally:
            reason = None  # or it would keep this frame, and the tensors of the attempt, until a garbage collection
    return graph


def overwrite(arguments: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy what a step returned to the tensors that it read."""
    places = {t.untyped_storage().data_ptr() for t in arguments if t.numel()}
    pairs = [(ours, t) for ours, t in zip(arguments, new, strict=True) if t.numel() and not _same(ours, t)]
    # A result that is one of the step's own arguments is copied before that argument is overwritten.
    sources = [t.clone() if t.untyped_storage().data_ptr() in places else t for _, t in pairs]
    copy_all([ours for ours, _ in pairs], sources)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
