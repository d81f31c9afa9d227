"""The graph engine: steps of many replicas recorded as a CUDA graph, which the device repeats by itself.

The graph finds its step's row of the tables by a counter on the device, so that the host has nothing to do but to say
"again", and between a task's first and last step never waits for the device.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from cclfp.engine.compiled import NotCompiled, Steps
from cclfp.engine.stack import Step, Tables, Together
from cclfp.nets.network import copy_all

WORTH = 100_000  # steps of one kind that pay for a program: it takes the compiler half a minute, or two for ResNet18
SHORTEST = 8  # steps that are worth recording
KEPT = 2  # graphs that stay recorded
AHEAD = 32  # steps between two marks that tell how far the device is


class Graphs:
    """Trains tasks by graphs, kept from task to task. ``note`` is told what cannot be compiled, and why."""

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.steps = Steps()
        self._note = note
        self._recorded: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()

    def train(self, stack: Together, tables: Tables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """All steps of a task, which then are in the learners."""
        self.steps.count(stack, tables)
        changing, marks = stack.changing, _Marks(progress)
        with torch.no_grad():
            for segment, step, recorded in [self._ready(stack, tables, segment) for segment in tables.segments()]:
                if recorded is None:
                    for i in segment:
                        changing = step(changing, stack.fixed, tables.row(i))
                else:
                    recorded.run(changing, stack.fixed, tables, segment, marks)
                    changing = recorded.changing
            marks.finish(len(tables.sizes))
        stack.put_back(changing, len(tables.sizes))
        return True

    def _ready(self, stack: Together, tables: Tables, segment: range) -> tuple[range, Step, _Recorded | None]:
        """What takes the steps of a segment, seen to be right; a graph where they are enough."""
        step = self._step(stack, tables, segment)
        recorded = self._record(stack, step, tables, segment) if len(segment) >= SHORTEST else None
        stack.check(step if recorded is None else recorded.once(tables, segment), tables, segment[0])
        return segment, step, recorded

    def _step(self, stack: Together, tables: Tables, segment: range) -> Step:
        try:
            return self.steps.get(stack, tables, segment, WORTH)
        except NotCompiled as reason:
            self._note(f"not compiled: {reason}")
            self.steps.failed = True
            return self.steps.get(stack, tables, segment, WORTH)

    def _record(self, stack: Together, step: Step, tables: Tables, segment: range) -> _Recorded:
        shapes = tuple(t.shape for t in tables.tables)
        key = (self.steps.key(stack, tables, segment), shapes, stack.fixed[0].data_ptr(), id(step))
        if key not in self._recorded:
            while len(self._recorded) >= KEPT:
                self._recorded.popitem(last=False)
            self._recorded[key] = _Recorded(step, stack, tables, segment, self._pool)
        self._recorded.move_to_end(key)
        return self._recorded[key]


class _Recorded:
    """A graph of one step, and the tensors that it reads and writes."""

    def __init__(self, step: Step, stack: Together, tables: Tables, segment: range, pool: Any) -> None:
        self.step = step  # kept, so that its id stays its own
        self.changing = [t.clone() for t in stack.changing]
        self._fixed = [stack.fixed[0], *(t.clone() for t in stack.fixed[1:])]
        self._tables = tables  # of later tasks only the contents are taken
        self._counter = torch.full((1,), segment[0], device=stack.fixed[0].device)
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self._counter.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries make their workspaces and choose their kernels
                step([t.clone() for t in self.changing], self._fixed, self._row(segment))
        torch.cuda.current_stream().wait_stream(side)
        self._capture(step, segment, side, pool)

    def _capture(self, step: Step, segment: range, side: torch.cuda.Stream, pool: Any) -> None:
        here, reason = torch.cuda.current_stream(), None
        try:
            with torch.cuda.graph(self.graph, pool=pool, stream=side):
                try:
                    self._write(step(self.changing, self._fixed, self._row(segment)))
                    self._counter.add_(1)
                except BaseException as error:
                    reason = error
                    raise
        except BaseException as error:  # noqa: BLE001  raised again
            # torch leaves a capture that failed half ended, and hides why it did.
            device = self._counter.device
            torch.cuda.set_stream(here)
            for end in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
                with contextlib.suppress(RuntimeError):
                    end(device.index or 0, pool)
            _forget_capture(device)
            raise (error if reason is None else reason) from None

    def once(self, tables: Tables, segment: range) -> Step:
        """The first step of a segment, as the graph takes it."""

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            self._load(changing, fixed, tables, segment)
            self.graph.replay()
            return self.changing

        return step

    def run(self, changing: list[Tensor], fixed: list[Tensor], tables: Tables, segment: range, marks: _Marks) -> None:
        """All steps of a segment: the host only says "again"."""
        self._load(changing, fixed, tables, segment)
        for i in segment:
            self.graph.replay()
            marks.passed(i + 1)

    def _load(self, changing: list[Tensor], fixed: list[Tensor], tables: Tables, segment: range) -> None:
        copy_all([*self.changing, *self._fixed[1:]], [*changing, *fixed[1:]])
        for ours, theirs in zip(self._tables.tables, tables.tables, strict=True):
            ours.copy_(theirs)
        self._counter.fill_(segment[0])

    def _row(self, segment: range) -> list[Tensor]:
        return self._tables.row_at(self._counter, segment[0])

    def _write(self, new: list[Tensor]) -> None:
        """Put what a step made in the place of what it took."""
        places = {t.untyped_storage().data_ptr() for t in self.changing if t.numel()}
        pairs = [(ours, t) for ours, t in zip(self.changing, new, strict=True) if t.numel() and not _same(ours, t)]
        # What a step hands on under another name is copied before its place is written to.
        sources = [t.clone() if t.untyped_storage().data_ptr() in places else t for _, t in pairs]
        copy_all([ours for ours, _ in pairs], sources)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


def _forget_capture(device: torch.device) -> None:
    """Give the device's generator a state of its own again: one that failed to record cannot be drawn from."""
    ours = torch.cuda.default_generators[device.index or 0]
    seed = ours.initial_seed()
    ours.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    ours.manual_seed(seed)


class _Marks:
    """Tells how many steps the device has done, without making it wait."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._marks: deque[tuple[int, torch.cuda.Event]] = deque()

    def passed(self, step: int) -> None:
        """The host has come to the end of a step."""
        if step % AHEAD == 0:
            self._mark(step)
        self._look()

    def finish(self, step: int) -> None:
        """The host has nothing more to say: tell of the rest, the last ``step`` too, as the device comes to it."""
        self._mark(step)
        while self._marks:
            self._look()
            time.sleep(0.0005)

    def _mark(self, step: int) -> None:
        event = torch.cuda.Event()
        event.record()
        self._marks.append((step, event))

    def _look(self) -> None:
        done = None
        while self._marks and self._marks[0][1].query():
            done, _ = self._marks.popleft()
        if done is not None:
            self._progress(done)
