"""From jobs to replicas that are ready to train: new ones, or continued from checkpoints, with an engine for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from cclfp.engine.cohort import autocast_of, choose_engine
from cclfp.engine.replica import Replica, computing_threads
from cclfp.errors import DamagedError, InputError, shortage
from cclfp.events import Note, OnEvent
from cclfp.learner import make
from cclfp.learner.saving import DAMAGED
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.checkpoints import checkpoint_path, put_aside, read_checkpoint
from cclfp.runs.jobs import Job
from cclfp.streams import AUGMENTATION, Stream, get_benchmark

Streams = dict[tuple[int, str], Stream]  # by seed and device: replicas of one seed share a stream


class Started(NamedTuple):
    """A job and its replica, at the beginning or as a checkpoint left it; the execution is :meth:`concrete`."""

    job: Job
    replica: Replica


def start(jobs: Sequence[Job], on_event: OnEvent) -> list[list[Started]]:
    """Make the jobs' replicas, new or continued; those that can be trained together are in one list.

    These are at the same position and have the same engine. With the eager engine each is alone.
    """
    streams: Streams = {}
    groups: dict[Any, list[Started]] = {}
    for job in jobs:
        if (one := _continue(job, streams, on_event)) is None:
            new = job.concrete()
            one = Started(new, make_replica(new, streams))
        if one.job.execution.engine == "auto":
            one = Started(one.job.with_execution(engine=choose_engine(one.replica)), one.replica)
        execution = one.job.execution
        alone = job.key if execution.engine == "eager" else None
        groups.setdefault((one.replica.position, execution, alone), []).append(one)
    return list(groups.values())


def _continue(job: Job, streams: Streams, on_event: OnEvent) -> Started | None:
    """A job where its checkpoint left it; None where there is none that can be used."""
    checkpoint = checkpoint_path(job)
    if not checkpoint.exists():
        return None
    try:
        continued, state = read_checkpoint(checkpoint, job)
        replica = make_replica(continued, streams)
        _load(replica, state)
    except InputError as error:
        if isinstance(error.__cause__, OSError):  # it may be good, and readable later
            raise
        what = "cannot be used"
        if isinstance(error, DamagedError):
            what = f"is damaged and kept as {put_aside(checkpoint)}: delete it when you do not need it"
        on_event(Note(f"starting again, the checkpoint {what}: {error}", job.key))
        return None
    text = f"continuing from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
    on_event(Note(text, job.key))
    return Started(continued, replica)


def _load(replica: Replica, state: Any) -> None:
    try:
        replica.load_state_dict(state)
    except DAMAGED as error:  # of any kind: this code wrote it, for this configuration
        if shortage(error):
            raise
        raise DamagedError(f"it is not complete: {error!r}") from error


# -- replicas -----------------------------------------------------------------------------------------------------


def make_replica(job: Job, streams: Streams) -> Replica:
    """The replica of a concrete job at its beginning; its stream is added to ``streams``."""
    c, execution = job.configuration, job.execution
    with computing_threads(execution.threads):
        key = job.seed, execution.device
        if key not in streams:
            streams[key] = _make_stream(job, execution.device)
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


def _make_stream(job: Job, device: str) -> Stream:
    c = job.configuration
    stream = get_benchmark(c.benchmark).stream(c.scenario, job.seed, c.class_order, sizes=c.tasks)
    stream = stream.validation(job.seed) if c.validation else stream
    stream = stream.to(torch.device(device))
    return stream.joint() if c.kind.joint else stream
