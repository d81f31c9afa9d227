"""Progress of many runs, and of downloading a dataset, on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cclfp.errors import visible
from cclfp.metrics import count_of

if TYPE_CHECKING:
    from cclfp.events import DataProgress, Event, Step
    from cclfp.runs.record import Record

HEARTBEAT = 10.0  # seconds between two plain lines about a run that is being trained
ALL_HEARTBEAT = 30.0  # seconds between two plain lines about all runs
WINDOW = 15.0  # seconds over which the speed of all runs is measured
MOST_BARS = 16  # bars of runs that are being trained, or of nodes that train
MOST_NODES = 4  # nodes that a plain line names
FEW_RUNS = 100  # of more runs than this, the bars of all and of nodes do not follow each event, which takes long
UPDATE_EVERY = 0.2  # seconds between two updates of these bars
BESIDE_NAME = 66  # columns that a bar takes beside the run's name


class Runs:
    """What all runs of a command are doing, how much of their work is done, and how long the rest will take."""

    def __init__(self, labels: dict[str, str], store: str, costs: dict[str, float] | None) -> None:
        self.labels, self.store = labels, store
        self.is_many = costs is not None  # what is shown is about all runs together
        self.costs = dict.fromkeys(labels, 1.0) if costs is None else dict(costs)
        self.finished = 0
        self.fractions: dict[str, float] = {}  # how much of each run is done
        self.first: dict[str, float] = {}  # the same when the speed began to be measured
        self.began: float | None = None  # the time of that
        self.last_steps: dict[str, int] = {}
        self.steps = 0  # of all runs, since their first events
        self.samples: deque[tuple[float, int]] = deque()  # times, and steps until then
        self.cohorts: dict[str, list[set[str]]] = {}  # on a cluster, by node: the runs of each cohort

    def leave_out(self, key: str) -> None:
        """A run that is stored already, or has failed, is no work any more."""
        self.costs[key] = 0.0
        self.fractions.pop(key, None)
        self.remove(key)

    def step(self, event: Step) -> None:
        """Count the steps of a run since its last event. A run that starts again, or late, counts from there."""
        self.steps += max(0, event.step - self.last_steps.get(event.key, event.step))
        self.last_steps[event.key] = event.step
        now = time.monotonic()
        self.samples.append((now, self.steps))
        while len(self.samples) > 2 and now - self.samples[1][0] > WINDOW:
            self.samples.popleft()
        if event.compiling:  # the time before says nothing of the speed
            self.began, self.first = None, dict(self.fractions)
        else:
            self.advance(event.key, event.step / event.steps)

    def advance(self, key: str, fraction: float) -> None:
        """How much of a run is done now."""
        self.began = time.monotonic() if self.began is None else self.began
        self.first.setdefault(key, fraction if fraction < 1 else 0.0)  # it may start at a checkpoint
        self.fractions[key] = fraction

    def place(self, keys: Sequence[str], node: str) -> None:
        """A cohort is trained on a node of a cluster now; its runs may have been on another before."""
        for key in keys:
            self.remove(key)
        self.cohorts.setdefault(node, []).append(set(keys))
        self.is_many = True

    def remove(self, key: str) -> None:
        """No node trains a run any more."""
        for node, cohorts in self.cohorts.items():
            self.cohorts[node] = [left for cohort in cohorts if (left := cohort - {key})]

    @property
    def done(self) -> float:
        return sum(self.costs[key] * fraction for key, fraction in self.fractions.items())

    @property
    def total(self) -> float:
        return sum(self.costs.values())

    @property
    def steps_per_second(self) -> float | None:
        """Of all runs together."""
        if len(self.samples) < 2 or self.samples[-1][0] <= self.samples[0][0]:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return (last - first) / (ended - began)

    @property
    def seconds_left(self) -> float | None:
        since_start = sum(self.costs[key] * (f - self.first[key]) for key, f in self.fractions.items())
        if self.began is None or since_start <= 0:
            return None
        return (time.monotonic() - self.began) * (self.total - self.done) / since_start

    def describe_nodes(self) -> str:
        """How many cohorts each node trains.

        >>> runs = Runs({}, "", None)
        >>> for keys, node in ((["run 1", "run 2"], "a"), (["run 3"], "a"), (["run 4"], "b")):
        ...     runs.place(keys, node)
        >>> runs.describe_nodes()
        ' (a: 2 cohorts, b: 1 cohort)'
        """
        busy = [f"{node}: {count_of(len(cohorts), 'cohort')}" for node, cohorts in self.cohorts.items() if cohorts]
        more = f" and {len(busy) - MOST_NODES} more nodes" if len(busy) > MOST_NODES else ""
        return f" ({', '.join(busy[:MOST_NODES])}{more})" if self.cohorts else ""


class Progress:
    """Takes events (``update``) and shows them; subclasses draw how far the runs are."""

    def __init__(self) -> None:
        self.runs = Runs({}, "", None)
        self.stored: list[Record] = []  # that were not reported yet

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._report_stored()

    def update(self, event: Event) -> None:
        from cclfp.events import DataProgress, Failed, Finished, Note, Placed, Planned, Step, Stored

        if isinstance(event, Planned | Step | Finished):
            self._report_stored()
        match event:
            case Planned():
                self.runs = Runs(event.labels, event.store, event.costs)
                self.begin()
            case DataProgress():
                self.data(event)
            case Stored():
                self.stored.append(event.record)
                self.runs.leave_out(event.key)
            case Note():
                self.say(visible(event.text if event.key is None else f"{self.runs.labels[event.key]}: {event.text}"))
            case Placed():
                self.runs.place(event.keys, event.node)
            case Step():
                self.runs.step(event)
                self.step(event)
            case Failed():
                self.runs.leave_out(event.key)
                self.finish(event.key)
            case Finished():
                self.runs.finished += 1
                self.runs.remove(event.key)
                self.runs.advance(event.key, 1.0)
                self.finish(event.key)
                result = f"{event.record['average_accuracy']:.2f} % in {event.record['seconds']:.1f} s"
                result += "" if event.record.get("diverged") is None else ", diverged"
                self.say(f"[{self.runs.finished}/{len(self.runs.labels)}] {self.runs.labels[event.key]}: {result}")

    def _report_stored(self) -> None:
        if not self.stored:
            return
        from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code, is_other_code

        counts = f"{len(self.stored)} of {len(self.runs.labels)} runs"
        self.say(f"{counts} are in the store {self.runs.store}: not trained again")
        if others := [record for record in self.stored if is_other_code(record)]:
            self.say(f"{describe_other_code(others, len(self.stored))}: {OTHER_CODE_HINT}")
        self.runs.finished += len(self.stored)
        self.stored = []

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
        self.last_line: dict[str | None, float] = {}  # when the last line about a run, a dataset or all was printed

    def data(self, event: DataProgress) -> None:
        now = time.monotonic()
        if now - self.last_line.setdefault(event.what, now) < HEARTBEAT:
            return
        self.last_line[event.what] = now
        share = f", {event.done / event.total:.0%}" if event.total else ""
        self.say(f"{event.what}, {_amount(event)}{share}")

    def step(self, event: Step) -> None:
        now = time.monotonic()
        if self.runs.is_many:
            self._report_all(now, event.compiling)
            return
        place = f"{self.runs.labels[event.key]}: task {event.task}/{event.tasks}, step {event.step:,}/{event.steps:,}"
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

    def _report_all(self, now: float, compiling: bool) -> None:
        last = self.last_line.get(None) if compiling else self.last_line.setdefault(None, now)
        if last is not None and now - last < ALL_HEARTBEAT:
            return
        runs = self.runs
        text = f"{runs.finished} of {len(runs.labels)} runs finished"
        if compiling:
            self.last_line[None] = now
            self.say(f"{text}, compiling")
            return
        left, began = runs.seconds_left, runs.began
        if left is None or began is None or now - began < HEARTBEAT:  # too soon to know the speed
            return
        self.last_line[None] = now
        text += f", {sum(fraction < 1 for fraction in runs.fractions.values())} in training{runs.describe_nodes()}"
        speed = "" if runs.steps_per_second is None else f"{runs.steps_per_second:,.0f} replica-steps/s, "
        self.say(f"{text}: {runs.done / runs.total:.0%} of the work, {speed}{duration(left)} left")

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
        self.last_update = 0.0
        self.bar_of_run: dict[str, Any] = {}
        self.bar_of_node: dict[str, Any] = {}
        self.bar_of_data: dict[str, Any] = {}
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
        if not self.runs.cohorts and event.key not in self.bar_of_run and len(self.bar_of_run) < MOST_BARS:
            self.bar_of_run[event.key] = self._bar(self.runs.labels[event.key], event.steps, "steps")
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
        now = time.monotonic()
        if len(self.runs.labels) <= FEW_RUNS or now - self.last_update >= UPDATE_EVERY:
            self.last_update = now
            self._update_all()

    def finish(self, key: str) -> None:
        if key in self.bar_of_run:
            self.bars.remove_task(self.bar_of_run.pop(key))
        self._update_all()

    def _bar(self, name: str, total: float | None, unit: str) -> Any:
        fields: dict[str, Any] = {"detail": "", "accuracy": "", "unit": unit, "speed": None, "compiling": False}
        return self.bars.add_task(_fit(name, self.bars.console.width - BESIDE_NAME), total=total, **fields)

    def _update_all(self) -> None:
        runs, speed = self.runs, self.runs.steps_per_second
        detail, unit = f"{runs.finished}/{len(runs.labels)}", "steps" if speed else ""  # nothing before it is known
        amount: dict[str, Any] = {"total": runs.total, "completed": runs.done}
        self.bars.update(self.bar_of_all, **amount, detail=detail, speed=speed, unit=unit)
        for node, cohorts in runs.cohorts.items():
            self._update_node(node, cohorts)

    def _update_node(self, node: str, cohorts: Sequence[set[str]]) -> None:
        """A bar per node that trains: how much of the runs that it has now is done."""
        if not cohorts and node in self.bar_of_node:
            self.bars.remove_task(self.bar_of_node.pop(node))
        if cohorts and node not in self.bar_of_node and len(self.bar_of_node) < MOST_BARS:
            self.bar_of_node[node] = self._bar(node, None, "")
        if cohorts and node in self.bar_of_node:
            keys = [key for cohort in cohorts for key in cohort]
            amount: dict[str, Any] = {
                "total": float(len(keys)),
                "completed": sum(self.runs.fractions.get(key, 0.0) for key in keys),
            }
            self.bars.update(self.bar_of_node[node], **amount, detail=count_of(len(cohorts), "cohort"))


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
