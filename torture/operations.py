"""Every operation on files fails once, and is once the last one before SIGKILL, as SQLite is tested by its authors.

A small run has a store, a checkpoint and a learner's file. Its n-th open, write, fsync, rename or removal fails, for
every n; then the same command must succeed with the same results.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

from torture.campaign import Case, Kind, Verdict
from torture.commands import Command, at_operation, kill_itself, wait_for_orphans
from torture.kills import Workload, finish, prepare, start
from torture.material import put_mnist, put_records, put_store

PARTS = 20  # a case has every 20th operation, so that cases run side by side
TRAIN = "run er split-mnist --seeds 1 --tasks 3 --backbone mlp:width=8 --engine eager --checkpoint-every 0"
WORKLOADS = (
    Workload("a run", f"{TRAIN} --store runs.sqlite --save learners --checkpoints .", put_mnist),
    Workload("export", "runs export runs.jsonl --store runs.sqlite", put_store),
    Workload("import", "runs import records.jsonl --store runs.sqlite", put_records),
)


def fail(code: int, event: str) -> None:
    raise OSError(code, os.strerror(code))


def kill(event: str) -> None:
    kill_itself(0)


FAULTS: dict[str, Callable[[str], None]] = {
    "disk full": functools.partial(fail, errno.ENOSPC),
    "device error": functools.partial(fail, errno.EIO),
    "killed": kill,
}


def run(work: Workload, case: Case) -> Verdict:
    """Disturb the command at every operation of this case, with every fault, and run it again each time."""
    _, expected = start(case)
    for number in range(1 + case.number % PARTS, expected["operations"] + 1, PARTS):
        for name in FAULTS:
            one = Case(number, case.random, case.folder / f"{number} {name}", case.material)
            one.folder.mkdir()
            place, _ = start(one)
            Command(work.arguments, place, before=functools.partial(_disturb, place, number, name)).wait()
            wait_for_orphans()
            finish(work, place, expected)
            case.tries[name] += 1
    return Verdict.SURVIVED


def _disturb(place: Path, number: int, name: str) -> None:
    at_operation(place, number, FAULTS[name])


KINDS = [
    Kind(
        "operations",
        work.name,
        functools.partial(run, work),
        functools.partial(prepare, work),
        minimum=PARTS,
        most=PARTS,
        quick=int(work.name == "a run"),
        limit=600.0,
    )
    for work in WORKLOADS
]
