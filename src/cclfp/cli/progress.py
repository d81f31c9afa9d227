"""Progress of many runs, and of getting a dataset, on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

HEARTBEAT = 10.0  # seconds between two plain lines about runs that are under way
ALL_HEARTBEAT = 30.0  # and between two about all runs
MOST_BARS = 16  # of runs that are under way
BESIDE_NAME = 66  # columns that a bar takes beside the run's name


class Work:
    """How much of the work of all runs is done, and how long the rest will take."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.fractions: dict[int, float] = {}
        self.first: dict[int, float] = {}  # where a run was when it was first heard of: at a checkpoint, perhaps
        self.began: float | None = None

    def stored(self, number: int) -> None:
        self.weights[number] = 0.0

    def step(self, number: int, fraction: float) -> None:
        self.began = time.monotonic() if self.began is None else self.began
        self.first.setdefault(number, fraction if fraction < 1 else 0.0)
        self.fractions[number] = fraction

    @property
    def done(self) -> float:
        return sum(self.weights[number] * fraction for number, fraction in self.fractions.items())

    @property
    def total(self) -> float:
        return sum(self.weights)

    @property
    def seconds_left(self) -> float | None:
        here = sum(self.weights[number] * (f - self.first[number]) for number, f in self.fractions.items())
        if self.began is None or here <= 0:
            return None
        return (time.monotonic() - self.began) * (self.total - self.done) / here


class Progress:
    """Takes the events of numbered runs (``update``) and shows them; ``step`` and ``finish`` are about one run.

    ``data`` is about a step of getting a dataset, which comes before all runs. Where the runs are many and of several
    kinds, the first event has ``weights``, how much work each is, and what is shown is about all of them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.work: Work | None = None
        self.done = self.stored = 0
        self.store = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._say_stored()

    def update(self, number: int, event: dict[str, Any]) -> None:
        if event["event"] == "jobs":
            self._say_stored()
            self.names, self.store, self.done = event["names"], event["store"], 0
            self.work = Work(list(event["weights"])) if "weights" in event else None
            self.begin()
        elif event["event"] == "data":
            self.data(event["what"], event["done"], event["total"], event["unit"])
        elif event["event"] == "stored":
            self.stored += 1
            if self.work is not None:
                self.work.stored(number)
        elif event["event"] == "note":
            self.say(f"{self.names[number]}: {event['text']}" if number >= 0 else event["text"])
        elif event["event"] == "step":
            self._say_stored()
            if self.work is not None:
                self.work.step(number, event["step"] / event["steps"])
            self.step(number, event)
        elif event["event"] == "done":
            self._say_stored()
            self.done += 1
            if self.work is not None:
                self.work.step(number, 1.0)
            record = event["record"]
            self.finish(number)
            result = f"{record['average_accuracy']:.2f} % in {record['seconds']:.1f} s"
            result += "" if record.get("diverged") is None else ", diverged"
            self.say(f"[{self.done}/{len(self.names)}] {self.names[number]}: {result}")

    def _say_stored(self) -> None:
        if self.stored:
            self.say(f"{self.stored} of {len(self.names)} runs are in the store {self.store}: not trained again")
            self.done, self.stored = self.done + self.stored, 0

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While something is printed on stdout."""
        yield

    def begin(self) -> None: ...

    def data(self, what: str, done: int, total: int, unit: str) -> None: ...

    def step(self, number: int, event: dict[str, Any]) -> None: ...

    def finish(self, number: int) -> None: ...


class PlainProgress(Progress):
    """A line when a run ends, and now and then about those under way."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[int, tuple[float, int]] = {}  # run -> when it was first heard of, and at which step
        self.said: dict[int, float] = {}
        self.said_of_data: dict[str, float] = {}
        self.said_of_all: float | None = None

    def data(self, what: str, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        if now - self.said_of_data.setdefault(what, now) < HEARTBEAT:
            return
        self.said_of_data[what] = now
        self.say(f"{what}, {_amount(done, total, unit)}" + (f", {done / total:.0%}" if total else ""))

    def step(self, number: int, event: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.work is not None:
            self._say_all(now)
            return
        began, first = self.started.setdefault(number, (now, event["step"]))
        if now - self.said.setdefault(number, now) < HEARTBEAT or event["step"] == first:
            return
        self.said[number] = now
        rate = (event["step"] - first) / (now - began)
        left = (event["steps"] - event["step"]) / rate
        so_far = "" if event["accuracy"] is None else f", {event['accuracy']:.1f} % so far"
        self.say(
            f"{self.names[number]}: task {event['task']}/{event['tasks']}, step {event['step']:,}/{event['steps']:,}, "
            f"{rate:,.0f} steps/s, {left:.0f} s left{so_far}"
        )

    def _say_all(self, now: float) -> None:
        assert self.work is not None
        self.said_of_all = now if self.said_of_all is None else self.said_of_all
        if now - self.said_of_all >= ALL_HEARTBEAT and (left := self.work.seconds_left) is not None:
            self.said_of_all = now
            under_way = sum(fraction < 1 for fraction in self.work.fractions.values())
            share = self.work.done / self.work.total
            runs = f"{self.done} of {len(self.names)} runs done, {under_way} under way"
            self.say(f"{runs}: {share:.0%} of the work, {duration(left)} left")

    def finish(self, number: int) -> None:
        self.started.pop(number, None)


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
                known = task.speed is not None and task.fields["unit"]
                return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if known else "", style="magenta")

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
        self.of_run: dict[int, Any] = {}
        self.of_data: dict[str, Any] = {}
        self.fractions: dict[int, float] = {}
        self.all: Any = None

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
        if self.all is not None:  # these are more runs of the same command
            self.bars.remove_task(self.all)
        self.all = self._bar("all runs", None, "")

    def data(self, what: str, done: int, total: int, unit: str) -> None:
        if what not in self.of_data:
            self.of_data[what] = self._bar(what, total or None, unit)
        self.bars.update(self.of_data[what], completed=done, total=total or None, detail=_amount(done, total, unit))
        if done == total:
            self.bars.remove_task(self.of_data.pop(what))

    def step(self, number: int, event: dict[str, Any]) -> None:
        if number not in self.of_run and len(self.of_run) < MOST_BARS:
            name = _fit(self.names[number], self.bars.console.width - BESIDE_NAME)
            self.of_run[number] = self._bar(name, event["steps"], "steps")
        if number in self.of_run:
            self.bars.update(
                self.of_run[number],
                completed=event["step"],
                detail=f"task {event['task']}/{event['tasks']} step {event['step']}/{event['steps']}",
                accuracy="" if event["accuracy"] is None else f", {event['accuracy']:.1f} %",
            )
        self.fractions[number] = event["step"] / event["steps"]
        self._update_all()

    def finish(self, number: int) -> None:
        if number in self.of_run:
            self.bars.remove_task(self.of_run.pop(number))
        self.fractions.pop(number, None)
        self._update_all()

    def _bar(self, description: str, total: float | None, unit: str) -> Any:
        return self.bars.add_task(description, total=total, detail="", accuracy="", unit=unit)  # no markup in it

    def _update_all(self) -> None:
        completed, total = self.done + sum(self.fractions.values()), float(len(self.names))
        if self.work is not None:
            completed, total = self.work.done, self.work.total
        self.bars.update(self.all, total=total, completed=completed, detail=f"{self.done}/{len(self.names)}")


def _amount(done: int, total: int, unit: str) -> str:
    return f"{done:,}/{total:,} {unit}" if total else f"{done:,} {unit}"


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
