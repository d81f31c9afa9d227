"""Progress as it is shown, from recorded events."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from cclfp.cli.progress import MOST_BARS, Progress, duration
from cclfp.events import DataProgress, Event, Failed, Finished, Note, Placed, Planned, Step, Stored
from cclfp.runs.code import code

ER = {"method": "er"}
RECORD: Any = {"average_accuracy": 79.123, "seconds": 8.04, "configuration": ER, "environment": code(ER)}
LABELS = {"a": "er seed 0", "b": "er seed 1", "c": "er seed 2"}
RUNS = Planned(LABELS, "runs.sqlite")
MANY = Planned(LABELS, "runs.sqlite", {"a": 7.0, "b": 1.0, "c": 3.0})
FINISHED = Finished("b", RECORD)


def step(key: str, step: int, accuracy: float | None = None) -> Step:
    return Step(key, 2, 5, step, 6000, accuracy)


def data(done: int, total: int = 170) -> DataProgress:
    return DataProgress("my \x1b[2J photos: reading", done, total, "MB")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""
    now = 0.0

    def at(seconds: float) -> None:
        nonlocal now
        now = seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    return at


# What happens, at which times, and the lines about it. A line about a run or a dataset comes every ten seconds, and
# one about all of many runs every thirty.
LINES: dict[str, tuple[list[tuple[float, Event]], list[str]]] = {
    "a run": (
        [
            (0, RUNS), (0, Stored("a", RECORD)), (0, Note("mnist: trying a mirror")),
            (0, Note("continuing\x1b[2J", "b")), (0, step("b", 0)), (5, step("b", 1000)),
            (20, step("b", 2000, 88.04)), (20, FINISHED),
        ],
        [
            "mnist: trying a mirror",
            "er seed 1: continuing\\x1b[2J",
            "1 of 3 runs are in the store runs.sqlite: not trained again",
            "er seed 1: task 2/5 step 2000/6000, 33%, 100 steps/s, 40 s left, 88.0 % so far",
            "[2/3] er seed 1: 79.12 % in 8.0 s",
        ],
    ),
    "all is stored": (
        [(0, RUNS), *((0.0, Stored(key, RECORD)) for key in "abc")],
        ["3 of 3 runs are in the store runs.sqlite: not trained again"],
    ),
    "slow steps": (
        [(0, RUNS), (0, step("b", 1)), (20, step("b", 2))],
        ["er seed 1: task 2/5 step 2/6000, 0%, 20 s per step, 33 h 19 min left"],
    ),
    "many runs": (  # what is stored, or was trained before a checkpoint, says nothing of the speed
        [
            (0, MANY), (0, Stored("a", RECORD)), (0, step("c", 3000)), (100, step("c", 4000)), (110, step("c", 4000)),
            (110, FINISHED), (120, Finished("c", RECORD)),
        ],
        [
            "1 of 3 runs are in the store runs.sqlite: not trained again",
            "all runs: 1/3 runs, 50%, 7 min left",
            "[2/3] er seed 1: 79.12 % in 8.0 s",
            "[3/3] er seed 2: 79.12 % in 8.0 s",
        ],
    ),
    "a run that fails is no work any more": (
        [
            (0, MANY), (0, Failed("a", ValueError("no\nand more"))), (0, step("b", 0)), (40, step("b", 6000)),
        ],
        ["er seed 0 failed: ValueError: no", "all runs: 0/3 runs, 25%, 2 min left"],
    ),
    "a cluster that loses a node": (
        [
            (0, RUNS), (0, Placed(["b"], "gpu1", 1)), (0, Placed(["c"], "gpu2", 1)), (0, step("b", 0)),
            (0, step("c", 0)), (40, step("b", 1500)), (80, Note("its process on gpu1 was lost", "b")),
            (80, Placed(["b"], "gpu2", 2)), (80, step("b", 0)), (80, step("c", 3000)), (120, FINISHED),
        ],
        [
            "all runs: 0/3 runs, 8%, 7 min left",
            "er seed 1: its process on gpu1 was lost",
            "all runs: 0/3 runs, 17%, 7 min left",
            "all runs: 1/3 runs, 50%, 2 min left",
            "[1/3] er seed 1: 79.12 % in 8.0 s",
        ],
    ),
    "a dataset": (
        [(0, data(0)), (5, data(10)), (10, data(17)), (15, data(80)), (25, data(1234, total=0))],
        [
            "my \\x1b[2J photos: reading: 17/170 MB, 10%, 2 MB/s, 90 s left",
            "my \\x1b[2J photos: reading: 1,234 MB, 49 MB/s",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_plain_lines(name: str, clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    events, lines = LINES[name]
    with Progress(is_live=False) as shown:
        for seconds, event in events:
            clock(seconds)
            shown.update(event)
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1e-17, "0 s"), (0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5969, "99 min"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Screen:
    """Live bars on a terminal of 80 columns."""

    def __init__(self) -> None:
        self.text, self.shown = io.StringIO(), Progress(is_live=True)
        self.shown.bars.live.console = Console(file=self.text, force_terminal=True, width=80, color_system=None)

    def line(self, name: str) -> str:
        """The newest line with this name in it."""
        self.shown.bars.refresh()
        return [line for line in self.text.getvalue().splitlines() if name in line][-1]


def test_live_bars(clock: Callable[[float], None]) -> None:
    screen, label = Screen(), "ccl-fp+ alpha=0 beta=0 split-cifar100 class seed 0"
    with screen.shown as shown:
        for done in (0, 20, 40):
            shown.update(data(done))
            clock(done)
        line = screen.line("my \\x1b[2J photos: reading")
        assert all(text in line for text in ("40/170 MB", "MB/s"))
        shown.update(data(170))
        assert not shown.bars.tasks  # it is done, and there are no runs
        shown.update(Planned({"a": label, "b": "er seed 1"}, "runs.sqlite"))
        shown.update(step("b", 1))
        clock(100)
        shown.update(step("a", 1000))
        clock(110)
        shown.update(step("a", 2000, 88.04))
        line = screen.line("ccl-fp…")  # on one line
        assert all(text in line for text in ("seed 0", "step 2000/6000", "100 steps/s", "40 s left", "88.0 %"))
        shown.update(Finished("a", RECORD))
        assert "1/2 runs" in screen.line("all runs")
        assert len(shown.bars.tasks) == 2
    assert f"[1/2] {label}: 79.12 % in 8.0 s" in screen.text.getvalue()


def test_live_bars_of_many_runs_are_not_more_than_fit() -> None:
    screen = Screen()
    with screen.shown as shown:
        shown.update(Planned({f"{n}": f"er seed {n}" for n in range(200)}, "runs.sqlite"))
        for n in range(40):
            shown.update(step(f"{n}", 10))
        assert len(shown.bars.tasks) == MOST_BARS
        for n in range(40):
            shown.update(Finished(f"{n}", RECORD))
        assert "40/200 runs" in screen.line("all runs")
        assert len(shown.bars.tasks) == 1


def test_plain_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Progress().is_live
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert Progress().is_live
