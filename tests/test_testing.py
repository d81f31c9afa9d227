"""The contract test finds what is wrong with a method."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cclfp.engine.replica import computing_threads
from cclfp.methods import Method, gradient
from cclfp.methods.er import ER
from cclfp.methods.icarl import ICaRL
from cclfp.schedules import Exemplars, Schedule
from cclfp.testing import Case, check_method
from cclfp.testing.contract import keeps_the_memory_small, repeats, trains_inside_the_mask


class Good(ER):
    name = "good"


class Idle(Good):
    def loss(self, *given: Any) -> Any:
        loss, buffers = super().loss(*given)
        return 0 * loss, buffers


class Secretive(Good):
    """Keeps something in itself, where saving does not find it."""

    count = 0
    weight = 1e-3

    def step(self, *given: Any) -> Any:
        self.count += 1
        params, *others = super().step(*given)
        return {**params, "psi.0.bias": params["psi.0.bias"] + self.weight * self.count}, *others


class Shared(Secretive):
    """Keeps something in its class, where replicas meet."""

    weight = 1e-6

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(Shared, name, value) if name == "count" else super().__setattr__(name, value)


class InPlace(Good):
    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        grads, buffers = gradient(lambda p: self.loss(p, buffers, state, batch, hyper), params)
        with torch.no_grad():
            for name, p in params.items():
                p.sub_(hyper.lr * grads[name])
        return params, buffers, state


class Branching(Good):
    def step(self, params: Any, *given: Any) -> Any:
        stepped = super().step(params, *given)
        if params["f.bias"].sum() > 1e9:
            return params, *stepped[1:]
        return stepped


class Maskless(Good):
    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        z, buffers = self.net.features(params, buffers, batch.x)
        return torch.nn.functional.cross_entropy(self.net.classify(params, z), batch.y), buffers


class Wordy(Good):
    """Returns a loss at some steps only."""

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        stepped = super().step(params, buffers, state, batch, hyper)
        return stepped if len(batch.y) > 10 else stepped[:3]


class Infinite(Good):
    """Returns a loss that is not a number."""

    def step(self, *given: Any) -> Any:
        return *super().step(*given)[:3], {"loss": torch.tensor(torch.nan)}


class Growing(Good):
    """Has a state whose structure depends on the replica's seed, so that replicas cannot be stacked."""

    def begin_task(self, *given: Any) -> Any:
        return {f"seed {given[-1].seed}": torch.zeros(())}


class Peeking(Good):
    """Reads the learner's own parameters, which stacked replicas do not update, instead of those that it is given."""

    def loss(self, *given: Any) -> Any:
        loss, buffers = super().loss(*given)
        return loss * (1 + self.net.params["f.bias"].detach().abs().sum()), buffers


class TwicePassing(Good):
    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        _, buffers = self.net.features(params, buffers, batch.x)
        return super().loss(params, buffers, state, batch, hyper)


class Forgetful(Maskless):
    """Never says which exemplars to keep."""

    schedule = Exemplars
    keeps_task = True
    replays = False
    moves_every_row = True


class Silent(Good):
    """Fails without a word."""

    def loss(self, *given: Any) -> Any:
        raise AssertionError


class Choosy(Good):
    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return loss + 0 * batch.slots[batch.from_past_task].sum(), buffers


class Misspelt(Good):
    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        return super().loss(params, buffers, state, batch.current, hyper)


class Vector(Good):
    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        return self.net.features(params, buffers, batch.x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "finding"),
    [
        (Silent, "learns: AssertionError$"),
        (TwicePassing, "updates_batchnorm_once_a_step: BatchNorm was updated"),
        (Idle, "good, class scenario, learns: only"),
        (Secretive, "survives_saving: what was loaded went on differently"),
        (Shared, "repeats: the same seed gave another result"),
        (InPlace, "steps_purely: (step changed its arguments|step does not run under vmap)"),
        (Wordy, "returns_the_loss: some steps of a task return a loss, and others do not"),
        (Infinite, "returns_the_loss: a step returned the loss nan"),
        (Growing, "steps_purely: the states of two replicas differ in structure"),
        (Vector, r"loss of good returned a tensor of shape \(10, 16\) as the loss, expected a 0-d tensor"),
        (Peeking, "trains_stacked: replicas are not stacked: .* a step reads something that is not in its arguments"),
    ],
)
def test_finds(method: type[Method], finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        check_method(method)


class FewExemplars(ICaRL):
    name = "few-exemplars"

    def end_task(self, *given: Any) -> Any:
        state = super().end_task(*given)
        given[-1].memory.keep(torch.arange(10))
        return state


class EveryOther(Schedule):
    """Uses half of its slots."""

    def next_slots(self, tasks: np.ndarray) -> np.ndarray:
        numbers = self.seen + np.arange(len(tasks))
        return np.where(numbers < self.size // 2, numbers, -1)


class HalfFilled(Good):
    schedule = EveryOther


class Distilling(Maskless):
    moves_every_row = True


class Noisy(Good):
    """Has a random loss, which draws from the seed."""

    def loss(self, *given: Any) -> Any:
        loss, buffers = super().loss(*given)
        return loss * (1 + 0.1 * torch.rand(())), buffers


@pytest.mark.parametrize(
    ("check", "method", "finding"),
    [
        (keeps_the_memory_small, FewExemplars, None),
        (keeps_the_memory_small, HalfFilled, None),
        (keeps_the_memory_small, Forgetful, r"0 of 150 examples after all tasks, expected 1 or more: .*memory\.keep"),
        (trains_inside_the_mask, Distilling, None),
        (trains_inside_the_mask, Maskless, r"give every cross_entropy its rows of batch.mask; .* moves_every_row"),
        (repeats, Noisy, None),
    ],
)
def test_a_check_finds(check: Callable[[Case], None], method: type[Method], finding: str | None) -> None:
    with contextlib.nullcontext() if finding is None else pytest.raises(AssertionError, match=finding):
        check(Case(method, "class", {}))


def test_a_wrong_hyperparameter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown hyperparameter of good 'w'"):
        check_method(Good, w=0.2)


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        (Choosy, "in loss: return loss .*batch.slots", "steps_purely: step does not run under vmap: a shape depends"),
        (Misspelt, "in loss: .*batch.current", "AttributeError: 'Batch' object has no attribute 'current'"),
        (Branching, "in step: if params", "step does not run under vmap: it needs the value of a tensor"),
    ],
)
def test_the_line_of_ones_own_comes_first(method: type[Method], first: str, second: str) -> None:
    with pytest.raises(AssertionError) as raised:
        check_method(method, quick=True)
    lines = str(raised.value).splitlines()
    assert len(lines) == 2
    assert re.search(rf"test_testing.py:\d+, {first}", lines[0])
    assert re.search(second, lines[1])
    assert lines[1].startswith(f"{method.name}, class scenario, ")
    assert raised.value.__cause__ is None  # no chain of traces
    assert raised.value.__suppress_context__


def test_progress_is_shown_and_the_number_of_threads_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    check_method(Good, quick=True, progress=lines.append)
    assert (len(lines), lines[0]) == (7, "[1/7] good, class scenario, steps_purely")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with computing_threads(2):
        check_method(Good, quick=True)
        assert torch.get_num_threads() == 2
    shown = capsys.readouterr().err
    assert "[7/7] good, class scenario, trains_stacked" in shown
    assert shown.endswith("\r\033[K")
