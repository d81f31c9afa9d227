"""A cohort: replicas of one method on one benchmark that train together, task by task."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cclfp.core.scenarios import ClassMask
from cclfp.core.torch_private import missing
from cclfp.engine import eager
from cclfp.engine.evaluate import evaluate_alone, evaluate_together
from cclfp.engine.graph import Graphs
from cclfp.engine.groups import Group, KernelGroup, ParallelGroup, StackedGroup, is_normalised
from cclfp.engine.kernels import Layout
from cclfp.engine.kernels.stacked_resnet import on_kernels
from cclfp.engine.plan import Plan, StepTables
from cclfp.engine.replica import Planner, Replica, find_diverged
from cclfp.engine.traced import SHORTEST, Tracer
from cclfp.errors import named
from cclfp.learner import Learner

SHARE = 0.7  # of a GPU's free memory that may be used
MAX_STACKED = 20  # replicas that train as one network: more are hardly faster
MAX_TRACED = 10  # the same on a CPU, where more are slower, because they leave its cache
CACHE = 8 * 2**20  # bytes of what their steps change that it is taken to hold
WORTH = {"cpu": 1000, "cuda": 300}  # steps of a run that repay the tracing of its steps, or their recording

OnStep = Callable[[int], None]
OnNote = Callable[[str], None]

# What takes the steps of many replicas at once, by the engine's name. The eager engine needs nothing of the kind.
RUNNERS: dict[str, Callable[[int], Tracer | Graphs | None]] = {
    "eager": lambda shortest: None,
    "traced": Tracer,
    "graph": lambda shortest: Graphs(),
}


def choose_engine(device: str, steps: int, *, normalised: bool) -> str:
    """The engine for a run, by counts alone: the same command gives the same numbers on every day.

    On a CPU networks with BatchNorm, which are ``normalised``, cannot be stacked.
    """
    if steps < WORTH[device]:
        return "eager"
    if device == "cuda":
        return "graph"
    return "eager" if normalised else "traced"


def autocast_of(precision: str) -> torch.dtype | None:
    """The dtype that psi's layers are cast to; None for that of its weights."""
    return torch.bfloat16 if precision == "bf16" else None


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let CUDA compute in this precision inside the context."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


class Cohort:
    """Trains replicas side by side, all at the same place of their streams.

    They may differ in seed and hyperparameters, and in nothing else. ``engine`` is ``"eager"``, one replica after the
    other; ``"traced"``, many as one network; or ``"graph"``, all in one CUDA graph. Where the engine cannot train them,
    the eager one does, and ``note`` is called with the reason. ``precision`` is that of CUDA's float32 (see
    :func:`computing_in`), ``shortest`` the number of steps of one kind in a task that are worth tracing.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        engine: str = "eager",
        note: OnNote = lambda text: None,
        precision: str = "float32",
        shortest: int = SHORTEST,
    ) -> None:
        self.replicas = replicas
        self.engine = "eager"  # the engine that has trained; this one also where there were too few steps to trace
        self._precision = precision
        self._note = note
        self._asked = engine
        self._fast: Tracer | Graphs | None = None  # None: the eager engine trains
        if lacking := missing(engine):
            self._switch_to_eager(f"torch {torch.__version__} has no {lacking}, which the {engine} engine needs")
        else:
            self._fast = RUNNERS[engine](shortest)
        self._pool, self._offsets = _join_inputs([replica.stream.train.x for replica in replicas])
        self._planner = Planner(replicas, self._pool.device)
        self._at_once = 0  # how many replicas train at the same time; 0: not known yet
        self._can_test_together = True
        self._may_use_kernels = True  # our own kernels, where there are any for the network

    @property
    def is_done(self) -> bool:
        return self.replicas[0].is_done

    def advance(self, progress: OnStep = lambda step: None) -> None:
        """Train the next task of all replicas and test them; before the first task, test the untrained networks too."""
        with computing_in(self._precision):
            if self.replicas[0].position == 0:
                self._test()
            try:
                self._train(progress)
            except _ListenerError as error:
                raise error.args[0] from None
            self._test()

    # -- training -------------------------------------------------------------------------------------------------

    def _train(self, progress: OnStep) -> None:
        """Train the next task of all replicas: together as far as possible, the others eagerly."""
        began = time.perf_counter()
        plans = self._planner.next_plans(in_advance=self._pool.is_cuda and self._fast is not None)
        masks = [replica.begin_task() for replica in self.replicas]
        done = self._train_together(plans, masks, progress)
        for number in range(done, len(self.replicas)):
            replica, scaled = self.replicas[number], self._progress_of(progress, slice(number, number + 1))
            eager.train(replica.learner, replica.stream.train, masks[number], plans[number], scaled)
        for replica, plan in zip(self.replicas, plans, strict=True):
            replica.end_task(plan)
        find_diverged(self.replicas)
        for replica in self.replicas:
            replica.train_seconds += (time.perf_counter() - began) / len(self.replicas)

    def _train_together(self, plans: Sequence[Plan], masks: Sequence[ClassMask], progress: OnStep) -> int:
        """Train replicas with the fast engine, the first ones first, and return how many were trained."""
        done = 0
        while self._fast is not None and done < len(self.replicas):
            tried, failed = 0, None
            try:
                self._at_once = self._at_once or self._count_at_once(plans, masks)
                some = slice(done, done + self._at_once)
                tried = len(self.replicas[some])
                if not self._fast.train(*self._group(some, plans, masks), self._progress_of(progress, some)):
                    break
                self.engine, done = self._asked, done + tried
            except _ListenerError:
                raise
            except Exception as error:  # noqa: BLE001  whatever a user's method or network may raise
                failed = isinstance(error, torch.OutOfMemoryError), named(error)
            if failed is not None:  # after the handler, where nothing refers to the tensors of the attempt any more
                self._train_otherwise(*failed, tried)
        return done

    def _train_otherwise(self, is_out_of_memory: bool, reason: str, tried: int) -> None:
        """Go on with fewer replicas at once, without our own kernels or, at last, eagerly."""
        if is_out_of_memory and tried > 1:
            self._at_once = tried // 2
            self._note(f"{tried} runs at once need too much memory: {self._at_once} from here on")
            torch.cuda.empty_cache()
        elif not is_out_of_memory and self._at_once and self._kernels(self._at_once):
            self._may_use_kernels = False
            self._note(f"these runs cannot be stacked ({reason}): they train side by side")
        else:
            self._switch_to_eager(f"these runs cannot be trained together ({reason})")

    def _group(self, some: slice, plans: Sequence[Plan], masks: Sequence[ClassMask]) -> tuple[Group, StepTables]:
        """Some replicas, whose task has begun, as a group, and the tables of their steps."""
        replicas, first = self.replicas[some], self.replicas[0]
        room = max(map(first.steps, range(len(first.stream.train_rows))))
        tables = StepTables(plans[some], [replica.stream.train for replica in replicas], self._offsets[some], room)
        learners = [replica.learner for replica in replicas]
        return make_group(learners, masks[some], self._pool, kernels=self._may_use_kernels), tables

    def _count_at_once(self, plans: Sequence[Plan], masks: Sequence[ClassMask]) -> int:
        """How many replicas train at the same time: as many as a CPU's cache, or a GPU's memory, holds."""
        runs, is_cuda, (one, tables) = len(self.replicas), self._pool.is_cuda, self._group(slice(1), plans, masks)
        fitting = count_fitting(one, tables) if is_cuda else max(1, min(MAX_TRACED, CACHE // one.size))
        is_stacked = is_cuda and self._kernels(min(runs, fitting)) is not None
        turns = -(-runs // (min(fitting, MAX_STACKED) if is_stacked else fitting))
        at_once = -(-runs // turns)
        if is_stacked:
            self._note(f"{runs} runs train in stacked kernels, in turns of at most {at_once}")
        elif is_cuda and turns > 1:
            self._note(f"memory for {at_once} of {runs} runs at once: they take turns")
        return at_once

    def _kernels(self, replicas: int) -> Layout | None:
        """The layout with which our own kernels run a group of this many replicas; None where they do not."""
        learners = [replica.learner for replica in self.replicas[:replicas]]
        return kernels_for(learners, self._pool) if self._may_use_kernels else None

    def _switch_to_eager(self, reason: str) -> None:
        self._note(f"{reason}: continuing eagerly")
        self._fast, self.engine = None, "eager"

    def _progress_of(self, progress: OnStep, some: slice) -> OnStep:
        """The progress of some replicas as that of all of them; those before them are done.

        Errors of the function that is told are raised as _ListenerError.
        """
        steps, of = self.replicas[0].steps(self.replicas[0].position), len(self.replicas)

        def tell(step: int) -> None:
            try:
                progress((some.start * steps + len(self.replicas[some]) * step) // of)
            except Exception as error:
                raise _ListenerError(error) from error

        return tell

    # -- testing --------------------------------------------------------------------------------------------------

    def _test(self) -> None:
        """Test all replicas, at once where that is faster: on a GPU, with BatchNorm only in our own kernels."""
        first, is_graph = self.replicas[0], isinstance(self._fast, Graphs)
        layout = self._kernels(len(self.replicas)) if is_graph else None
        if is_graph and self._can_test_together and (layout is not None or not is_normalised(first.learner.psi)):
            try:
                first.learner.make_classifier(first.stream.train.x)
                method = first.learner.algorithm
                evaluate_together(self.replicas, method if layout is None else on_kernels(method, layout))
                return
            except Exception as error:  # noqa: BLE001  whatever a user's method or network may raise
                self._note(f"these runs cannot be tested together ({named(error)}): they are tested one by one")
                self._can_test_together = False
        for replica in self.replicas:
            evaluate_alone(replica)


class _ListenerError(Exception):
    """Holds an error of a function that is told about progress, which is no error of the training."""


def _join_inputs(streams: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """The inputs of several streams as one tensor, and where each stream's inputs begin in it.

    Streams that share their inputs have them in it once.
    """
    distinct = {x.data_ptr(): x for x in streams}
    starts, total = {}, 0
    for pointer, x in distinct.items():
        starts[pointer], total = total, total + len(x)
    joined = torch.cat(list(distinct.values())) if len(distinct) > 1 else streams[0]
    return joined, [starts[x.data_ptr()] for x in streams]


def make_group(learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, *, kernels: bool = True) -> Group:
    """Learners whose task has begun, as a group. With ``kernels=False`` our own kernels are not used."""
    if not is_normalised(learners[0].psi):
        return StackedGroup(learners, masks, pool)
    layout = kernels_for(learners, pool) if kernels else None
    return ParallelGroup(learners, masks, pool) if layout is None else KernelGroup(learners, masks, pool, layout)


def kernels_for(learners: Sequence[Learner], pool: Tensor) -> Layout | None:
    """The layout of these learners' network, if there are kernels for two or more of them as one network."""
    first = learners[0]
    layout = Layout.of(first.psi, first.psi_mode, first.autocast) if len(learners) > 1 else None
    return layout if layout is not None and layout.takes(first.for_testing(pool[:1])) else None


def count_fitting(group: Group, tables: StepTables) -> int:
    """How many replicas can train at the same time, from what one step of a group of one replica takes."""
    longest = max(range(len(tables.sizes)), key=lambda step: sum(tables.sizes[step]))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        group.check_step(group.make_step(tables, longest), tables, longest)
    taken = torch.cuda.max_memory_allocated() - before
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    # Four times what changes: the group's tensors, those that a graph writes to, and later tasks' old networks.
    return max(1, int(SHARE * free / (taken + 4 * group.size)))
