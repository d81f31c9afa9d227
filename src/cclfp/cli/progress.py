"""Progress of many runs on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

HEARTBEAT = 10.0  # seconds between two plain lines about runs that are under way


class Progress:
    """Takes the events of numbered runs (``update``) and shows them; ``step`` and ``finish`` are about one run."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.done = self.stored = 0
        self.store = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._say_stored()

    def update(self, number: int, event: dict[str, Any]) -> None:
        if event["event"] == "jobs":
            self.names, self.store = event["names"], event["store"]
        elif event["event"] == "stored":
            self.stored += 1
        elif event["event"] == "note":
            self.say(f"{self.names[number]}: {event['text']}" if number >= 0 else event["text"])
        elif event["event"] == "step":
            self._say_stored()
            self.step(number, event)
        elif event["event"] == "done":
            self._say_stored()
            self.done += 1
            record = event["record"]
            self.finish(number)
            result = f"{record['average_accuracy']:.2f} % in {record['seconds']:.1f} s"
            self.say(f"[{self.done}/{len(self.names)}] {self.names[number]}: {result}")

    def _say_stored(self) -> None:
        if self.stored:
            self.say(f"{self.stored} of {len(self.names)} runs are in the store {self.store}: not trained again")
            self.done, self.stored = self.done + self.stored, 0

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def step(self, number: int, event: dict[str, Any]) -> None: ...

    def finish(self, number: int) -> None: ...


class PlainProgress(Progress):
    """A line when a run ends, and now and then about those under way."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[int, tuple[float, int]] = {}  # run -> when it was first heard of, and at which step
        self.said: dict[int, float] = {}

    def step(self, number: int, event: dict[str, Any]) -> None:
        now = time.monotonic()
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

    def finish(self, number: int) -> None:
        self.started.pop(number, None)


class LiveProgress(Progress):
    """A bar for all runs and one for each that is under way."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class Speed(ProgressColumn):
            def render(self, task: Task) -> Text:
                of_a_run = task.speed is not None and task.id != 0
                return Text(f"{task.speed:,.0f} steps/s" if of_a_run else "", style="magenta")

        super().__init__()
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[detail]}"),
            Speed(),
            TimeRemainingColumn(compact=True),
            TextColumn("left{task.fields[accuracy]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self.of_run: dict[int, Any] = {}
        self.fractions: dict[int, float] = {}
        self.all = self.bars.add_task("[bold]all runs", total=None, detail="", accuracy="")

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self.bars.stop()

    def say(self, line: str) -> None:
        self.bars.console.print(line, highlight=False, markup=False)

    def step(self, number: int, event: dict[str, Any]) -> None:
        if number not in self.of_run:
            self.of_run[number] = self.bars.add_task(self.names[number], total=event["steps"], detail="", accuracy="")
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

    def _update_all(self) -> None:
        completed = self.done + sum(self.fractions.values())
        self.bars.update(self.all, total=len(self.names), completed=completed, detail=f"{self.done}/{len(self.names)}")


def progress() -> Progress:
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()
