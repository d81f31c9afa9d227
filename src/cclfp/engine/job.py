"""A job: train one (configuration, seed) and store its record, going on from a checkpoint where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from cclfp import metrics
from cclfp.backbones import make_psi, parse_backbone
from cclfp.configuration import Configuration, show_value
from cclfp.engine.environment import code, commit, device_name, pick_device
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.files import write_atomic
from cclfp.learner import make
from cclfp.loading import DAMAGED, read_tensors
from cclfp.store import Record, Store
from cclfp.streams import AUGMENTATION, get_benchmark

FORMAT = "cclfp checkpoint 1"
REPORT_EVERY = 0.2  # seconds between two reports of progress

Report = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """One replica to train, and what to do with the result."""

    configuration: Configuration
    seed: int
    store: Path
    device: str  # auto, cpu or cuda
    threads: int
    fresh: bool = False
    save: Path | None = None  # where to write the trained learner
    checkpoint_every: float = 30.0  # seconds, at a task's end

    @property
    def key(self) -> str:
        return self.configuration.key(self.seed)

    def label(self, varied: Sequence[str] = ()) -> str:
        """What to call the run where only the settings ``varied`` tell it from others."""
        settings = {**self.configuration.to_dict(), **self.configuration.hyperparameters}
        values = [f"{name}={show_value(settings[name])}" for name in varied if settings.get(name) is not None]
        return " ".join([self.configuration.method, *values, f"seed {self.seed}"])

    def to_dict(self) -> dict[str, Any]:
        paths = {"store": str(self.store), "save": None if self.save is None else str(self.save)}
        return {**vars(self), "configuration": self.configuration.to_dict(), **paths}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        paths = {"store": Path(values["store"]), "save": None if values["save"] is None else Path(values["save"])}
        return cls(**{**values, "configuration": Configuration.from_dict(values["configuration"]), **paths})


def finished(job: Job, store: Store) -> Record | None:
    """The record that makes this job unnecessary."""
    if job.fresh or (job.save is not None and not job.save.exists()):
        return None
    return store.find(job.key)


def do(job: Job, report: Report) -> Record:
    """Train and store, unless that is done already. A run that another process is training is waited for."""
    store = Store(job.store)
    try:
        store.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoints cannot be kept in {store.checkpoints}: {error}") from error
    checkpoint = checkpoint_path(job, store)
    lock = FileLock(checkpoint.with_suffix(".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report({"event": "note", "text": "another process is training this run: waiting for it"})
        lock.acquire()
    try:
        record = finished(job, store)
        if record is None:
            replica, engine = _start(job, checkpoint, report)
            with _threads(engine["threads"]):
                _train(replica, job, checkpoint, engine, report)
            record = _record(job, replica, engine)
            store.add(record)
            if job.save is not None:
                _save(replica, job.save)
        _remove_checkpoint(checkpoint)
        return record
    finally:
        lock.release(force=True)


def checkpoint_path(job: Job, store: Store) -> Path:
    return store.checkpoints / f"{job.key}.ckpt"


def clean_up(job: Job, store: Store) -> None:
    """Remove the checkpoint that a finished run left, because it was killed just then; not while another trains."""
    checkpoint = checkpoint_path(job, store)
    if checkpoint.exists():
        with contextlib.suppress(Timeout), FileLock(checkpoint.with_suffix(".lock"), blocking=False):
            _remove_checkpoint(checkpoint)


def _remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, half-written ones and the lock file: who waits on it looks into the store next."""
    for path in [*checkpoint.parent.glob(f".{checkpoint.name}.*"), checkpoint, checkpoint.with_suffix(".lock")]:
        path.unlink(missing_ok=True)


def _save(replica: Replica, path: Path) -> None:
    try:
        replica.learner.save(path)
    except OSError as error:
        raise InputError(f"the run is stored, but its learner cannot be saved as {path}: {error}") from error


def _start(job: Job, checkpoint: Path, report: Report) -> tuple[Replica, dict[str, Any]]:
    """A replica at its beginning, or where its checkpoint left it, with the engine it was started with."""
    if checkpoint.exists():
        try:
            return _resume(job, checkpoint, report)
        except (InputError, *DAMAGED) as error:
            report({"event": "note", "text": f"starting afresh, the checkpoint cannot be used: {error}"})
            checkpoint.unlink()
    engine = {"engine": "eager", "precision": "float32", "threads": job.threads, "device": pick_device(job.device)}
    return _replica(job, engine), engine


def _resume(job: Job, checkpoint: Path, report: Report) -> tuple[Replica, dict[str, Any]]:
    """The replica and engine of a checkpoint; InputError where they cannot be had now."""
    saved = read_tensors(checkpoint, FORMAT)
    if job.fresh and not saved["fresh"]:
        raise InputError("it is of a run that was not started with --fresh")
    if saved["code"] != code():
        raise InputError(f"it was made with {saved['code']}, this is {code()}")
    engine: dict[str, Any] = saved["engine"]
    if job.device != "auto" and job.device != engine["device"]:
        raise InputError(f"it was made on {engine['device']}, not on the {job.device} asked for")
    pick_device(engine["device"])
    replica = _replica(job, engine)
    replica.load_state_dict(saved["replica"])
    text = f"going on from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
    report({"event": "note", "text": text})
    return replica, engine


def _replica(job: Job, engine: dict[str, Any]) -> Replica:
    configuration, benchmark = job.configuration, get_benchmark(job.configuration.benchmark)
    with _threads(engine["threads"]):
        stream = benchmark.stream(
            configuration.scenario, job.seed, configuration.class_order, sizes=configuration.tasks
        )
        stream = stream.validation(job.seed) if configuration.validation else stream
        stream = stream.to(torch.device(engine["device"]))
        if configuration.kind.joint:
            stream = stream.joint()
        hyper: dict[str, Any] = {**configuration.hyperparameters}
        backbone = configuration.backbone or parse_backbone(benchmark.backbone)
        learner = make(
            configuration.kind,
            psi=make_psi(backbone, stream.train.x.shape[1:], job.seed),
            num_classes=stream.num_classes,
            memory=configuration.buffer or 0,
            replay=configuration.replay or 1,
            seed=job.seed,
            scenario=configuration.scenario,
            tasks=stream.classes,
            transform=stream.transform,
            augment=AUGMENTATION if configuration.augment else None,
            device=engine["device"],
            **hyper,
        )
    return Replica(learner, stream, batch=configuration.batch, epochs=configuration.epochs)


def _train(replica: Replica, job: Job, checkpoint: Path, engine: dict[str, Any], report: Report) -> None:
    """Train what is left, reporting progress, with a checkpoint at a task's end, at most one every so many seconds."""
    steps = [replica.steps(position) for position in range(len(replica.stream.train_rows))]
    last_checkpoint, last_report = time.monotonic(), 0.0

    def progress(step: int) -> None:
        nonlocal last_report
        if (now := time.monotonic()) - last_report >= REPORT_EVERY:
            last_report = now
            say("step", sum(steps[: replica.position]) + step)

    def say(event: str, step: int) -> None:
        report(
            {
                "event": event,
                "task": min(replica.position + 1, len(steps)),
                "tasks": len(steps),
                "step": step,
                "steps": sum(steps),
                "accuracy": replica.accuracy,
            }
        )

    while not replica.is_done:
        replica.advance(progress)
        say("step", sum(steps[: replica.position]))
        if not replica.is_done and time.monotonic() - last_checkpoint >= job.checkpoint_every:
            state = {
                "format": FORMAT,
                "code": code(),
                "engine": engine,
                "fresh": job.fresh,
                "replica": replica.state_dict(),
            }
            try:
                write_atomic(checkpoint, functools.partial(torch.save, state))
            except OSError as error:  # a full disk is no reason to lose the run
                report({"event": "note", "text": f"no checkpoint could be written, going on without: {error}"})
            last_checkpoint = time.monotonic()


def _record(job: Job, replica: Replica, engine: dict[str, Any]) -> Record:
    configuration = job.configuration
    environment = {
        **engine,
        **code(),
        "commit": commit(),
        "device_name": device_name(engine["device"]),
        "platform": platform.platform(),
    }
    return {
        "key": job.key,
        "method": configuration.method,
        "benchmark": configuration.benchmark,
        "scenario": configuration.scenario,
        "buffer": configuration.buffer,
        "seed": job.seed,
        "configuration": configuration.to_dict(),
        "average_accuracy": metrics.average_accuracy(replica.matrix),
        "forgetting": metrics.forgetting(replica.matrix),
        "backward_transfer": metrics.backward_transfer(replica.matrix),
        "forward_transfer": metrics.forward_transfer(replica.matrix),
        "accuracy_matrix": replica.matrix,
        "seconds": replica.train_seconds + replica.test_seconds,
        "train_seconds": replica.train_seconds,
        "test_seconds": replica.test_seconds,
        "environment": environment,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
