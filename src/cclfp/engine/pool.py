"""Many jobs, spread over worker processes."""

from __future__ import annotations

import functools
import json
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from cclfp.engine.job import Job, do
from cclfp.errors import InputError, RunError
from cclfp.store import Record

JobReport = Callable[[int, dict[str, Any]], None]  # called with the job's number and an event


def do_all(jobs: Sequence[Job], workers: int, report: JobReport) -> list[Record]:
    """Do the jobs, ``workers`` at a time, and give their records in order.

    One worker is this process itself. If a job fails the others are finished (and stored) before the error is raised.
    """
    workers = min(workers, len(jobs))
    return _do_here(jobs, report) if workers <= 1 else _Pool(jobs, workers, report).run()


def _do_here(jobs: Sequence[Job], report: JobReport) -> list[Record]:
    records: list[Record] = []
    failures: list[Exception] = []
    for number, job in enumerate(jobs):
        try:
            records.append(do(job, functools.partial(report, number)))
            report(number, {"event": "done", "record": records[-1]})
        except Exception as error:  # noqa: BLE001  raised below, when the others are done
            failures.append(error)
    if failures:
        raise failures[0]
    return records


class _Pool:
    def __init__(self, jobs: Sequence[Job], workers: int, report: JobReport) -> None:
        self.jobs, self.report = jobs, report
        self.waiting = deque(range(len(jobs)))
        self.records: dict[int, Record] = {}
        self.failures: list[Exception] = []
        self.events: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self.running: dict[int, int] = {}  # worker -> job
        # Workers import what this process would: its sys.path, without the current folder and what may lie there.
        path = [entry for entry in sys.path if entry]
        code = f"import sys; sys.path[:] = {path!r}; from cclfp.engine.worker import main; main()"
        command = [sys.executable, "-P", "-c", code]
        self.workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the parent, which ends them
            )
            for _ in range(workers)
        ]

    def run(self) -> list[Record]:
        try:
            for worker in range(len(self.workers)):
                threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
                self._give_next_job(worker)
            while self.running:
                self._handle(*self.events.get())
        finally:
            for process in self.workers:
                process.kill()
            for process in self.workers:
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
        if self.failures:
            raise self.failures[0]
        return [self.records[number] for number in range(len(self.jobs))]

    def _listen(self, worker: int) -> None:
        output = self.workers[worker].stdout
        assert output is not None
        for line in output:
            self.events.put((worker, line))
        self.events.put((worker, None))

    def _give_next_job(self, worker: int) -> None:
        self.running.pop(worker, None)
        if self.waiting:
            self.running[worker] = self.waiting.popleft()
            pipe = self.workers[worker].stdin
            assert pipe is not None
            pipe.write(json.dumps(self.jobs[self.running[worker]].to_dict()) + "\n")
            pipe.flush()

    def _handle(self, worker: int, line: str | None) -> None:
        if worker not in self.running:
            return
        number = self.running[worker]
        if line is None:
            code = self.workers[worker].wait()
            how = f"was killed by signal {-code}, perhaps for memory" if code < 0 else f"ended with code {code}"
            text = f"{self.jobs[number].label()}: its process {how}. The same command goes on from the last checkpoint"
            self.failures.append(RunError(text))
            del self.running[worker]
            return
        event = json.loads(line)
        if event["event"] == "failed":
            text = f"{self.jobs[number].label()} failed:\n{event['error']}"
            error = InputError(event["error"]) if event["input"] else RunError(text)
            self.failures.append(error)
            self._give_next_job(worker)
            return
        self.report(number, event)
        if event["event"] == "done":
            self.records[number] = event["record"]
            self._give_next_job(worker)
