"""Signals that ask a command to stop."""

from __future__ import annotations

import os
import signal
import time

from torture.campaign import Case, Fault, Verdict
from torture.commands import Command, no_temporaries, wait_for_orphans
from torture.kills import WORKLOADS, Workload, finish, kind_of, start

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


_SHORT = ("eager training", "import of images")
_LONG = ("training by workers", "report", "tune")
KINDS = [
    *(kind_of("signals", WORKLOADS[name], run, share=0.7, minimum=8) for name in _SHORT),
    *(kind_of("signals", WORKLOADS[name], run, share=0.7, minimum=8, quick=0) for name in _LONG),
]
