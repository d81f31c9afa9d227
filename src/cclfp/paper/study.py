"""Studies: the paper's tables, its run times, or methods and benchmarks of one's own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cclfp.core.scenarios import SCENARIOS
from cclfp.errors import InputError, unknown
from cclfp.events import OnEvent, Planned, ignore
from cclfp.methods import METHODS
from cclfp.paper import numbers
from cclfp.paper.compare import rank_results
from cclfp.paper.numbers import COMPONENTS
from cclfp.paper.search import latest_search, read_searches
from cclfp.paper.tuning import tune
from cclfp.runs.code import device_name
from cclfp.runs.configuration import method_labels
from cclfp.runs.execution import Execution, pick_cards
from cclfp.runs.jobs import Job, check_seeds, cost, make_jobs, take_shard
from cclfp.runs.pool import Pool
from cclfp.runs.problem import MEMORY, Problem, field_names, from_keywords
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import ABOUT_IMAGES, make_one, prepare
from cclfp.runs.store import Store, exists
from cclfp.streams import BENCHMARKS, get_benchmark

RUNTIME, MINE = "runtime", "mine"
STUDIES = (*numbers.TABLES, "all", RUNTIME, MINE)


@dataclasses.dataclass(frozen=True)
class Study:
    """What is trained: results without runs, the seeds of each, and how. Made by :func:`plan`."""

    what: str
    results: Sequence[Result]
    seeds: Sequence[int]
    execution: Execution

    @property
    def not_tuned(self) -> list[dict[str, str]]:
        """The methods and columns without a search or a preset: they are trained with the defaults."""
        untuned = [r for r in self.results if not r.is_tuned]
        places = dict.fromkeys((r.label if self.what == MINE else r.configuration.method, *r.column) for r in untuned)
        return [dict(zip(("method", "benchmark", "scenario"), place, strict=True)) for place in places]

    @property
    def store(self) -> Path:
        """Where the records are written."""
        return self.execution.target

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """All runs that are needed, or those of its shard, each once, the longest first."""
        jobs = make_jobs([result.configuration for result in self.results], self.seeds, self.execution)
        jobs = sorted({job.key: job for job in jobs}.values(), key=lambda job: -cost(job.configuration))
        if self.what == RUNTIME and exists(self.store):
            how = self.execution.concrete()
            here = numbers.describe_conditions({**how.made_with, "device_name": device_name(how.device)})
            timed = numbers.gather_timings(self.results, Store(self.store, read_only=True).find)
            alike = {r["key"] for t in timed for r in t.runs if numbers.describe_conditions(r["environment"]) == here}
            jobs = [job if job.key in alike else job.with_unchecked(fresh=True) for job in jobs]
        return take_shard(jobs)

    def look_up(self) -> tuple[list[Result], list[tuple[Result, list[Job]]]]:
        """The results with their runs in the store, and those with jobs that it lacks. The store is not created."""
        results = {result.key(0): result for result in self.results}
        store = Store(self.store, read_only=True) if exists(self.store) else None
        stored, missing = list[Result](), dict[str, list[Job]]()
        for job in self.jobs:
            key = job.configuration.key(0)
            if store is None or (record := job.find_record(store)) is None:
                missing.setdefault(key, []).append(job)
            else:
                stored.append(dataclasses.replace(results[key], runs=[record]))
        return stored, [(results[key], jobs) for key, jobs in missing.items()]

    def train(self, on_event: OnEvent = ignore) -> dict[str, Record]:
        """Train what the store does not have; the records of all jobs, by key."""
        on_event(planned := self.planned())
        # Times can be compared only if runs are trained one at a time.
        executor = Pool(1, pick_cards(self.execution.device)[:1]) if self.what == RUNTIME else None
        return run_jobs(self.jobs, on_event, executor, labels=planned.labels)

    def planned(self) -> Planned:
        """The names of all runs, and how expensive each is."""
        names = zip(self.jobs, method_labels([job.configuration for job in self.jobs]), strict=True)
        costs = {job.key: cost(job.configuration) for job in self.jobs}
        return Planned({job.key: _label(job, method) for job, method in names}, str(self.store), costs)

    def found(self, include_diverged: bool = False) -> list[Result]:
        """The results with their runs from the store; one's own are compared with the best of their column."""
        store = Store(self.store)
        found = [result.find_runs(store.find, self.seeds, include_diverged) for result in self.results]
        if self.what != MINE:
            return found
        columns = by_column(found).values()
        return [result for column in columns for result in rank_results(column)]

    def timed(self) -> list[tuple[str, list[Result]]]:
        """Per benchmark what its run times were measured on, and each method, with its run if it was timed there."""
        timed = numbers.gather_timings(self.results, Store(self.store).find)
        return [(made, alike) for made, alike in numbers.comparable(timed) if made]


def by_column(results: Iterable[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """The results of each table (of one's own: memory, in words), benchmark and scenario."""
    columns: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        columns.setdefault((result.table, *result.column), []).append(result)
    return columns


def _label(job: Job, method: str) -> str:
    c = job.configuration
    off = [f"{name}=0" for name in COMPONENTS.values() if c.method == "ccl-fp+" and c.hyperparameters[name] == 0]
    memory = [] if c.buffer in (None, MEMORY) else [f"memory {c.buffer}"]
    return " ".join([method, *off, *memory, c.benchmark, c.scenario, f"seed {job.seed}"])


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
) -> list[Result]:
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
    >>> results = study("accuracy", benchmarks=["split-mnist"], methods=["er"])  # doctest: +SKIP
    >>> [(r.configuration.scenario, r.mean, r.published.mean, r.verdict) for r in results]  # doctest: +SKIP
    """
    if what == RUNTIME:
        raise InputError("run times are not compared with published numbers: use cclfp.paper.study.plan('runtime')")
    options |= {"benchmarks": benchmarks, "methods": methods, "scenarios": scenarios}
    planned = plan(what, seeds=seeds, execution=execution, on_event=on_event, **options)
    planned.train(on_event)
    return planned.found(include_diverged)


def plan(
    what: str,
    *,
    seeds: int | Sequence[int] | None = None,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> Study:
    """What :func:`study` trains, with its options: nothing is trained yet, except for the searches of ``auto``."""
    if what not in STUDIES:
        raise unknown("table", what, STUDIES)
    asked = {kind: options.pop(f"{kind}s", ()) for kind in ("benchmark", "method", "scenario")}
    wanted = {kind: [names] if isinstance(names, str) else list(names) for kind, names in asked.items()}
    how, others = from_keywords(Execution, execution, options)
    own = {name: value for name, value in others.items() if value is not None and value is not False}
    if strange := [name for name in own if name not in OWN_OPTIONS]:
        raise unknown("option", strange[0], [*OWN_OPTIONS, *sorted(field_names(Execution))])
    if own and what != MINE:
        raise InputError(f"--{next(iter(own)).replace('_', '-')} is for a study of your own: cclfp study mine")
    chosen_seeds = check_seeds(5 if seeds is None else seeds)  # before any search
    if what == MINE:
        return Study(what, _plan_mine(wanted, how, on_event, **own), chosen_seeds, how)
    results = _select(list(numbers.TABLES) if what == "all" else [what], wanted)
    if what == RUNTIME:
        if seeds is not None:
            raise InputError(f"seeds={seeds}: run times are measured with one seed, which no table uses; leave it out")
        if how.on != "local" or how.shard is not None:
            raise InputError("run times are measured on this machine, one run after the other: leave out on and shard")
        chosen_seeds = [numbers.TIMING_SEED]
        how = dataclasses.replace(how, engine="eager" if how.engine == "auto" else how.engine)
    return Study(what, results, chosen_seeds, how)


def _select(tables: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> list[Result]:
    """The cells of the tables, only of the benchmarks, methods and scenarios wanted where any are given."""
    for kind, known in (("benchmark", BENCHMARKS), ("method", METHODS), ("scenario", SCENARIOS)):
        if strange := [name for name in wanted[kind] if name not in known]:
            raise unknown(kind, strange[0], known)
    found = [
        cell
        for table in tables
        for cell in (numbers.run_time_cells() if table == RUNTIME else numbers.cells(table))
        if all(not names or getattr(cell.configuration, kind) in names for kind, names in wanted.items())
    ]
    if not found:
        shown = ", ".join(name for names in wanted.values() for name in names)
        raise InputError(f"the paper has no number for {shown} in {' or '.join(tables)}")
    return found


OWN_OPTIONS = ("images", *ABOUT_IMAGES, "tasks", "class_order", "backbone", "memory", "auto")


def _plan_mine(
    wanted: Mapping[str, list[str]],
    execution: Execution,
    on_event: OnEvent,
    memory: int | Sequence[int] = MEMORY,
    auto: float | None = None,
    **fields: Any,
) -> list[Result]:
    """Methods by benchmarks of one's own choosing; ``fields`` are others of a problem.

    Each has the settings of the latest search there, else of the preset, else its defaults.
    """
    benchmarks, methods, scenarios = wanted.values()
    for kind, is_given in (("benchmark", benchmarks or "images" in fields), ("method", methods)):
        if not is_given:
            raise InputError(f"which {kind}s? A study of your own needs one or more: --{kind} A,B")
    problem = prepare(Problem(None if "images" in fields else benchmarks[0], **fields), on_event)
    chosen = [
        (method, dataclasses.replace(problem, benchmark=benchmark, scenario=scenario, memory=size))
        for benchmark in dict.fromkeys([*benchmarks, str(problem.benchmark)])
        for scenario in scenarios or get_benchmark(benchmark).scenarios[:1]
        for size in dict.fromkeys(memory if isinstance(memory, Iterable) else [memory])
        for method in dict.fromkeys(methods)
    ]
    for one in chosen:
        make_one(*one)  # refuses what cannot be trained, before anything is
    searches = read_searches(execution.store, on_event) if auto is None else []
    results = []
    for method, place in chosen:
        if auto is None:
            tuned, where = latest_search(searches, method, place), "tuned"
        else:
            tuned = tune(method, problem=place, budget=auto, repeatable=True, execution=execution, on_event=on_event)
            where = f"tuned in {auto:g} min"
        c = make_one(method, place, None if tuned is None else tuned.settings)
        found = Result(c, [], method, chosen=numbers.origin(c), table=f"memory {place.memory}")
        if tuned is not None:
            found = dataclasses.replace(found, chosen=where, doubts=tuple(tuned.doubts))
        results.append(found)
    return results
