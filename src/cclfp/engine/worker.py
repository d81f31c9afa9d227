"""A worker process: takes cohorts of jobs as JSON lines on stdin, answers with events as JSON lines on stdout.

A subprocess, not multiprocessing, so that a user's script needs no ``if __name__ == "__main__"``. When stdin closes,
because the parent is done or was killed, the worker ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any

from cclfp.engine.job import Job, do_cohort
from cclfp.errors import InputError


def main() -> None:
    jobs: queue.Queue[list[dict[str, Any]]] = queue.Queue()
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints does not disturb the events

    def listen() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        os._exit(0)

    def report(number: int, event: dict[str, Any]) -> None:
        events.write(json.dumps({"job": number, **event}) + "\n")
        events.flush()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        cohort = [Job.from_dict(values) for values in jobs.get()]
        for number, error in do_cohort(cohort, report).items():
            known = isinstance(error, InputError)
            text = str(error) if known else "".join(traceback.format_exception(error))
            report(number, {"event": "failed", "error": text, "input": known})
        report(0, {"event": "idle"})
