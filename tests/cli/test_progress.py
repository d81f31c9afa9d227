"""Progress as it is shown, from recorded events."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from rich.console import Console

from cclfp.cli import progress as module
from cclfp.cli.progress import LiveProgress, PlainProgress, Progress, duration

JOBS = {"event": "jobs", "names": ["er seed 0", "er seed 1", "er seed 2"], "store": "runs.sqlite"}
DONE = {"event": "done", "record": {"average_accuracy": 79.123, "seconds": 8.04}}


def step(step: int, accuracy: float | None = None) -> dict[str, Any]:
    return {"event": "step", "task": 2, "tasks": 5, "step": step, "steps": 6000, "accuracy": accuracy}


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 20.0, 21.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with PlainProgress() as shown:
        shown.update(-1, JOBS)
        shown.update(0, {"event": "stored", "record": {}})
        shown.update(-1, {"event": "note", "text": "mnist: trying a mirror"})
        shown.update(1, {"event": "note", "text": "going on"})
        shown.update(1, step(0))
        shown.update(1, step(1000))  # too soon to say
        shown.update(1, step(2000, 88.04))
        shown.update(1, DONE)
    assert capsys.readouterr().err.splitlines() == [
        "mnist: trying a mirror",
        "er seed 1: going on",
        "1 of 3 runs are in the store runs.sqlite: not trained again",
        "er seed 1: task 2/5, step 2,000/6,000, 100 steps/s, 40 s left, 88.0 % so far",
        "[2/3] er seed 1: 79.12 % in 8.0 s",
    ]


def test_all_from_the_store_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainProgress() as shown:
        shown.update(-1, {**JOBS, "names": ["er seed 0"]})
        shown.update(0, {"event": "stored", "record": {}})
    assert capsys.readouterr().err == "1 of 1 runs are in the store runs.sqlite: not trained again\n"


def test_plain_lines_about_all_of_many_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(-1, {**JOBS, "weights": [7.0, 1.0, 3.0]})
        shown.update(0, {"event": "stored", "record": {}})  # is no work
        shown.update(2, step(3000))  # from a checkpoint
        now = 100.0
        shown.update(2, step(4000))  # half a unit of work in 100 s
        now = 110.0
        shown.update(2, step(4000))  # too soon to say
        shown.update(1, DONE)
        now = 120.0
        shown.update(2, DONE)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 3 runs are in the store runs.sqlite: not trained again",
        "1 of 3 runs done, 1 under way: 50% of the work, 7 min left",
        "[2/3] er seed 1: 79.12 % in 8.0 s",
        "[3/3] er seed 2: 79.12 % in 8.0 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5969, "99 min"), (7500, "2 h 5 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_live_bars_fit_80_columns() -> None:
    shown = LiveProgress()
    clock = itertools.count()
    shown.bars.get_time = lambda: float(next(clock))
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        shown.update(-1, {**JOBS, "names": ["ccl-fp+ seed 0", "ccl-fp+ seed 1"]})
        shown.update(0, step(1000))
        shown.update(0, step(2000, 88.04))
        shown.bars.refresh()
        (bar,) = [line for line in screen.getvalue().splitlines() if "ccl-fp+ seed 0" in line][-1:]
        shown.update(0, DONE)
    assert "task 2/5 step 2000/6000" in bar
    assert "steps/s" in bar
    assert "88.0 %" in bar
    assert "[1/2] ccl-fp+ seed 0: 79.12 % in 8.0 s" in screen.getvalue()


def test_live_bars_of_a_long_name_stay_on_one_line() -> None:
    shown = LiveProgress()
    clock = itertools.count()
    shown.bars.get_time = lambda: float(next(clock))
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        shown.update(-1, {**JOBS, "names": ["ccl-fp+ alpha=0 beta=0 split-cifar100 class seed 0"], "weights": [1.0]})
        shown.update(0, step(1000))
        shown.update(0, step(2000, 88.04))
        shown.bars.refresh()
        lines = screen.getvalue().splitlines()
    (bar,) = [line for line in lines if "ccl-fp…" in line][-1:]
    assert "seed 0" in bar
    assert "step 2000/6000" in bar
    assert "88.0 %" in bar
    assert not any(line.strip() == "steps/s" for line in lines)


def test_live_bars_make_way_for_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LiveProgress()
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        shown.update(-1, JOBS)
        shown.update(0, step(1000))
        drawn = [shown.bars.live.is_started]
        with shown.aside():
            print("a table")
            drawn.append(shown.bars.live.is_started)
        drawn.append(shown.bars.live.is_started)
        shown.update(0, DONE)
    assert drawn == [True, False, True]
    assert capsys.readouterr().out == "a table\n"
    assert "a table" not in screen.getvalue()
    assert "[1/3] er seed 0: 79.12 % in 8.0 s" in screen.getvalue()
    with PlainProgress() as plain, plain.aside():
        print("another")
    assert capsys.readouterr().out == "another\n"


def test_plain_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: Progress = module.progress()
    assert isinstance(shown, PlainProgress)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(module.progress(), LiveProgress)
