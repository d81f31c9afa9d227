"""Steps at the end of a task, taken with graphs. There is no GPU here: a graph is a function that is called again."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cclfp.engine import folds
from cclfp.engine.compiled import Programs
from cclfp.engine.folds import Folds
from cclfp.methods.base import fold
from cclfp.nets.network import Tensors

ROWS = torch.arange(1.0, 21.0)


class Recorder:
    """Stands for CUDA: counts graphs and replays."""

    def __init__(self) -> None:
        self.graphs = self.replays = 0
        self.is_recording = False

    def capture(self, work: Any, stream: Any) -> Any:
        self.graphs += 1
        self.is_recording = True
        saved = {name: t.clone() for name, t in self.held(work).items()}
        try:
            work()
        finally:
            self.is_recording = False
        for name, t in self.held(work).items():  # recording does not run anything
            t.copy_(saved[name])

        def replay() -> None:
            self.replays += 1
            work()

        return SimpleNamespace(replay=replay)

    @staticmethod
    def held(work: Any) -> Tensors:
        return next(cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, dict))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    class Side:
        stream = None

        def __init__(self, *arguments: Any) -> None: ...

        def after(self, *events: Any) -> Any:
            return contextlib.nullcontext()

        def join(self) -> None: ...

    found = Recorder()
    monkeypatch.setattr(folds, "_is_on_gpu", lambda t: True)
    monkeypatch.setattr(folds, "capture", found.capture)
    monkeypatch.setattr(folds, "SideStream", Side)
    return found


def start() -> Tensors:
    return {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.5, -0.5])}


def mixed(given: Tensors, row: Tensor) -> Tensors:
    return {"a": given["b"] + 0.1 * row, "b": 0.5 * given["a"] - row}


def test_a_graph_takes_all_steps_but_the_first(recorder: Recorder) -> None:
    notes: list[str] = []
    ours, given = Folds(notes.append).fold(mixed, before := start(), ROWS), start()
    wanted = fold(mixed, given, ROWS)
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
    assert (recorder.graphs, recorder.replays, notes) == (1, len(ROWS) - 1, [])
    assert all(torch.equal(before[name], given[name]) for name in given), "its arguments stay as they are"


def test_what_is_carried_may_change_places(recorder: Recorder) -> None:
    def exchanged(given: Tensors, row: Tensor) -> Tensors:
        return {"a": given["b"], "b": given["a"], "sum": given["sum"] + row * given["a"]}

    begin = {**start(), "sum": torch.zeros(2)}
    ours, wanted = Folds(lambda text: None).fold(exchanged, begin, ROWS), fold(exchanged, begin, ROWS)
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
    assert recorder.replays == len(ROWS) - 1


@pytest.mark.parametrize("count", [0, 1, 15, 16])
def test_few_steps_are_not_recorded(recorder: Recorder, count: int) -> None:
    ours, wanted = Folds(lambda text: None).fold(mixed, start(), ROWS[:count]), fold(mixed, start(), ROWS[:count])
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
    assert recorder.graphs == (count >= 16)


def test_elsewhere_nothing_is_recorded() -> None:
    assert not folds._is_on_gpu(ROWS)
    wanted = fold(mixed, start(), ROWS)
    assert all(torch.equal(t, wanted[name]) for name, t in Folds(pytest.fail).fold(mixed, start(), ROWS).items())
    assert Programs.fold is fold


def grows(given: Tensors, row: Tensor) -> Tensors:
    return {**mixed(given, row), "a": torch.cat([given["a"], row[None]])}


def draws(given: Tensors, row: Tensor) -> Tensors:
    return {**mixed(given, row), "a": given["a"] + row * torch.rand(2)}


class Counts:
    """A step with a state of its own, which a graph does not have."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, given: Tensors, row: Tensor) -> Tensors:
        self.number += 1
        return {name: t + 10 * (row >= 2) * (self.number >= 3) + row for name, t in given.items()}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (grows, "changes the shape, dtype or device of 'a'"),
        (lambda given, row: {**mixed(given, row), "a": given["a"].double()}, "dtype or device of 'b'"),
        (lambda given, row: {"a": given["a"] + row, f"b{len(given)}": given["a"], **given}, "returns other names"),
        (draws, "random layers"),
        (Counts(), "not in its arguments"),
    ],
)
def test_steps_that_a_graph_cannot_take(recorder: Recorder, step: Any, reason: str) -> None:
    """They are taken one by one from the second on, and it is said once."""
    notes: list[str] = []
    ours = Folds(notes.append)
    torch.manual_seed(0)
    got = ours.fold(step, start(), ROWS)
    assert reason in notes[0]
    assert "taken one by one" in notes[0]
    assert recorder.replays <= 1
    graphs = recorder.graphs
    ours.fold(mixed, start(), ROWS)
    assert (len(notes), recorder.graphs) == (1, graphs)
    if not isinstance(step, Counts):
        torch.manual_seed(0)
        wanted = fold(step, start(), ROWS)
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_a_tensor_that_is_not_on_the_gpu(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(folds, "_is_on_gpu", lambda t: t.ndim != 1 or len(t) == len(ROWS))
    got, wanted = Folds(notes.append).fold(mixed, start(), ROWS), fold(mixed, start(), ROWS)
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert "'a' is not on the GPU" in notes[0]
    assert recorder.graphs == 0


def test_an_error_of_the_step_is_raised(recorder: Recorder) -> None:
    def fails(given: Tensors, row: Tensor) -> Tensors:
        if row > 15:
            raise ArithmeticError("sixteen")
        return mixed(given, row)

    def fails_in_a_recording(given: Tensors, row: Tensor) -> Tensors:
        if recorder.is_recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        return mixed(given, row)

    with pytest.raises(ArithmeticError, match="sixteen"):
        Folds(lambda text: None).fold(fails, start(), ROWS)
    notes: list[str] = []
    wanted = fold(mixed, start(), ROWS)
    got = Folds(notes.append).fold(fails_in_a_recording, start(), ROWS)
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert "not permitted when stream is capturing" in notes[0]
