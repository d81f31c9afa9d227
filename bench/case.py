"""A case: what is trained, how and for how long, and how its speed is measured while it trains.

``start`` is the only function here that makes replicas and cohorts. All clocks are in :class:`Run`.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cclfp.core.memory import Examples
from cclfp.core.scenarios import check_scenario
from cclfp.data import get_dataset
from cclfp.engine.cohort import Cohort
from cclfp.methods import METHODS
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.settings import configurations
from cclfp.runs.training import make_replica
from cclfp.streams import BENCHMARKS, Stream
from cclfp.transforms import Normalise, Scale

PRECISION = {"cpu": "float32", "cuda": "tf32"}  # the default of an engine
TEST = 200  # test images per task of a shortened stream


@dataclasses.dataclass(frozen=True)
class Case:
    """A method on a stream, the replicas that train together, and the engine.

    The first ``tasks`` tasks are trained and the last ``measured`` of them are measured: by then, most steps are
    traced or recorded. ``stream_tasks`` and ``side`` request a stream of random images with that many tasks, or of that
    size.
    """

    section: str  # the table or chart it belongs to
    method: str
    benchmark: str
    engine: str  # eager, traced or graph
    device: str = "cpu"
    precision: str = ""  # float32, tf32 or bf16; empty: the default of the device
    scenario: str = "class"
    seeds: int = 1
    grid: tuple[tuple[str, tuple[float, ...]], ...] = ()  # settings and their values, in all combinations
    memory: int = 200
    backbone: str | None = None  # None: the benchmark's
    tasks: int | None = None  # None: all
    measured: int = 1
    examples: int | None = None  # training images per task; None: all
    last: int | None = None  # the same for the last task, where it differs
    stream_tasks: int | None = None
    side: int | None = None
    threads: int = 1
    without: str = ""  # a pass of the clean-up of traced steps, which is left out

    @property
    def replicas(self) -> int:
        total = self.seeds
        for _, values in self.grid:
            total *= len(values)
        return total

    @property
    def is_random(self) -> bool:
        return self.stream_tasks is not None or self.side is not None

    @property
    def is_cut(self) -> bool:
        return self.examples is not None or self.last is not None

    def examples_of(self, task: int, num_tasks: int) -> int | None:
        """The number of training images of a task; None: all."""
        is_last = task == (self.tasks or num_tasks) - 1
        return self.last if is_last and self.last is not None else self.examples

    def to_dict(self) -> dict[str, Any]:
        precision = self.precision or PRECISION[self.device]
        return {**dataclasses.asdict(self), "precision": precision, "replicas": self.replicas}

    def __str__(self) -> str:
        varied = [f"memory {self.memory}"] * (self.memory != 200)
        varied += [f"{self.stream_tasks} tasks"] * (self.stream_tasks is not None)
        varied += [f"{self.side}×{self.side}"] * (self.side is not None)
        varied += [f"without {self.without}"] * bool(self.without)
        engine = f"{self.engine} {self.precision}".strip()
        where = f"{self.method} on {self.benchmark} {self.scenario}, {self.device} {engine}"
        return ", ".join([where, f"{self.replicas} run{'s' * (self.replicas > 1)}", *varied])


def start(case: Case, images: str, note: Callable[[str], None]) -> Cohort:
    """The cohort of the case, before its first task. ``images`` is ``real`` or ``random``."""
    found = configurations(
        [case.method],
        case.benchmark,
        case.scenario,
        memory=case.memory,
        backbone=case.backbone,
        settings=dict(case.grid),
    )
    device, streams = torch.device(case.device), dict[tuple[int, str], Stream]()
    if images == "random" or case.is_random or case.is_cut:  # otherwise they are made as for any run
        streams = {(seed, case.device): make_stream(case, images, seed).to(device) for seed in range(case.seeds)}
    precision = case.precision or PRECISION[case.device]
    execution = Execution(case.device, precision=precision, threads=case.threads)
    replicas = [
        make_replica(Job(configuration, seed, execution).concrete(), streams)
        for configuration in found
        for seed in range(case.seeds)
    ]
    return Cohort(replicas, case.engine, note, precision)


def make_stream(case: Case, images: str, seed: int) -> Stream:
    """The stream of a seed, training and test images shortened as the case says. Random streams ignore the seed."""
    if images == "random" or case.is_random:
        stream = random_stream(case)
    else:
        benchmark = BENCHMARKS[case.benchmark]
        stream = benchmark.stream(check_scenario(case.scenario), seed, benchmark.usual_order)
    if case.is_cut:
        rows = [_some(rows, case.examples_of(task, stream.num_tasks)) for task, rows in enumerate(stream.train_rows)]
        test = [examples.rows(_some(torch.arange(len(examples.y)), TEST)) for examples in stream.test]
        stream = dataclasses.replace(stream, train_rows=rows, test=test)
    return stream.joint() if METHODS[case.method].joint else stream


def _some(rows: Tensor, wanted: int | None) -> Tensor:
    """The wanted number of rows, evenly spaced."""
    if wanted is None or wanted >= len(rows):
        return rows
    return rows[torch.linspace(0, len(rows) - 1, wanted).round().long()]


@functools.lru_cache(maxsize=1)
def random_stream(case: Case) -> Stream:
    """Random images in the benchmark's or the case's shape and number: one dark picture per class, with noise."""
    benchmark = BENCHMARKS[case.benchmark]
    data = get_dataset(benchmark.dataset)
    total, *shape = data.arrays["train_images"].shape
    tests = data.arrays["test_images"].shape[0]
    side = case.side or shape[-1]
    if benchmark.sizes:
        ends = torch.tensor(benchmark.sizes).cumsum(0).tolist()
        classes = [list(range(end - size, end)) for end, size in zip(ends, benchmark.sizes, strict=True)]
        every, tested = total // len(classes), tests // len(classes)
    else:
        classes = [list(range(data.num_classes))] * (case.stream_tasks or benchmark.num_tasks or 1)
        every, tested = 1000, tests
    counts = [case.examples_of(task, len(classes)) or every for task in range(len(classes))]
    g = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 224, (data.num_classes, shape[0], side, side), dtype=torch.uint8, generator=g)
    pictures *= torch.rand(pictures.shape, generator=g) < 0.2

    def draw(task: int, count: int) -> Examples:
        y = torch.tensor(classes[task]).repeat(-(-count // len(classes[task])))[:count]
        wrong = torch.rand(count, generator=g) < 0.1  # or the loss vanishes, and denormal numbers slow the CPU down
        x = pictures[torch.where(wrong, y.roll(1), y)]
        x = x + torch.randint(0, 32, (count, *pictures.shape[1:]), dtype=torch.uint8, generator=g)
        return Examples(x, y, torch.full_like(y, task))

    train = [draw(task, count) for task, count in enumerate(counts)]
    return Stream(
        scenario=case.scenario,
        num_classes=data.num_classes,
        classes=classes,
        train=Examples(*(torch.cat(tensors) for tensors in zip(*train, strict=True))),
        train_rows=list(torch.arange(sum(counts)).split(counts)),
        test=[draw(task, TEST if case.is_cut else tested) for task in range(len(classes))],
        transform=Scale() if data.mean is None or data.std is None else Normalise(data.mean, data.std),
    )


class Task:
    """Measurements of the training of one task."""

    def __init__(self, steps: int) -> None:
        self.steps = steps  # per replica
        self.reported = 0  # steps that the engine has reported
        self._last = 0
        self.edges: list[tuple[float, int]] = []  # seconds, and the steps reported up to then
        self.train_seconds = self.test_seconds = self.cpu_seconds = 0.0

    def add_progress(self, step: int) -> None:
        """Count a step that an engine reports, once for all replicas or once per replica in turn."""
        self.reported += step - self._last if step > self._last else step
        self._last = step

    def windows(self, replicas: int, shortest: float) -> list[float]:
        """Seconds per replica-step in each window of at least ``shortest`` seconds; in all windows if there is none."""
        scale = self.steps * replicas / self.reported if self.reported else 0.0
        pairs = zip(self.edges, self.edges[1:], strict=False)
        found = [(b[0] - a[0], (b[0] - a[0]) / (b[1] - a[1]) / scale) for a, b in pairs if b[1] > a[1]]
        return [each for long, each in found if long >= shortest] or [each for _, each in found]


class Run:
    """A case in a thread of its own that works only during its turns, so that several can take turns in one process.

    A turn ends at the first step that the engine reports after ``window`` seconds, and at the first and last step of a
    task.
    """

    def __init__(self, case: Case, images: str, window: float) -> None:
        self.case, self.notes = case, list[str]()
        self._images, self._window = images, window
        self._tasks: list[Task] = []
        self._go, self._gone = threading.Semaphore(0), threading.Semaphore(0)
        self._paused = 0.0
        self._error: BaseException | None = None
        self._result: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def turn(self) -> dict[str, Any] | None:
        """Work for one turn; return the measurements when done."""
        self._go.release()
        self._gone.acquire()
        if self._error is not None:
            raise self._error
        return self._result

    def _now(self) -> float:
        """Seconds that the turns of this case have taken."""
        if self.case.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - self._paused

    def _pause(self) -> None:
        began = time.perf_counter()
        self._gone.release()
        self._go.acquire()
        self._paused += time.perf_counter() - began

    def _work(self) -> None:
        self._go.acquire()
        try:
            self._result = self._train()
        except BaseException as error:  # noqa: BLE001  raised again by turn
            self._error = error
        self._gone.release()

    def _progress(self, step: int) -> None:
        task = self._tasks[-1]
        task.add_progress(step)
        is_first, is_last = not task.edges, step == task.steps
        if is_first or is_last or time.perf_counter() - self._paused - task.edges[-1][0] >= self._window:
            # The device reports a graph's progress; waiting for it here would only empty its queue.
            task.edges.append((time.perf_counter() - self._paused, task.reported))
            self._pause()

    def _train(self) -> dict[str, Any]:
        torch.set_num_threads(self.case.threads)
        if self.case.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = self._now()
        cohort = start(self.case, self._images, self.notes.append)
        replicas = cohort.replicas
        made = self._now()
        while not cohort.is_done and replicas[0].position != self.case.tasks:
            task = Task(replicas[0].steps(replicas[0].position))
            self._tasks.append(task)
            spent, paused, cpu = _spent(cohort), self._paused, time.thread_time()
            cohort.advance(self._progress)
            self._now()
            train, test = (after - before for after, before in zip(_spent(cohort), spent, strict=True))
            task.train_seconds, task.test_seconds = train - (self._paused - paused), test
            task.cpu_seconds = time.thread_time() - cpu
        total = self._now() - made
        return {
            **self._speeds(),
            "setup_seconds": made - began,  # loading data and making learners
            "whole_seconds": total,
            "whole_rate": sum(task.steps for task in self._tasks) * len(replicas) / total,
            "engine_used": cohort.engine,
            "accuracy": statistics.mean(replica.accuracy or 0.0 for replica in replicas),
            "memory_bytes": torch.cuda.max_memory_allocated() if self.case.device == "cuda" else None,
            "notes": self.notes,
        }

    def _speeds(self) -> dict[str, Any]:
        """Rates are those of all replicas together, milliseconds those of one; ``train_seconds`` leaves out tests."""
        replicas, tasks = self.case.replicas, self._tasks[-self.case.measured :]
        windows = sorted(each for task in tasks for each in task.windows(replicas, self._window / 2))
        steps, train = sum(task.steps for task in tasks), sum(task.train_seconds for task in tasks)
        if not windows:  # the engine reports only the end of a task
            windows = [train / (steps * replicas)]
        step = statistics.median(windows)
        between = max(0.0, train - step * steps * replicas)
        return {
            "steps": steps,
            "windows": len(windows),
            "step_ms": 1e3 * step,  # per step of one replica, steps only
            "step_ms_quartiles": [1e3 * windows[len(windows) // 4], 1e3 * windows[len(windows) * 3 // 4]],
            "train_rate": steps * replicas / train,  # of whole tasks, without tests
            "between_ms": 1e3 * between / len(tasks) / replicas,  # of a task, except its steps
            # The share of the time in which it had a core: close to 1 on a machine without other load.
            "cpu_share": sum(t.cpu_seconds for t in tasks) / sum(t.train_seconds + t.test_seconds for t in tasks),
            "test_ms": 1e3 * sum(task.test_seconds for task in tasks) / len(tasks) / replicas,  # per task
        }


def _spent(cohort: Cohort) -> tuple[float, float]:
    return (
        sum(replica.train_seconds for replica in cohort.replicas),
        sum(replica.test_seconds for replica in cohort.replicas),
    )
