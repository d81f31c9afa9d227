"""Eight processes with one store: every run is stored once, and no record is lost."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from torture.campaign import Case, Fault, Kind, Verdict
from torture.commands import Command, compare_runs, results
from torture.material import copy, put_mnist, record_lines

FIRST = "run finetune,er split-mnist --seeds 1000,1001 --engine eager --checkpoint-every 0 --store runs.sqlite"
SECOND = "run er split-mnist --seeds 1001,1002 --engine eager --checkpoint-every 0 --store runs.sqlite"
WRITERS = (
    FIRST,
    FIRST,
    SECOND,
    SECOND,
    "runs import a.jsonl --store runs.sqlite",
    "runs import a.jsonl b.jsonl --store runs.sqlite",
    "runs import b.jsonl --store runs.sqlite",
    "runs --json --store runs.sqlite",
)
SLOWDOWN = 3.0  # of each of eight commands on two cores, compared with one alone


def prepare(material: Path) -> None:
    put_mnist(material / "before")
    for name, lines in (("a", record_lines()[:40]), ("b", record_lines()[20:60])):
        (material / "before" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    place = copy(material / "before", material / "after")
    seconds: dict[str, float] = {}  # of the first time each command runs
    for arguments in WRITERS:
        began = time.monotonic()
        if (ended := Command(arguments, place).wait()).code:
            raise Fault(Verdict.TRACEBACK, ended.last)
        seconds.setdefault(arguments, time.monotonic() - began)
    expected = {"runs": results(place / "runs.sqlite"), "seconds": seconds}
    (material / "expected.json").write_text(json.dumps(expected))


def run(case: Case) -> Verdict:
    """Run all commands at once. In half of the cases one is killed while it runs, and started again."""
    expected = json.loads((case.material / "expected.json").read_text())
    place = copy(case.material / "before", case.folder / "place")
    order = case.random.sample(WRITERS, len(WRITERS))
    commands = [Command(arguments, place) for arguments in order]
    case.tries["writers"] += len(commands)
    if case.random.random() < 0.5:
        victim = case.random.choice(commands)
        time.sleep(case.random.uniform(0, SLOWDOWN * expected["seconds"][victim.arguments]))
        if not victim.poll():
            case.tries["killed and restarted"] += 1
            victim.kill()
        commands.append(Command(victim.arguments, place))
    for command in commands:
        ended = command.wait()
        if ended.code not in (0, -signal.SIGKILL):
            raise Fault(Verdict.LOST, f"cclfp {command.arguments} fails when others run too: {ended.last}")
    compare_runs("runs.sqlite", expected["runs"], results(place / "runs.sqlite"))
    return Verdict.SURVIVED


KINDS = [Kind("writers", "eight processes", run, prepare, share=1, minimum=5, limit=300)]
