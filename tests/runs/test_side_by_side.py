"""Runs side by side: in worker processes, in cohorts that fail, and in commands that share a store."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from processes import alive, children, wait_until
from training import Stop, make_job, result, stop_at, texts, train

import cclfp
from cclfp.core.workers import cores
from cclfp.errors import DataError, InputError, RunError
from cclfp.runs.events import Event, Failed, Finished, Note, Planned, Step, Stored
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

pytestmark = pytest.mark.usefixtures("small_mnist")

Patch = pytest.MonkeyPatch
MakeJobs = Callable[..., list[Job]]
FAILS = """
from cclfp.methods.er import ER
class Mine(ER):
    name = "mine"
    def loss(self, *_): raise RuntimeError("it does not work")
"""


@pytest.fixture
def make_jobs(tmp_path: Path) -> MakeJobs:
    def make(count: int, method: str = "finetune", **execution: Any) -> list[Job]:
        (configuration,) = configurations([method], "split-mnist")
        usual = {"store": tmp_path / "runs.sqlite"}
        return [make_job(configuration, seed, **{**usual, **execution}) for seed in range(count)]

    return make


@pytest.mark.slow
def test_a_dead_worker_is_replaced(make_jobs: MakeJobs) -> None:
    """The run of a dead worker fails; those that other workers had not begun are trained."""
    jobs, events = make_jobs(4), list[Event]()

    def kill_once(event: Event) -> None:
        events.append(event)
        if isinstance(event, Step) and not any(isinstance(e, Step) for e in events[:-1]):
            for worker in children(os.getpid()):
                os.kill(worker, signal.SIGKILL)

    with pytest.raises(RunError, match="finetune seed [01] failed: its process was killed by signal 9, perhaps"):
        run_jobs(jobs, kill_once, Pool(2))
    ended = {event.key: type(event) for event in events if isinstance(event, Finished | Failed)}
    kinds = [ended[job.key] for job in jobs]
    assert kinds in ([Failed, Failed, Finished, Finished], [Failed, Finished, Finished, Finished])


@pytest.mark.slow
def test_training_beside_others_changes_nothing(make_jobs: MakeJobs, tmp_path: Path) -> None:
    alone = list(map(train, make_jobs(3, "ccl-fp+", store=tmp_path / "alone.sqlite")))
    together = run_jobs(make_jobs(3, "ccl-fp+"), executor=Pool(3))
    assert [result(together[r["key"]]) for r in alone] == [result(r) for r in alone]
    assert len(Store(tmp_path / "runs.sqlite").records()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "engine"), [(Pool(), "eager"), (Pool(2), "eager"), (Pool(2), "traced")])
def test_every_run_that_fails_is_an_event(executor: Executor, engine: str, make_jobs: MakeJobs, tmp_path: Path) -> None:
    """A cohort that fails is trained one by one; each run's error is its own, with one traceback."""
    (tmp_path / "mine.py").write_text(FAILS)
    jobs, events = make_jobs(3, f"{tmp_path / 'mine.py'}:Mine", engine=engine), list[Event]()
    with pytest.raises(RunError) as raised:
        run_jobs(jobs, events.append, executor)
    first, traceback, *_, last = str(raised.value).splitlines()
    assert re.fullmatch(r"mine seed \d failed: RuntimeError: it does not work", first)
    assert (traceback, last) == ("Traceback (most recent call last):", "3 of 3 runs failed")
    assert isinstance(raised.value.__cause__, RuntimeError)
    failed = {event.key: str(event.error) for event in events if isinstance(event, Failed)}
    assert failed.keys() == {job.key for job in jobs}
    if executor.workers > 1:
        assert all(text.count("Traceback (most recent call last)") == 1 for text in failed.values())
        assert not any("During handling" in text for text in failed.values())


@pytest.mark.parametrize("executor", [Pool(), Pool(2)])
def test_what_the_callers_function_raises_ends_all_runs_and_comes_through(
    executor: Executor, make_jobs: MakeJobs
) -> None:
    seen = []

    def stop(event: Event) -> None:
        seen.append(event)
        if isinstance(event, Step):
            raise Stop

    with pytest.raises(Stop):
        run_jobs(make_jobs(2, engine="eager"), stop, executor)
    assert isinstance(seen[-1], Step)


@pytest.mark.slow
def test_failures_are_named_with_their_settings(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILS)
    answer = cli("run", f"{tmp_path / 'mine.py'}:Mine", "split-mnist", "lr=0.03,0.1", "--seed=0", "--engine=eager")
    lines = answer.err.splitlines()
    assert answer.code == 1
    assert {f"mine lr={lr} seed 0 failed: RuntimeError: it does not work" for lr in (0.03, 0.1)} < set(lines)
    assert lines[-1] == "2 of 2 runs failed"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DataError("what went wrong"), InputError, "what went wrong"),
        (RunError("what went wrong"), RunError, "what went wrong"),
        (ZeroDivisionError("x"), RunError, "ZeroDivisionError: x\nZeroDivisionError: x\n"),
        (MemoryError(), RunError, "there is not enough memory, on this machine or within the limits of this process"),
    ],
)
def test_an_error_goes_to_another_process(error: Exception, kind: type[Exception], text: str) -> None:
    again = pickle.loads(pickle.dumps(Failed("a", error)))
    assert (again.key, type(again.error), str(again.error)) == ("a", kind, text)


# -- what a command tells its listener ------------------------------------------------------------------------------


def test_the_same_run_twice_in_one_call(make_jobs: MakeJobs) -> None:
    (job,) = make_jobs(1)
    for expected in (Finished, Stored):
        events: list[Event] = []
        assert list(run_jobs([job, job], events.append, Pool())) == [job.key]
        assert [type(event) for event in events if not isinstance(event, Step | Note)] == [expected]


def test_many_runs_are_counted_and_have_costs(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cclfp.runs.run.run_jobs", lambda jobs, on_event, labels: {})  # nothing is trained
    count = "4 runs (configurations: 2, seeds: 2)"
    for few, shard, expected in ((4, None, []), (3, None, [count]), (3, "1/4", [f"{count}, 1 of them in this shard"])):
        monkeypatch.setattr("cclfp.runs.run.SHOWN_ONE_BY_ONE", few)
        events: list[Event] = []
        cclfp.run(["finetune", "er"], "split-mnist", seeds=2, shard=shard, on_event=events.append)
        (planned,) = (event for event in events if isinstance(event, Planned))
        assert texts(events) == expected
        costs = {planned.labels[key]: cost for key, cost in (planned.costs or {}).items()}
        assert costs.keys() == (set(planned.labels.values()) if expected else set())
        if len(costs) == 4:
            assert costs["er seed 0"] == costs["er seed 1"] > costs["finetune seed 0"]


# -- with real processes ------------------------------------------------------------------------------------------


def times(store: Store) -> set[tuple[str, int]]:
    folder = Execution(store=store.path).checkpoint_folder
    return {(path.name, path.stat().st_mtime_ns) for path in folder.glob("*.ckpt")}


def begin(store: Path) -> subprocess.Popen[bytes]:
    words = ["-m", "cclfp", "run", "er", "split-mnist", "epochs=7", "--seeds=2", "--checkpoint-every=0", "--json"]
    command = [sys.executable, *words, "--store", str(store)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> tuple[Any, bytes]:
    """What a command found, without how long it took, and what it said."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0
    found = json.loads(output)["configurations"]
    for one in [part for configuration in found for part in [configuration, *configuration["runs"]]]:
        del one["seconds"]
    return found, errors


def kill(process: subprocess.Popen[bytes], store: Store) -> bytes:
    """Kill a command when there is a new checkpoint; what it said."""
    before = times(store)
    wait_until(lambda: process.poll() is not None or times(store) - before, 60)
    workers = children(process.pid)
    assert workers or cores() == 1
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1]
    assert wait_until(lambda: not any(map(alive, workers)), 60)  # they notice that their parent is gone
    assert len(store.records()) < 2, "it was killed too late to show anything"
    assert times(store)
    return errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_sigkill_and_two_processes_on_one_store(tmp_path: Path) -> None:
    """Kill it twice, at any moment; go on with two processes at once; the numbers are those of a run never stopped."""
    store = Store(tmp_path / "killed.sqlite")
    whole, _ = end(begin(tmp_path / "once.sqlite"))
    said = b"".join(kill(begin(store.path), store) for _ in range(2))
    for process in [begin(store.path), begin(store.path)]:
        found, errors = end(process)
        said += errors
        assert found == whole
    assert said.count(b"continuing from the checkpoint") >= 2
    assert b"another process is training this run" in said
    assert b"starting again" not in said
    assert len(store.records()) == 2
    assert list(Execution(store=store.path).checkpoint_folder.iterdir()) == []


@pytest.mark.slow
def test_all_runs_that_differ_in_the_seed_have_one_engine(make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are continued from a checkpoint, too."""
    monkeypatch.setattr("cclfp.engine.cohort.WORTH", {"cpu": 1})
    jobs = make_jobs(3, engine="auto")
    with pytest.raises(Stop):
        train(jobs[0], stop_at(60))
    assert {record["environment"]["engine"] for record in run_jobs(jobs, executor=Pool()).values()} == {"traced"}
