"""Training jobs: stored once, continued from any checkpoint, safe beside each other."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from records import with_accuracy
from training import Stop, result, stop_at, texts, train, train_all
from training import make_job as make_any_job

import cclfp
from cclfp.core.files import temporary_name
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.runs import checkpoints, training
from cclfp.runs.events import Event, Failed, Finished, Step
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.testing import same

Patch = pytest.MonkeyPatch
MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def every_step_is_an_event(small_mnist: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(training, "STEP_EVERY", 0.0)


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    def make(method: str = "ccl-fp+", seed: int = 0, scenario: str = "class", **changes: Any) -> Job:
        (configuration,) = configurations([method], "split-mnist", scenario)
        return make_any_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", **changes})

    return make


def accuracy(record: Record) -> float:
    assert record["average_accuracy"] is not None
    return record["average_accuracy"]


def store_of(job: Job) -> Store:
    return Store(job.execution.store)


def file_of(job: Job) -> Path:
    assert job.learner_file is not None
    return job.learner_file


def found_by(learner: cclfp.Learner) -> float:
    """The average accuracy of a learner on Split MNIST with its seed."""
    stream = cclfp.streams.get_benchmark("split-mnist").stream("class", learner.seed)
    right = [(learner.predict(test.x) == test.y).float().mean().item() for test in stream.test]
    return 100 * sum(right) / len(right)


def checkpoint_of(job: Job, steps: int = 50) -> Path:
    """Stop a run after this many of its 150 steps; its checkpoint."""
    with pytest.raises(Stop):
        train(job, stop_at(steps))
    return checkpoints.checkpoint_path(job)


def train_and_note(job: Job) -> tuple[Record, str]:
    """The record of a run, and what was said about it."""
    events: list[Event] = []
    record = train(job, events.append)
    return record, "\n".join(texts(events))


# -- stopped and continued ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "ccl-fp+"])
def test_a_stopped_run_ends_with_the_same_numbers(method: str, make_job: MakeJob, tmp_path: Path) -> None:
    other = make_job(method, store=tmp_path / "other.sqlite", save=tmp_path / "whole")
    whole = train(other)
    for steps in (1, 31, 60, 75):
        job = make_job(method, store=tmp_path / f"{steps}.sqlite", save=tmp_path / f"{steps}")
        assert checkpoint_of(job, steps).exists() == (steps > 30)
        assert store_of(job).records() == []
        again, notes = train_and_note(job)
        assert ("continuing from the checkpoint" in notes) == (steps > 30)
        assert result(again) == result(whole)
        assert same(cclfp.load(file_of(other)), cclfp.load(file_of(job)))
        assert list(job.execution.checkpoint_folder.iterdir()) == []


@pytest.mark.slow
def test_a_fresh_run_that_was_stopped_goes_on_too(make_job: MakeJob, tmp_path: Path) -> None:
    folder, events = tmp_path / "shared", list[Event]()
    folder.mkdir()
    (folder / "uv.lock").touch()  # it may be any folder
    assert checkpoint_of(make_job(checkpoints=folder)).parent == folder
    assert not make_job().execution.checkpoint_folder.exists()

    def listen_and_stop(event: Event) -> None:
        events.append(event)
        stop_at(50)(event)

    with pytest.raises(Stop):  # a fresh run does not go on from what was not fresh
        train(make_job(fresh=True, checkpoints=folder), listen_and_stop)
    assert "not started with --fresh" in "".join(texts(events))
    assert "continuing from the checkpoint after task 1" in train_and_note(make_job(fresh=True, checkpoints=folder))[1]
    assert [path.name for path in folder.iterdir()] == ["uv.lock"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_killed_processes_have_left_is_removed(is_stored: bool, make_job: MakeJob, tmp_path: Path) -> None:
    """Killed while a checkpoint or a learner was written; between storing a record, removing the checkpoint, the lock.

    A signal to the command kills its workers, too.
    """
    job = make_job("finetune", save=tmp_path / "learners")
    if is_stored:
        train(job)
    ended = subprocess.Popen(["true"])
    ended.wait()
    half, learner = (
        temporary_name(name).replace(f".{os.getpid()}-", f".{ended.pid}-")
        for name in (f"{job.key}.ckpt", file_of(job).name.replace("seed0", "seed1"))
    )
    folder = job.execution.checkpoint_folder
    folder.mkdir(exist_ok=True)
    file_of(job).parent.mkdir(exist_ok=True)
    for name in (half, f"{job.key}.lock", *[f"{job.key}.ckpt"] * is_stored):
        (folder / name).write_bytes(b"half")
    (tmp_path / "learners" / learner).write_bytes(b"half")
    cclfp.run("finetune", "split-mnist", seeds=1, store=job.execution.store, save=job.execution.save)
    assert list(folder.iterdir()) == []
    assert list((tmp_path / "learners").iterdir()) == [job.learner_file]


def test_a_lock_is_free_again_after_a_failure(make_job: MakeJob) -> None:
    with pytest.raises(Stop) as kept:  # and with it every frame of the traceback
        train(make_job(), stop_at(1))
    assert accuracy(train(make_job())) > 0
    assert kept


@pytest.mark.slow
def test_checkpoints_are_not_taken_more_often_than_asked(make_job: MakeJob, monkeypatch: Patch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(checkpoints, "write_tensors", lambda path, state: written.append(path))
    train(make_job(checkpoint_every=3600.0))
    assert written == []
    train(make_job(fresh=True))
    assert len(written) == 4  # after each of the five tasks but the last


@pytest.mark.slow
def test_resumed_with_the_threads_it_was_started_with(make_job: MakeJob) -> None:
    checkpoint_of(make_job("finetune", threads=2))
    assert train(make_job("finetune", threads=1))["environment"]["threads"] == 2
    assert torch.get_num_threads() == 1


USELESS: dict[str, Callable[[Any], object]] = {  # what becomes of a checkpoint, and what is said of it
    "is damaged and kept as": lambda state: state["replica"]["learner"].pop("psi"),
    "cannot be used: it was made with other training code": lambda state: state["code"].update(torch="0.1"),
    "cannot be used: it was made with device cuda": lambda state: state["engine"].update(device="cuda"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rubbish", *USELESS])
def test_a_checkpoint_that_cannot_be_used_is_said_and_left(what: str, make_job: MakeJob, tmp_path: Path) -> None:
    whole = train(make_job(store=tmp_path / "other.sqlite"))
    path = checkpoint_of(make_job())
    if what == "rubbish":
        what = "is damaged and kept as"
        path.write_bytes(b"rubbish")
    else:
        state = torch.load(path, weights_only=True)
        USELESS[what](state)
        torch.save(state, path)
    again, notes = train_and_note(make_job())
    assert result(again) == result(whole)
    assert f"starting again, the checkpoint {what}" in notes
    assert "{'" not in notes
    assert path.with_suffix(".damaged").exists() == ("damaged" in what)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied"), InputError),  # as for who is not root
        (OSError(24, "Too many open files"), InputError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
    ],
)
def test_a_checkpoint_that_cannot_be_read_now_is_left_alone(
    error: Exception, expected: type[Exception], make_job: MakeJob, monkeypatch: Patch
) -> None:
    """It may be good: it is neither deleted nor taken for damaged."""
    checkpoint = checkpoint_of(make_job("er"))
    monkeypatch.setattr("cclfp.core.files._check_archive", Mock(side_effect=error))
    with pytest.raises(expected):
        train(make_job("er"))
    assert checkpoint.exists()


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_run(make_job: MakeJob, monkeypatch: Patch) -> None:
    monkeypatch.setattr(checkpoints, "write_tensors", Mock(side_effect=OSError("no space left")))
    record, notes = train_and_note(make_job())
    assert accuracy(record) > 0
    assert "no checkpoint could be written, continuing without one: no space left" in notes.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Pool(), Pool(2)])
def test_a_place_where_no_checkpoint_or_lock_can_be(executor: Executor, make_job: MakeJob, tmp_path: Path) -> None:
    """A user's mistake, in a worker too."""
    make_job().execution.checkpoint_folder.touch()
    with pytest.raises(InputError, match="no lock can be kept at .*: File exists\n2 of 2 runs failed$"):
        run_jobs([make_job(seed=0), make_job(seed=1)], executor=executor)
    job = make_job("finetune", store=tmp_path / "other.sqlite")
    checkpoints.checkpoint_path(job).with_suffix(".lock").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"no lock can be kept at .*{job.key}\.lock: Is a directory$"):
        train(job)


# -- stored once ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_finished_run_is_trained_again_only_if_asked(make_job: MakeJob) -> None:
    job, events = make_job(), list[Event]()
    first = train(job)
    old = with_accuracy(first, 1.0)
    store_of(job).add(old, replace=True)
    assert train(job, events.append) == old
    assert events == [Finished(job.key, old)]
    again = train(make_job(fresh=True))
    assert store_of(job).records() == [again]
    assert result(again) == result(first)


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_a_record_stays_that_was_there_or_added_meanwhile(is_there: bool, make_job: MakeJob, tmp_path: Path) -> None:
    """Its run was trained again for its learner, or by another process."""
    first, job = train(make_job(store=tmp_path / "other.sqlite")), make_job(save=tmp_path / "learners")
    old, events = with_accuracy(first, 1.0), list[Event]()
    if is_there:
        store_of(job).add(old)

    def listen(event: Event) -> None:
        events.append(event)
        store_of(job).add(old)

    assert [train(job, listen)] == store_of(job).records() == [old]
    assert "that one stays, with 1.00 %; trained now it has " in texts(events)[-1]
    assert events[-1] == Finished(job.key, old)
    assert found_by(cclfp.load(file_of(job))) == pytest.approx(accuracy(first), abs=1e-4)


# Which accuracies are known: of a task from when it is learned on; also just before, and untrained; only in the end.
SEEN = [[i < t for i in range(5)] for t in range(6)]
AND_NEXT = [[True] * 5] + [[i <= t for i in range(5)] for t in range(1, 6)]
LAST = [[False] * 5] * 5 + [[True] * 5]


@pytest.mark.parametrize(
    ("method", "scenario", "known"),
    [("finetune", "class", SEEN), ("finetune", "task", AND_NEXT), ("joint", "class", LAST)],
)
def test_records_say_what_was_found_and_how(
    method: str, scenario: str, known: list[list[bool]], make_job: MakeJob
) -> None:
    record = train(make_job(method, scenario=scenario))
    made = {"engine": "eager", "precision": "float32", "threads": 1, "device": "cpu", "cclfp": cclfp.__version__}
    assert (made | {"torch": torch.__version__}).items() <= record["environment"].items()
    assert len(record["environment"]["source"]) == 16
    assert record["environment"]["device_name"]
    assert record["seconds"] == record["train_seconds"] + record["test_seconds"]
    assert [[value is not None for value in row] for row in record["accuracy_matrix"]] == known
    assert (record["forward_transfer"] is None) == (scenario == "class")
    assert (record["forgetting"] is None) == (method == "joint")
    assert method != "joint" or accuracy(record) > 90


@pytest.mark.slow
def test_a_single_run_does_not_depend_on_the_default_dtype(make_job: MakeJob, tmp_path: Path) -> None:
    usual = train(make_job())
    torch.set_default_dtype(torch.float64)
    try:
        other = train(make_job(store=tmp_path / "other.sqlite"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert result(other) == result(usual)


def test_settings_as_numpy_has_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"seeds": np.arange(1), "lr": np.float32(0.5), "settings": {"batch": np.int64(50)}}
    given |= {"class_order": np.arange(10)[::-1], "store": tmp_path / "runs.sqlite"}
    (result,) = cclfp.run("finetune", "split-mnist", **given)
    assert (result.configuration.batch, result.configuration.hyperparameters) == (50, {"lr": 0.5})
    assert result.configuration.class_order == tuple(range(9, -1, -1))
    with pytest.raises(InputError, match="run takes methods by name"):
        cclfp.run(METHODS["er"], "split-mnist")  # type: ignore[arg-type]


# -- learners -------------------------------------------------------------------------------------------------------


def test_learners_of_a_cohort_that_cannot_be_saved(make_job: MakeJob, tmp_path: Path) -> None:
    """All runs are stored, and none is trained again."""
    (tmp_path / "file").touch()
    jobs = [make_job("er", seed=seed, engine="traced", save=tmp_path / "file") for seed in (0, 1)]
    events: list[Event] = []
    training.train_cohort(jobs, events.append)
    failures = {event.key: str(event.error) for event in events if isinstance(event, Failed)}
    assert [str(job.learner_file) in failures[job.key] for job in jobs] == [True, True]
    assert [event.key for event in events if isinstance(event, Finished)] == [job.key for job in jobs]
    assert not [text for text in texts(events) if "one by one" in text]
    assert len(store_of(jobs[0]).records()) == 2


@pytest.mark.parametrize("killed_in", ["learner.learner.Learner.save", "runs.store.Store.add"])
def test_a_stored_run_has_the_learner_of_its_training(
    killed_in: str, make_job: MakeJob, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Killed while the second of three runs is kept."""
    jobs = [make_job("finetune", seed=seed, save=tmp_path / "learners") for seed in range(3)]
    original, calls = resolve_name(f"cclfp.{killed_in}"), itertools.count(1)

    def stop_in_second_call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise Stop
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(f"cclfp.{killed_in}", stop_in_second_call)
        with pytest.raises(Stop):
            train_all(jobs)
    stored = {record["key"] for record in store_of(jobs[0]).records()}
    saved = {job.key for job in jobs if job.has_learner()}
    assert stored == {jobs[0].key} <= saved
    for job, record in zip(jobs, train_all(jobs), strict=True):
        assert found_by(cclfp.load(file_of(job))) == pytest.approx(accuracy(record), abs=1e-4)


def test_a_learner_that_is_taught_while_its_run_is_trained_again_stays(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("finetune", save=tmp_path / "learners")
    train(job)
    learner = cclfp.load(file_of(job))
    learner.observe(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1]), task=0)

    def teach(event: Event) -> None:
        if isinstance(event, Step):
            learner.save(file_of(job))

    with pytest.raises(InputError, match="run is stored, but its learner cannot be saved .*: .* has learned more"):
        train(job.with_unchecked(fresh=True), teach)
    assert same(cclfp.load(file_of(job)), learner)


@pytest.mark.slow
def test_a_learner_file_that_is_not_what_its_run_left_is_replaced_only_if_forced(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """--fresh --save replaced what cclfp observe had taught it; no learner of another run or other file is taken."""
    job = make_job(save=tmp_path / "learners")
    fresh = job.with_unchecked(fresh=True)
    train(job)
    run_jobs([fresh])  # as it was made by its run
    file = file_of(job)
    assert job.find_record(store_of(job)) is not None
    learner, other = cclfp.load(file), cclfp.make("er", psi=torch.nn.Flatten(), num_classes=10, seed=7)

    def teach() -> None:
        if learner.in_task:
            learner.end_task()
        else:
            learner.observe(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1]), task=0)
        learner.save(file)

    changes: list[tuple[str, Callable[[], object], list[Job]]] = [
        ("has learned more since its run of 5 tasks", teach, [fresh]),
        ("has learned more since its run of 5 tasks", teach, [fresh]),
        ("it is damaged", lambda: file.write_bytes(file.read_bytes()[:1000]), [job, fresh]),
        ("is another kind of file", lambda: file.write_text("mine"), [job, fresh]),
        ("is not the learner of this run", lambda: other.save(file, force=True), [job, fresh]),
    ]
    for message, change, refused in changes:
        change()
        changed = file.read_bytes()
        for again in refused:
            with pytest.raises(InputError, match=f"{message}.*move it away, save the learners elsewhere, or .*--force"):
                run_jobs([again])
            assert file.read_bytes() == changed
    run_jobs([fresh.with_unchecked(force=True)])
    assert job.has_learner()
    assert cclfp.load(file).tasks_done == 5
