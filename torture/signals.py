"""Signals that ask a command to stop, and outputs that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from torture.campaign import Case, Fault, Kind, Verdict
from torture.commands import Command, no_temporaries, run_real, wait_for_orphans
from torture.kills import WORKLOADS, Workload, finish, kind_of, start
from torture.material import copy, put_mnist, put_store

READY = 0.3  # seconds after which a command has installed its signal handlers
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def run(work: Workload, case: Case) -> Verdict:
    """Send a signal once or twice: the command ends with 128 + n and a message, leaves no process, and can resume."""
    place, expected = start(case)
    number, twice = case.random.choice(STOP_SIGNALS), case.random.random() < 0.3
    cores = case.random.choice(work.cores)
    moment = case.random.uniform(0, expected["seconds"][str(cores)])
    command = Command(work.arguments, place, cores=cores)
    time.sleep(moment)
    was_running = not command.poll()
    for _ in range(2 if twice else 1):
        if not command.poll():
            os.kill(command.pid, number)
        time.sleep(case.random.uniform(0, 0.2) if twice else 0)
    ended = command.wait()
    if was_running:
        case.tries[f"{number.name}{', twice' if twice else ''}"] += 1
        silent = ended.code == -number and moment > READY and not twice
        silent |= ended.code == 128 + number and moment > READY and "stopped" not in ended.text
        if silent or ended.code not in (0, 128 + number, -number):
            raise Fault(Verdict.TRACEBACK, f"{number.name} after {moment:.2f} s ends it with {ended.last}")
    wait_for_orphans()
    if not twice and moment > READY:
        no_temporaries(place)
    finish(work, place, expected)
    return Verdict.SURVIVED


# -- outputs --------------------------------------------------------------------------------------------------------

PRINTING = (
    "runs --store runs.sqlite",
    "runs --json --store runs.sqlite",
    "list methods",
    "show ccl-fp+",
    "--help",
    "runs export out.jsonl --store runs.sqlite",
    "run finetune split-mnist --seeds 1 --engine eager --store other.sqlite",
)
OUTPUTS = [(arguments, output) for output in ("a full device", "a closed pipe") for arguments in PRINTING]
COUNT = len(OUTPUTS)


def prepare_outputs(material: Path) -> None:
    put_store(material / "before", step=20)
    put_mnist(material / "before")


def run_output(case: Case) -> Verdict:
    """Run a command whose standard output cannot be written."""
    arguments, output = OUTPUTS[case.number % len(OUTPUTS)]
    case.tries[f"stdout to {output}"] += 1
    place = copy(case.material / "before", case.folder / "place")
    options: dict[str, Any] = {"stderr": subprocess.PIPE}
    if output == "a full device":
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            ended = run_real(arguments, place, {}, stdout=full, **options)
        if ended.code == 0:
            raise Fault(Verdict.LOST, f"cclfp {arguments} > /dev/full printed nothing and ended with 0")
        return Verdict.REFUSED
    reader, writer = os.pipe()
    os.close(reader)
    ended = run_real(arguments, place, {}, stdout=writer, **options)
    os.close(writer)
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


_SHORT = ("eager training", "import of images")
_LONG = ("training by workers", "report", "tune")
KINDS = [
    *(kind_of("signals", WORKLOADS[name], run, share=0.7, minimum=8) for name in _SHORT),
    *(kind_of("signals", WORKLOADS[name], run, share=0.7, minimum=8, quick=0) for name in _LONG),
    Kind("signals", "outputs", run_output, prepare_outputs, share=0.5, minimum=COUNT, quick=2, most=COUNT),
]
