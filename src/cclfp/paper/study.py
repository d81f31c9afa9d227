"""The paper's tables and its run-time figure: train the runs they need, and compare with the published numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

from cclfp.core.scenarios import SCENARIOS
from cclfp.errors import DataError, InputError, unknown
from cclfp.events import OnEvent, ignore
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
from cclfp.paper.own_study import OwnResult, OwnStudy, plan_mine
from cclfp.paper.plans import TrainingPlan
from cclfp.paper.tables import TABLES, Cell, cells
from cclfp.runs.configuration import Configuration
from cclfp.runs.costs import steps
from cclfp.runs.environment import device_name
from cclfp.runs.execution import Execution
from cclfp.runs.fields import field_names, from_keywords
from cclfp.runs.jobs import Job, check_seeds
from cclfp.runs.pool import local_executor
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import ABOUT_IMAGES, prepare
from cclfp.runs.store import Store, exists
from cclfp.streams import BENCHMARKS

MINE = "mine"
STUDIES = (*TABLES, "all", "runtime", MINE)

Column = tuple[str, str, str]  # of a table: its name, a benchmark and a scenario


@dataclasses.dataclass(frozen=True)
class Study(TrainingPlan):
    """Cells of the paper, the seeds that are averaged over, and how their runs are trained. Made by :func:`plan`."""

    cells: Sequence[Cell]
    seeds: Sequence[int]
    execution: Execution

    def configurations(self) -> list[Configuration]:
        return [cell.configuration() for cell in self.cells]

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

    def comparisons(self, include_diverged: bool = False) -> dict[Cell, Comparison]:
        """Ours beside the published number of each cell, from what the store has."""
        found = gather(self.cells, Store(self.store), self.seeds)
        return {cell: compare(cell, records, include_diverged) for cell, records in found.items()}


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


@overload
def study(what: Literal["mine"], **options: Any) -> list[OwnResult]: ...


@overload
def study(what: str, **options: Any) -> list[Comparison]: ...


def study(
    what: str,
    *,
    benchmarks: str | Sequence[str] = (),
    methods: str | Sequence[str] = (),
    scenarios: str | Sequence[str] = (),
    seeds: int | Sequence[int] = 5,
    include_diverged: bool = False,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> list[Comparison] | list[OwnResult]:
    """Train what a table needs and the store does not have; return its numbers.

    Parameters
    ----------
    what
        ``"accuracy"``, ``"buffer"``, ``"ablation"`` or ``"all"`` of these tables of the paper: the numbers are ours
        beside the published ones. ``"mine"``: your own choice of methods and benchmarks, each compared with the best.
    benchmarks, methods, scenarios
        Only these, where any are given. ``"mine"`` needs the first two; methods may be ``"FILE.py:NAME"``.
    seeds
        How many seeds, or which.
    include_diverged
        Include runs that diverged in the means.
    execution, **options
        How and where to train: an execution, or its fields as keywords (``engine="graph"``). For ``"mine"`` also
        ``images`` (with ``image_size``, ``split_seed``, ``classes`` and ``skip_bad``, as for ``run``), ``tasks``,
        ``class_order``, ``backbone``, ``memory`` (one size or several) and ``auto`` (minutes of tuning per method and
        column).
    on_event
        Called with what happens: see :mod:`cclfp.events`.

    Examples
    --------
    >>> comparisons = study("accuracy", benchmarks=["split-mnist"], methods=["er"])  # doctest: +SKIP
    >>> [(c.cell.scenario, c.mean, c.cell.published.mean, c.verdict) for c in comparisons]  # doctest: +SKIP
    """
    execution, others = from_keywords(Execution, execution, options)
    if what == "runtime":
        raise InputError("run times are not compared with published numbers: use cclfp.paper.study.plan('runtime')")
    chosen: dict[str, Any] = {"benchmarks": benchmarks, "methods": methods, "scenarios": scenarios}
    planned: Study | OwnStudy = plan(what, **chosen, seeds=seeds, execution=execution, on_event=on_event, **others)
    planned.train(on_event)
    if isinstance(planned, OwnStudy):
        return [result for column in planned.results(include_diverged).values() for result in column]
    return list(planned.comparisons(include_diverged).values())


@overload
def plan(what: Literal["mine"], **options: Any) -> OwnStudy: ...


@overload
def plan(what: str, **options: Any) -> Study: ...


def plan(
    what: str,
    *,
    benchmarks: str | Sequence[str] = (),
    methods: str | Sequence[str] = (),
    scenarios: str | Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> Study | OwnStudy:
    """What a study trains: nothing is trained yet, except for the searches of ``auto``."""
    if what not in STUDIES:
        raise unknown("table", what, STUDIES)
    execution = Execution() if execution is None else execution
    benchmarks, methods, scenarios = (
        [names] if isinstance(names, str) else list(names) for names in (benchmarks, methods, scenarios)
    )
    if what == MINE:
        numbers = check_seeds(5 if seeds is None else seeds)
        return _plan_mine(benchmarks, methods, scenarios, numbers, execution, on_event, options)
    if options:
        raise unknown("option", next(iter(options)), sorted(field_names(Execution)))
    chosen = select(TABLES if what == "all" else [what], benchmarks, methods, scenarios)
    if what != "runtime":
        return Study(chosen, check_seeds(5 if seeds is None else seeds), execution)
    if seeds is not None:
        raise InputError(f"seeds={seeds}: run times are measured with one seed, which no table uses; leave it out")
    if execution.on != "local" or execution.shard is not None:
        raise InputError("run times are measured on this machine, one run after the other: leave out on and shard")
    if execution.engine == "auto":
        execution = dataclasses.replace(execution, engine="eager")
    return RunTimes(chosen, [TIMING_SEED], execution)


IMAGE_OPTIONS = ("images", *ABOUT_IMAGES)
OWN_OPTIONS = (*IMAGE_OPTIONS, "tasks", "class_order", "backbone", "memory", "auto")


def _plan_mine(
    benchmarks: list[str],
    methods: list[str],
    scenarios: list[str],
    seeds: Sequence[int],
    execution: Execution,
    on_event: OnEvent,
    options: dict[str, Any],
) -> OwnStudy:
    if strange := [name for name in options if name not in OWN_OPTIONS]:
        raise unknown("option", strange[0], [*OWN_OPTIONS, *sorted(field_names(Execution))])
    options = {name: value for name, value in options.items() if value is not None}
    images = {name: options.pop(name) for name in IMAGE_OPTIONS if name in options}
    if "images" in images:
        benchmarks = [*benchmarks, str(prepare(Problem(**images), on_event).benchmark)]
    elif benchmarks:
        prepare(Problem(benchmarks[0], **images))  # refuses options that are about images
    memory = options.pop("memory", 200)
    memories = [memory] if isinstance(memory, int) else list(memory)
    return plan_mine(benchmarks, methods, scenarios, seeds, execution, memories=memories, on_event=on_event, **options)


def select(
    tables: Iterable[str],
    benchmarks: Sequence[str] = (),
    methods: Sequence[str] = (),
    scenarios: Sequence[str] = (),
) -> list[Cell]:
    """The cells of the tables, of these benchmarks, methods and scenarios only where any are given.

    "runtime" is the run-time figure, whose cells are some of the accuracy table's.
    """
    wanted = {"benchmark": benchmarks, "method": methods, "scenario": scenarios}
    for kind, known in (("benchmark", BENCHMARKS), ("method", METHODS), ("scenario", SCENARIOS)):
        for name in wanted[kind]:
            if name not in known:
                raise unknown(kind, name, known)
    tables = list(tables)
    found = [
        cell
        for table in tables
        for cell in (run_time_cells() if table == "runtime" else cells(table))
        if all(not names or getattr(cell, kind) in names for kind, names in wanted.items())
    ]
    if not found:
        shown = " on ".join(", ".join(names) for names in (methods, benchmarks) if names)
        shown += f" ({', '.join(scenarios)})" if scenarios else ""
        where = "run-time figure" if tables == ["runtime"] else f"table {' or '.join(tables)}"
        raise InputError(f"the paper has no number for {shown} in its {where}")
    return found


@dataclasses.dataclass(frozen=True)
class PlannedRuns:
    """Runs of one configuration that are still to be trained."""

    jobs: list[Job]
    has_preset: bool
    chosen: str  # where its settings come from

    @property
    def replica_steps(self) -> int:
        return sum(steps(job.configuration) for job in self.jobs)


def missing_runs(study: Study | OwnStudy) -> list[PlannedRuns]:
    """What a study would train, by configuration."""
    cells = {cell.configuration().key(0): cell for cell in study.cells}
    by_configuration: dict[str, list[Job]] = {}
    for job in study.missing():
        by_configuration.setdefault(job.configuration.key(0), []).append(job)
    return [PlannedRuns(jobs, cells[key].has_preset, cells[key].chosen) for key, jobs in by_configuration.items()]


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
    concrete = execution.concrete()
    here = {**concrete.made_with, "device_name": device_name(concrete.device)}
    made = record["environment"]
    return made.get("together") == 1 and all(made.get(name) == here[name] for name in COMPARABLE)
