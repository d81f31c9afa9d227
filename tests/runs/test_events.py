"""Events: as JSON, and which of them a caller gets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from stores import record
from training import make_job

from cclfp.errors import InputError, RunError
from cclfp.runs.events import (
    DataProgress,
    Event,
    Failed,
    Finished,
    Note,
    Planned,
    Step,
    Stored,
    from_json,
    to_json,
)
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations


@pytest.mark.parametrize(
    "event",
    [
        Stored("a", record()),
        Step("a", 1, 5, 10, 100, None),
        Step("a", 2, 5, 30, 100, 88.25, compiling=True),
        Finished("b", record(1)),
        Note("two\nlines and \u2028"),
        Note("about a run", "b"),
        DataProgress("mnist: downloading", 3, 0, "MB"),
    ],
)
def test_an_event_comes_back_from_json(event: Event) -> None:
    line = to_json(event)
    assert len(line.splitlines()) == 1
    assert from_json(line) == event


@pytest.mark.parametrize("kind", [InputError, RunError])
def test_an_error_comes_back_as_what_the_user_can_do_about_it(kind: type[Exception]) -> None:
    again = from_json(to_json(Failed("a", kind("what went wrong"))))
    assert isinstance(again, Failed)
    assert (again.key, type(again.error), str(again.error)) == ("a", kind, "what went wrong")
    step = from_json(to_json(Step("a", 1, 5, 10, 100, math.nan)))
    assert isinstance(step, Step)
    assert step.accuracy is not None
    assert math.isnan(step.accuracy)


def failing_jobs(folder: Path, count: int, **execution: Any) -> list[Job]:
    """Jobs of a method that cannot be trained."""
    (folder / "mine.py").write_text(
        "from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'\n"
        "    def loss(self, *_): raise RuntimeError('it does not work')"
    )
    (configuration,) = configurations([f"{folder / 'mine.py'}:Mine"], "split-mnist")
    return [make_job(configuration, seed, folder / "runs.sqlite", **execution) for seed in range(count)]


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist")
@pytest.mark.parametrize("executor", [Pool(), Pool(2)], ids=["in this process", "in workers"])
def test_every_run_that_fails_is_an_event(executor: Executor, tmp_path: Path) -> None:
    events: list[Event] = []
    jobs = failing_jobs(tmp_path, 3)
    with pytest.raises(RuntimeError, match="it does not work"):
        run_jobs(jobs, events.append, executor)
    failed = [event for event in events if isinstance(event, Failed)]
    assert sorted(event.key for event in failed) == sorted(job.key for job in jobs)


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist")
def test_the_error_of_a_run_shows_one_traceback(tmp_path: Path) -> None:
    """A cohort that fails is trained one by one; each run's error is its own."""
    events: list[Event] = []
    jobs = failing_jobs(tmp_path, 4, engine="compiled")
    with pytest.raises(RunError):
        run_jobs(jobs, events.append, Pool(2))
    for event in events:
        if isinstance(event, Failed):
            assert str(event.error).count("Traceback (most recent call last)") == 1
            assert "During handling" not in str(event.error)


@pytest.mark.usefixtures("small_mnist")
def test_the_same_run_twice_in_one_call(tmp_path: Path) -> None:
    (configuration,) = configurations(["finetune"], "split-mnist")
    jobs = [make_job(configuration, 0, tmp_path / "runs.sqlite") for _ in range(2)]
    for expected in (Finished, Stored):
        events: list[Event] = []
        assert list(run_jobs(jobs, events.append, Pool())) == [jobs[0].key]
        assert [type(event) for event in events if not isinstance(event, Step | Note | Planned)] == [expected]
