"""Training jobs: stored once, continued from any checkpoint, safe beside each other."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import alive, children
from records import with_accuracy
from training import Stop, stop_at, texts, train
from training import make_job as make_any_job

import cclfp
from cclfp.core.files import temporary_name
from cclfp.core.workers import cores
from cclfp.errors import DataError, InputError, RunError, portable
from cclfp.methods import METHODS
from cclfp.runs import checkpoints, training
from cclfp.runs.events import Event, Failed, Finished, Note, Planned, Step, Stored
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.testing import same

RESULT = ("key", "average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "accuracy_matrix")

pytestmark = pytest.mark.usefixtures("small_mnist")


def accuracy(record: Record) -> float:
    assert record["average_accuracy"] is not None
    return record["average_accuracy"]


def result(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name in RESULT}


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    def make(method: str = "ccl-fp+", benchmark: str = "split-mnist", seed: int = 0, **changes: Any) -> Job:
        (configuration,) = configurations([method], benchmark, changes.pop("scenario", None))
        return make_any_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", **changes})

    return make


def checkpoint_of(job: Job, monkeypatch: pytest.MonkeyPatch, steps: int = 50) -> Path:
    """Stop a run after this many of its 150 steps; its checkpoint."""
    monkeypatch.setattr(training, "STEP_EVERY", 0.0)
    with pytest.raises(Stop):
        train(job, stop_at(steps))
    return checkpoints.checkpoint_path(job)


# -- stopped and continued ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "ccl-fp+"])
def test_a_stopped_run_ends_with_the_same_numbers(
    method: str, make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_job(method, store=tmp_path / "other.sqlite", save=tmp_path / "whole")
    whole = train(other)
    assert other.learner_file is not None
    for steps in (1, 31, 60, 75):
        job = make_job(method, store=tmp_path / f"{steps}.sqlite", save=tmp_path / f"{steps}")
        store = Store(job.execution.store)
        assert checkpoint_of(job, monkeypatch, steps).exists() == (steps > 30)
        assert store.records() == []
        events: list[Event] = []
        again = train(job, events.append)
        assert any("continuing from the checkpoint" in text for text in texts(events)) == (steps > 30)
        assert result(again) == result(whole)
        assert job.learner_file is not None
        assert same(cclfp.load(other.learner_file), cclfp.load(job.learner_file))
        assert list(store.checkpoints.iterdir()) == []


@pytest.mark.slow
def test_a_fresh_run_that_was_stopped_goes_on_too(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: dict[str, Any] = {"checkpoints": tmp_path / "shared"}
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "uv.lock").touch()  # it may be any folder
    assert checkpoint_of(make_job(**chosen), monkeypatch).parent == tmp_path / "shared"
    assert not Store(make_job().execution.store).checkpoints.exists()
    events: list[Event] = []

    def listen_and_stop(event: Event) -> None:
        events.append(event)
        stop_at(50)(event)

    with pytest.raises(Stop):  # a fresh run does not go on from what was not fresh
        train(make_job(fresh=True, **chosen), listen_and_stop)
    assert "not started with --fresh" in "".join(texts(events))
    events.clear()
    train(make_job(fresh=True, **chosen), events.append)
    assert "continuing from the checkpoint after task 1" in "".join(texts(events))
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["uv.lock"]


def test_what_killed_processes_have_left_is_removed(make_job: Callable[..., Job]) -> None:
    """Killed while a checkpoint was written; between storing a record, removing the checkpoint, and the lock."""
    job = make_job("finetune")
    train(job)
    ended = subprocess.Popen(["true"])
    ended.wait()
    half = temporary_name(f"{job.key}.ckpt").replace(f".{os.getpid()}-", f".{ended.pid}-")
    folder = Store(job.execution.store).checkpoints
    for name in (half, f"{job.key}.ckpt", f"{job.key}.lock"):
        (folder / name).write_bytes(b"half")
    cclfp.run("finetune", "split-mnist", seeds=1, store=job.execution.store)
    assert list(folder.iterdir()) == []
    (folder / half).write_bytes(b"half")
    train(make_job("finetune", fresh=True))
    assert list(folder.iterdir()) == []


def test_a_lock_is_free_again_after_a_failure(make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEP_EVERY", 0.0)
    with pytest.raises(Stop) as kept:  # and with it every frame of the traceback
        train(make_job(), stop_at(1))
    assert accuracy(train(make_job())) > 0
    assert kept


@pytest.mark.slow
def test_checkpoints_are_not_taken_more_often_than_asked(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(checkpoints, "write_tensors", lambda path, state: written.append(path))
    train(make_job(checkpoint_every=3600.0))
    assert written == []
    train(make_job(fresh=True))
    assert len(written) == 4  # after each of the five tasks but the last


@pytest.mark.slow
def test_resumed_with_the_threads_it_was_started_with(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_of(make_job("finetune", threads=2), monkeypatch)
    assert train(make_job("finetune", threads=1))["environment"]["threads"] == 2
    assert torch.get_num_threads() == 1


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_used_is_said_and_left(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = train(make_job(store=tmp_path / "other.sqlite"))
    path = checkpoint_of(make_job(), monkeypatch)
    content = path.read_bytes()
    for damage in ("rubbish", "version", "device", "incomplete"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"rubbish" if damage == "rubbish" else content)
        if damage != "rubbish":
            state = torch.load(path, weights_only=True)
            if damage == "version":
                state["code"]["torch"] = "0.1"
            elif damage == "incomplete":
                del state["replica"]["learner"]["psi"]
            else:
                state["engine"]["device"] = "cuda"
            torch.save(state, path)
        events: list[Event] = []
        assert result(train(make_job(), events.append)) == result(whole)
        is_damaged = damage in ("rubbish", "incomplete")
        what = "is damaged and kept for inspection as" if is_damaged else "cannot be used"
        assert any(f"starting again, the checkpoint {what}" in text for text in texts(events))
        assert path.with_suffix(".damaged").exists() == is_damaged
        path.with_suffix(".damaged").unlink(missing_ok=True)
        Store(make_job().execution.store).delete(Store(make_job().execution.store).rows())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied"), InputError),  # as for who is not root
        (OSError(24, "Too many open files"), InputError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
    ],
)
def test_a_checkpoint_that_cannot_be_read_now_is_left_alone(
    error: Exception, expected: type[Exception], make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be good: it is neither deleted nor taken for damaged."""
    job = make_job("er")
    checkpoint = checkpoint_of(job, monkeypatch)

    def refuse(file: Any) -> int:
        raise error

    monkeypatch.setattr("cclfp.core.files._check_archive", refuse)
    with pytest.raises(expected):
        train(job)
    assert checkpoint.exists()


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_run(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, write: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints, "write_tensors", full)
    events: list[Event] = []
    assert accuracy(train(make_job(), events.append)) > 0
    assert "no checkpoint could be written, continuing without one: no space left" in texts(events)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Pool(), Pool(2)])
def test_a_place_where_no_checkpoint_can_be(executor: Executor, make_job: Callable[..., Job]) -> None:
    """A user's mistake, in a worker too."""
    Store(make_job().execution.store).checkpoints.touch()
    with pytest.raises(InputError, match="checkpoints cannot be kept in"):
        run_jobs([make_job(seed=0), make_job(seed=1)], executor=executor)


def test_a_lock_that_cannot_be_made(make_job: Callable[..., Job]) -> None:
    job = make_job("finetune")
    checkpoints.checkpoint_path(job).with_suffix(".lock").mkdir(parents=True)
    with pytest.raises(InputError, match="lock cannot be locked: .*directory"):
        train(job)


# -- stored once ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_finished_run_is_trained_again_only_if_asked(make_job: Callable[..., Job]) -> None:
    first, store, events = train(make_job()), Store(make_job().execution.store), list[Event]()
    old = with_accuracy(first, 1.0)
    store.add(old, replace=True)
    assert train(make_job(), events.append) == old
    assert events == [Finished(make_job().key, old)]
    again = train(make_job(fresh=True))
    assert store.records() == [again]
    assert result(again) == result(first)


@pytest.mark.slow
def test_a_record_stays_where_its_run_is_trained_again_for_its_learner(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    first, store = train(make_job()), Store(make_job().execution.store)
    old = with_accuracy(first, 1.0)
    store.add(old, replace=True)
    job, events = make_job(save=tmp_path / "learners"), list[Event]()
    assert train(job, events.append) == old
    assert store.records() == [old]
    assert "that one stays, with 1.00 %; trained now it has " in texts(events)[-1]
    assert job.learner_file is not None
    learner = cclfp.load(job.learner_file)
    stream = cclfp.streams.get_benchmark("split-mnist").stream("class", 0)
    right = [(learner.predict(test.x) == test.y).float().mean().item() for test in stream.test]
    assert 100 * sum(right) / 5 == pytest.approx(accuracy(first), abs=1e-4)


@pytest.mark.slow
def test_a_record_that_was_added_meanwhile_stays(make_job: Callable[..., Job], tmp_path: Path) -> None:
    other = with_accuracy(train(make_job(store=tmp_path / "other.sqlite")), 1.0)
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        Store(make_job().execution.store).add(other)

    assert train(make_job(), listen) == other
    assert Store(make_job().execution.store).records() == [other]
    assert "that one stays" in texts(events)[-1]
    assert events[-1] == Finished(other["key"], other)


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_records_say_how_they_were_made(scenario: str, make_job: Callable[..., Job]) -> None:
    record = train(make_job("finetune", scenario=scenario))
    environment = record["environment"]
    assert (environment["engine"], environment["precision"], environment["threads"]) == ("eager", "float32", 1)
    assert (environment["device"], environment["cclfp"]) == ("cpu", cclfp.__version__)
    assert environment["torch"] == torch.__version__
    assert len(environment["source"]) == 16
    assert environment["device_name"]
    assert record["seconds"] == record["train_seconds"] + record["test_seconds"]
    matrix = record["accuracy_matrix"]
    assert len(matrix) == 6
    known = [[value is not None for value in row] for row in matrix]
    if scenario == "class":  # a task is tested from when it is learned on
        assert known == [[i < t for i in range(5)] for t in range(6)]
        assert record["forward_transfer"] is None
    else:  # and just before, and untrained
        assert known == [[True] * 5] + [[i <= t for i in range(5)] for t in range(1, 6)]
        assert record["forward_transfer"] is not None


def test_joint_has_the_last_row_alone(make_job: Callable[..., Job]) -> None:
    record = train(make_job("joint"))
    assert [any(v is not None for v in row) for row in record["accuracy_matrix"]] == [False] * 5 + [True]
    assert accuracy(record) > 90
    assert record["forgetting"] is None


@pytest.mark.slow
def test_a_single_run_does_not_depend_on_the_default_dtype(make_job: Callable[..., Job], tmp_path: Path) -> None:
    usual = train(make_job())
    torch.set_default_dtype(torch.float64)
    try:
        other = train(make_job(store=tmp_path / "other.sqlite"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert result(other) == result(usual)


def test_python_settings_of_every_kind(tmp_path: Path) -> None:
    given: dict[str, Any] = {"seeds": np.arange(1), "lr": np.float32(0.5), "settings": {"batch": np.int64(50)}}
    given |= {"class_order": np.arange(10)[::-1], "store": tmp_path / "runs.sqlite"}
    (result,) = cclfp.run("finetune", "split-mnist", **given)
    assert (result.configuration.batch, result.configuration.hyperparameters) == (50, {"lr": 0.5})
    assert result.configuration.class_order == tuple(range(9, -1, -1))
    mistakes: list[dict[str, Any]] = [{"lr": None}, {"lr": "0.1"}, {"lr": ["a"]}, {"checkpoint_every": "x"}]
    for wrong in mistakes:
        with pytest.raises(InputError, match="expected a number"):
            cclfp.run("finetune", "split-mnist", **wrong)
    with pytest.raises(InputError, match="run takes methods by name"):
        cclfp.run(METHODS["er"], "split-mnist")  # type: ignore[arg-type]


# -- learners -------------------------------------------------------------------------------------------------------


def test_learners_of_a_cohort_that_cannot_be_saved(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """All runs are stored, and none is trained again."""
    (tmp_path / "file").touch()
    jobs = [make_job("er", seed=seed, engine="compiled", save=tmp_path / "file") for seed in (0, 1)]
    events: list[Event] = []
    training.train_cohort(jobs, events.append, Store(jobs[0].execution.store))
    failures = {event.key: str(event.error) for event in events if isinstance(event, Failed)}
    assert [str(job.learner_file) in failures[job.key] for job in jobs] == [True, True]
    assert [event.key for event in events if isinstance(event, Finished)] == [job.key for job in jobs]
    assert not [text for text in texts(events) if "one by one" in text]
    assert len(Store(jobs[0].execution.store).records()) == 2


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def of_another_seed(file: Path) -> None:
    learner = cclfp.make("er", psi=torch.nn.Flatten(), num_classes=10, seed=7)
    learner.save(file)


@pytest.mark.slow
def test_a_learner_file_is_what_it_is_called(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """What --save says is saved is there; a file that is no learner of the run is not replaced either."""
    job = make_job(save=tmp_path / "learners")
    train(job)
    assert job.learner_file is not None
    assert job.find_record(Store(job.execution.store)) is not None
    for change, message in (
        (cut_off, "it is damaged"),
        (lambda file: file.write_text("mine"), "is another kind of file"),
        (of_another_seed, "is not the learner of this run"),
    ):
        change(job.learner_file)
        changed = job.learner_file.read_bytes()
        for again in (job, make_job(save=tmp_path / "learners", fresh=True)):
            with pytest.raises(
                InputError, match=f"{message}.*move it away, save the learners elsewhere, or .* --force"
            ):
                run_jobs([again])
            assert job.learner_file.read_bytes() == changed
        run_jobs([make_job(save=tmp_path / "learners", force=True)])
        assert job.has_learner()


@pytest.mark.slow
def test_a_learner_that_was_taught_since_its_run_is_replaced_only_if_forced(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """--fresh --save replaced what cclfp observe had taught it."""
    job = make_job("er", save=tmp_path / "learners")
    train(job)
    run_jobs([make_job("er", save=tmp_path / "learners", fresh=True)])  # as it was made by its run
    assert job.learner_file is not None
    learner = cclfp.load(job.learner_file)
    for in_task in (True, False):
        learner.observe(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1]), task=0)
        if not in_task:
            learner.end_task()
        learner.save(job.learner_file)
        taught = job.learner_file.read_bytes()
        with pytest.raises(InputError, match="has learned more since its run of 5 tasks: .* with --force"):
            run_jobs([make_job("er", save=tmp_path / "learners", fresh=True)])
        assert job.learner_file.read_bytes() == taught
    run_jobs([make_job("er", save=tmp_path / "learners", fresh=True, force=True)])
    assert cclfp.load(job.learner_file).tasks_done == 5


# -- in workers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dead_worker_is_replaced(make_job: Callable[..., Job]) -> None:
    """The run of a dead worker fails; those that other workers had not begun are trained."""
    jobs = [make_job("finetune", seed=seed) for seed in range(4)]
    events: list[Event] = []

    def kill_once(event: Event) -> None:
        events.append(event)
        if isinstance(event, Step) and not any(isinstance(e, Step) for e in events[:-1]):
            for worker in children(os.getpid()):
                os.kill(worker, signal.SIGKILL)

    with pytest.raises(RunError, match="finetune seed [01]: its process was killed by signal 9, perhaps"):
        run_jobs(jobs, kill_once, Pool(2))
    ended = {event.key: type(event) for event in events if isinstance(event, Finished | Failed)}
    kinds = [ended[job.key] for job in jobs]
    assert kinds in ([Failed, Failed, Finished, Finished], [Failed, Finished, Finished, Finished])


def test_workers_that_cannot_start_are_not_tried_for_ever(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.core.workers._command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    jobs = [make_job("finetune", seed=seed) for seed in range(4)]
    events: list[Event] = []
    with pytest.raises(RunError, match=r"no worker process could start \(the last one ended with code 3\)"):
        run_jobs(jobs, events.append, Pool(2))
    assert [event.key for event in events if isinstance(event, Failed)] == [job.key for job in jobs]


@pytest.mark.slow
def test_training_beside_others_changes_nothing(make_job: Callable[..., Job], tmp_path: Path) -> None:
    alone = [train(make_job(seed=seed, store=tmp_path / "alone.sqlite")) for seed in range(3)]
    together = run_jobs([make_job(seed=seed) for seed in range(3)], executor=Pool(3))
    assert [result(together[r["key"]]) for r in alone] == [result(r) for r in alone]
    assert len(Store(make_job().execution.store).records()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Pool(), Pool(2)])
def test_a_failure_lets_the_others_finish(executor: Executor, make_job: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad, *others = [make_job(seed=seed, save=tmp_path / name) for seed, name in enumerate(["file", "a", "a"])]
    with pytest.raises(InputError, match="cannot be saved"):
        run_jobs([bad, *others], executor=executor)
    assert sorted(r["seed"] for r in Store(bad.execution.store).records()) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "engine"), [(Pool(), "eager"), (Pool(2), "eager"), (Pool(2), "compiled")])
def test_every_run_that_fails_is_an_event(executor: Executor, engine: str, tmp_path: Path) -> None:
    """A cohort that fails is trained one by one; each run's error is its own, with one traceback."""
    (tmp_path / "mine.py").write_text(
        "from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'\n"
        "    def loss(self, *_): raise RuntimeError('it does not work')"
    )
    (mine,) = configurations([f"{tmp_path / 'mine.py'}:Mine"], "split-mnist")
    jobs = [make_any_job(mine, seed, tmp_path / "runs.sqlite", engine=engine) for seed in range(3)]
    events: list[Event] = []
    with pytest.raises(RuntimeError, match="it does not work"):
        run_jobs(jobs, events.append, executor)
    failed = {event.key: str(event.error) for event in events if isinstance(event, Failed)}
    assert failed.keys() == {job.key for job in jobs}
    if executor.workers > 1:
        assert all(text.count("Traceback (most recent call last)") == 1 for text in failed.values())
        assert not any("During handling" in text for text in failed.values())


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


# -- what a command tells its listener ------------------------------------------------------------------------------


def test_the_same_run_twice_in_one_call(make_job: Callable[..., Job]) -> None:
    for expected in (Finished, Stored):
        events: list[Event] = []
        assert list(run_jobs([make_job("finetune")] * 2, events.append, Pool())) == [make_job("finetune").key]
        assert [type(event) for event in events if not isinstance(event, Step | Note)] == [expected]


@pytest.mark.slow
def test_many_runs_are_counted_and_have_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"engine": "eager", "device": "cpu", "store": tmp_path / "runs.sqlite", "seeds": 2}
    for few in (4, 3):
        monkeypatch.setattr("cclfp.runs.run.SHOWN_ONE_BY_ONE", few)
        events: list[Event] = []
        cclfp.run(["finetune", "er"], "split-mnist", on_event=events.append, **options)
        (planned,) = (event for event in events if isinstance(event, Planned))
        assert ("4 runs (configurations: 2, seeds: 2)" in texts(events)) == (planned.costs is not None) == (few == 3)
    costs = {planned.labels[key]: cost for key, cost in (planned.costs or {}).items()}
    assert costs.keys() == set(planned.labels.values())
    assert costs["er seed 0"] == costs["er seed 1"] > costs["finetune seed 0"]
    events.clear()
    options |= {"store": tmp_path / "other.sqlite", "shard": "1/4"}
    cclfp.run(["finetune", "er"], "split-mnist", on_event=events.append, **options)
    assert "4 runs (configurations: 2, seeds: 2), 1 of them in this shard" in texts(events)


# -- with real processes ------------------------------------------------------------------------------------------


def command(store: Path, *more: str) -> list[str]:
    arguments = ["run", "er", "split-mnist", "epochs=7", "--seeds", "2", "--checkpoint-every", "0"]
    return [sys.executable, "-m", "cclfp", *arguments, "--store", str(store), *more]


def times(checkpoints: Path) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_mtime_ns) for path in checkpoints.glob("*.ckpt")] if checkpoints.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_sigkill_and_two_processes_on_one_store(tmp_path: Path) -> None:
    """Kill it twice, at any moment; go on with two processes at once; the numbers are those of a run never stopped."""
    once = subprocess.run(command(tmp_path / "once.sqlite", "--json"), capture_output=True, check=True)
    store = tmp_path / "killed.sqlite"
    checkpoints = Store(store).checkpoints
    said = b""
    for _ in range(2):
        before = set(times(checkpoints))
        process = subprocess.Popen(command(store), stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while process.poll() is None and not set(times(checkpoints)) - before and time.monotonic() < deadline:
            time.sleep(0.02)  # until there is a new checkpoint
        workers = children(process.pid)
        assert workers or cores() == 1
        process.send_signal(signal.SIGKILL)
        said += process.communicate()[1]
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)  # the workers notice that their parent is gone
        assert not any(map(alive, workers))
        assert len(Store(store).records()) < 2, "it was killed too late to show anything"
        assert times(checkpoints)
    pair = [
        subprocess.Popen(command(store, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    for process in pair:
        output, errors = process.communicate(timeout=300)
        said += errors
        assert process.returncode == 0
        assert without_seconds(output) == without_seconds(once.stdout)
    assert said.count(b"continuing from the checkpoint") >= 2
    assert b"another process is training this run" in said
    assert b"starting again" not in said
    assert len(Store(store).records()) == 2
    assert list(checkpoints.iterdir()) == []


def without_seconds(output: bytes) -> Any:
    document = json.loads(output)
    for configuration in document["configurations"]:
        del configuration["seconds"]
        for run in configuration["runs"]:
            del run["seconds"]
    return document
