"""Training what the paper's tables need: which cells, how much work each run is, and in which order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from cclfp.configuration import Configuration
from cclfp.data import get_dataset
from cclfp.engine.environment import device_name, pick_device
from cclfp.engine.job import Job, JobReport
from cclfp.engine.precision import pick_precision
from cclfp.errors import DataError, InputError, unknown
from cclfp.experiment import do_jobs
from cclfp.methods import METHODS
from cclfp.store import Store
from cclfp.streams import BENCHMARKS, get_benchmark
from cclfp.streams.domains import DOMAIN_IMAGES
from cclfp.study.figures import COMPARABLE, run_time_cells
from cclfp.study.tables import Cell, cells

# A step, in steps of ER, as bench/RESULTS.md has it for Split MNIST; GEM's but for the past tasks, with which it grows.
COSTS = {
    "joint": 0.9,
    "finetune": 0.9,
    "si": 1.5,
    "lwf": 1.3,
    "er": 1.0,
    "gem": 0.8,
    "a-gem": 3.7,  # with 256 reference examples, which it was not measured with there
    "icarl": 1.6,
    "fdr": 1.3,
    "hal": 3.9,
    "ccl-fp": 1.6,
    "ccl-fp+": 1.8,
}
RESNET = 10.0  # a step of ResNet18, in steps of the MLP, on a graphics card; on a CPU it is far more


def select(tables: Iterable[str], benchmarks: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Cell]:
    """The cells of the tables, of these benchmarks and methods only where any are given.

    "runtime" is the run-time figure, whose cells are some of the accuracy table's.
    """
    for kind, names, known in (("benchmark", benchmarks, BENCHMARKS), ("method", methods, METHODS)):
        for name in names:
            if name not in known:
                raise unknown(kind, name, known)
    tables = list(tables)
    found = [
        cell
        for table in tables
        for cell in (run_time_cells() if table == "runtime" else cells(table))
        if (not benchmarks or cell.benchmark in benchmarks) and (not methods or cell.method in methods)
    ]
    if not found:
        wanted = " on ".join(", ".join(names) for names in (methods, benchmarks) if names)
        where = "run-time figure" if tables == ["runtime"] else f"table {' or '.join(tables)}"
        raise InputError(f"the paper has no number for {wanted} in its {where}")
    return found


def steps(configuration: Configuration) -> int:
    """How many steps a run takes, but for the incomplete minibatch that a task may end with."""
    benchmark = get_benchmark(configuration.benchmark)
    examples = get_dataset(benchmark.dataset).arrays["train_labels"].shape[0]
    if benchmark.domains is not None:
        examples = DOMAIN_IMAGES * (benchmark.num_tasks or 1)
    return configuration.epochs * examples // configuration.batch


def cost(configuration: Configuration) -> float:
    """How much work a run is, in steps of ER on an MLP: an estimate, to begin with the longest."""
    benchmark = get_benchmark(configuration.benchmark)
    step = COSTS[configuration.method]
    if configuration.method == "gem":
        step *= 1 + ((benchmark.num_tasks or 1) - 1) / 2
    return steps(configuration) * step * (RESNET if benchmark.backbone == "resnet18" else 1)


def longest_first(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, each once, those that take longest first."""
    different = {job.key: job for job in jobs}
    return sorted(different.values(), key=lambda job: -cost(job.configuration))


def measured_here(job: Job) -> Job:
    """The job, to be done again if its run in the store was not timed alone, with this engine and on this device."""
    if not job.store.exists() or (record := Store(job.store).find(job.key)) is None:
        return job
    device = pick_device(job.device)
    here: dict[str, Any] = {
        "device_name": device_name(device),
        "engine": job.engine,
        "precision": pick_precision(job.precision, device),
        "threads": job.threads,
    }
    made = record["environment"]
    alike = made.get("together") == 1 and all(made.get(name) == here[name] for name in COMPARABLE)
    return job if alike else dataclasses.replace(job, fresh=True)


def do_one_by_one(jobs: Sequence[Job], report: JobReport) -> None:
    """Do the jobs one at a time, in this process with no other beside it, so that their times can be compared.

    If one fails the others are done before the error is raised; without its dataset none is tried.
    """
    failures: list[Exception] = []
    for number, job in enumerate(jobs):
        try:
            do_jobs([job], functools.partial(_renumbered, report, number))
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001  raised at the end
            failures.append(error)
    if failures:
        raise failures[0]


def _renumbered(report: JobReport, number: int, alone: int, event: dict[str, Any]) -> None:
    report(number if alone >= 0 else alone, event)
