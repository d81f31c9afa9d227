"""Events: as JSON, and which of them a caller gets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from training import make_job

from cclfp.errors import DataError, InputError, RunError, portable
from cclfp.runs.events import (
    Event,
    Failed,
    Finished,
    Note,
    Planned,
    Step,
    Stored,
)
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DataError("what went wrong"), InputError, "what went wrong"),
        (RunError("what went wrong"), RunError, "what went wrong"),
        (ZeroDivisionError("x"), RunError, "ZeroDivisionError: x\n"),
        (MemoryError(), RunError, "there is not enough memory, on this machine or within the limits of this process"),
    ],
)
def test_an_error_goes_to_another_process(error: Exception, kind: type[Exception], text: str) -> None:
    again = pickle.loads(pickle.dumps(Failed("a", portable(error))))
    assert (again.key, type(again.error), str(again.error)) == ("a", kind, text)


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
