"""A job: train one (configuration, seed) and store its record, going on from a checkpoint where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from cclfp import metrics
from cclfp.core.files import remove_stale
from cclfp.core.layouts import check_value
from cclfp.core.tensorfiles import read_tensors, write_tensors
from cclfp.engine.cohort import Cohort
from cclfp.engine.compiled import first_line, is_known, remember
from cclfp.engine.eager import seconds_per_step
from cclfp.engine.grouping import is_normalised
from cclfp.engine.precision import autocast_of, computing_in, pick_precision
from cclfp.engine.replica import Replica
from cclfp.errors import DamagedError, InputError, shortage
from cclfp.learner import make
from cclfp.learner.loading import DAMAGED
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.environment import code, commit, device_name, pick_device
from cclfp.runs.store import Record, Store
from cclfp.streams import AUGMENTATION, Stream, get_benchmark

FORMAT = "cclfp checkpoint 1"
DAMAGED_SUFFIX = ".damaged"  # of the last damaged checkpoint of a run, beside the others
MOST_THREADS = 4096  # that a checkpoint can ask for
GRAPH_SECONDS = 3.0  # that it would have to take for a CUDA graph to pay
COMPILER_SECONDS = {"cold": 10.0, "warm": 5.0}  # that the compiler takes, where it has not or has compiled the same
REPORT_EVERY = 0.2  # seconds between two reports of progress

Report = Callable[[dict[str, Any]], None]
JobReport = Callable[[int, dict[str, Any]], None]  # called with the job's number and an event
Engine = dict[str, Any]  # what a run is trained with: engine, precision, threads, device
Streams = dict[tuple[int, str], Stream]  # by seed and device


@dataclasses.dataclass(frozen=True)
class Job:
    """One replica to train, and what to do with the result."""

    configuration: Configuration
    seed: int
    store: Path
    device: str  # auto, cpu or cuda
    threads: int
    engine: str = "eager"
    precision: str = "auto"
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
    """Train and store one run, unless that is done already."""
    (record,) = do_together([job], lambda number, event: report(event))
    return record


def do_together(jobs: Sequence[Job], report: JobReport) -> list[Record]:
    """Train and store the runs that are not done already, as one cohort: they differ in seed and hyperparameters.

    Runs that another process is training are waited for. Each that is done is reported with its record. Where learners
    cannot be saved, NotSavedError is raised when all runs are stored.
    """
    store = Store(jobs[0].store)
    try:
        store.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoints cannot be kept in {store.checkpoints}: {error}") from error
    said = [functools.partial(report, number) for number in range(len(jobs))]
    records: dict[int, Record] = {}
    not_saved: dict[int, InputError] = {}
    streams: Streams = {}
    with contextlib.ExitStack() as locks:
        for number in sorted(range(len(jobs)), key=lambda n: jobs[n].key):  # in one order everywhere: no deadlock
            locks.enter_context(_locked(checkpoint_path(jobs[number], store), said[number]))
        started: dict[int, tuple[Replica, Engine]] = {}
        for number, job in enumerate(jobs):
            if (record := finished(job, store)) is not None:
                records[number] = record
                _remove_checkpoint(checkpoint_path(job, store), said[number])
                said[number]({"event": "done", "record": record})
            else:
                started[number] = _start(job, checkpoint_path(job, store), streams, said[number])
        _choose(jobs, started, streams, said)
        for together in _alike(started):
            replicas, engine = [started[number][0] for number in together], started[together[0]][1]
            with _threads(engine["threads"]):
                used = _train(replicas, [jobs[n] for n in together], store, engine, [said[n] for n in together])
            trained = list(zip(together, replicas, strict=True))
            for number, replica in trained:  # all are stored before a learner is saved, which can fail
                environment = {**engine, "engine": used, "together": len(together)}  # its seconds are a share of theirs
                record, again = _record(jobs[number], replica, environment), jobs[number].fresh or jobs[number].save
                records[number] = store.add(record, replace=bool(again))
                if records[number] is not record:
                    text = "a record of this run was added to the store while it was trained: that one stays"
                    said[number]({"event": "note", "text": text})
            for number, replica in trained:
                if (failure := _save(replica, jobs[number].save)) is not None:
                    not_saved[number] = failure
                _remove_checkpoint(checkpoint_path(jobs[number], store), said[number])
                said[number]({"event": "done", "record": records[number]})
    if not_saved:
        raise NotSavedError(not_saved)
    return [records[number] for number in range(len(jobs))]


def do_cohort(jobs: Sequence[Job], report: JobReport) -> dict[int, Exception]:
    """Do jobs together and, if that fails, those that are not done one by one, so that each fails for itself.

    Gives the errors of those that failed.
    """
    done: set[int] = set()

    def heard(number: int, event: dict[str, Any]) -> None:
        report(number, event)
        if event["event"] == "done":
            done.add(number)

    try:
        do_together(jobs, heard)
        return {}
    except NotSavedError as stored:  # nothing is to be trained again
        return dict(stored.of_jobs)
    except (Exception, SystemExit) as raised:  # noqa: BLE001  the caller tells the user
        error = _failure(jobs[0], raised)
        if len(jobs) == 1:
            return {0: error}
        text = f"training together failed ({first_line(error)}): going on one by one"
        report(0, {"event": "note", "text": text})
    failures: dict[int, Exception] = {}
    for number, job in enumerate(jobs):
        if number not in done:
            failed = do_cohort([job], lambda _, event: report(number, event))  # noqa: B023  called at once
            if failed:
                failures[number] = failed[0]
    return failures


def _failure(job: Job, error: Exception | SystemExit) -> Exception:
    """Why a job failed. A method or backbone of a user's own must not end the process by ``sys.exit``."""
    if isinstance(error, Exception):
        return error
    own = [part for part in (job.configuration.method_file, job.configuration.backbone) if part and "file" in part]
    if not own:
        raise error
    files = " or ".join(part["file"] for part in own)
    return InputError(f"{job.label()}: the code in {files} called sys.exit ({error!r}), which a run must not do")


def _alike(started: dict[int, tuple[Replica, Engine]]) -> list[list[int]]:
    """The runs that can go on together: at the same place, with the same engine; one by one where that is eager."""
    groups: dict[str, list[int]] = {}
    for number, (replica, engine) in started.items():
        alone = number if engine["engine"] == "eager" else None
        groups.setdefault(f"{replica.position} {engine} {alone}", []).append(number)
    return list(groups.values())


@contextlib.contextmanager
def _locked(checkpoint: Path, report: Report) -> Iterator[None]:
    """Hold the lock of a run. Its file is removed in the end, while it is held: see :func:`_release`."""
    lock = FileLock(checkpoint.with_suffix(".lock"))
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            report({"event": "note", "text": "another process is training this run: waiting for it"})
            lock.acquire()
        yield
    finally:
        _release(lock)


def _release(lock: BaseFileLock) -> None:
    """Remove a lock's file and release it, if it is held.

    A process that opened the file before and locks it after finds that it has no name any more, and starts over with a
    new one: filelock does so since 3.21. So two processes never hold locks of the same name at the same time.
    """
    if lock.is_locked:
        with contextlib.suppress(OSError):  # Windows keeps files that are open; a folder may be read-only by now
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release(force=True)


def checkpoint_path(job: Job, store: Store) -> Path:
    return store.checkpoints / f"{job.key}.ckpt"


def clean_up(job: Job, store: Store) -> None:
    """Remove the checkpoint that a finished run left, because it was killed just then; not while another trains."""
    checkpoint = checkpoint_path(job, store)
    if checkpoint.exists():
        with contextlib.suppress(Timeout), _try_lock(checkpoint.with_suffix(".lock")):
            _remove_checkpoint(checkpoint)


def remove_left_overs(store: Store) -> None:
    """Remove lock files and half-written checkpoints of processes that were killed. Checkpoints stay."""
    remove_stale(store.checkpoints)
    for path in store.checkpoints.glob("*.lock"):
        with contextlib.suppress(Timeout, OSError), _try_lock(path):
            pass


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[None]:
    """Hold a lock, or raise Timeout where another process holds it."""
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
        yield
    finally:
        _release(lock)


def _remove_checkpoint(checkpoint: Path, report: Report | None = None) -> None:
    """Remove a checkpoint and half-written ones. The caller holds its lock.

    A damaged one stays, and the report says where.
    """
    for path in [*checkpoint.parent.glob(f".{checkpoint.name}.*"), checkpoint]:
        path.unlink(missing_ok=True)
    if report is not None and (kept := checkpoint.with_suffix(DAMAGED_SUFFIX)).exists():
        text = f"a damaged checkpoint of this run is kept as {kept}: delete it when you do not need it"
        report({"event": "note", "text": text})


class NotSavedError(InputError):
    """Runs that are stored, but whose learners cannot be saved: the error of each, by the job's number."""

    def __init__(self, of_jobs: dict[int, InputError]) -> None:
        super().__init__(str(next(iter(of_jobs.values()))))
        self.of_jobs = of_jobs


def _save(replica: Replica, path: Path | None) -> InputError | None:
    """Save a learner where that was asked for; the error where it cannot be."""
    try:
        if path is not None:
            replica.learner.save(path)
    except OSError as error:
        reason = error.strerror or error
        return InputError(f"the run is stored, but its learner cannot be saved as {path}: {reason}")
    return None


def _start(job: Job, checkpoint: Path, streams: Streams, report: Report) -> tuple[Replica, Engine]:
    """A replica at its beginning, or where its checkpoint left it, with the engine it was started with."""
    if checkpoint.exists():
        try:
            return _resume(job, checkpoint, streams, report)
        except DamagedError as error:
            kept = checkpoint.replace(checkpoint.with_suffix(DAMAGED_SUFFIX))
            text = f"starting afresh, the checkpoint is damaged and kept for inspection as {kept.name}: {error}"
            report({"event": "note", "text": text})
        except InputError as error:
            if isinstance(error.__cause__, OSError):  # it may be good, and readable later
                raise
            report({"event": "note", "text": f"starting afresh, the checkpoint cannot be used: {error}"})
            checkpoint.unlink()
    device = pick_device(job.device)
    precision = pick_precision(job.precision, device)
    engine: Engine = {"engine": job.engine, "precision": precision, "threads": job.threads, "device": device}
    return _replica(job, engine, streams), engine


def _choose(
    jobs: Sequence[Job], started: dict[int, tuple[Replica, Engine]], streams: Streams, said: Sequence[Report]
) -> None:
    """Choose the engine of the runs that leave it open: the one that finishes first, compilation included."""
    open_ = [number for number, (_, engine) in started.items() if engine["engine"] == "auto"]
    if not open_:
        return
    replica, engine = started[open_[0]]
    with _threads(engine["threads"]), computing_in(engine["precision"]):
        probe = _replica(jobs[open_[0]], engine, streams)
        seconds = len(open_) * sum(map(probe.steps, range(len(probe.stream.train_rows)))) * seconds_per_step(probe)
    chosen = "eager"
    if engine["device"] == "cuda":
        chosen = "graph" if seconds > GRAPH_SECONDS else chosen
    elif not is_normalised(replica.learner.psi):  # of its convolutions the compiler makes nothing faster
        cache = "warm" if is_known(_kind(jobs[open_[0]], len(open_))) else "cold"
        # A compiled cohort takes about a sixth of the time.
        chosen = "compiled" if seconds * 5 / 6 > COMPILER_SECONDS[cache] else chosen
    for number in open_:
        started[number][1]["engine"] = chosen
    said[open_[0]]({"event": "note", "text": f"engine: {chosen} (eager would take about {seconds:.0f} s)"})


def _kind(job: Job, replicas: int) -> str:
    """What the programs of a cohort depend on."""
    configuration = {**job.configuration.to_dict(), "hyperparameters": None}
    return json.dumps([configuration, replicas, job.threads, code()], sort_keys=True)


def _resume(job: Job, checkpoint: Path, streams: Streams, report: Report) -> tuple[Replica, Engine]:
    """The replica and engine of a checkpoint: InputError where this job cannot use it, DamagedError where none can."""
    saved = read_tensors(checkpoint, FORMAT)
    try:
        engine = _saved_engine(job, saved)
    except InputError:
        raise
    except DAMAGED as error:
        raise DamagedError(f"it is not whole: {error!r}") from error
    replica = _replica(job, engine, streams)
    try:
        replica.load_state_dict(saved["replica"])
    except DAMAGED as error:  # of any kind: this code wrote it, for this configuration
        if shortage(error):
            raise
        raise DamagedError(str(error) if isinstance(error, InputError) else f"it is not whole: {error!r}") from error
    text = f"going on from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
    report({"event": "note", "text": text})
    return replica, engine


def _saved_engine(job: Job, saved: dict[str, Any]) -> Engine:
    """The engine of a checkpoint, once it is clear that this job can go on from it."""
    if job.fresh and not saved["fresh"]:
        raise InputError("it is of a run that was not started with --fresh")
    if saved["code"] != code():
        raise InputError(f"it was made with {saved['code']}, this is {code()}")
    engine: Engine = saved["engine"]
    check_value("engine", engine, dict)
    for name, asked in (("device", job.device), ("engine", job.engine), ("precision", job.precision)):
        check_value(name, engine[name], str)
        if asked not in ("auto", engine[name]):
            raise InputError(f"it was made with {name} {engine[name]}, not with the {asked} asked for")
    check_value("threads", engine["threads"], int, 1, MOST_THREADS)
    if engine["engine"] not in ("eager", "compiled", "graph") or "auto" in (engine["precision"], engine["device"]):
        raise DamagedError(f"it was made with {engine}, which no run is trained with")
    pick_precision(engine["precision"], pick_device(engine["device"]))
    return {name: engine[name] for name in ("engine", "precision", "threads", "device")}


def _stream(job: Job, device: str) -> Stream:
    c = job.configuration
    stream = get_benchmark(c.benchmark).stream(c.scenario, job.seed, c.class_order, sizes=c.tasks)
    stream = stream.validation(job.seed) if c.validation else stream
    stream = stream.to(torch.device(device))
    return stream.joint() if c.kind.joint else stream


def _replica(job: Job, engine: Engine, streams: Streams) -> Replica:
    configuration, benchmark = job.configuration, get_benchmark(job.configuration.benchmark)
    with _threads(engine["threads"]):
        key = job.seed, str(engine["device"])
        if key not in streams:
            streams[key] = _stream(job, engine["device"])
        stream = streams[key]
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
    learner.trainer.autocast = autocast_of(engine["precision"])
    if engine["device"] == "cuda":
        learner.psi.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as its convolutions like it
    return Replica(learner, stream, batch=configuration.batch, epochs=configuration.epochs)


def _train(
    replicas: Sequence[Replica], jobs: Sequence[Job], store: Store, engine: Engine, reports: Sequence[Report]
) -> str:
    """Train what is left, reporting progress, with checkpoints at a task's end, at most one every so many seconds.

    Gives the engine that was used in the end: what cannot be compiled or recorded is trained eagerly.
    """
    first = replicas[0]
    steps = [first.steps(position) for position in range(len(first.stream.train_rows))]
    last_checkpoint, last_report = time.monotonic(), 0.0

    def progress(step: int) -> None:
        nonlocal last_report
        if (now := time.monotonic()) - last_report >= REPORT_EVERY:
            last_report = now
            say(sum(steps[: first.position]) + step)

    def say(step: int) -> None:
        for replica, report in zip(replicas, reports, strict=True):
            report(
                {
                    "event": "step",
                    "task": min(first.position + 1, len(steps)),
                    "tasks": len(steps),
                    "step": step,
                    "steps": sum(steps),
                    "accuracy": replica.accuracy,
                }
            )

    def note(text: str) -> None:
        reports[0]({"event": "note", "text": text})

    cohort = Cohort(replicas, engine["engine"], note, engine["precision"])
    while not cohort.is_done:
        cohort.advance(progress)
        say(sum(steps[: first.position]))
        for replica, report in zip(replicas, reports, strict=True):
            if replica.diverged == replica.trained:  # found now
                report({"event": "note", "text": _divergence(replica)})
        if not cohort.is_done and time.monotonic() - last_checkpoint >= jobs[0].checkpoint_every:
            for replica, job, report in zip(replicas, jobs, reports, strict=True):
                _write_checkpoint(replica, job, checkpoint_path(job, store), engine, report)
            last_checkpoint = time.monotonic()
    if cohort.has_compiled:
        remember(_kind(jobs[0], len(jobs)))
    return cohort.engine


def _divergence(replica: Replica) -> str:
    when = f"after task {replica.diverged} of {replica.stream.num_tasks}"
    return f"weights are not finite {when}: the run has diverged; try a smaller lr"


def _write_checkpoint(replica: Replica, job: Job, checkpoint: Path, engine: Engine, report: Report) -> None:
    state = {
        "format": FORMAT,
        "code": code(),
        "engine": engine,
        "fresh": job.fresh,
        "replica": replica.state_dict(),
    }
    try:
        write_tensors(checkpoint, state)
    except OSError as error:  # a full disk is no reason to lose the run
        report({"event": "note", "text": f"no checkpoint could be written, going on without: {error}"})


def _record(job: Job, replica: Replica, engine: dict[str, Any]) -> Record:
    configuration = job.configuration
    environment = {
        **engine,
        **code(),
        "commit": commit(),
        "device_name": device_name(engine["device"]),
        "platform": platform.platform(),
    }
    diverged = {} if replica.diverged is None else {"diverged": replica.diverged}
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
        **diverged,
    }


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
