"""Progress as it is shown, from recorded events."""

from __future__ import annotations

import dataclasses
import io
import itertools
from typing import Any

import pytest
from rich.console import Console

from cclfp.cli import progress as module
from cclfp.cli.progress import LiveProgress, PlainProgress, Progress, duration
from cclfp.runs.code import code
from cclfp.runs.events import Finished, Note, Placed, Planned, Step, Stored

ER = {"method": "er"}
RECORD: Any = {"average_accuracy": 79.123, "seconds": 8.04, "configuration": ER, "environment": code(ER)}
RUNS = Planned({"a": "er seed 0", "b": "er seed 1", "c": "er seed 2"}, "runs.sqlite")


def step(key: str, step: int, accuracy: float | None = None, *, compiling: bool = False) -> Step:
    return Step(key, 2, 5, step, 6000, accuracy, compiling)


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(RUNS)
        shown.update(Stored("a", RECORD))
        shown.update(Note("mnist: trying a mirror"))
        shown.update(Note("continuing", "b"))
        shown.update(step("b", 0))
        now = 5.0
        shown.update(step("b", 1000))  # too soon to say
        now = 20.0
        shown.update(step("b", 2000, 88.04))
        shown.update(Finished("b", RECORD))
    assert capsys.readouterr().err.splitlines() == [
        "mnist: trying a mirror",
        "er seed 1: continuing",
        "1 of 3 runs are in the store runs.sqlite: not trained again",
        "er seed 1: task 2/5, step 2,000/6,000, 100 steps/s, 40 s left, 88.0 % so far",
        "[2/3] er seed 1: 79.12 % in 8.0 s",
    ]


def test_a_run_that_compiles_shows_no_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(Planned({"b": "er seed 1"}, "runs.sqlite"))
        shown.update(step("b", 1))
        shown.update(step("b", 1, compiling=True))
        for now, number in ((30.0, 2), (45.0, 302), (60.0, 602)):  # noqa: B007  the clock reads it
            shown.update(step("b", number))
    assert capsys.readouterr().err.splitlines() == [
        "er seed 1: task 2/5, step 1/6,000, compiling",
        "er seed 1: task 2/5, step 302/6,000, 20 steps/s, 5 min left",
        "er seed 1: task 2/5, step 602/6,000, 20 steps/s, 4 min left",
    ]


def test_slow_steps_are_not_taken_for_compiling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(Planned({"b": "er seed 1"}, "runs.sqlite"))
        for now, number in ((0.0, 1), (20.0, 2)):  # noqa: B007  the clock reads it
            shown.update(step("b", number))
    assert capsys.readouterr().err == "er seed 1: task 2/5, step 2/6,000, 20 s per step, 33 h 19 min left\n"


def test_all_from_the_store_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainProgress() as shown:
        shown.update(Planned({"a": "er seed 0"}, "runs.sqlite"))
        shown.update(Stored("a", RECORD))
    assert capsys.readouterr().err == "1 of 1 runs are in the store runs.sqlite: not trained again\n"


def test_plain_lines_about_all_of_many_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(dataclasses.replace(RUNS, costs={"a": 7.0, "b": 1.0, "c": 3.0}))
        shown.update(Stored("a", RECORD))  # is no work
        shown.update(step("c", 3000))  # from a checkpoint
        now = 100.0
        shown.update(step("c", 4000))  # half a unit of work in 100 s
        now = 110.0
        shown.update(step("c", 4000))  # too soon to say
        shown.update(Finished("b", RECORD))
        now = 120.0
        shown.update(Finished("c", RECORD))
    assert capsys.readouterr().err.splitlines() == [
        "1 of 3 runs are in the store runs.sqlite: not trained again",
        "1 of 3 runs finished, 1 in training: 50% of the work, 10 replica-steps/s, 7 min left",
        "[2/3] er seed 1: 79.12 % in 8.0 s",
        "[3/3] er seed 2: 79.12 % in 8.0 s",
    ]


def test_compiling_does_not_count_as_training_in_lines_about_all_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(dataclasses.replace(RUNS, costs={"a": 1.0, "b": 1.0, "c": 1.0}))
        for key in "abc":
            shown.update(step(key, 0, compiling=True))
        now = 600.0
        shown.update(step("a", 0))
        shown.update(step("a", 600))
        shown.update(step("b", 0))
        now = 640.0
        shown.update(step("a", 3000))  # half of a run in 40 s
        now = 650.0
        shown.update(step("a", 3000, compiling=True))
        now = 700.0
        shown.update(step("a", 3000))
        now = 740.0
        shown.update(step("a", 6000))
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 runs finished, compiling",
        "0 of 3 runs finished, 2 in training: 17% of the work, 60 replica-steps/s, 3 min left",
        "0 of 3 runs finished, 1 in training: 33% of the work, 75 replica-steps/s, 3 min left",
    ]


def test_plain_lines_about_a_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with PlainProgress() as shown:
        shown.update(RUNS)
        shown.update(Stored("a", RECORD))
        shown.update(Placed(["b"], "gpu1-0a1b2c", 1))
        shown.update(Placed(["c"], "gpu2-0a1b2d", 1))
        for key in ("b", "c"):
            shown.update(step(key, 0))
        now = 40.0
        shown.update(step("b", 1500))
        now = 80.0
        shown.update(Note("its process on gpu1-0a1b2c was lost: attempt 2 on gpu2-0a1b2d", "b"))
        shown.update(Placed(["b"], "gpu2-0a1b2d", 2))
        shown.update(step("b", 0))
        shown.update(step("c", 3000))
        now = 120.0
        shown.update(Finished("b", RECORD))
    assert capsys.readouterr().err.splitlines() == [
        "1 of 3 runs are in the store runs.sqlite: not trained again",
        "1 of 3 runs finished, 2 in training (gpu1-0a1b2c: 1 cohort, gpu2-0a1b2d: 1 cohort): 12% of the work, "
        "38 replica-steps/s, 5 min left",
        "er seed 1: its process on gpu1-0a1b2c was lost: attempt 2 on gpu2-0a1b2d",
        "1 of 3 runs finished, 2 in training (gpu2-0a1b2d: 2 cohorts): 25% of the work, 75 replica-steps/s, 4 min left",
        "[2/3] er seed 1: 79.12 % in 8.0 s",
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
        shown.update(Planned({"a": "ccl-fp+ seed 0", "b": "ccl-fp+ seed 1"}, "runs.sqlite"))
        shown.update(step("a", 1000))
        shown.update(step("a", 2000, 88.04))
        shown.bars.refresh()
        (bar,) = [line for line in screen.getvalue().splitlines() if "ccl-fp+ seed 0" in line][-1:]
        shown.update(Finished("a", RECORD))
    assert "task 2/5 step 2000/6000" in bar
    assert "steps/s" in bar
    assert "88.0 %" in bar
    assert "[1/2] ccl-fp+ seed 0: 79.12 % in 8.0 s" in screen.getvalue()


class Screen:
    """Live bars on a terminal of 80 columns, with a clock of their own."""

    def __init__(self) -> None:
        self.now, self.text, self.shown = 0.0, io.StringIO(), LiveProgress()
        self.shown.bars.get_time = lambda: self.now
        self.shown.bars.live.console = Console(file=self.text, force_terminal=True, width=80, color_system=None)

    def line(self, name: str) -> str:
        """The newest line with this name in it."""
        self.shown.bars.refresh()
        return [line for line in self.text.getvalue().splitlines() if name in line][-1]


def test_the_live_bar_of_a_run_says_when_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("time.monotonic", lambda: screen.now)
    with screen.shown as shown:
        shown.update(Planned({"a": "er seed 0", "b": "er seed 1"}, "runs.sqlite"))
        assert "compiling" not in screen.line("all runs")
        for key in ("a", "b"):
            shown.update(step(key, 1))
            assert "compiling" not in screen.line("er seed 0")  # a first step that takes long is no compiler
        shown.update(step("a", 1, compiling=True))
        screen.now = 20.0
        assert "compiling" in screen.line("er seed 0")
        assert "step 1/6000" in screen.line("er seed 0")
        assert "compiling" not in screen.line("er seed 1")
        assert "compiling" not in screen.line("all runs")
        for screen.now, number in ((20.0, 2), (21.0, 102), (22.0, 202)):
            shown.update(step("a", number))
        assert "100 steps/s" in screen.line("er seed 0")  # the compiler's 20 seconds do not count
        assert "00:58" in screen.line("er seed 0")


def test_the_live_bar_of_all_runs_has_no_speed_before_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("time.monotonic", lambda: screen.now)
    with screen.shown as shown:
        shown.update(RUNS)
        shown.update(step("a", 1))
        screen.now = 0.5
        shown.update(step("b", 1))
        assert "steps/s" not in screen.line("all runs")
        screen.now = 1.0
        shown.update(step("a", 301))
        assert "300 steps/s" in screen.line("all runs")


@pytest.mark.parametrize(("runs", "updates"), [(module.FEW_RUNS, 40), (module.FEW_RUNS + 1, 2)])
def test_the_bar_of_many_runs_does_not_follow_each_event(
    runs: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, counted = Screen(), 0
    monkeypatch.setattr("time.monotonic", lambda: screen.now)
    update_all = screen.shown._update_all

    def count() -> None:
        nonlocal counted
        counted += 1
        update_all()

    monkeypatch.setattr(screen.shown, "_update_all", count)
    with screen.shown as shown:
        shown.update(Planned({f"{n}": f"er seed {n}" for n in range(runs)}, "runs.sqlite"))
        for screen.now in (1.0, 1.0 + 2 * module.UPDATE_EVERY):
            for n in range(20):
                shown.update(step(f"{n}", 10))
        assert counted == updates
        assert len(screen.shown.bar_of_run) == module.MOST_BARS
        shown.update(Finished("0", RECORD))
        assert counted == updates + 1  # the end of a run is shown at once
        assert f"1/{runs}" in screen.line("all runs")


def test_live_bars_of_a_cluster_fit_80_columns() -> None:
    shown = LiveProgress()
    clock = itertools.count()
    shown.bars.get_time = lambda: float(next(clock))
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        shown.update(Planned({f"{n}": f"er seed {n}" for n in range(40)}, "runs.sqlite"))
        for n in range(40):
            shown.update(Placed([f"{n}"], f"a-rather-long-name-of-a-node-{n % 2}", 1))
        for n in range(40):
            shown.update(step(f"{n}", 10))
            shown.update(step(f"{n}", 3000))
        shown.update(Finished("0", RECORD))
        shown.bars.refresh()
        lines = screen.getvalue().splitlines()
        for n in range(2, 40, 2):
            shown.update(Finished(f"{n}", RECORD))
        assert len(shown.bar_of_node) == 1  # the other has nothing to train
    (first,) = [line for line in lines if "node-0" in line][-1:]
    (second,) = [line for line in lines if "node-1" in line][-1:]
    (whole,) = [line for line in lines if "all runs" in line][-1:]
    assert "19 cohorts" in first
    assert "20 cohorts" in second
    assert "1/40" in whole
    assert "steps/s" in whole
    assert "left" in whole
    assert not any(f"er seed {n} " in line for line in lines for n in range(40) if "[" not in line)


def test_live_bars_of_a_long_name_stay_on_one_line() -> None:
    shown = LiveProgress()
    clock = itertools.count()
    shown.bars.get_time = lambda: float(next(clock))
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        label = "ccl-fp+ alpha=0 beta=0 split-cifar100 class seed 0"
        shown.update(Planned({"a": label}, "runs.sqlite", {"a": 1.0}))
        shown.update(step("a", 1000))
        shown.update(step("a", 2000, 88.04))
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
        shown.update(RUNS)
        shown.update(step("a", 1000))
        drawn = [shown.bars.live.is_started]
        with shown.aside():
            print("a table")
            drawn.append(shown.bars.live.is_started)
        drawn.append(shown.bars.live.is_started)
        shown.update(Finished("a", RECORD))
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
