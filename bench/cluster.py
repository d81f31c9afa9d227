"""What Ray costs: cohorts that do nothing, and a real grid on Ray beside the same grid without."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measured import Result

from cclfp.core.workers import cores
from cclfp.data import fetch
from cclfp.runs.events import Event, Finished
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, into_cohorts, make_jobs
from cclfp.runs.pool import make_executor
from cclfp.runs.record import Record, from_line
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

RECORDS = Path(__file__).parents[1] / "results" / "mnist.jsonl"
IDLE = {"full": 10_000, "quick": 500}  # cohorts that do nothing
PARTS = 10  # in which their speed is measured
GRID = {"full": 100, "quick": 6}  # runs
BATCH = 50  # short runs, so that the cost of a cohort counts
ROUNDS = ("local", "ray", "ray", "local")  # a machine that gets slower meanwhile does so for both


def measure_cluster(arguments: argparse.Namespace) -> list[Result]:
    """The measurements of the section; none, and the reason, where they cannot be made."""
    if importlib.util.find_spec("ray") is None:
        print("  left out: Ray is not installed", flush=True)
        return []
    size = "quick" if arguments.quick else "full"
    found = measure_idle(IDLE[size])
    if arguments.images == "random":
        print("  without a real grid, which needs the real MNIST", flush=True)
        return found
    fetch("mnist")
    return [*found, *measure_grid(GRID[size])]


# -- cohorts that do nothing --------------------------------------------------------------------------------------


def measure_idle(count: int) -> list[Result]:
    """Send so many cohorts through the driver and the store; one result for each part of them."""
    with tempfile.TemporaryDirectory() as folder, _private_cluster():
        jobs = _jobs(count, engine="eager", store=Path(folder) / "runs.sqlite", on="ray")
        execution = jobs[0].execution
        cluster = _idle_cluster(execution)
        cluster.run(into_cohorts(jobs[:100], cluster.workers, "cpu"), lambda event: None)  # starts the workers
        parts = _watch_parts(lambda listen: cluster.run(into_cohorts(jobs, 1, "cpu"), listen), count)
        stored = len(Store(execution.store).records())
    if stored != count:
        raise SystemExit(f"{count} cohorts were submitted, and {stored} records were stored")
    for part in parts:
        rate, memory = part["cohorts_per_second"], part["driver_bytes"] / 2**20
        print(f"  {rate:7.0f} cohorts/s, the driver has {memory:.0f} MiB after {part['cohorts']}", flush=True)
    return [{"case": {"section": "cluster", "method": "idle", "device": "cpu"}, **part} for part in parts]


def _watch_parts(run: Callable[[Callable[[Event], None]], None], count: int) -> list[Result]:
    parts: list[Result] = []
    done, began = 0, time.perf_counter()

    def listen(event: Event) -> None:
        nonlocal done, began
        if isinstance(event, Finished):
            done += 1
            if done % (count // PARTS) == 0:
                seconds = time.perf_counter() - began
                rate = count // PARTS / seconds
                parts.append({"cohorts": done, "cohorts_per_second": rate, "driver_bytes": _memory()})
                began = time.perf_counter()

    run(listen)
    return parts


def _idle_cluster(execution: Execution) -> Any:
    from cclfp.runs.ray import RayCluster

    class IdleCluster(RayCluster):
        @functools.cached_property
        def task(self) -> Any:
            return self.ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(finish_at_once)

    import ray  # which _private_cluster has connected

    return IdleCluster(execution, ray)


def finish_at_once(order: Any, packed: Any) -> Any:
    """In place of ``train_on_node``: a record without training."""
    for job in order.jobs:
        record: Any = {**_record(), "key": job.key, "seed": job.seed, "configuration": job.configuration.to_dict()}
        yield [Finished(job.key, record)]


@functools.cache
def _record() -> Record:
    """A record of a run of the jobs' kind."""
    with RECORDS.open(encoding="utf-8") as lines:
        return next(r for r in map(from_line, lines) if (r["method"], r["benchmark"]) == ("er", "split-mnist"))


def _memory() -> int:
    """The bytes of this process that are in memory."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return 1024 * int(line.split()[1])


# -- a real grid --------------------------------------------------------------------------------------------------


def measure_grid(runs: int) -> list[Result]:
    """Train the same grid on Ray and without, in turn; the time from the first finished run to the last."""
    found = []
    for place in ROUNDS:
        with tempfile.TemporaryDirectory() as folder:
            jobs = _jobs(runs, engine="eager", store=Path(folder) / "runs.sqlite", on=place)
            began = time.perf_counter()
            with _private_cluster() if place == "ray" else contextlib.nullcontext():
                seconds, startup = _time(jobs, began)
        case = {"section": "cluster", "method": "er", "device": "cpu", "engine": "eager", "place": place}
        found.append({"case": case, "runs": runs, "seconds": seconds, "startup_seconds": startup})
        print(f"  {seconds:6.1f} s after {startup:.1f} s of start-up: {runs} runs, {place}", flush=True)
    return found


@contextlib.contextmanager
def _private_cluster() -> Iterator[None]:
    """A Ray cluster on this machine, which listens on the loopback interface alone."""
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read when it is imported
    import ray

    ray.init(num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _time(jobs: list[Job], began: float) -> tuple[float, float]:
    """Seconds from the first finished run to the last, and those between the beginning and the first."""
    moments: list[float] = []
    with make_executor(jobs[0].execution) as executor:
        cohorts = into_cohorts(jobs, executor.workers, "cpu")
        executor.run(cohorts, lambda e: moments.append(time.perf_counter()) if isinstance(e, Finished) else None)
    if len(moments) != len(jobs):
        raise SystemExit(f"{len(jobs)} runs were submitted, and {len(moments)} finished")
    return moments[-1] - moments[0], moments[0] - began


def _jobs(count: int, **execution: Any) -> list[Job]:
    chosen = configurations(["er"], "split-mnist", settings={"batch": [BATCH]})
    return make_jobs(chosen, range(count), Execution("cpu", **execution))
