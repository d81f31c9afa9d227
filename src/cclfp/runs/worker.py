"""A worker process: takes cohorts of jobs as JSON lines on stdin, answers with events as JSON lines on stdout.

It is a subprocess and does not use multiprocessing, so that a user's script needs no ``if __name__ == "__main__"``.
When its parent is gone the worker ends at once, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from cclfp.core.orphans import end_now, end_with_parent


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    end_with_parent()
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints does not disturb the events
    from cclfp.runs.events import to_json  # takes seconds
    from cclfp.runs.executors import IDLE
    from cclfp.runs.jobs import Job
    from cclfp.runs.training import train_cohort

    def write(line: str) -> None:
        try:
            lines.write(line + "\n")
            lines.flush()
        except OSError:  # nobody listens
            end_now()

    for line in sys.stdin:
        if not line.endswith("\n"):  # the parent was killed while it wrote
            break
        train_cohort([Job.from_dict(values) for values in json.loads(line)], lambda event: write(to_json(event)))
        write(IDLE)
    end_now()
