"""Progress of many runs on stderr: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

HEARTBEAT = 10.0  # seconds between two plain lines about runs that are under way


class Progress:
    """Takes the events of numbered runs (``update``) and shows them."""

    def __init__(self, names: Sequence[str], store: str) -> None:
        self.names, self.store = names, store
        self.stored = self.done = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def update(self, number: int, event: dict[str, Any]) -> None:
        if event["event"] == "stored":
            self.stored += 1
            return
        if self.stored:
            self.say(f"{self.stored} of {len(self.names)} runs are in the store {self.store}: not trained again")
            self.done, self.stored = self.done + self.stored, 0
        if event["event"] == "note":
            self.say(f"{self.names[number]}: {event['text']}")
        elif event["event"] == "step":
            self.step(number, event)
        elif event["event"] == "done":
            self.done += 1
            record = event["record"]
            result = f"{record['average_accuracy']:.2f} % in {record['seconds']:.1f} s"
            self.finish(number)
            self.say(f"[{self.done}/{len(self.names)}] {self.names[number]}: {result}")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def step(self, number: int, event: dict[str, Any]) -> None:
        raise NotImplementedError  # by the two below

    def finish(self, number: int) -> None:
        raise NotImplementedError


class PlainProgress(Progress):
    """A line when a run ends, and now and then about those under way."""

    def __init__(self, names: Sequence[str], store: str) -> None:
        super().__init__(names, store)
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

    def __init__(self, names: Sequence[str], store: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class Speed(ProgressColumn):
            def render(self, task: Task) -> Text:
                fast = task.speed is not None and task.fields["detail"]
                return Text(f"{task.speed:,.0f} steps/s" if fast else "", style="magenta")

        super().__init__(names, store)
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            Speed(),
            TimeRemainingColumn(),
            TextColumn("left {task.fields[accuracy]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self.of_run: dict[int, Any] = {}
        self.fractions: dict[int, float] = {}
        self.all = self.bars.add_task("[bold]all runs", total=len(names), detail="", accuracy="")

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bars.stop()

    def say(self, line: str) -> None:
        self.bars.console.print(line, highlight=False, markup=False)

    def step(self, number: int, event: dict[str, Any]) -> None:
        if number not in self.of_run:
            self.of_run[number] = self.bars.add_task(self.names[number], total=event["steps"], detail="", accuracy="")
        self.bars.update(
            self.of_run[number],
            completed=event["step"],
            detail=f"task {event['task']}/{event['tasks']}  step {event['step']:,}/{event['steps']:,}",
            accuracy="" if event["accuracy"] is None else f"· {event['accuracy']:.1f} % so far",
        )
        self.fractions[number] = event["step"] / event["steps"]
        self._update_all()

    def finish(self, number: int) -> None:
        if number in self.of_run:
            self.bars.remove_task(self.of_run.pop(number))
        self.fractions.pop(number, None)
        self._update_all()

    def _update_all(self) -> None:
        self.bars.update(self.all, completed=self.done + sum(self.fractions.values()))


def progress_for(names: Sequence[str], store: str) -> Progress:
    return (LiveProgress if sys.stderr.isatty() else PlainProgress)(names, store)
