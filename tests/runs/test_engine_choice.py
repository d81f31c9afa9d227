"""One engine for all runs of a command that differ in the seed alone, however the machine's speed changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from records import made_up
from training import Stop, stop_at, train_all

from cclfp.events import OnEvent
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, make_jobs
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.start import choose_engines
from cclfp.runs.store import Store

MATRIX: Any = [[None] * 5] * 5 + [[50.0] * 5]


class Given(Exception):
    """Takes the cohorts in place of workers."""

    workers, device = 2, None

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        self.jobs = [job for cohort in cohorts for job in cohort]
        raise self

    def close(self) -> None: ...


def jobs_of(store: Path, seeds: Sequence[int], **changes: Any) -> list[Job]:
    chosen = configurations(["er"], "split-mnist", settings={"lr": [0.03, 0.1]})
    return make_jobs(chosen, seeds, Execution(device="cpu", store=store, **changes))


def chosen_for(jobs: list[Job], executor: Any = None) -> dict[tuple[float, int], str]:
    """The engine of each job, by lr and seed."""
    given = Given() if executor is None else executor
    with pytest.raises(Given):
        run_jobs(jobs, executor=given)
    return {(job.configuration.hyperparameters["lr"], job.seed): job.engine for job in given.jobs}


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch, small_mnist: Path) -> None:
    """A machine that is busy every other time that its speed is measured."""
    seconds = itertools.cycle([1.0, 1e-6])
    monkeypatch.setattr("cclfp.engine.cohort.eager.seconds_per_step", lambda probe: next(seconds))


@pytest.mark.usefixtures("moody")
def test_cohorts_of_one_group_get_one_engine(tmp_path: Path) -> None:
    found = chosen_for(jobs_of(tmp_path / "s", range(4)))
    assert len(found) == 8
    assert set(found.values()) == {"compiled"}
    assert set(chosen_for(jobs_of(tmp_path / "s", range(4))).values()) == {"eager"}  # the next command chooses anew


@pytest.mark.usefixtures("moody")
def test_an_engine_that_is_asked_for_is_not_chosen(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "s", range(2), engine="eager")
    assert choose_engines(jobs, [], 2, "cpu", lambda event: None) == jobs


@pytest.mark.usefixtures("moody")
def test_the_rest_of_a_row_has_the_engine_of_its_stored_runs(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "s", range(4))
    store = Store(tmp_path / "s")
    engines = {0.03: ["eager", "eager"], 0.1: ["eager", "compiled"]}  # the second row is mixed already
    for job in jobs:
        several = engines[job.configuration.hyperparameters["lr"]]
        if job.seed < len(several):
            store.add(made_up(job.configuration, job.seed, MATRIX, device="cpu", engine=several[job.seed]))
    assert chosen_for(jobs) == {(0.03, 2): "eager", (0.03, 3): "eager", (0.1, 2): "compiled", (0.1, 3): "compiled"}
    foreign = [made_up(job.configuration, 9, MATRIX, device="cuda", engine="graph") for job in jobs]
    chosen = choose_engines(jobs, foreign, 2, "cpu", lambda event: None)
    assert {job.engine for job in chosen} == {"eager"}  # as the probe says now: records of another device do not count


@pytest.mark.usefixtures("moody")
def test_the_rest_of_a_group_has_the_engine_of_its_checkpoints(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "s", range(3))
    eager = jobs[0].with_execution(engine="eager", checkpoint_every=0.0)
    with pytest.raises(Stop):
        train_all([eager], stop_at(60))
    assert set(chosen_for(jobs).values()) == {"eager"}
