"""SIGKILL at random moments: the same command, run again, ends with what an undisturbed one gives."""

from __future__ import annotations

import dataclasses
import functools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cclfp.engine.compiled
from torture.campaign import Case, Fault, Kind, Verdict, descendants, kill_all
from torture.commands import (
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
from torture.material import copy, put_images, put_mnist, put_records, put_store


@dataclasses.dataclass(frozen=True)
class Work:
    """A command that is killed, and what it needs."""

    name: str
    arguments: str
    put: Callable[[Path], None]
    before: Callable[[], object] | None = None
    cores: int = 1
    is_close: bool = False
    share: float = 1.0
    minimum: int = 15
    quick: int = 1


def _compile_sooner() -> None:
    cclfp.engine.compiled.WORTH = 10  # steps that pay for a program; tiny runs have few


RUN = "run er,ccl-fp+ split-mnist --seeds 2 --checkpoint-every 0 --store runs.sqlite --save learners"
_ALL = (
    Work("eager training", f"{RUN} --engine eager", put_mnist, share=3, minimum=40, quick=2),
    Work(
        "compiled training",
        "run er split-mnist --seeds 3 --checkpoint-every 0 --store runs.sqlite --save learners --engine compiled",
        put_mnist,
        before=_compile_sooner,
        is_close=True,
        share=4,
        quick=0,
    ),
    Work("training by workers", f"{RUN} --engine eager", put_mnist, cores=2, share=4),
    Work("export", "export runs.jsonl --store runs.sqlite", put_store),
    Work("import-runs", "import-runs records.jsonl --store runs.sqlite", put_records),
    Work("report", "report --out report --store runs.sqlite", put_store, share=2, quick=0),
    Work(
        "import of images",
        "run finetune --images photos --tasks 3 --backbone mlp --image-size 8 --engine eager --seeds 1 "
        "--store runs.sqlite",
        put_images,
    ),
    Work(
        "tune",
        "tune er split-mnist --seeds 1 --engine eager --write presets.json --store runs.sqlite",
        put_mnist,
        quick=0,
    ),
    Work(
        "study",
        "study accuracy --benchmark split-mnist --method er,finetune --seeds 1 --engine eager --store runs.sqlite",
        put_mnist,
        quick=0,
    ),
)

WORKS = {work.name: work for work in _ALL}


def prepare(work: Work, material: Path) -> None:
    """The place as it is before, and what the command makes of it, undisturbed."""
    work.put(material / "before")
    for name in ("warm", "after") if work.is_close else ("after",):  # the first fills the compiler's cache
        place = copy(material / "before", material / name)

        def count(place: Path = place) -> None:
            if work.before is not None:
                work.before()
            count_operations(place, material / f"{place.name}.operations")

        began = time.monotonic()
        ended = Command(work.arguments, place, cores=work.cores, before=count).wait()
        if ended.code:
            raise Fault(Verdict.TRACEBACK, ended.last)
    expected = {
        "seconds": time.monotonic() - began,
        "operations": (material / "after.operations").stat().st_size,
        "contents": contents(material / "after"),
    }
    (material / "expected.json").write_text(json.dumps(expected))


def run(work: Work, case: Case) -> Verdict:
    """Kill the command a few times, then let it finish."""
    place, expected = start(case)
    finished: dict[str, Any] = {}
    for _ in range(case.random.randint(1, 2 if case.quick else 5)):
        command = _kill_once(work, case, place, expected)
        assert command.ended is not None
        if TRACEBACK in command.ended.text:
            raise Fault(Verdict.TRACEBACK, command.ended.last)
        wait_for_orphans()
        now = results(place / "runs.sqlite")
        if lost := [key for key, result in finished.items() if now.get(key) != result]:
            raise Fault(Verdict.LOST, f"the record of {lost} was there before the command was killed")
        finished = now
        if command.ended.code == 0:
            break  # it was faster
    finish(work, place, expected)
    return Verdict.SURVIVED


def finish(work: Work, place: Path, expected: dict[str, Any]) -> None:
    """Run the command again, undisturbed: there must be then what there always is."""
    ended = Command(work.arguments, place, cores=work.cores, before=work.before).wait()
    if ended.code:
        raise Fault(Verdict.LOST, f"run again, the command fails with {ended.last}")
    compare(expected["contents"], contents(place), is_close=work.is_close)


def start(case: Case) -> tuple[Path, dict[str, Any]]:
    """A place for the command, and what it makes of it."""
    expected: dict[str, Any] = json.loads((case.material / "expected.json").read_text())
    return copy(case.material / "before", case.folder / "place"), expected


def _kill_once(work: Work, case: Case, place: Path, expected: dict[str, Any]) -> Command:
    """Start the command and kill it, or a process of its, at a random moment."""
    random = case.random
    if work.cores == 1 and random.random() < 0.6:
        number = random.randint(1, expected["operations"])
        delay = random.choice([0.0, random.uniform(0, 0.003)])

        def before() -> None:
            if work.before is not None:
                work.before()
            at_operation(place, number, functools.partial(kill_itself, delay))

        command = Command(work.arguments, place, before=before)
        command.wait()
        if command.ended is not None and command.ended.code == -signal.SIGKILL:
            case.tries["at a file operation"] += 1
        return command
    target = random.choice(["parent", "worker", "group"]) if work.cores > 1 else "parent"
    moment = random.uniform(0, 0.8 * expected["seconds"])  # the end is a matter of file operations
    command = Command(work.arguments, place, cores=work.cores, before=work.before)
    time.sleep(moment)
    below = descendants(command.pid)
    victims = {"parent": [command.pid], "group": [*below, command.pid]}.get(target) or below[:1] or [command.pid]
    was_running = not command.poll()
    kill_all(victims)
    command.wait()
    if was_running:
        is_worker = target == "worker" and below
        case.tries[f"{'worker' if is_worker else 'group' if target == 'group' else 'parent'} at a moment"] += 1
    return command


def kind_of(group: str, work: Work, run: Callable[[Work, Case], Verdict], **more: Any) -> Kind:
    """A kind of fault that a command suffers."""
    steps = {"run": functools.partial(run, work), "prepare": functools.partial(prepare, work), "material": work.name}
    return Kind(group, work.name, **{"limit": 300.0, **steps, **more})


KINDS = [
    kind_of("kills", work, run, share=work.share, minimum=work.minimum, quick=work.quick) for work in WORKS.values()
]
