"""Checkpoints of unfinished runs, beside the store: one file per run, and a lock so that one process trains it.

A checkpoint is written at the end of a task. A run that continues from it ends with the same numbers as one that was
never stopped, which is why a checkpoint of other code, another device or another engine is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from cclfp.core.files import read_tensors, remove_file, remove_stale, write_tensors
from cclfp.engine.replica import Replica
from cclfp.errors import InputError, reason_of
from cclfp.events import Note, OnEvent, ignore
from cclfp.runs.code import code, in_words
from cclfp.runs.execution import MADE_WITH, pick_device
from cclfp.runs.jobs import Job

FORMAT = "cclfp checkpoint 1"
KEY = "[0-9a-f]{64}"  # of a run, with which the names of its files begin
LEARNER = r".+_seed\d+_[0-9a-f]{8}\.ckpt"  # as Job.learner_file names them
CLUSTER_LOCK = "cclfp-cluster.lock"  # in the folder of checkpoints, while a driver trains on a cluster with it


def checkpoint_path(job: Job) -> Path:
    return job.execution.checkpoint_folder / f"{job.key}.ckpt"


def write_checkpoint(job: Job, replica: Replica, on_event: OnEvent) -> None:
    """Write what a run needs to continue. A full disk is no reason to lose the run: it only gives a note."""
    state = {
        "format": FORMAT,
        "code": code(job.configuration.to_dict()),
        "engine": job.execution.made_with,
        "fresh": job.execution.fresh,
        "replica": replica.state_dict(),
    }
    try:
        write_tensors(checkpoint_path(job), state)
    except (OSError, InputError) as error:
        on_event(Note(f"no checkpoint could be written, continuing without one: {error}", job.key))


def read_checkpoint(path: Path, job: Job) -> tuple[Job, Any]:
    """The job as it was trained, and its replica's state. InputError: not for this job; DamagedError: for none."""
    saved = read_tensors(path, FORMAT)
    if job.execution.fresh and not saved["fresh"]:
        raise InputError("it is of a run that was not started with --fresh")
    if saved["code"] != (here := code(job.configuration.to_dict())):
        theirs, ours = in_words(saved["code"]), in_words(here)
        raise InputError(f"it was made with other training code or another torch: {theirs}; this is {ours}")
    for name in ("engine", "precision", "device"):
        made, asked = saved["engine"][name], str(getattr(job.execution, name)).partition(":")[0]  # cuda:0,2 is cuda
        if asked not in ("auto", made):
            raise InputError(f"it was made with {name} {made}, not with the {asked} asked for")
    job = job.with_unchecked(**{name: saved["engine"][name] for name in MADE_WITH})
    job.execution.check_on(pick_device(job.execution.device))
    return job, saved["replica"]


def remove_left_overs(folder: Path, learners: Path | None = None, stored: Iterable[str] = ()) -> None:
    """Remove what killed processes have left: half-written checkpoints and learners, locks, checkpoints of stored runs.

    The user may have chosen folders that have other files too, so only names count that no other program gives. What
    another process uses stays: it holds its lock.
    """
    remove_stale(folder, rf"{KEY}\.ckpt")
    if learners is not None:
        remove_stale(learners, LEARNER)
    finished = {f"{key}.ckpt" for key in stored}
    for path in folder.glob("*.*"):
        if path.name in finished or re.fullmatch(rf"{KEY}\.lock|{re.escape(CLUSTER_LOCK)}", path.name):
            with contextlib.suppress(InputError), hold(path.with_suffix(".lock")) as is_held:
                if is_held and path.name in finished:
                    remove_file(path)


@contextlib.contextmanager
def hold(path: Path, waiting: Note | None = None, on_event: OnEvent = ignore) -> Iterator[bool]:
    """Hold a lock. Where another process has it, say so and wait for it; without such a note, go on and yield False.

    In the end the lock's file is removed while it is held. A process that opened it before and locks it afterwards
    finds that it has no name any more, and tries again with a new one (filelock does so since 3.21). So two processes
    never hold locks of the same name together.
    """
    lock = FileLock(path)
    try:
        _acquire(lock, blocking=False)
        if waiting is not None and not lock.is_locked:
            on_event(waiting)
            _acquire(lock, blocking=True)
        yield lock.is_locked
    finally:
        if lock.is_locked:
            remove_file(path)
            lock.release(force=True)


def _acquire(lock: BaseFileLock, blocking: bool) -> None:
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=blocking)
    except OSError as error:
        raise InputError(f"no lock can be kept at {error.filename or lock.lock_file}: {reason_of(error)}") from error
