"""From jobs to replicas that are ready to train: new ones, or continued from checkpoints, with an engine for each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy
import torch

from cclfp.core.userfiles import imported_by
from cclfp.engine.cohort import autocast_of, choose_engine, computing_in
from cclfp.engine.programs import Kind
from cclfp.engine.replica import Replica, computing_threads
from cclfp.errors import DamagedError, InputError, shortage
from cclfp.events import Note, OnEvent, ignore
from cclfp.learner import make
from cclfp.learner.saving import DAMAGED
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.checkpoints import checkpoint_path, put_aside, read_checkpoint, remove_checkpoint
from cclfp.runs.code import code
from cclfp.runs.configuration import Configuration
from cclfp.runs.jobs import Job, into_cohorts
from cclfp.runs.record import Record
from cclfp.streams import AUGMENTATION, Stream, get_benchmark

KNOWN_PACKAGES = sys.stdlib_module_names | {"cclfp", "numpy", "torch"}  # whose versions are part of a kind

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
    except DamagedError as error:
        kept = put_aside(checkpoint)
        text = f"starting again, the checkpoint is damaged and kept for inspection as {kept.name}: {error}"
        on_event(Note(text, job.key))
    except InputError as error:
        if isinstance(error.__cause__, OSError):  # it may be good, and readable later
            raise
        on_event(Note(f"starting again, the checkpoint cannot be used: {error}", job.key))
        remove_checkpoint(job, ignore)
    else:
        text = f"continuing from the checkpoint after task {replica.position} of {replica.stream.num_tasks}"
        on_event(Note(text, job.key))
        return Started(continued, replica)
    return None


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


# -- the choice of an engine --------------------------------------------------------------------------------------


def choose_engines(
    jobs: Sequence[Job], stored: Iterable[Record], workers: int, device: str, on_event: OnEvent
) -> list[Job]:
    """The jobs of a command, each with an engine, which is one for all runs that differ in the seed alone.

    Where the execution leaves it open, it is the engine of the ``stored`` runs, if there are any on this device and
    they agree; otherwise that of a checkpoint; otherwise the fastest.
    """
    made: dict[str, set[str]] = {}
    for record in stored:
        if (environment := record["environment"]).get("device") == device and "engine" in environment:
            made.setdefault(Configuration.from_dict(record["configuration"]).key(0), set()).add(environment["engine"])
    for number, job in enumerate(jobs := list(jobs)):
        if job.is_open and len(engines := made.get(job.configuration.key(0), set())) == 1:
            jobs[number] = dataclasses.replace(job, engine=next(iter(engines)))
    chosen: dict[str, str] = {}
    for cohort in into_cohorts(jobs, workers, device):
        if cohort[0].is_open and cohort[0].group not in chosen:
            several = [job for job in jobs if job.group == cohort[0].group]
            chosen[cohort[0].group] = _engine_of_checkpoint(several) or _fastest(cohort, device, on_event)
    return [dataclasses.replace(job, engine=chosen.get(job.group, job.engine)) for job in jobs]


def _engine_of_checkpoint(jobs: Sequence[Job]) -> str | None:
    for job in jobs:
        with contextlib.suppress(InputError):
            if (path := checkpoint_path(job)).exists():
                return read_checkpoint(path, job)[0].execution.engine
    return None


def _fastest(cohort: Sequence[Job], device: str, on_event: OnEvent) -> str:
    """The engine that trains a cohort first, compilation included: a few steps of the first job tell."""
    if device == "cuda" and not torch.cuda.is_available():  # the GPUs are those of a cluster
        return "graph"
    job = cohort[0].with_made(device=device).concrete()
    with computing_threads(job.execution.threads), computing_in(job.execution.precision):
        probe = make_replica(job, {})
        name, seconds = choose_engine(probe, len(cohort), kind_of_programs(job, len(cohort)))
    time = "less than a second" if seconds < 1 else f"about {seconds:.0f} s"
    on_event(Note(f"engine: {name} (eager would take {time})", job.key))
    return name


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
