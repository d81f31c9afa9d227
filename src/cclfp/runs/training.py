"""From a cohort of jobs to records: replicas, new or continued from checkpoints, are trained, and records are kept."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from cclfp.core.files import remove_file
from cclfp.engine.cohort import Cohort, autocast_of, choose_engine
from cclfp.engine.groups import is_normalised
from cclfp.engine.replica import Replica, computing_threads
from cclfp.errors import DamagedError, InputError, named, reason_of, shortage
from cclfp.events import Event, Failed, Finished, Note, OnEvent, Step
from cclfp.learner import make
from cclfp.learner.saving import DAMAGED
from cclfp.metrics import number
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.checkpoints import checkpoint_path, hold, read_checkpoint, write_checkpoint
from cclfp.runs.code import code, commit, device_name
from cclfp.runs.jobs import Job
from cclfp.runs.record import Record, complete
from cclfp.runs.store import Store
from cclfp.streams import AUGMENTATION, Stream, get_benchmark

STEP_EVERY = 0.2  # seconds between two events about the progress of a run
Streams = dict[tuple[int, str], Stream]  # by seed and device: replicas of one seed share a stream
# A job whose execution is concrete, and its replica, at the beginning or as a checkpoint left it.
Started = tuple[Job, Replica]


def train_cohort(jobs: Sequence[Job], on_event: OnEvent, *, stores: bool = True) -> None:
    """Train jobs together and, if that fails, those that are not finished one by one, so that each fails for itself.

    Every run ends in a Finished or a Failed event; a run whose learner cannot be saved, in both. Records go into the
    jobs' store, unless another process ``stores`` those of Finished events.
    """
    finished: set[str] = set()

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            finished.add(event.key)
        on_event(event)

    try:
        train_together(jobs, listen, Store(jobs[0].execution.store) if stores else None)
        return
    except (Exception, SystemExit) as raised:  # noqa: BLE001  a user's method must not end the process; all is told
        exited = InputError(f"its code called sys.exit ({raised!r}), which a run must not do")
        error = raised if isinstance(raised, Exception) else exited
    if len(jobs) == 1:
        on_event(Failed(jobs[0].key, error))
        return
    on_event(Note(f"training together failed ({named(error)}): continuing one by one", jobs[0].key))
    for job in jobs:
        if job.key not in finished:
            train_cohort([job], on_event, stores=stores)


def train_together(jobs: Sequence[Job], on_event: OnEvent, store: Store | None) -> None:
    """Train and store the runs that are not stored already. They differ only in seed and hyperparameters.

    Runs that another process is training are waited for.
    """
    with contextlib.ExitStack() as locks:
        if store is not None:
            for job in sorted(jobs, key=lambda job: job.key):  # in the same order everywhere: no deadlock
                waiting = Note("another process is training this run: waiting for it", job.key)
                locks.enter_context(hold(checkpoint_path(job).with_suffix(".lock"), waiting, on_event))
            jobs = [job for job in jobs if not finish_stored(job, store, on_event)]
        for group in start(jobs, on_event):
            engine_used = _train(group, on_event)
            _keep(group, engine_used, store, on_event)


# -- start --------------------------------------------------------------------------------------------------------


def start(jobs: Sequence[Job], on_event: OnEvent) -> list[list[Started]]:
    """Make the jobs' replicas, new or continued; those that can be trained together are in one list.

    These are at the same position and have the same engine. With the eager engine each is alone.
    """
    streams: Streams = {}
    groups: dict[Any, list[Started]] = {}
    for wanted in jobs:
        job, replica = _continue(wanted, streams, on_event) or _begin(wanted, streams)
        alone = job.key if job.execution.engine == "eager" else None
        groups.setdefault((replica.position, job.execution, alone), []).append((job, replica))
    return list(groups.values())


def _begin(job: Job, streams: Streams) -> Started:
    job = job.concrete()
    replica = make_replica(job, streams)
    if job.execution.engine == "auto":
        steps = sum(map(replica.steps, range(len(replica.stream.train_rows))))
        normalised = is_normalised(replica.learner.psi)
        job = job.with_unchecked(engine=choose_engine(replica.learner.device.type, steps, normalised=normalised))
    return job, replica


def _continue(job: Job, streams: Streams, on_event: OnEvent) -> Started | None:
    """A job where its checkpoint left it; None where there is none that can be used."""
    checkpoint = checkpoint_path(job)
    if not checkpoint.exists():
        return None
    try:
        continued, state = read_checkpoint(checkpoint, job)
        replica = make_replica(continued, streams)
        try:
            replica.load_state_dict(state)
        except DAMAGED as error:  # of any kind: this code wrote it, for this configuration
            if shortage(error):
                raise
            raise DamagedError(f"it is not complete: {error!r}") from error
    except InputError as error:
        if isinstance(error.__cause__, OSError):  # it may be good, and readable later
            raise
        what = "cannot be used"
        if isinstance(error, DamagedError):
            kept = checkpoint.replace(checkpoint.with_suffix(".damaged"))  # in the place of an earlier one
            what = f"is damaged and kept as {kept}: delete it when you do not need it"
        on_event(Note(f"starting again, the checkpoint {what}: {error}", job.key))
        return None
    text = f"continuing from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
    on_event(Note(text, job.key))
    return continued, replica


def make_replica(job: Job, streams: Streams) -> Replica:
    """The replica of a concrete job at its beginning; its stream is added to ``streams``."""
    c, execution = job.configuration, job.execution
    with computing_threads(execution.threads):
        if (key := (job.seed, execution.device)) not in streams:
            streams[key] = _make_stream(job)
        stream = streams[key]
        hyper: dict[str, Any] = {**c.hyperparameters}
        backbone = c.backbone or parse_backbone(get_benchmark(c.benchmark).backbone)
        learner = make(
            c.kind,
            psi=make_psi(backbone, stream.train.x.shape[1:], job.seed),
            num_classes=c.max_classes or stream.num_classes,
            classes=get_benchmark(c.benchmark).classes,
            memory=c.buffer or 0,
            replay=c.replay or 1,
            seed=job.seed,
            scenario=c.scenario,
            tasks=stream.classes,
            transform=stream.transform,
            augment=AUGMENTATION if c.augment else None,
            device=execution.device,
            **hyper,
        )
    learner.autocast = autocast_of(execution.precision)
    if execution.device == "cuda":
        learner.psi.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
    return Replica(learner, stream, batch=c.batch, epochs=c.epochs)


def _make_stream(job: Job) -> Stream:
    c = job.configuration
    stream = get_benchmark(c.benchmark).stream(c.scenario, job.seed, c.class_order, sizes=c.tasks)
    stream = stream.validation(job.seed) if c.validation else stream
    stream = stream.to(torch.device(job.execution.device))
    return stream.joint() if c.kind.joint else stream


# -- train --------------------------------------------------------------------------------------------------------


def _train(group: Sequence[Started], on_event: OnEvent) -> str:
    """Train what is left of each run, with checkpoints at the ends of tasks.

    Returns the name of the engine that was used in the end: what cannot be traced or recorded is trained eagerly.
    """
    (job, first), replicas = group[0], [replica for _, replica in group]
    execution = job.execution
    steps = [first.steps(position) for position in range(len(first.stream.train_rows))]
    last_step, last_checkpoint = 0.0, time.monotonic()

    def tell(step: int, every: float = STEP_EVERY) -> None:
        """Tell how far the runs are after so many steps of their task, unless that was told just now."""
        nonlocal last_step
        if time.monotonic() - last_step < every:
            return
        last_step = time.monotonic()
        task, done = min(first.position + 1, len(steps)), sum(steps[: first.position]) + step
        for run, replica in group:
            on_event(Step(run.key, task, len(steps), done, sum(steps), replica.accuracy))

    with computing_threads(execution.threads):
        cohort = Cohort(replicas, execution.engine, lambda text: on_event(Note(text, job.key)), execution.precision)
        while not cohort.is_done:
            cohort.advance(tell)
            tell(0, every=0.0)
            for run, replica in group:
                if replica.diverged == replica.trained:  # found just now
                    when = f"after task {replica.diverged} of {replica.stream.num_tasks}"
                    text = f"weights are not finite {when}: the run has diverged; try a smaller lr"
                    on_event(Note(text, run.key))
            if not cohort.is_done and time.monotonic() - last_checkpoint >= execution.checkpoint_every:
                for run, replica in group:
                    write_checkpoint(run, replica, on_event)
                last_checkpoint = time.monotonic()
    return cohort.engine


# -- keep ---------------------------------------------------------------------------------------------------------


def finish_stored(job: Job, store: Store, on_event: OnEvent) -> bool:
    """Whether another process has finished the run in the meantime, in which case it is finished here too."""
    record = job.find_record(store)
    if record is not None:
        _finish(job, record, on_event)
    return record is not None


def keep_record(job: Job, record: Record, store: Store, on_event: OnEvent) -> None:
    """Finish a trained run with its record, or with the one that is stored already: that one stays."""
    old = store.find(job.key)
    kept = store.add(record, replace=old is not None and job.replaces(old))
    if kept is not record:
        ours, theirs = number(record["average_accuracy"]), number(kept["average_accuracy"])
        text = f"that one stays, with {theirs} %; trained now it has {ours} %"
        on_event(Note(f"the store has a record of this run already: {text}", job.key))
    _finish(job, kept, on_event)


def _finish(job: Job, stored: Record, on_event: OnEvent) -> None:
    remove_file(checkpoint_path(job))
    on_event(Finished(job.key, stored))


def _keep(group: Sequence[Started], engine_used: str, store: Store | None, on_event: OnEvent) -> None:
    """Save the learners of trained runs if asked, and keep their records.

    The learner comes first: whenever this is killed, a stored record is of the training that its learner is of. If the
    learner cannot be saved, the record is not lost.
    """
    for job, replica in group:
        failed = None
        try:
            if job.learner_file is not None:
                job.has_learner(to_replace=True)  # somebody may have taught that of a killed run in the meantime
                replica.learner.save(job.learner_file, force=job.execution.force)
        except (OSError, InputError) as error:
            text = f"the run is stored, but its learner cannot be saved as {job.learner_file}: {reason_of(error)}"
            failed = Failed(job.key, InputError(text))
        record = make_record(job, replica, {"engine": engine_used, "together": len(group)})
        if store is None:
            on_event(Finished(job.key, record))
        else:
            keep_record(job, record, store, on_event)
        if failed is not None:
            on_event(failed)


def make_record(job: Job, replica: Replica, used: dict[str, Any]) -> Record:
    """The record of a trained run. Where runs were trained together, the seconds of each are its share."""
    c, device = job.configuration, device_name(job.execution.device)
    made = {**code(c.to_dict()), "commit": commit(), "device_name": device, "platform": platform.platform()}
    found = {
        "seed": job.seed,
        "accuracy_matrix": replica.matrix,
        "train_seconds": replica.train_seconds,
        "test_seconds": replica.test_seconds,
        "environment": {**job.execution.made_with, **used, **made},
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "diverged": replica.diverged,
        "confusion": None if c.validation else replica.confusion,
    }
    return complete(c, found)
