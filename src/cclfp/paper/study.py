"""The paper's tables and its run-time figure: train the runs they need, and compare with the published numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cclfp.engine.precision import pick_precision
from cclfp.errors import DataError, InputError, unknown
from cclfp.methods import METHODS
from cclfp.paper.comparison import Comparison, compare, gather
from cclfp.paper.figures import (
    COMPARABLE,
    TIMING_SEED,
    describe_conditions,
    gather_timings,
    largest_comparable_group,
    run_time_cells,
)
from cclfp.paper.tables import TABLES, Cell, cells
from cclfp.runs.costs import cost, steps
from cclfp.runs.devices import pick_device
from cclfp.runs.environment import device_name
from cclfp.runs.events import OnEvent, Planned, ignore
from cclfp.runs.execution import FIELDS, Execution, split_options
from cclfp.runs.executors import local_executor
from cclfp.runs.jobs import Job, check_seeds, make_jobs
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.shards import store_of, take_shard
from cclfp.runs.store import Store, exists
from cclfp.streams import BENCHMARKS

STUDIES = (*TABLES, "all", "runtime")

Column = tuple[str, str, str]  # of a table: its name, a benchmark and a scenario


@dataclasses.dataclass(frozen=True)
class Study:
    """Cells of the paper, the seeds that are averaged over, and how their runs are trained. Made by :func:`plan`."""

    cells: Sequence[Cell]
    seeds: Sequence[int]
    execution: Execution

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """All runs that the cells need, or those of its shard, each once, the longest first."""
        return take_shard(self._make_jobs())

    @property
    def store(self) -> Path:
        """Where the records are written."""
        return store_of(self.execution)

    def _make_jobs(self) -> list[Job]:
        jobs = make_jobs([cell.configuration() for cell in self.cells], self.seeds, self.execution)
        return sorted({job.key: job for job in jobs}.values(), key=lambda job: -cost(job.configuration))

    @property
    def columns(self) -> dict[Column, list[Cell]]:
        """The cells by column, in the paper's order."""
        columns: dict[Column, list[Cell]] = {}
        for cell in self.cells:
            columns.setdefault((cell.table, cell.benchmark, cell.scenario), []).append(cell)
        return columns

    @property
    def not_tuned(self) -> list[dict[str, str]]:
        """The methods and columns without a preset: they are trained with the defaults."""
        places = dict.fromkeys((c.method, c.benchmark, c.scenario) for c in self.cells if not c.has_preset)
        return [dict(zip(("method", "benchmark", "scenario"), place, strict=True)) for place in places]

    def missing(self) -> list[Job]:
        """The jobs whose records the store does not have. The store is not created."""
        if not exists(self.store):
            return self.jobs
        store = Store(self.store, read_only=True)
        return [job for job in self.jobs if job.find_record(store) is None]

    def train(self, on_event: OnEvent = ignore) -> dict[str, Record]:
        """Train what the store does not have; the records of all jobs, by key."""
        on_event(self._planned())
        return run_jobs(self.jobs, on_event)

    def comparisons(self, include_diverged: bool = False) -> dict[Cell, Comparison]:
        """Ours beside the published number of each cell, from what the store has."""
        found = gather(self.cells, Store(self.store), self.seeds)
        return {cell: compare(cell, records, include_diverged) for cell, records in found.items()}

    def _planned(self) -> Planned:
        return Planned(
            {job.key: _label(job) for job in self.jobs},
            str(self.store),
            {job.key: cost(job.configuration) for job in self.jobs},
        )


@dataclasses.dataclass(frozen=True)
class RunTimes(Study):
    """The cells of the run-time figure. Their runs are trained one at a time, so that their times can be compared."""

    def _make_jobs(self) -> list[Job]:
        path = self.execution.store
        store = Store(path, read_only=True) if exists(path) else None
        return [_time_again_unless_alike(job, store) for job in super()._make_jobs()]

    def train(self, on_event: OnEvent = ignore) -> dict[str, Record]:
        """Train what was not timed under the same conditions, in this process with no other beside it.

        If a run fails, the others are trained before its error is raised; without its dataset none is tried.
        """
        on_event(self._planned())
        executor = local_executor(self.execution, one_at_a_time=True)
        records: dict[str, Record] = {}
        failures: list[Exception] = []
        for job in self.jobs:
            try:
                records |= run_jobs([job], on_event, executor)
            except DataError:
                raise
            except Exception as error:  # noqa: BLE001  raised at the end
                failures.append(error)
        if failures:
            raise failures[0]
        return records

    def panels(self) -> list[dict[str, Any]]:
        """The seconds of each method's run, per benchmark; None for a run that was not timed like the others."""
        parts, panels = ("train_seconds", "test_seconds", "seconds"), []
        store = Store(self.execution.store)
        for (_, benchmark, scenario), several in self.columns.items():
            if alike := largest_comparable_group(gather_timings(several, store)):
                times = {c.method: {p: alike[c][p] if c in alike else None for p in parts} for c in several}
                made = describe_conditions(next(iter(alike.values())))
                panels.append({"benchmark": benchmark, "scenario": scenario, "made": made, "times": times})
        return panels


def study(
    what: str,
    *,
    benchmarks: str | Sequence[str] = (),
    methods: str | Sequence[str] = (),
    seeds: int | Sequence[int] = 5,
    include_diverged: bool = False,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> list[Comparison]:
    """Train what a table of the paper needs and the store does not have; return ours beside the published numbers.

    Parameters
    ----------
    what
        ``"accuracy"``, ``"buffer"``, ``"ablation"`` or ``"all"`` of these tables.
    benchmarks, methods
        Only these, where any are given.
    seeds
        How many seeds, or which.
    include_diverged
        Include runs that diverged in the means.
    execution, **options
        How and where to train: an execution, or its fields as keywords (``engine="graph"``).
    on_event
        Called with what happens: see :mod:`cclfp.runs.events`.

    Examples
    --------
    >>> comparisons = study("accuracy", benchmarks=["split-mnist"], methods=["er"])  # doctest: +SKIP
    >>> [(c.cell.scenario, c.mean, c.cell.published.mean, c.verdict) for c in comparisons]  # doctest: +SKIP
    """
    execution, others = split_options(execution, options)
    if others:
        raise unknown("option", next(iter(others)), sorted(FIELDS))
    if what == "runtime":
        raise InputError("run times are not compared with published numbers: use cclfp.paper.study.plan('runtime')")
    planned = plan(what, benchmarks=benchmarks, methods=methods, seeds=seeds, execution=execution)
    planned.train(on_event)
    return list(planned.comparisons(include_diverged).values())


def plan(
    what: str,
    *,
    benchmarks: str | Sequence[str] = (),
    methods: str | Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    execution: Execution | None = None,
) -> Study:
    """What a study trains: nothing is trained yet."""
    if what not in STUDIES:
        raise unknown("table", what, STUDIES)
    execution = Execution() if execution is None else execution
    benchmarks, methods = ([names] if isinstance(names, str) else names for names in (benchmarks, methods))
    chosen = select(TABLES if what == "all" else [what], benchmarks, methods)
    if what != "runtime":
        return Study(chosen, check_seeds(5 if seeds is None else seeds), execution)
    if seeds is not None:
        raise InputError(f"seeds={seeds}: run times are measured with one seed, which no table uses; leave it out")
    if execution.on != "local" or execution.shard is not None:
        raise InputError("run times are measured on this machine, one run after the other: leave out on and shard")
    if execution.engine == "auto":
        execution = dataclasses.replace(execution, engine="eager")
    return RunTimes(chosen, [TIMING_SEED], execution)


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


@dataclasses.dataclass(frozen=True)
class PlannedRuns:
    """Runs of one configuration that are still to be trained."""

    jobs: list[Job]
    has_preset: bool

    @property
    def replica_steps(self) -> int:
        return sum(steps(job.configuration) for job in self.jobs)


def missing_runs(study: Study) -> list[PlannedRuns]:
    """What a study would train, by configuration."""
    tuned = {cell.key(0) for cell in study.cells if cell.has_preset}
    by_configuration: dict[str, list[Job]] = {}
    for job in study.missing():
        by_configuration.setdefault(job.configuration.key(0), []).append(job)
    return [PlannedRuns(jobs, key in tuned) for key, jobs in by_configuration.items()]


def _label(job: Job) -> str:
    c = job.configuration
    off = [name for name in ("w", "alpha", "beta") if c.method == "ccl-fp+" and c.hyperparameters[name] == 0]
    kind = " ".join([c.method, *(f"{name}=0" for name in off)])
    memory = "" if c.buffer in (None, 200) else f" memory {c.buffer}"
    return f"{kind}{memory} {c.benchmark} {c.scenario} seed {job.seed}"


def _time_again_unless_alike(job: Job, store: Store | None) -> Job:
    """The job, to be trained again if its stored run was not timed alone, with this engine and on this device."""
    execution = job.execution
    if store is None or (record := store.find(job.key)) is None:
        return job
    return (
        job
        if _is_timed_alike(record, execution)
        else dataclasses.replace(job, execution=dataclasses.replace(execution, fresh=True))
    )


def _is_timed_alike(record: Record, execution: Execution) -> bool:
    device = pick_device(execution.device)
    here: dict[str, Any] = {
        "device_name": device_name(device),
        "engine": execution.engine,
        "precision": pick_precision(execution.precision, device),
        "threads": execution.threads,
    }
    made = record["environment"]
    return made.get("together") == 1 and all(made.get(name) == here[name] for name in COMPARABLE)
