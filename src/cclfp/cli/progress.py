"""Progress of runs, and of downloading or reading data, on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

from cclfp.errors import first_line, portable, visible
from cclfp.events import DataProgress, Event, Failed, Finished, Note, Placed, Planned, Step, Stored

HEARTBEAT = 10.0  # seconds between two plain lines about a run or a dataset
ALL_HEARTBEAT = 30.0  # seconds between two plain lines about all runs
MOST_BARS = 17  # of all runs, and of those that are being trained
BESIDE_NAME = 66  # columns that a bar takes beside the run's name
ALL = ""  # the key of the work that all runs are together


@dataclasses.dataclass
class Work:
    """Something that is under way: a run, a dataset, or all runs; how much of it is done, and how fast it is."""

    name: str
    unit: str = ""
    total: float = 0.0  # 0 where it is not known
    done: float = 0.0
    detail: str = ""
    accuracy: str = ""
    began: float | None = None  # when the speed began to be measured
    first: float = 0.0  # what was done then
    last_line: float = 0.0  # when a line about it was printed, or could have been
    bar: Any = None  # of rich

    def advance(self, done: float) -> None:
        """So much is done now."""
        self.done = done
        if self.began is None:
            self.began = self.last_line = time.monotonic()
            self.first = done

    @property
    def speed(self) -> float:
        """Units per second; 0 where it is not known."""
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        return max(0.0, self.done - self.first) / seconds if seconds > 0 else 0.0

    def describe(self) -> list[str]:
        """How far it is, how fast, how long it will take, and how good it is; empty where it is not known."""
        pace, left, speed = "", "", self.speed
        if speed and self.unit:
            pace = f"{speed:,.0f} {self.unit}/s" if speed >= 1 else f"{1 / speed:,.0f} s per {self.unit.rstrip('s')}"
        if speed and self.total:
            left = f"{duration((self.total - self.done) / speed)} left"
        return [self.detail, pace, left, self.accuracy]


class Progress:
    """Takes events (``update``), knows what is under way, and draws it: as bars, or now and then as a line."""

    def __init__(self, *, is_live: bool | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self.stored: list[Any] = []  # records that were not reported yet
        self.work: dict[str, Work] = {}  # of runs, by their keys, of datasets, and of ALL
        self._plan(Planned({}, ""))
        self.is_live = sys.stderr.isatty() if is_live is None else is_live
        columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=10)]
        columns += [TextColumn(f"{{task.fields[texts][{i}]}}") for i in range(4)]
        self.bars = Bars(*columns, console=Console(stderr=True), transient=True, disable=not self.is_live)

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._report_stored()
        if self.is_live:
            self.bars.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.bars.console.print(visible(line), soft_wrap=not self.is_live, highlight=False, markup=False, emoji=False)

    def update(self, event: Event) -> None:
        if isinstance(event, Planned | Step | Finished):
            self._report_stored()
        match event:
            case Planned():  # these may be more runs of the same command
                self._plan(event)
                self._show(ALL)
            case DataProgress():
                self._read(event)
            case Stored():
                self.stored.append(event.record)
                self._leave_out(event.key)
            case Note():
                self.say(event.text if event.key is None else f"{self.labels[event.key]}: {event.text}")
            case Placed():
                self.is_many = True
                for key in event.keys:  # they may have been trained on another node before
                    self._end(key)
            case Step():
                self._step(event)
            case Failed():
                self._leave_out(event.key)
                if len(self.labels) > 1:  # else the command ends with it
                    self.say(f"{self.labels[event.key]} failed: {first_line(portable(event.error))}")
            case Finished():
                self._finish(event)

    def _plan(self, event: Planned) -> None:
        self._end(ALL)
        self.labels, self.store = event.labels, event.store
        self.is_many = event.costs is not None  # plain lines about many runs are about all together
        self.costs = event.costs or dict.fromkeys(event.labels, 1.0)
        self.fractions: dict[str, float] = {}  # how much of each run is done
        self.finished = 0
        self.all = self.work[ALL] = Work("all runs", total=sum(self.costs.values()))  # in units of cost

    def _read(self, event: DataProgress) -> None:
        work = self.work.setdefault(event.what, Work(visible(event.what), event.unit))
        work.total, of = event.total, f"/{event.total:,}" if event.total else ""
        work.detail = f"{event.done:,}{of} {event.unit}"
        work.advance(event.done)
        self._show(event.what)
        if event.done == event.total:
            self._end(event.what)

    def _step(self, event: Step) -> None:
        run = self.work.setdefault(event.key, Work(self.labels[event.key], "steps", event.steps))
        run.detail = f"task {event.task}/{event.tasks} step {event.step}/{event.steps}"
        run.accuracy = "" if event.accuracy is None else f"{event.accuracy:.1f} %"
        run.advance(event.step)
        self._advance(event.key, event.step / event.steps)
        self._show(event.key)
        self._show(ALL)

    def _advance(self, key: str, fraction: float) -> None:
        """So much of a run is done now."""
        gained = self.costs[key] * (fraction - self.fractions.get(key, 0.0))
        if key not in self.fractions and fraction < 1:  # it may start at a checkpoint
            self.all.first += gained
        self.fractions[key] = fraction
        self.all.advance(self.all.done + gained)

    def _leave_out(self, key: str) -> None:
        """What is left of a run that is stored already, or has failed, is no work any more."""
        self.all.total -= self.costs[key] * (1 - self.fractions.pop(key, 0.0))
        self._end(key)

    def _finish(self, event: Finished) -> None:
        self.finished += 1
        self._advance(event.key, 1.0)
        self._end(event.key)
        self._show(ALL)
        result = f"{event.record['average_accuracy']:.2f} % in {event.record['seconds']:.1f} s"
        result += "" if event.record.get("diverged") is None else ", diverged"
        self.say(f"[{self.finished}/{len(self.labels)}] {self.labels[event.key]}: {result}")

    def _end(self, key: str) -> None:
        work = self.work.pop(key, None)
        if work is not None and work.bar is not None:
            self.bars.remove_task(work.bar)

    def _report_stored(self) -> None:
        if not self.stored:
            return
        from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code

        counts = f"{len(self.stored)} of {len(self.labels)} runs"
        self.say(f"{counts} are in the store {self.store}: not trained again")
        if others := describe_other_code(self.stored):
            self.say(f"{others}: {OTHER_CODE_HINT}")
        self.finished += len(self.stored)
        self.stored = []

    def _show(self, key: str) -> None:
        work = self.work[key]
        if key == ALL:
            work.detail = f"{self.finished}/{len(self.labels)} runs"
        if not self.is_live:
            if key not in self.labels if self.is_many else key != ALL:
                self._print_line(work)
            return
        if work.bar is None and len(self.bars.tasks) < MOST_BARS:
            name = _fit(work.name, self.bars.console.width - BESIDE_NAME) if key in self.labels else work.name
            work.bar = self.bars.add_task(name, texts=[""] * 4)
        if work.bar is not None:
            self.bars.update(work.bar, completed=work.done, total=work.total or None, texts=work.describe())

    def _print_line(self, work: Work) -> None:
        """If the last line about it was printed a while ago."""
        now = time.monotonic()
        if not work.speed or now - work.last_line < (ALL_HEARTBEAT if work is self.all else HEARTBEAT):
            return
        work.last_line = now
        detail, *others, accuracy = work.describe()
        share = f"{work.done / work.total:.0%}" if work.total else ""
        parts = filter(None, [detail, share, *others, accuracy and f"{accuracy} so far"])
        self.say(f"{work.name}: {', '.join(parts)}")


def _fit(name: str, room: int) -> str:
    """The beginning and the end of a name that is too long."""
    half = max(room, 14) // 2
    return name if len(name) <= 2 * half else f"{name[: half - 1]}…{name[-half:]}"


def duration(seconds: float) -> str:
    """For people who wait: ``45 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 99.5:
        return f"{max(0.0, seconds):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
