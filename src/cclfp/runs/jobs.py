"""Jobs, each of which is one run to train; cohorts of jobs that are trained together; parts of a grid (shards)."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.files import read_tensors
from cclfp.data import get_dataset
from cclfp.errors import InputError, reason_of
from cclfp.learner.saving import FORMAT as LEARNER
from cclfp.nets.backbones import parse_backbone
from cclfp.runs.code import is_other_code
from cclfp.runs.configuration import Configuration, method_labels, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.record import Record
from cclfp.runs.store import Store, exists
from cclfp.streams import get_benchmark
from cclfp.streams.tasks import DOMAIN_IMAGES

MOST_SEEDS = 10_000
LARGEST_COHORT = {"cpu": 64, "cuda": 500}  # jobs; each of them holds a lock file open
ENOUGH_FOR_A_GPU = 100  # jobs; more of them together are hardly cheaper per job (bench/RESULTS.md)
ROUNDS = 2  # cohorts per worker that a large grid is cut into, so that the workers end at about the same time
# The cost of a step relative to ER's, from bench/RESULTS.md (Split MNIST). GEM's is for its first task and grows.
COSTS = {"joint": 0.9, "finetune": 0.9, "er": 1.0, "gem": 0.8, "a-gem": 3.7, "hal": 3.9}
OTHER = 1.5  # of the other methods, from 1.3 to 1.8, and of a user's own, where it is unknown
RESNET = 10.0  # the cost of a step of ResNet18 relative to the MLP's, on a GPU; on a CPU it is far more


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to train: a configuration, a seed, and how to train it."""

    configuration: Configuration
    seed: int
    execution: Execution

    @functools.cached_property
    def key(self) -> str:
        """The key of the run, the same on every machine."""
        return self.configuration.key(self.seed)

    @property
    def learner_file(self) -> Path | None:
        """Where the trained learner is written; None where it is not kept."""
        c = self.configuration
        name = f"{c.method}_{c.benchmark}_{c.scenario}_seed{self.seed}_{self.key[:8]}.ckpt"
        return None if self.execution.save is None else self.execution.save / name

    def with_unchecked(self, **changes: Any) -> Job:
        """The same run with other fields of its execution, which are not checked (see :meth:`Execution.unchecked`)."""
        return dataclasses.replace(self, execution=self.execution.unchecked(**changes))

    def concrete(self) -> Job:
        """The same run with a device and a precision."""
        return dataclasses.replace(self, execution=self.execution.concrete())

    def find_record(self, store: Store) -> Record | None:
        """The record that makes this job unnecessary."""
        record = store.find(self.key)
        return None if record is None or self.replaces(record) or not self.has_learner() else record

    def replaces(self, record: Record) -> bool:
        """Whether a record in the store makes room for that of this job."""
        return self.execution.fresh or (self.execution.other_code == "retrain" and is_other_code(record))

    def has_learner(self, *, to_replace: bool = False) -> bool:
        """Whether the learner is saved, where that is asked for.

        InputError where its file is none of this run or, if it is ``to_replace``, has learned more since; not with
        ``force``.
        """
        path, c = self.learner_file, self.configuration
        if path is None or not path.exists():
            return path is None
        try:
            saved, reason = read_tensors(path, LEARNER), ""
        except InputError as error:
            saved, reason = {}, f" ({error})"
        tasks = 1 if c.kind.joint else c.num_tasks
        is_ours = {"method": c.method, "scenario": c.scenario, "seed": self.seed}.items() <= saved.items()
        if not is_ours:
            what = f"is not the learner of this run{reason}"
        elif to_replace and (saved["in_task"] or saved["tasks_done"] != tasks):
            what = f"has learned more since its run of {tasks} tasks"
        else:
            return True
        if self.execution.force:
            return is_ours
        hint = "move it away, save the learners elsewhere, or replace it with --force"
        raise InputError(f"{path} {what}: {hint}")


def make_jobs(configurations: Iterable[Configuration], seeds: Sequence[int], execution: Execution) -> list[Job]:
    """A job per configuration and seed."""
    if (folder := execution.save) is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(f"learners cannot be saved in {folder}: {reason_of(error)}") from error
    return [Job(configuration, seed, execution) for configuration in configurations for seed in seeds]


def name_runs(jobs: Sequence[Job], varied: Sequence[str] = ()) -> dict[str, str]:
    """What to call each run, by key, where only methods, seeds and the settings ``varied`` tell them apart."""
    names = {}
    for job, method in zip(jobs, method_labels([job.configuration for job in jobs]), strict=True):
        settings = {**job.configuration.to_dict(), **job.configuration.hyperparameters}
        values = [f"{name}={show_value(settings[name])}" for name in varied if settings.get(name) is not None]
        names[job.key] = " ".join([method, *values, f"seed {job.seed}"])
    return names


def check_seeds(seeds: int | Iterable[int]) -> list[int]:
    """The seeds 0 to n - 1 for a number n; the seeds themselves for a sequence."""
    if isinstance(seeds, Iterable):
        chosen = [check_whole("seed", seed, at_least=0) for seed in seeds]
    else:
        chosen = list(range(min(check_whole("seeds", seeds, at_least=1), MOST_SEEDS + 1)))
    if not 1 <= len(chosen) <= MOST_SEEDS or len(set(chosen)) < len(chosen):
        raise InputError(f"seeds={reprlib.repr(seeds)}: expected 1 to {MOST_SEEDS:,} of them, all different")
    return chosen


def seeds_in_words(seeds: Sequence[int]) -> str:
    """
    >>> seeds_in_words([100]), seeds_in_words([100, 101]), seeds_in_words([0, 3, 7]), seeds_in_words(range(5))
    ('seed 100', 'seeds 100 and 101', 'seeds 0, 3 and 7', 'seeds 0 to 4')
    """
    *others, last = seeds
    if len(others) > 1 and list(seeds) == list(range(seeds[0], last + 1)):
        return f"seeds {seeds[0]} to {last}"
    return f"seeds {', '.join(map(str, others))} and {last}" if others else f"seed {last}"


def into_cohorts(jobs: Sequence[Job], workers: int, device: str) -> list[list[Job]]:
    """The jobs in cohorts that are trained together, the longest first; with the eager engine each is alone.

    They are as few as keep all workers busy to the end: what is trained together is cheaper.
    """
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        alone = job.key if _is_eager(job, device) else None
        groups.setdefault(repr((job.configuration.shape, job.execution, alone)), []).append(job)
    total = sum(map(cost_of, groups.values()))
    cohorts: list[list[Job]] = []
    for group in groups.values():
        share = math.ceil(ROUNDS * workers * cost_of(group) / total)
        count = max(min(share, workers, len(group)), -(-len(group) // LARGEST_COHORT[device]))
        if device == "cuda" and workers > 1 and (enough := -(-len(group) // ENOUGH_FOR_A_GPU)) > count:
            count = min(len(group), -(-enough // workers) * workers)
        cohorts += [group[i::count] for i in range(count)]
    return sorted(cohorts, key=lambda cohort: -cost_of(cohort))


def _is_eager(job: Job, device: str) -> bool:
    """Whether the job is trained by itself, as far as that is known before its network is made."""
    from cclfp.engine.cohort import choose_engine

    c, engine = job.configuration, job.execution.engine
    normalised = _backbone(c).get("name", "mlp") != "mlp"
    return (choose_engine(device, steps(c), normalised=normalised) if engine == "auto" else engine) == "eager"


# -- how much work a run is ---------------------------------------------------------------------------------------


def cost_of(jobs: Iterable[Job]) -> float:
    """How much work jobs are, as if each were trained alone: an estimate."""
    return sum(cost(job.configuration) for job in jobs)


def steps(c: Configuration) -> int:
    """The number of steps of a run, at least 1, without the incomplete minibatches at the ends of tasks."""
    benchmark = get_benchmark(c.benchmark)
    of_dataset = get_dataset(benchmark.dataset).arrays["train_labels"].shape[0]
    examples = of_dataset if benchmark.domains is None else DOMAIN_IMAGES * c.num_tasks
    return max(1, c.epochs * examples // c.batch)


def cost(c: Configuration) -> float:
    """How much work a run is, in steps of ER on an MLP: an estimate, to begin with the longest."""
    grown = 1 + (c.num_tasks - 1) / 2 if c.method == "gem" else 1
    return steps(c) * COSTS.get(c.method, OTHER) * grown * (1 if _backbone(c).get("name") == "mlp" else RESNET)


def _backbone(configuration: Configuration) -> Mapping[str, Any]:
    return configuration.backbone or parse_backbone(get_benchmark(configuration.benchmark).backbone)


# -- parts of a grid, for processes that do not communicate, such as the tasks of a Slurm array ---------------------


def take_shard(jobs: Sequence[Job]) -> list[Job]:
    """The jobs of the part that their execution names, of those whose records its store lacks; all without a shard.

    They are to be stored in its target. The same jobs and the same store give the same parts, on every machine; no job
    is in two parts, and none is there for a learner that was not saved.
    """
    execution = jobs[0].execution
    if execution.part is None:
        return list(jobs)
    number, count = execution.part
    store = Store(execution.store, read_only=True) if exists(execution.store) else None
    missing = {job.key: job for job in jobs if store is None or store.find(job.key) is None}
    part = cut(list(missing.values()), count)[number - 1]
    for path in sorted(execution.target.parent.glob("shard-*-of-*.sqlite")):
        other = Store(path, read_only=True)
        if path != execution.target and any(other.find(job.key) is not None for job in part):
            raise InputError(f"{path} has runs of this part, from another grid: cclfp runs import {path} first")
    return [job.with_unchecked(store=execution.target, shard=None) for job in part]


def cut(jobs: Sequence[Job], count: int) -> list[list[Job]]:
    """The jobs in so many parts, of whole cohorts and of about the same cost."""
    parts: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for cohort in into_cohorts(jobs, count, "cpu"):  # the longest first; cut alike on machines with and without a GPU
        least = loads.index(min(loads))
        parts[least] += cohort
        loads[least] += cost_of(cohort)
    return parts
