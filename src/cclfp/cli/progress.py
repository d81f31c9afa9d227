"""Progress of many runs, and of downloading a dataset, on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cclfp.cli.nodes import Nodes, StepRate
from cclfp.metrics import count_of

if TYPE_CHECKING:
    from cclfp.events import DataProgress, Event, Placed, Step
    from cclfp.runs.record import Record

HEARTBEAT = 10.0  # seconds between two plain lines about a run that is being trained
ALL_HEARTBEAT = 30.0  # seconds between two plain lines about all runs
MOST_BARS = 16  # bars of runs that are being trained, or of nodes that train
MOST_NODES = 4  # nodes that a plain line names
FEW_RUNS = 100  # of more runs than this, the bars of all and of nodes do not follow each event, which takes long
UPDATE_EVERY = 0.2  # seconds between two updates of these bars
BESIDE_NAME = 66  # columns that a bar takes beside the run's name


class Work:
    """How much of the work of all runs is done, and how long the rest will take."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs = costs  # of each run, by key
        self.fractions: dict[str, float] = {}  # how much of each run is done
        self.first: dict[str, float] = {}  # the same at its first event: a run may start at a checkpoint
        self.began: float | None = None

    def leave_out(self, key: str) -> None:
        """A run that is stored already, or has failed, is no work any more."""
        self.costs[key] = 0.0
        self.fractions.pop(key, None)

    def step(self, key: str, fraction: float) -> None:
        """How much of a run is done now."""
        self.began = time.monotonic() if self.began is None else self.began
        self.first.setdefault(key, fraction if fraction < 1 else 0.0)
        self.fractions[key] = fraction

    def restart(self) -> None:
        """Measure the speed anew from the next step on: the time before says nothing of it."""
        self.began, self.first = None, dict(self.fractions)

    @property
    def done(self) -> float:
        return sum(self.costs[key] * fraction for key, fraction in self.fractions.items())

    @property
    def total(self) -> float:
        return sum(self.costs.values())

    @property
    def seconds_left(self) -> float | None:
        since_start = sum(self.costs[key] * (f - self.first[key]) for key, f in self.fractions.items())
        if self.began is None or since_start <= 0:
            return None
        return (time.monotonic() - self.began) * (self.total - self.done) / since_start


class Progress:
    """Takes events (``update``) and shows them; subclasses show steps and bars.

    Where the runs are many, the first event has their costs, and what is shown is about all of them together.
    """

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.work: Work | None = None
        self.nodes: Nodes | None = None  # of a cluster, if there is one
        self.rate = StepRate()
        self.in_store: set[str] = set()
        self.finished = 0
        self.stored: list[Record] = []  # that were not reported yet
        self.store = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._report_stored()

    def update(self, event: Event) -> None:
        from cclfp.events import DataProgress, Failed, Finished, Note, Placed, Planned, Step, Stored

        match event:
            case Planned():
                self._report_stored()
                self.labels, self.store, self.finished, self.in_store = event.labels, event.store, 0, set()
                self.work = None if event.costs is None else Work(dict(event.costs))
                self.begin()
            case DataProgress():
                self.data(event)
            case Stored():
                self.stored.append(event.record)
                self.in_store.add(event.key)
                if self.work is not None:
                    self.work.leave_out(event.key)
            case Note():
                self.say(event.text if event.key is None else f"{self.labels[event.key]}: {event.text}")
            case Placed():
                self._place(event)
            case Step():
                self._report_stored()
                self.rate.add(event.key, event.step)
                if self.work is not None and event.compiling:
                    self.work.restart()
                elif self.work is not None:
                    self.work.step(event.key, event.step / event.steps)
                self.step(event)
            case Failed():
                self._remove(event.key)
                self.finish(event.key)
                if self.work is not None:
                    self.work.leave_out(event.key)
            case Finished():
                self._report_stored()
                self._report_finished(event.key, event.record)

    def _report_finished(self, key: str, record: Record) -> None:
        self.finished += 1
        self._remove(key)
        if self.work is not None:
            self.work.step(key, 1.0)
        self.finish(key)
        result = f"{record['average_accuracy']:.2f} % in {record['seconds']:.1f} s"
        result += "" if record.get("diverged") is None else ", diverged"
        self.say(f"[{self.finished}/{len(self.labels)}] {self.labels[key]}: {result}")

    def _place(self, event: Placed) -> None:
        """A cohort is trained on a node of a cluster: from now on what is shown is about all runs together."""
        if self.nodes is None:
            self.nodes = Nodes()
        if self.work is None:
            self.work = Work(dict.fromkeys(self.labels.keys() - self.in_store, 1.0))
        self.nodes.place(event.keys, event.node)

    def _remove(self, key: str) -> None:
        if self.nodes is not None:
            self.nodes.remove(key)

    def _report_stored(self) -> None:
        if not self.stored:
            return
        from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code, is_other_code

        self.say(f"{len(self.stored)} of {len(self.labels)} runs are in the store {self.store}: not trained again")
        if others := [record for record in self.stored if is_other_code(record)]:
            self.say(f"{describe_other_code(others, len(self.stored))}: {OTHER_CODE_HINT}")
        self.finished, self.stored = self.finished + len(self.stored), []

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While something is printed on stdout."""
        yield

    def begin(self) -> None: ...

    def data(self, event: DataProgress) -> None: ...

    def step(self, event: Step) -> None: ...

    def finish(self, key: str) -> None: ...


class PlainProgress(Progress):
    """A line when a run ends, and now and then a line about those that are being trained."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[str, tuple[float, int]] = {}  # the time and the step of each run's first event
        self.last_line: dict[str, float] = {}  # when the last line about a run was printed
        self.last_data_line: dict[str, float] = {}
        self.last_line_of_all: float | None = None

    def data(self, event: DataProgress) -> None:
        now = time.monotonic()
        if now - self.last_data_line.setdefault(event.what, now) < HEARTBEAT:
            return
        self.last_data_line[event.what] = now
        share = f", {event.done / event.total:.0%}" if event.total else ""
        self.say(f"{event.what}, {_amount(event)}{share}")

    def step(self, event: Step) -> None:
        now = time.monotonic()
        if self.work is not None:
            self._report_all(self.work, now, event.compiling)
            return
        place = f"{self.labels[event.key]}: task {event.task}/{event.tasks}, step {event.step:,}/{event.steps:,}"
        if event.compiling:
            self.started.pop(event.key, None)  # the time that it takes says nothing of the steps
            self.last_line[event.key] = now
            self.say(f"{place}, compiling")
            return
        began, first = self.started.setdefault(event.key, (now, event.step))
        if now - self.last_line.setdefault(event.key, now) < HEARTBEAT or event.step == first:
            return
        self.last_line[event.key] = now
        rate = (event.step - first) / (now - began)
        left = (event.steps - event.step) / rate
        so_far = "" if event.accuracy is None else f", {event.accuracy:.1f} % so far"
        speed = f"{rate:,.0f} steps/s" if rate >= 1 else f"{1 / rate:,.0f} s per step"
        self.say(f"{place}, {speed}, {duration(left)} left{so_far}")

    def _report_all(self, work: Work, now: float, compiling: bool) -> None:
        if self.last_line_of_all is None and not compiling:
            self.last_line_of_all = now
        if self.last_line_of_all is not None and now - self.last_line_of_all < ALL_HEARTBEAT:
            return
        runs = f"{self.finished} of {len(self.labels)} runs finished"
        if compiling:
            self.last_line_of_all = now
            self.say(f"{runs}, compiling")
            return
        left, began = work.seconds_left, work.began
        if left is None or began is None or now - began < HEARTBEAT:  # too soon to know the speed
            return
        self.last_line_of_all = now
        runs += f", {sum(fraction < 1 for fraction in work.fractions.values())} in training"
        runs += f" ({self.nodes.describe(MOST_NODES)})" if self.nodes is not None else ""
        speed = f"{rate:,.0f} replica-steps/s, " if (rate := self.rate.per_second) is not None else ""
        self.say(f"{runs}: {work.done / work.total:.0%} of the work, {speed}{duration(left)} left")

    def finish(self, key: str) -> None:
        self.started.pop(key, None)


class LiveProgress(Progress):
    """A bar for all runs and one for each that is under way."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.table import Column
        from rich.text import Text

        class Speed(ProgressColumn):
            def render(self, task: Task) -> Text:
                unit = task.fields["unit"]
                if task.fields["compiling"]:
                    return Text("compiling", style="magenta")
                speed = task.fields["speed"] if task.fields["speed"] is not None else task.speed
                known = speed is not None and unit
                return Text(f"{speed:,.0f} {unit}/s" if known else "", style="magenta")

        super().__init__()
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[detail]}"),
            Speed(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True),
            TextColumn("left{task.fields[accuracy]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar_of_run: dict[str, Any] = {}
        self.last_update = 0.0
        self.bar_of_node: dict[str, Any] = {}
        self.bar_of_data: dict[str, Any] = {}
        self.fractions: dict[str, float] = {}
        self.bar_of_all: Any = None

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self.bars.stop()

    def say(self, line: str) -> None:
        self.bars.console.print(line, highlight=False, markup=False)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        self.bars.stop()  # they are wiped off, and stdout is no longer theirs
        try:
            yield
        finally:
            self.bars.start()

    def begin(self) -> None:
        if self.bar_of_all is not None:  # these are more runs of the same command
            self.bars.remove_task(self.bar_of_all)
        self.bar_of_all = self._bar("all runs", None, "")

    def data(self, event: DataProgress) -> None:
        total = event.total or None
        if event.what not in self.bar_of_data:
            self.bar_of_data[event.what] = self._bar(event.what, total, event.unit)
        self.bars.update(self.bar_of_data[event.what], completed=event.done, total=total, detail=_amount(event))
        if event.done == event.total:
            self.bars.remove_task(self.bar_of_data.pop(event.what))

    def step(self, event: Step) -> None:
        if self.nodes is None and event.key not in self.bar_of_run and len(self.bar_of_run) < MOST_BARS:
            name = _fit(self.labels[event.key], self.bars.console.width - BESIDE_NAME)
            self.bar_of_run[event.key] = self._bar(name, event.steps, "steps")
        if event.key in self.bar_of_run:
            bar = self.bar_of_run[event.key]
            if event.compiling:  # the time that it takes says nothing of the steps
                self.bars.reset(bar, completed=event.step)
            self.bars.update(
                bar,
                completed=event.step,
                compiling=event.compiling,
                detail=f"task {event.task}/{event.tasks} step {event.step}/{event.steps}",
                accuracy="" if event.accuracy is None else f", {event.accuracy:.1f} %",
            )
        self.fractions[event.key] = event.step / event.steps
        now = time.monotonic()
        if len(self.labels) <= FEW_RUNS or now - self.last_update >= UPDATE_EVERY:
            self.last_update = now
            self._update_all()

    def finish(self, key: str) -> None:
        if key in self.bar_of_run:
            self.bars.remove_task(self.bar_of_run.pop(key))
        self.fractions.pop(key, None)
        self._update_all()

    def _bar(self, description: str, total: float | None, unit: str) -> Any:
        fields: dict[str, Any] = {"detail": "", "accuracy": "", "unit": unit, "speed": None, "compiling": False}
        return self.bars.add_task(description, total=total, **fields)  # no markup in it

    def _update_all(self) -> None:
        completed, total = self.finished + sum(self.fractions.values()), float(len(self.labels))
        if self.work is not None:
            completed, total = self.work.done, self.work.total
        detail, speed = f"{self.finished}/{len(self.labels)}", self.rate.per_second
        unit = "steps" if speed else ""  # nothing is shown before the speed is known
        self.bars.update(self.bar_of_all, total=total, completed=completed, detail=detail, speed=speed, unit=unit)
        if self.nodes is not None:
            self._update_nodes(self.nodes)

    def _update_nodes(self, nodes: Nodes) -> None:
        """A bar per node that trains: how much of the runs that it has now is done."""
        for node, cohorts in nodes.cohorts.items():
            if not cohorts and node in self.bar_of_node:
                self.bars.remove_task(self.bar_of_node.pop(node))
            if cohorts and node not in self.bar_of_node and len(self.bar_of_node) < MOST_BARS:
                self.bar_of_node[node] = self._bar(_fit(node, self.bars.console.width - BESIDE_NAME), None, "")
            if cohorts and node in self.bar_of_node:
                keys = nodes.keys(node)
                done = sum(self.fractions.get(key, 0.0) for key in keys)
                detail = count_of(len(cohorts), "cohort")
                self.bars.update(self.bar_of_node[node], total=float(len(keys)), completed=done, detail=detail)


def _amount(event: DataProgress) -> str:
    return f"{event.done:,}/{event.total:,} {event.unit}" if event.total else f"{event.done:,} {event.unit}"


def _fit(name: str, room: int) -> str:
    """The beginning and the end of a name that is too long."""
    half = max(room, 14) // 2
    return name if len(name) <= 2 * half else f"{name[: half - 1]}…{name[-half:]}"


def duration(seconds: float) -> str:
    """For people who wait: ``45 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def progress() -> Progress:
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()
