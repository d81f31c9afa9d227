"""From jobs to replicas that are ready to train: new ones, or continued from checkpoints, with an engine for each."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from cclfp.core.userfiles import imported_by
from cclfp.engine.cohort import autocast_of, choose_engine, computing_in
from cclfp.engine.programs import Kind
from cclfp.engine.replica import Replica, computing_threads
from cclfp.errors import DamagedError, InputError, shortage
from cclfp.events import Note, OnEvent
from cclfp.learner import make
from cclfp.learner.saving import DAMAGED
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.checkpoints import checkpoint_path, put_aside, read_checkpoint, remove_checkpoint
from cclfp.runs.code import code
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.streams import AUGMENTATION, Stream, get_benchmark

KNOWN_PACKAGES = sys.stdlib_module_names | {"cclfp", "numpy", "torch"}  # whose versions are part of a kind

Streams = dict[tuple[int, str], Stream]  # by seed and device: replicas of one seed share a stream


@dataclasses.dataclass(frozen=True)
class Started:
    """A job with its replica, at its beginning or where its checkpoint left it."""

    job: Job
    replica: Replica
    execution: Execution  # with a device, a precision and an engine


def start(jobs: Sequence[Job], on_event: OnEvent) -> list[list[Started]]:
    """Make the jobs' replicas and choose their engines; those that can be trained together are in one list."""
    streams: Streams = {}
    started = [_start(job, checkpoint_path(job), streams, on_event) for job in jobs]
    return _group(_choose_engine(started, streams, on_event))


def _start(job: Job, checkpoint: Path, streams: Streams, on_event: OnEvent) -> Started:
    if checkpoint.exists():
        try:
            return _continue(job, checkpoint, streams, on_event)
        except DamagedError as error:
            kept = put_aside(checkpoint)
            text = f"starting again, the checkpoint is damaged and kept for inspection as {kept.name}: {error}"
            on_event(Note(text, job.key))
        except InputError as error:
            if isinstance(error.__cause__, OSError):  # it may be good, and readable later
                raise
            on_event(Note(f"starting again, the checkpoint cannot be used: {error}", job.key))
            remove_checkpoint(job, on_event)
    execution = job.execution.concrete()
    return Started(job, make_replica(job, execution, streams), execution)


def _continue(job: Job, checkpoint: Path, streams: Streams, on_event: OnEvent) -> Started:
    execution, state = read_checkpoint(checkpoint, job)
    replica = make_replica(job, execution, streams)
    try:
        replica.load_state_dict(state)
    except DAMAGED as error:  # of any kind: this code wrote it, for this configuration
        if shortage(error):
            raise
        raise DamagedError(str(error) if isinstance(error, InputError) else f"it is not complete: {error!r}") from error
    text = f"continuing from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
    on_event(Note(text, job.key))
    return Started(job, replica, execution)


def _group(started: Sequence[Started]) -> list[list[Started]]:
    """Runs that can continue together: at the same position, with the same engine; each alone where that is eager."""
    groups: dict[Any, list[Started]] = {}
    for one in started:
        alone = one.job.key if one.execution.engine == "eager" else None
        groups.setdefault((one.replica.position, one.execution, alone), []).append(one)
    return list(groups.values())


# -- replicas -----------------------------------------------------------------------------------------------------


def make_replica(job: Job, execution: Execution, streams: Streams) -> Replica:
    """The replica of a job at its beginning; its stream is added to ``streams``."""
    c = job.configuration
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


# -- the choice of an engine --------------------------------------------------------------------------------------


def _choose_engine(started: Sequence[Started], streams: Streams, on_event: OnEvent) -> list[Started]:
    """Choose one engine for all runs that leave it open."""
    undecided = [one for one in started if one.execution.engine == "auto"]
    if not undecided:
        return list(started)
    first = undecided[0]
    with computing_threads(first.execution.threads), computing_in(first.execution.precision):
        probe = make_replica(first.job, first.execution, streams)
        name, seconds = choose_engine(probe, len(undecided), kind_of_programs(first.job, len(undecided)))
    on_event(Note(f"engine: {name} (eager would take about {seconds:.0f} s)", first.job.key))
    return [
        one
        if one.execution.engine != "auto"
        else dataclasses.replace(one, execution=one.execution.with_made(engine=name))
        for one in started
    ]


def kind_of_programs(job: Job, replicas: int) -> Kind | None:
    """What the compiled programs of a cohort depend on; None where its code is not fully known.

    A user's file counts by its content. What it imports could change without notice, unless it comes with Python, torch
    or this package.
    """
    c = job.configuration
    own = [part for part in (c.method_file, c.backbone) if part is not None and "file" in part]
    if any(imported_by(reference) - KNOWN_PACKAGES for reference in own):
        return None
    versions = [platform.python_version(), numpy.__version__, code(c.to_dict())]
    return Kind(json.dumps([c.shape, replicas, *versions], sort_keys=True), is_own=bool(own))
