"""A worker process: takes cohorts of jobs as JSON lines on stdin, answers with events as JSON lines on stdout.

A subprocess, not multiprocessing, so that a user's script needs no ``if __name__ == "__main__"``. When the parent is
gone the worker ends at once, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from cclfp.core.orphans import end_now, end_with_parent
from cclfp.errors import InputError, shortage


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    end_with_parent()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints does not disturb the events
    from cclfp.runs.job import Job, do_cohort  # takes seconds

    def report(number: int, event: dict[str, Any]) -> None:
        try:
            events.write(json.dumps({"job": number, **event}) + "\n")
            events.flush()
        except OSError:  # nobody listens
            end_now()

    for line in sys.stdin:
        if not line.endswith("\n"):  # the parent was killed while it wrote
            break
        cohort = [Job.from_dict(values) for values in json.loads(line)]
        for number, error in do_cohort(cohort, report).items():
            known = isinstance(error, InputError)
            text = str(error) if known else shortage(error) or "".join(traceback.format_exception(error))
            report(number, {"event": "failed", "error": text, "input": known})
        report(0, {"event": "idle"})
    end_now()
