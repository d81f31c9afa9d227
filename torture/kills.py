"""SIGKILL at random times, and faults at operations on files: the same command, run again, gives an undisturbed result.

Of a small run with a store, a checkpoint and a learner's file, every operation on files fails once and is once the last
one before SIGKILL, as SQLite is tested by its authors.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.campaign import Case, Fault, Kind, Verdict, descendants, kill_all
from torture.commands import (
    TIMEOUT,
    TRACEBACK,
    Command,
    at_operation,
    compare,
    contents,
    count_operations,
    kill_itself,
    results,
    wait_for_orphans,
)
from torture.material import (
    accept_raw_mnist,
    copy,
    put_canaries,
    put_images,
    put_mnist,
    put_raw_mnist,
    put_records,
    put_store,
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A command to disturb, and what it needs."""

    name: str
    arguments: str
    put: Callable[[Path], None]  # creates the files that the command needs
    before: Callable[[], object] | None = None  # called in the command's process first
    cores: tuple[int, ...] = (1,)  # numbers of cores; each time one of them is used
    has_children: bool = False  # even on one core
    share: float = 1.0
    minimum: int = 15
    quick: int = 1


RUN = "run er,ccl-fp+ split-mnist --seeds 2 --checkpoint-every 0 --store runs.sqlite --save learners"
TRACED = "run er split-mnist batch=2 lr=0.02 --engine traced --checkpoint-every 0 --store runs.sqlite --save learners"
_ALL = (
    Workload("eager training", f"{RUN} --engine eager", put_mnist, share=3, minimum=40, quick=2),
    Workload("traced training", f"{TRACED} --seeds 3", put_mnist, share=4, minimum=12, quick=0),
    Workload("traced training by workers", f"{TRACED} --seeds 4", put_mnist, cores=(2,), share=2, minimum=4, quick=0),
    Workload("training by workers", f"{RUN} --engine eager", put_mnist, cores=(2,), share=4, quick=3),
    Workload("export", "runs export runs.jsonl --store runs.sqlite", put_store, minimum=25),
    Workload("import", "runs import records.jsonl --store runs.sqlite", put_records, minimum=25),
    Workload("report", "report --out report --store runs.sqlite", put_store, share=2, quick=0),
    Workload(
        "import of images",
        "run finetune --images photos --tasks 3 --backbone mlp --image-size 8 --engine eager --seeds 1 "
        "--store runs.sqlite",
        put_images,
        has_children=True,
        minimum=20,
    ),
    Workload("import of a dataset", "data import mnist raw", put_raw_mnist, before=accept_raw_mnist, minimum=25),
    Workload(
        "tune",
        "tune er split-mnist --seeds 1 --engine eager --write presets.json --store runs.sqlite",
        put_mnist,
        cores=(1, 2),
        quick=0,
    ),
    Workload(
        "study",
        "study accuracy --benchmark split-mnist --method er,finetune --seeds 1 --engine eager --store runs.sqlite",
        put_mnist,
        cores=(1, 2),
        quick=0,
    ),
)

WORKLOADS = {work.name: work for work in _ALL}
TRAIN = "run er split-mnist --seeds 1 --tasks 3 --backbone mlp:width=8 --engine eager --checkpoint-every 0"
SMALL = (
    Workload("a run", f"{TRAIN} --store runs.sqlite --save learners --checkpoints .", put_mnist),
    WORKLOADS["export"],
    WORKLOADS["import"],
)
PARTS = 20  # a case has every 20th operation, so that cases run side by side


def prepare(work: Workload, material: Path) -> None:
    """Create the folder before the command, and the expected one after it; time it with each number of cores."""
    work.put(material / "before")
    put_canaries(material / "before")
    seconds: dict[str, float] = {}
    for cores in reversed(work.cores):
        place = material / "after"
        shutil.rmtree(place, ignore_errors=True)
        copy(material / "before", place)
        counted = material / f"operations-{len(seconds)}"

        def count(place: Path = place, counted: Path = counted) -> None:
            if work.before is not None:
                work.before()
            count_operations(place, counted)

        began = time.monotonic()
        ended = Command(work.arguments, place, cores=cores, before=count).wait(3 * TIMEOUT)  # all are prepared at once
        if ended.code:
            raise Fault(Verdict.TRACEBACK, ended.last)
        seconds[str(cores)] = time.monotonic() - began
    expected = {"seconds": seconds, "operations": counted.stat().st_size, "contents": contents(place)}
    (material / "expected.json").write_text(json.dumps(expected))


def run(work: Workload, case: Case) -> Verdict:
    """Kill the command several times, then let it finish."""
    place, expected = start(case)
    finished: dict[str, Any] = {}
    for _ in range(1 if case.quick else case.random.randint(1, 5)):
        command = _kill_once(work, case, place, expected)
        assert command.ended is not None
        if TRACEBACK in command.ended.text:
            raise Fault(Verdict.TRACEBACK, command.ended.last)
        wait_for_orphans()
        now = results(place / "runs.sqlite")
        kept = {key for key in finished.keys() & now.keys() if now[key] == finished[key]}
        if lost := sorted(finished.keys() - kept):
            raise Fault(Verdict.LOST, f"the record of {lost} was there before the command was killed")
        finished = now
        if command.ended.code == 0:
            break  # it finished before the kill
    finish(work, place, expected)
    return Verdict.SURVIVED


def finish(work: Workload, place: Path, expected: dict[str, Any]) -> None:
    """Run the command again, undisturbed: its results must be the expected ones."""
    ended = Command(work.arguments, place, cores=work.cores[0], before=work.before).wait()
    if ended.code:
        raise Fault(Verdict.LOST, f"the command fails when it is run again: {ended.last}")
    compare(expected["contents"], contents(place))


def start(case: Case) -> tuple[Path, dict[str, Any]]:
    """A folder for the command, and the expected results."""
    expected: dict[str, Any] = json.loads((case.material / "expected.json").read_text())
    return copy(case.material / "before", case.folder / "place"), expected


def _kill_once(work: Workload, case: Case, place: Path, expected: dict[str, Any]) -> Command:
    """Start the command and kill it, one of its processes or all of them, at a random time."""
    random, cores = case.random, case.random.choice(work.cores)
    if cores == 1 and random.random() < (0.4 if work.has_children else 0.6):
        return _kill_at_operation(work, case, place, expected["operations"])
    targets = ["parent", "worker", "group"] if cores > 1 or work.has_children else ["parent"]
    target = targets[case.number % len(targets)] if case.quick else random.choice(targets)
    share = 0.3 if case.quick else 0.8  # kills at file operations cover the end of a run
    seconds = share * expected["seconds"][str(cores)]
    moment = random.choice([random.uniform(0, seconds), random.uniform(0, 0.2)])
    command = Command(work.arguments, place, cores=cores, before=work.before)
    while target != "parent" and not command.poll() and not descendants(command.pid):
        time.sleep(0.002)
    time.sleep(moment)
    below = descendants(command.pid)
    victims = {"parent": [command.pid], "worker": random.sample(below, min(1, len(below)))}.get(target)
    was_running = not command.poll()
    kill_all([*below, command.pid] if victims is None else victims or [command.pid])
    command.wait()
    if was_running:
        case.tries[f"{target if below else 'parent'} at a random time"] += 1
    return command


def _kill_at_operation(work: Workload, case: Case, place: Path, operations: int) -> Command:
    """Start the command on one core and kill it at a random operation on files, or right after it."""
    number = case.random.randint(1, operations)
    delay = case.random.choice([0.0, case.random.uniform(0, 0.003)])
    command = _disturb(work, place, number, lambda event: kill_itself(delay))
    if command.ended is not None and command.ended.code == -signal.SIGKILL:
        case.tries["at a file operation"] += 1
    return command


def _disturb(work: Workload, place: Path, number: int, fault: Callable[[str], object]) -> Command:
    """Run the command on one core, with a fault at its n-th operation on files."""

    def before() -> None:
        if work.before is not None:
            work.before()
        at_operation(place, number, fault)

    command = Command(work.arguments, place, before=before)
    command.wait()
    return command


def _fail(code: int, event: str) -> None:
    raise OSError(code, os.strerror(code))


FAULTS: dict[str, Callable[[str], object]] = {
    "disk full": functools.partial(_fail, errno.ENOSPC),
    "device error": functools.partial(_fail, errno.EIO),
    "killed": lambda event: kill_itself(0),
}


def run_operations(work: Workload, case: Case) -> Verdict:
    """Disturb the command at every operation of this case, with every fault, and run it again each time."""
    _, expected = start(case)
    for number in range(1 + case.number % PARTS, expected["operations"] + 1, PARTS):
        for name, fault in FAULTS.items():
            one = Case(number, case.random, case.folder / f"{number} {name}", case.material)
            one.folder.mkdir()
            place, _ = start(one)
            _disturb(work, place, number, fault)
            wait_for_orphans()
            finish(work, place, expected)
            case.tries[name] += 1
    return Verdict.SURVIVED


def kind_of(group: str, work: Workload, run: Callable[[Workload, Case], Verdict], **more: Any) -> Kind:
    """A kind of fault that disturbs a command."""
    steps = {"run": functools.partial(run, work), "prepare": functools.partial(prepare, work), "material": work.name}
    return Kind(group, work.name, **{"limit": 600.0, **steps, **more})


OPERATIONS = {"minimum": PARTS, "most": PARTS}
KINDS = [
    *(
        kind_of("kills", work, run, share=work.share, minimum=work.minimum, quick=work.quick)
        for work in WORKLOADS.values()
    ),
    *(kind_of("operations", work, run_operations, quick=int(work.name == "a run"), **OPERATIONS) for work in SMALL),
]
