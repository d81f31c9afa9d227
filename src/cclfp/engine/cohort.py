"""A cohort: replicas of one method on one benchmark that train together, task by task."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from cclfp.core.scenarios import ClassMask
from cclfp.engine import eager
from cclfp.engine.compiled import NotCompiled, Programs, first_line
from cclfp.engine.evaluate import test_together
from cclfp.engine.graph import Graphs
from cclfp.engine.plan import Plan
from cclfp.engine.precision import computing_in
from cclfp.engine.replica import Replica, find_diverged
from cclfp.engine.stack import Tables, has_kernels, is_normalised, together

SHARE = 0.7  # of a graphics card's free memory that may be used
STACKED = 20  # runs that train as one network: more are hardly faster

Progress = Callable[[int], None]
Note = Callable[[str], None]


class Cohort:
    """Trains replicas side by side, all at the same place of their streams.

    They may differ in seed and hyperparameters, and in nothing else. ``engine`` is ``"eager"``, one replica after the
    other; ``"compiled"``, all in one program; or ``"graph"``, all in one CUDA graph. What cannot be done so is done
    eagerly, and ``note`` is told why. ``precision`` is that of CUDA's float32 (see :mod:`cclfp.engine.precision`).
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        engine: str = "eager",
        note: Note = lambda text: None,
        precision: str = "float32",
    ) -> None:
        self.replicas = replicas
        self._engine = engine
        self._precision = precision
        self._note = note
        engines: dict[str, Callable[[Note], Programs | Graphs]] = {"compiled": Programs, "graph": Graphs}
        self._fast = engines[engine](note) if engine != "eager" else None
        self._inputs, self._offsets = _joined([replica.stream.train.x for replica in replicas])
        self._at_once = 0  # how many replicas train at the same time; 0: not looked at yet
        self._planner = ThreadPoolExecutor(1)  # whose thread starts with the first thing there is to do
        self._next: Future[list[Plan]] | None = None  # the plans of the next task
        self._tests_apart = False  # they cannot be tested together
        self._kernels = True  # ours may be used, where they are made for the network

    @property
    def engine(self) -> str:
        """What has trained; ``"eager"`` too where there was too little to compile."""
        return "eager" if self._engine == "compiled" and not self.has_compiled else self._engine

    @property
    def has_compiled(self) -> bool:
        """Whether it has made programs that another cohort of its kind need not make again."""
        return self._fast is not None and self._fast.steps.has_compiled

    @property
    def compile_seconds(self) -> float:
        """How long the compiler has taken so far."""
        return 0.0 if self._fast is None else self._fast.steps.compile_seconds

    @property
    def is_done(self) -> bool:
        return self.replicas[0].is_done

    def advance(self, progress: Progress = lambda step: None) -> None:
        """Train the next task of all replicas and test them."""
        with computing_in(self._precision):
            self._advance(progress)

    def _advance(self, progress: Progress) -> None:
        if self.replicas[0].position == 0:
            self._test()
        began = time.perf_counter()
        plans = self._plans()
        masks = [replica.begin_task() for replica in self.replicas]
        done = self._train_together(plans, masks, progress)
        for number in range(done, len(self.replicas)):
            learner, pool = self.replicas[number].learner, self.replicas[number].stream.train
            eager.train(learner, pool, masks[number], plans[number], self._part(progress, slice(number, number + 1)))
        for replica, plan in zip(self.replicas, plans, strict=True):
            replica.end_task(plan)
        find_diverged(self.replicas)
        for replica in self.replicas:
            replica.train_seconds += (time.perf_counter() - began) / len(self.replicas)
        self._test()

    def _plans(self) -> list[Plan]:
        """The plans of the next task, which replicas of one seed share: they have the same stream and memory.

        Where a graphics card trains, those of the task after it are made meanwhile.
        """
        plans = _planning(self.replicas)() if self._next is None else self._next.result()
        self._next = None
        if self._inputs.is_cuda and self._fast is not None and self.replicas[0].can_plan_ahead:
            self._next = self._planner.submit(_planning(self.replicas, plans))
        there = {id(plan): plan.to(self._inputs.device) for plan in plans}
        return [there[id(plan)] for plan in plans]

    def _train_together(self, plans: Sequence[Plan], masks: Sequence[ClassMask], progress: Progress) -> int:
        """How many replicas, the first ones, were trained; the others are as they were."""
        done = 0
        while self._fast is not None and done < len(self.replicas):
            is_too_much = False
            try:
                self._at_once = self._at_once or self._fitting(plans[0], masks[0])
                some = slice(done, done + self._at_once)
                if not self._train_some(self._fast, some, plans[some], masks[some], _Told(self._part(progress, some))):
                    break
                done += len(self.replicas[some])
            except torch.OutOfMemoryError as error:
                is_too_much = self._at_once > 1
                if not is_too_much:
                    self._give_up(f"its runs cannot be trained together ({first_line(error)})")
            except NotCompiled as reason:
                self._give_up(f"not compiled: {reason}")
            except _Told.Error as error:
                raise error.args[0] from None
            except Exception as error:  # noqa: BLE001  whatever a user's method or network may raise
                if self._at_once and self._stacks(self._at_once):
                    self._kernels = False
                    self._note(f"its runs cannot be stacked ({first_line(error)}): they train side by side")
                else:
                    self._give_up(f"its runs cannot be trained together ({first_line(error)})")
            if is_too_much:  # here nothing holds what was made for so many
                tried = min(self._at_once, len(self.replicas) - done)
                self._at_once = tried // 2
                self._note(f"{tried} runs at once need too much memory: {self._at_once} from here on")
                torch.cuda.empty_cache()
        return done

    def _train_some(
        self,
        fast: Programs | Graphs,
        some: slice,
        plans: Sequence[Plan],
        masks: Sequence[ClassMask],
        progress: Progress,
    ) -> bool:
        replicas, first = self.replicas[some], self.replicas[0]
        room = max(first.steps(position) for position in range(len(first.stream.train_rows)))
        tables = Tables(plans, [replica.stream.train for replica in replicas], self._offsets[some], room)
        stack = together([replica.learner for replica in replicas], masks, self._inputs, kernels=self._kernels)
        return fast.train(stack, tables, progress)

    def _stacks(self, replicas: int) -> bool:
        """Whether so many replicas run in our own kernels."""
        some = self.replicas[:replicas]
        some[0].learner.prepare_for(some[0].stream.train)
        return self._kernels and has_kernels([replica.learner for replica in some], self._inputs)

    def _give_up(self, reason: str) -> None:
        self._note(f"{reason}: going on eagerly")
        self._fast, self._engine = None, "eager"

    def _fitting(self, plan: Plan, mask: ClassMask) -> int:
        """How many replicas a graphics card has memory for, by what one step of one replica takes."""
        if not self._inputs.is_cuda:
            return len(self.replicas)
        stack = together([self.replicas[0].learner], [mask], self._inputs)
        tables = Tables([plan], [self.replicas[0].stream.train], [self._offsets[0]])
        held = sum(t.numel() * t.element_size() for t in stack.changing)
        longest = max(range(len(plan.sizes)), key=lambda step: sum(plan.sizes[step]))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            stack.check(stack.stepper(tables, longest), tables, longest)
        taken = torch.cuda.max_memory_allocated() - before
        # What the learners hold for the others: the stack, what a graph writes to, and later tasks' old networks.
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        fitting = max(1, int(SHARE * free / (taken + 4 * held)))
        if self._stacks(min(fitting, len(self.replicas))):
            turns = -(-len(self.replicas) // min(fitting, STACKED))
            fitting = -(-len(self.replicas) // turns)
            several = "runs train as one network" if turns == 1 else f"runs train in {turns} turns, each as one network"
            self._note(f"{len(self.replicas)} {several} of at most {fitting}, in stacked kernels")
        elif fitting < len(self.replicas):
            self._note(f"memory for {fitting} of {len(self.replicas)} runs at once: they take turns")
        return min(fitting, len(self.replicas))

    def _part(self, progress: Progress, some: slice) -> Progress:
        """Progress of some replicas, those before them being done, as that of all."""
        steps, of = self.replicas[0].steps(self.replicas[0].position), len(self.replicas)
        return lambda step: progress((some.start * steps + len(self.replicas[some]) * step) // of)

    def _test(self) -> None:
        # Large convolutions, which BatchNorm comes with, gain nothing stacked but in kernels of our own.
        one_by_one = self._fast is None or (
            is_normalised(self.replicas[0].learner.psi) and not self._stacks(len(self.replicas))
        )
        if one_by_one or not self._test_together():
            for replica in self.replicas:
                replica.test()

    def _test_together(self) -> bool:
        """Whether all could be tested at once; if not, the matrices are as they were."""
        if self._tests_apart:
            return False
        try:
            test_together(self.replicas)
        except Exception as error:  # noqa: BLE001  whatever a user's method or network may raise
            self._note(f"its runs cannot be tested together ({first_line(error)}): they are tested one by one")
            self._tests_apart = True
        return not self._tests_apart


class _Told:
    """Progress whose own errors are not taken for those of the training."""

    class Error(Exception):
        """Holds the error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, step: int) -> None:
        try:
            self._progress(step)
        except Exception as error:
            raise _Told.Error(error) from error


def _planning(replicas: Sequence[Replica], after: Sequence[Plan] | None = None) -> Callable[[], list[Plan]]:
    """What makes the plans of the next task, or of the one after those."""
    makers: dict[Hashable, Callable[[], Plan]] = {}
    keys = [replica.plan_key for replica in replicas]
    for number, (key, replica) in enumerate(zip(keys, replicas, strict=True)):
        if key not in makers:
            makers[key] = replica.planning(None if after is None else after[number])

    def make() -> list[Plan]:
        plans = {key: maker() for key, maker in makers.items()}
        return [plans[key] for key in keys]

    return make


def _joined(streams: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """The inputs of several streams as one tensor, those that are the same tensor once, and where each begins."""
    distinct = {x.data_ptr(): x for x in streams}
    starts, total = {}, 0
    for pointer, x in distinct.items():
        starts[pointer], total = total, total + len(x)
    joined = torch.cat(list(distinct.values())) if len(distinct) > 1 else streams[0]
    return joined, [starts[x.data_ptr()] for x in streams]
