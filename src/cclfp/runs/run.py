"""Train methods on a benchmark over seeds and settings: what ``cclfp run`` does, from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cclfp.data import fetch
from cclfp.errors import InputError, portable
from cclfp.events import Event, Failed, Finished, Note, OnEvent, Planned, Stored, ignore
from cclfp.runs.checkpoints import remove_left_overs
from cclfp.runs.code import describe_other_code
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, check_seeds, cost, into_cohorts, make_jobs, name_runs, take_shard
from cclfp.runs.pool import Executor, make_executor
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations, prepare, read_keywords
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark

# Of more runs than this, the number is shown before they are trained (--seeds 100 means 100 seeds, not seed 100), and
# their progress is shown together.
SHOWN_ONE_BY_ONE = 16


def run(
    methods: str | Sequence[str],
    benchmark: str | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    settings: Mapping[str, Any] | None = None,
    problem: Problem | None = None,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> list[Result]:
    """Train methods on a benchmark, one run per seed and combination of settings, spread over the cores.

    Finished runs come from the store instead of being trained again; interrupted ones continue from their last
    checkpoint.

    Parameters
    ----------
    methods
        One or several: names (``cclfp list methods``), or ``"FILE.py:NAME"`` for a method of your own.
    seeds
        How many seeds (0, 1, ...), or which.
    settings, **options
        Hyperparameters, ``batch``, ``replay``, ``epochs`` and ``augment`` ("on" or "off"); a list of values makes a
        grid.
    problem, execution
        What is learned, and how and where to train, each as one object. Or give their fields as keywords, which
        ``help(cclfp.Problem)`` and ``help(cclfp.Execution)`` describe.
    on_event
        Called with what happens: see :mod:`cclfp.events`.

    Examples
    --------
    >>> results = run("er", "split-mnist", seeds=1, lr=[0.03, 0.1])  # doctest: +SKIP
    >>> [result.mean_std("average_accuracy")["mean"] for result in results]  # doctest: +SKIP
    """
    names = check_names(methods)
    what, how, grid = read_keywords(names, settings, problem, execution, {"benchmark": benchmark, **options})
    chosen_seeds = check_seeds(seeds)
    what = prepare(what, on_event)
    chosen = configurations(names, what, settings=grid)
    known = get_benchmark(str(what.benchmark))
    if known.is_own and "augment" not in grid:
        state, other = ("on", "off") if chosen[0].augment else ("off", "on")
        helps = "they help on images in colour, of 32 pixels or more, with a convolutional backbone"
        text = f"{known.name}: random crops and flips of the images are {state}: {helps}; augment={other} changes that"
        on_event(Note(text))
    all_jobs = make_jobs(chosen, chosen_seeds, how)
    jobs, costs = take_shard(all_jobs), None
    if len(all_jobs) > SHOWN_ONE_BY_ONE:
        of_shard = f", {len(jobs):,} of them in this shard" if len(jobs) < len(all_jobs) else ""
        counts = f"configurations: {len(chosen):,}, seeds: {len(chosen_seeds):,}"
        on_event(Note(f"{len(all_jobs):,} runs ({counts}){of_shard}"))
        costs = {job.key: cost(job.configuration) for job in jobs}
    labels = name_runs(jobs, [name for name, values in grid.items() if len(values) > 1])
    on_event(Planned(labels, str(how.target), costs))
    records = run_jobs(jobs, on_event, labels=labels)
    found = [Result(c, [records[key] for seed in chosen_seeds if (key := c.key(seed)) in records]) for c in chosen]
    return [result for result in found if result.runs]  # a shard may have no run of a configuration


def run_jobs(
    jobs: Sequence[Job],
    on_event: OnEvent = ignore,
    executor: Executor | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Record]:
    """The records of all jobs by key: from the store where it has them, otherwise trained now.

    The jobs share one execution. If runs fail, the others are finished and stored before the first error is raised,
    as text that names the run as ``labels`` do.
    """
    if not jobs:
        return {}
    execution = jobs[0].execution
    store = Store(execution.store)
    records, missing = _look_up(jobs, store, on_event)
    remove_left_overs(execution.checkpoint_folder, execution.save, records)
    if not missing:
        return records
    for dataset in dict.fromkeys(get_benchmark(job.configuration.benchmark).dataset for job in missing):
        fetch(dataset, on_event)
    failures: dict[str, Exception] = {}
    interrupted: list[Exception] = []  # by what the caller's function raised, which is no failure of a run

    def listen(event: Event) -> None:
        if interrupted:
            raise interrupted[0]
        if isinstance(event, Finished):
            records[event.key] = event.record
        if isinstance(event, Failed):
            failures[event.key] = event.error
        try:
            on_event(event)
        except Exception as error:
            interrupted.append(error)
            raise

    with contextlib.ExitStack() as exits:
        exits.callback(remove_left_overs, execution.checkpoint_folder, execution.save)  # of workers that were killed
        executor = executor or exits.enter_context(make_executor(execution))
        executor.run(into_cohorts(missing, executor.workers, executor.device), listen)
    if failures:
        key, error = next(iter(failures.items()))
        known, names = portable(error), labels or name_runs(jobs)
        text = f"{names[key]} failed: {known}".rstrip()
        text += f"\n{len(failures)} of {len(names)} runs failed" if len(names) > 1 else ""
        raise type(known)(text) from error
    return records


def _look_up(jobs: Sequence[Job], store: Store, on_event: OnEvent) -> tuple[dict[str, Record], list[Job]]:
    """The records that make jobs unnecessary, and the jobs that are left."""
    records: dict[str, Record] = {}
    missing: list[Job] = []
    others: list[Record] = []  # of other code
    for job in {job.key: job for job in jobs}.values():
        stored = store.find(job.key)
        if stored is not None and not job.replaces(stored):
            if job.has_learner():
                records[job.key] = stored
                on_event(Stored(job.key, stored))
                continue
            on_event(Note("its learner was not saved: training again to save it", job.key))
        elif stored is not None and not job.execution.fresh:
            others.append(stored)
        job.has_learner(to_replace=True)  # refuses where it must not be replaced
        missing.append(job)
    if others:
        on_event(Note(f"{describe_other_code([*records.values(), *others])}: training them again"))
    return records, missing


def check_names(methods: str | Iterable[str]) -> list[str]:
    """The names of one or several methods."""
    names = [methods] if isinstance(methods, str) or not isinstance(methods, Iterable) else list(methods)
    if not all(isinstance(name, str) for name in names):
        text = "run takes methods by name, or as FILE.py:NAME so that its processes can load them"
        raise InputError(f"{text}, not {names!r}; cclfp.make and cclfp.testing take a class")
    return names
