"""Where cohorts are trained: in this process, in worker processes, or (:mod:`cclfp.runs.ray_driver`) on a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch

from cclfp.core.machine import cores
from cclfp.core.orphans import kill
from cclfp.errors import InputError, RunError
from cclfp.runs.devices import pick_cards, visible_as
from cclfp.runs.events import Failed, Finished, OnEvent, from_json
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.training import train_cohort

BYTES_PER_CUDA_RUN = 4 << 30  # of a GPU's memory that one run of the eager engine may need
IDLE = "idle"  # a worker's word that it has finished its cohort


class Executor(Protocol):
    """Trains cohorts of jobs somewhere: in worker processes of this machine, or on a cluster."""

    @property
    def workers(self) -> int:
        """How many cohorts it trains at the same time."""

    @property
    def device(self) -> str | None:
        """What it trains on, cpu or cuda; None where that is for the jobs' execution to say."""

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        """Submit cohorts and train them in this order.

        Events are passed on as they come, results as runs are completed: every run ends in a Finished or a Failed
        event. An exception, also one that ``on_event`` raises, cancels what still runs.
        """

    def close(self) -> None:
        """Release what it holds between two calls of ``run``."""


def make_executor(execution: Execution) -> Executor:
    """The executor that an execution asks for."""
    if execution.ray_address is None:
        return local_executor(execution)
    from cclfp.runs.ray_driver import RayCluster  # here, because Ray is optional

    return RayCluster(execution)


def local_executor(execution: Execution, *, one_at_a_time: bool = False) -> Executor:
    """The executor for this machine: cohorts are trained side by side on its cores, or on each of its GPUs."""
    cards = pick_cards(execution.device)
    if not cards:
        workers = 1 if one_at_a_time else max(1, cores() // execution.threads)
        return ThisProcess() if workers == 1 else ProcessPool(workers)
    places = cards[:1] if one_at_a_time else cards * cohorts_per_card(execution, cards)
    return ThisProcess() if places == [0] else ProcessPool(len(places), places)


def cohorts_per_card(execution: Execution, cards: Sequence[int]) -> int:
    """How many cohorts to train on each GPU at the same time.

    One, unless a share of a GPU is asked for. A cohort of the eager engine is one run, which leaves a GPU idle most of
    the time: of these, as many as the memory of the GPU and the cores allow. A run needs more than one core to keep a
    GPU busy: on 16 cores and an H200, 12 eager runs of ResNet18 made 304 steps per second together, and 20 made 222.
    """
    if execution.gpus_per_cohort is not None:
        return int(1 / execution.gpus_per_cohort)
    if execution.engine != "eager":
        return 1
    free = min(torch.cuda.mem_get_info(card)[0] for card in cards)
    workers = cores() // execution.threads
    return max(1, min(workers // 2 // len(cards), free // BYTES_PER_CUDA_RUN))


class ThisProcess:
    """Trains one cohort after the other in this process."""

    workers = 1
    device = None

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        for cohort in cohorts:
            train_cohort(cohort, on_event)

    def close(self) -> None: ...


class ProcessPool:
    """Trains cohorts in worker processes on this machine, each cohort in one of them (see :mod:`cclfp.runs.worker`).

    ``cards`` has the GPU of each worker, which is the only one that it sees; without, all see what this process sees.
    """

    device = None

    def __init__(self, workers: int, cards: Sequence[int] = ()) -> None:
        self.workers, self.cards = workers, cards

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        if len(cohorts) == 1 and (not self.cards or self.cards[0] == 0):  # this process would choose the same GPU
            ThisProcess().run(cohorts, on_event)
        elif cohorts:
            count = min(self.workers, len(cohorts))
            _Workers(self.cards[:count] or [None] * count).run(cohorts, on_event)

    def close(self) -> None: ...


class _Workers:
    """Worker processes at work on cohorts. ``cards`` has the GPU of each, or None."""

    def __init__(self, cards: Sequence[int | None]) -> None:
        self.lines: queue.Queue[tuple[int, str | None]] = queue.Queue()  # a worker's number and what it wrote
        self.running: dict[int, Sequence[Job]] = {}  # each worker's cohort
        self.ended: set[str] = set()  # the keys of runs that have finished or failed
        self.started_up: set[int] = set()  # workers that have written a line
        self.cards = list(cards)
        self.processes = [_start_worker(card) for card in cards]

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        waiting = deque(cohorts)
        try:
            for number in range(len(self.processes)):
                self._listen_to(number)
                self._give(number, waiting)
            while self.running:
                number, line = self.lines.get()
                if number not in self.running:
                    continue
                if line is None:
                    self._report_death(number, on_event)
                    if waiting and number in self.started_up:  # another one in its place, unless workers cannot start
                        self.cards.append(self.cards[number])
                        self.processes.append(_start_worker(self.cards[number]))
                        self._listen_to(len(self.processes) - 1)
                        self._give(len(self.processes) - 1, waiting)
                elif not line.endswith("\n"):  # it was killed while it wrote
                    continue
                elif line.strip() == IDLE:
                    self._give(number, waiting)
                else:
                    self._pass_on(number, line, on_event)
            for job in (job for cohort in waiting for job in cohort):
                on_event(Failed(job.key, RunError(f"{job.label()}: not trained, since no worker process could start")))
        finally:
            self._end()

    def _listen_to(self, number: int) -> None:
        threading.Thread(target=self._read, args=(number,), daemon=True).start()

    def _read(self, number: int) -> None:
        output = self.processes[number].stdout
        assert output is not None
        for line in output:
            self.started_up.add(number)
            self.lines.put((number, line))
        self.lines.put((number, None))

    def _give(self, number: int, waiting: deque[Sequence[Job]]) -> None:
        """Give a worker the next cohort, if there is one."""
        self.running.pop(number, None)
        if not waiting:
            return
        self.running[number] = waiting.popleft()
        pipe = self.processes[number].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the listener will report that
            there = {} if self.cards[number] is None else {"device": "cuda"}  # the only one that it sees
            pipe.write(json.dumps([job.to_dict(**there) for job in self.running[number]]) + "\n")
            pipe.flush()

    def _pass_on(self, number: int, line: str, on_event: OnEvent) -> None:
        event = from_json(line)
        if isinstance(event, Finished | Failed):
            self.ended.add(event.key)
        if isinstance(event, Failed) and not isinstance(event.error, InputError):
            label = next(job.label() for job in self.running[number] if job.key == event.key)
            event = Failed(event.key, RunError(f"{label} failed:\n{event.error}"))
        on_event(event)

    def _report_death(self, number: int, on_event: OnEvent) -> None:
        jobs = [job for job in self.running.pop(number) if job.key not in self.ended]
        code = self.processes[number].wait()
        how = f"was killed by signal {-code}, perhaps for memory" if code < 0 else f"ended with code {code}"
        whose = "its" if len(jobs) == 1 else "their"
        runs = ", ".join(job.label() for job in jobs)
        error = RunError(f"{runs}: {whose} process {how}. The same command continues from the last checkpoint")
        for job in jobs:
            on_event(Failed(job.key, error))

    def _end(self) -> None:
        for process in self.processes:
            kill(process)
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what it was not sent
                    assert pipe is not None
                    pipe.close()


def _start_worker(card: int | None) -> subprocess.Popen[str]:
    # A worker imports what this process would: its sys.path, without the current folder and what may lie there.
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:] = {path!r}; from cclfp.runs.worker import main; main()"
    environment = os.environ if card is None else {**os.environ, "CUDA_VISIBLE_DEVICES": visible_as(card)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
        env=environment,
        start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
    )
