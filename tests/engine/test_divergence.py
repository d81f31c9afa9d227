"""Runs whose weights become NaN or infinite: found, marked in the record, and in no mean unless asked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cohorts import relu_psi, replica, trained
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from records import made_up
from torch import Tensor, nn
from training import Stop, make_job, stop_at, texts, train

import cclfp
from cclfp.errors import DivergenceError, InputError
from cclfp.learner.checks import not_finite
from cclfp.methods import METHODS, Method
from cclfp.methods.er import ER
from cclfp.methods.icarl import ICaRL
from cclfp.runs.events import Event
from cclfp.runs.jobs import Job
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.testing import same, toy_psi, train_replicas

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
bare_psi = partial(toy_psi, random=False)


@given(st.lists(st.lists(NUMBERS, max_size=5), max_size=5), st.sampled_from([torch.float32, torch.float64]))
def test_not_finite_is_exact(rows: list[list[float]], dtype: torch.dtype) -> None:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    assert not_finite(tensors) == [i for i, tensor in enumerate(tensors) if not tensor.isfinite().all()]
    huge = torch.full((1000,), 3e38)  # whose sum overflows
    assert not_finite([huge, torch.cat([huge, -huge]), torch.tensor([1, 2]), torch.tensor([torch.inf])]) == [3]


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_diverges_and_goes_on_to_the_end(method: str) -> None:
    (bad,) = trained([replica(method, psi=bare_psi, lr=1e30)])
    assert bad.diverged == (bad.stream.num_tasks if METHODS[method].joint else 1)
    assert all(accuracy is not None for accuracy in bad.matrix[-1])


@pytest.mark.parametrize(("engine", "psi"), [("eager", bare_psi), ("eager", relu_psi), ("traced", relu_psi)])
def test_it_is_found_beside_replicas_that_are_well(engine: str, psi: Callable[[], nn.Module]) -> None:
    """One that diverges is no reason to train the others eagerly."""
    several = [replica("ccl-fp+", "class", s, psi=psi, lr=lr) for s, lr in ((0, 0.02), (1, 1e30), (2, 0.02))]
    assert [one.diverged for one in trained(several, engine)] == [None, 1, None]
    (alone,) = trained([replica("ccl-fp+", "class", 2, psi=psi, lr=0.02)], engine)
    assert alone.matrix == several[2].matrix


class LateNan(ER):
    """Its weights become NaN in the second task."""

    name = "late-nan"

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        new, buffers, state, *_ = super().step(params, buffers, state, batch, hyper)
        bad = (batch.task[0] == 1) & (batch.n_current > 0)
        return {name: torch.where(bad, torch.nan, p) for name, p in new.items()}, buffers, state


def test_the_task_is_the_first_after_which_it_was_found() -> None:
    late, well, found = replica(LateNan), replica("er", psi=bare_psi), []
    for number in range(3):
        train_replicas([late], tasks=number + 1)
        train_replicas([well], tasks=number + 1)
        found.append((late.diverged, well.diverged))
        with torch.no_grad():  # psi's statistics count too
            dict(well.learner.psi.named_buffers())["1.running_var"][0] *= torch.inf if number else 1
    assert found == [(None, None), (2, None), (2, 3)]
    state, again = late.state_dict(), replica(LateNan)
    again.load_state_dict(state)
    assert again.diverged == 2
    del state["diverged"]  # as a checkpoint of an earlier version
    again.load_state_dict(state)
    assert again.diverged is None


class NanMeans(ICaRL):
    """Its weights stay finite; the class means it predicts by do not, after the tasks in ``bad``."""

    name = "nan-means"
    bad: Sequence[int] = range(9)

    def end_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        after = super().end_task(params, buffers, state, hyper, context)
        return {**after, "means": after["means"] * (torch.nan if context.position in self.bad else 1)}


class InfinityOnPurpose(ICaRL):
    """Its state holds infinities from the beginning."""

    name = "infinity-on-purpose"

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        after = super().begin_task(params, buffers, state, hyper, context)
        return {**after, "nearest": torch.full((6,), torch.inf)}


class Masked(nn.Sequential):
    """A psi with a buffer of -inf, as attention masks are."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.Tanh())
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


def test_only_what_predictions_use_counts_and_infinities_on_purpose_do_not() -> None:
    assert trained([replica(NanMeans, "class")])[0].diverged == 1
    assert trained([replica(InfinityOnPurpose, "class")])[0].diverged is None
    assert trained([replica("er", psi=Masked)])[0].diverged is None
    for method in (InfinityOnPurpose, "er", "ccl-fp+"):  # the last keeps a copy of psi's buffers in its state
        ours = cclfp.make(method, psi=Masked(), num_classes=6, memory=12)
        for seed in range(3):
            ours.observe(*batch(seed))
        ours.end_task()


# -- records, commands and means ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_mnist")
def test_a_diverged_run_is_stored_as_such_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(lr: float, store: str = "runs.sqlite") -> Job:
        (configuration,) = configurations(["er"], "split-mnist", settings={"lr": [lr]})
        return make_job(configuration, 0, tmp_path / store)

    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    events: list[Event] = []
    record = train(job(1e20), events.append)
    assert record["diverged"] == 1
    assert texts(events) == ["weights are not finite after task 1 of 5: the run has diverged; try a smaller lr"]
    assert Store(tmp_path / "runs.sqlite").records() == [record]
    assert "diverged" not in train(job(0.1))
    stopped = job(1e20, "stopped.sqlite")
    with pytest.raises(Stop):
        train(stopped, stop_at(41))
    events.clear()
    assert train(stopped, events.append)["diverged"] == 1
    assert texts(events) == ["continuing from the checkpoint after task 1 of 5"]  # the note came before


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist", "one_core")
def test_run_says_it_beside_the_mean_of_the_others(cli: Cli, tmp_path: Path) -> None:
    command = ("run", "er", "split-mnist", "lr=0.1,1e20", "--seeds", "2", "--store", tmp_path / "runs.sqlite")
    answer = cli(*command, "--engine", "eager")
    assert answer.code == 0
    assert answer.err.count("the run has diverged; try a smaller lr") == 2
    assert len(re.findall(r"s, diverged$", answer.err, re.MULTILINE)) == 2
    (line,) = [line for line in answer.out.splitlines() if "1e+20" in line]
    assert "2 of 2 seeds diverged" in line
    well, bad = cli(*command, "--json").json["configurations"]
    assert (well["diverged"], bad["diverged"]) == ([], [0, 1])
    assert bad["average_accuracy"] == {"mean": None, "std": None}
    assert [run.get("diverged") for run in well["runs"] + bad["runs"]] == [None, None, 1, 1]
    _, bad = cli(*command, "--json", "--include-diverged").json["configurations"]
    assert bad["average_accuracy"]["mean"] == sum(run["average_accuracy"] for run in bad["runs"]) / 2


def test_the_mean_is_of_the_others() -> None:
    (configuration,) = configurations(["er"], "split-mnist", None)

    def runs(*accuracies: float, diverged: int) -> list[Record]:
        found = [made_up(configuration, n, [[None] * 5] * 5 + [[value] * 5]) for n, value in enumerate(accuracies)]
        found[diverged]["diverged"] = 2
        return found

    result = Result(configuration, runs(80, 10, 82, diverged=1))
    assert result.mean_std("average_accuracy") == {"mean": 81, "std": pytest.approx(2**0.5)}
    included = dataclasses.replace(result, include_diverged=True)
    assert included.mean_std("average_accuracy")["mean"] == pytest.approx(172 / 3)
    assert result.diverged == [1]
    assert result.text() == "81.00 ± 1.41, 1 of 3 seeds diverged"
    assert dataclasses.replace(result, runs=runs(9.0, diverged=0)).text() == "1 of 1 seed diverged"
    assert dataclasses.replace(result, runs=[]).text() == "–"


# -- observe and end_task ----------------------------------------------------------------------------------------------


def batch(seed: int = 0, n: int = 6, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, 8, generator=g), torch.randint(0, 6, (n,), generator=g)


def online(method: str | type[Method]) -> cclfp.Learner:
    return cclfp.make(method, psi=toy_psi(), num_classes=6, memory=12)  # with BatchNorm and dropout


def teach(learners: Sequence[cclfp.Learner], batches: range, length: int = 5) -> None:
    """Tasks are of so many batches."""
    for learner in learners:
        for number in batches:
            learner.observe(*batch(number), task=number // length)
            if number % length == length - 1:
                learner.end_task()


@pytest.mark.parametrize("warm", [0, 1, 9], ids=["first", "second", "later"])
@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind.joint])
def test_a_step_that_diverges_leaves_the_learner_as_it_was(method: str, warm: int) -> None:
    ours, theirs = online(method), online(method)
    teach([ours, theirs], range(warm))
    tensors = [*ours.psi.parameters(), *ours.psi.buffers()]
    pool = None if ours.memory is None else vars(ours.memory)["_pool"]
    torch.manual_seed(1)
    random = torch.get_rng_state()
    with pytest.raises(DivergenceError) as refused:
        ours.observe(*batch(99, scale=1e38), task=warm // 5)
    assert isinstance(refused.value, InputError)
    assert re.match(
        r"the step made (weights that are|a state that is) not finite \(lr=0\.1\), in .*: the learner is as it was; "
        "use a smaller lr or check the inputs$",
        str(refused.value),
    )
    assert all(a is b for a, b in zip(tensors, [*ours.psi.parameters(), *ours.psi.buffers()], strict=True))
    assert ours.memory is None or vars(ours.memory)["_pool"] is pool
    assert torch.equal(torch.get_rng_state(), random)
    assert same(ours, theirs)
    teach([ours, theirs], range(warm, warm + 5))
    assert same(ours, theirs)


def test_a_memory_of_a_streams_rows_stays_so() -> None:
    """A refused batch does not make copies of the rows, with which the replica could not go on."""
    rows, never = (replica("er", "class", psi=bare_psi) for _ in range(2))
    train_replicas([rows], tasks=1)
    with pytest.raises(DivergenceError):
        rows.learner.observe(1e38 * batch()[0], torch.tensor([2, 3] * 3), task=1)
    train_replicas([rows], tasks=2)
    train_replicas([never], tasks=2)
    assert same(rows.learner, never.learner)


def test_a_task_whose_end_diverges_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NanMeans, "bad", [1])
    ours, theirs = online(NanMeans), online(NanMeans)
    teach([ours, theirs], range(3), length=2)
    with pytest.raises(DivergenceError, match=r"the end of the task made a state that is not finite .* in means"):
        ours.end_task()
    assert same(ours, theirs)
    monkeypatch.setattr(NanMeans, "bad", [])
    teach([ours, theirs], range(3, 5), length=2)
    assert same(ours, theirs)
