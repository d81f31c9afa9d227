"""Many jobs, in cohorts, spread over worker processes."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from cclfp.core.orphans import kill
from cclfp.errors import InputError, RunError
from cclfp.runs.environment import pick_device
from cclfp.runs.job import Job, JobReport, do_cohort
from cclfp.runs.store import Record

LARGEST = {"cpu": 64, "cuda": 500}  # runs in a cohort, each of which holds a lock file open


def do_all(jobs: Sequence[Job], workers: int, report: JobReport) -> list[Record]:
    """Do the jobs in cohorts, ``workers`` of them at a time, and give their records in order.

    One worker is this process itself. If a job fails the others are finished (and stored) before the error is raised.
    """
    together = cohorts(jobs, workers)
    workers = min(workers, len(together))
    records: dict[int, Record] = {}

    def heard(number: int, event: dict[str, Any]) -> None:
        if event["event"] == "done":
            records[number] = event["record"]
        report(number, event)

    failures = _do_here(jobs, together, heard) if workers <= 1 else _Pool(jobs, together, workers, heard).run()
    if failures:
        raise failures[0]
    return [records[number] for number in range(len(jobs))]


def cohorts(jobs: Sequence[Job], workers: int) -> list[list[int]]:
    """Which jobs train together: those of one :attr:`Configuration.shape`, spread over the workers."""
    alike: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        kind = {name: value for name, value in job.to_dict().items() if name not in ("seed", "save")}
        kind["configuration"] = job.configuration.shape
        alone = number if job.engine == "eager" else None
        alike.setdefault(json.dumps([kind, alone]), []).append(number)
    parts = []
    for numbers in alike.values():
        count = max(min(workers, len(numbers)), -(-len(numbers) // LARGEST[pick_device(jobs[numbers[0]].device)]))
        parts += [numbers[i::count] for i in range(count)]
    return parts


def _do_here(jobs: Sequence[Job], together: Sequence[Sequence[int]], report: JobReport) -> list[Exception]:
    failures: list[Exception] = []
    for numbers in together:
        failed = do_cohort([jobs[n] for n in numbers], lambda i, event: report(numbers[i], event))  # noqa: B023
        failures += failed.values()
    return failures


class _Pool:
    def __init__(self, jobs: Sequence[Job], together: Sequence[Sequence[int]], workers: int, report: JobReport) -> None:
        self.jobs, self.report = jobs, report
        self.waiting = deque(together)
        self.failures: list[Exception] = []
        self.events: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self.running: dict[int, Sequence[int]] = {}  # worker -> its cohort
        # Workers import what this process would: its sys.path, without the current folder and what may lie there.
        path = [entry for entry in sys.path if entry]
        code = f"import sys; sys.path[:] = {path!r}; from cclfp.runs.worker import main; main()"
        command = [sys.executable, "-P", "-c", code]
        self.workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
                start_new_session=True,  # Ctrl-C is for the parent, which ends them
            )
            for _ in range(workers)
        ]

    def run(self) -> list[Exception]:
        try:
            for worker in range(len(self.workers)):
                threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
                self._give_next_cohort(worker)
            while self.running:
                self._handle(*self.events.get())
        finally:
            for process in self.workers:
                kill(process)
            for process in self.workers:
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):  # what it was not sent
                        assert pipe is not None
                        pipe.close()
        return self.failures

    def _listen(self, worker: int) -> None:
        output = self.workers[worker].stdout
        assert output is not None
        for line in output:
            self.events.put((worker, line))
        self.events.put((worker, None))

    def _give_next_cohort(self, worker: int) -> None:
        self.running.pop(worker, None)
        if self.waiting:
            self.running[worker] = self.waiting.popleft()
            pipe = self.workers[worker].stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: the listener will report that
                pipe.write(json.dumps([self.jobs[number].to_dict() for number in self.running[worker]]) + "\n")
                pipe.flush()

    def _handle(self, worker: int, line: str | None) -> None:
        if worker not in self.running:
            return
        numbers = self.running[worker]
        if line is None:
            code = self.workers[worker].wait()
            how = f"was killed by signal {-code}, perhaps for memory" if code < 0 else f"ended with code {code}"
            runs = ", ".join(self.jobs[number].label() for number in numbers)
            text = f"{runs}: its process {how}. The same command goes on from the last checkpoint"
            self.failures.append(RunError(text))
            del self.running[worker]
            return
        event = json.loads(line)
        number = numbers[event.pop("job")]
        if event["event"] == "idle":
            self._give_next_cohort(worker)
        elif event["event"] == "failed":
            text = f"{self.jobs[number].label()} failed:\n{event['error']}"
            self.failures.append(InputError(event["error"]) if event["input"] else RunError(text))
        else:
            self.report(number, event)
