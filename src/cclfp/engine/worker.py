"""A worker process: takes jobs as JSON lines on stdin, answers with events as JSON lines on stdout.

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

from cclfp.engine.job import Job, do
from cclfp.errors import InputError


def main() -> None:
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints does not disturb the events

    def listen() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        os._exit(0)

    def report(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        job = Job.from_dict(jobs.get())
        try:
            report({"event": "done", "record": do(job, report)})
        except InputError as error:
            report({"event": "failed", "error": str(error), "input": True})
        except Exception:  # noqa: BLE001  the parent tells the user, with the traceback
            report({"event": "failed", "error": traceback.format_exc(), "input": False})
