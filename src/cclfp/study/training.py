"""Training what the paper's tables need: which cells, how much work each run is, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cclfp.configuration import Configuration
from cclfp.data import get_dataset
from cclfp.engine.job import Job
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS
from cclfp.streams import BENCHMARKS, get_benchmark
from cclfp.streams.domains import DOMAIN_IMAGES
from cclfp.study.tables import Cell, cells

# A step, in steps of ER, as bench/method_costs.py measures it on the MNIST streams. GEM's grows with the past tasks.
COSTS = {
    "joint": 0.8,
    "finetune": 0.8,
    "si": 1.4,
    "lwf": 1.4,
    "er": 1.0,
    "gem": 0.8,
    "a-gem": 1.5,
    "icarl": 1.6,
    "fdr": 1.1,
    "hal": 3.0,
    "ccl-fp": 1.4,
    "ccl-fp+": 2.0,
}
RESNET = 10.0  # a step of ResNet18, in steps of the MLP, on a graphics card; on a CPU it is far more


def select(tables: Iterable[str], benchmarks: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Cell]:
    """The cells of the tables, of these benchmarks and methods only where any are given."""
    for kind, names, known in (("benchmark", benchmarks, BENCHMARKS), ("method", methods, METHODS)):
        for name in names:
            if name not in known:
                raise unknown(kind, name, known)
    tables = list(tables)
    found = [
        cell
        for table in tables
        for cell in cells(table)
        if (not benchmarks or cell.benchmark in benchmarks) and (not methods or cell.method in methods)
    ]
    if not found:
        wanted = " on ".join(", ".join(names) for names in (methods, benchmarks) if names)
        raise InputError(f"the paper has no number for {wanted} in its table {' or '.join(tables)}")
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
