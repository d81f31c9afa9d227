"""Train methods on a benchmark over seeds and settings: what ``cclfp run`` does, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cclfp.data import fetch
from cclfp.errors import InputError
from cclfp.events import Event, Failed, Finished, Note, OnEvent, Planned, Stored, ignore
from cclfp.methods import get_method
from cclfp.runs.checkpoints import clean_up, remove_left_overs
from cclfp.runs.code import describe_other_code
from cclfp.runs.costs import cost
from cclfp.runs.execution import Execution, pick_device
from cclfp.runs.fields import from_keywords
from cclfp.runs.jobs import Job, check_seeds, into_cohorts, make_jobs, name_runs
from cclfp.runs.pool import Executor, make_executor
from cclfp.runs.problem import MEMORY, Problem
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import KEYWORDS, check_setting_names, default_augmentation, describe_choice, make_grid, prepare
from cclfp.runs.shards import store_of, take_shard
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark

# Of more runs than this, the number is shown before they are trained (--seeds 100 means 100 seeds, not seed 100), and
# their progress is shown together.
SHOWN_ONE_BY_ONE = 16
SWITCHES = {"on": True, "true": True, "off": False, "false": False}


def run(
    methods: str | Sequence[str],
    benchmark: str | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    buffer: int | None = None,
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
    benchmark
        A name (``cclfp list benchmarks``).
    images
        Your own images instead of a benchmark: a folder of class folders or an ``.npz``, as
        :func:`cclfp.data.import_images` takes it (with ``image_size``, ``split_seed``, ``classes`` and ``skip_bad``),
        split into ``tasks`` tasks.
    scenario
        ``"class"``, ``"task"`` or ``"domain"``; by default the benchmark's first.
    tasks
        How many tasks the classes are split into; by default as the benchmark has it.
    class_order
        The order in which classes come, by name or number, ``"random"``, or a list of each task's classes. By
        default that of the labels (``"labels"``), but on Split Tiny ImageNet that of its file wnids.txt (``"wnids"``).
    backbone
        ``"mlp"``, ``"resnet18"``, ``"resnet18:width=16"`` or ``"FILE.py:factory"``, a function that takes the shape of
        an image and returns any ``nn.Module`` that maps images to features.
    validation
        Hold a tenth of the training examples out and test on them instead of the test set: to choose hyperparameters.
    max_classes
        How many classes a saved learner can have in the end, more than the benchmark's, so that it can learn new ones.
    seeds
        How many seeds (0, 1, ...), or which.
    memory
        How many examples the replay memory holds; ``buffer`` is an older name of it.
    settings, **options
        Hyperparameters, ``batch``, ``replay``, ``epochs`` and ``augment`` ("on" or "off"); a list of values makes a
        grid. Fields of :class:`cclfp.Execution`, such as ``engine``, may be given as keywords too.
    problem, execution
        What is learned, as one object; how and where to train, and where to keep the results.
    on_event
        Called with what happens: see :mod:`cclfp.events`.

    Examples
    --------
    >>> results = run("er", "split-mnist", seeds=1, lr=[0.03, 0.1])  # doctest: +SKIP
    >>> [result.mean_std("average_accuracy")["mean"] for result in results]  # doctest: +SKIP
    """
    how, options = from_keywords(Execution, execution, options)
    options |= {} if benchmark is None else {"benchmark": benchmark}
    what, more_settings = from_keywords(Problem, problem, options)
    names = check_names(methods)
    kinds = {name: get_method(name) for name in names}
    check_setting_names(kinds, settings or {})
    check_setting_names(kinds, more_settings, others=KEYWORDS)  # a keyword may be a misspelt field
    grid = {name: check_values(name, values) for name, values in {**(settings or {}), **more_settings}.items()}
    if buffer is not None:
        if what.memory != MEMORY:
            raise InputError(
                f"memory={what.memory} and buffer={buffer}: buffer is an older name of memory, give one of the two"
            )
        what = dataclasses.replace(what, memory=buffer)
    chosen_seeds = check_seeds(seeds)
    what = prepare(what, on_event)
    chosen = make_grid(names, what, grid)
    known = get_benchmark(str(what.benchmark))
    if known.is_own and "augment" not in grid:
        augment, reason = default_augmentation(known, chosen[0].backbone)
        on_event(Note(describe_choice(known.name, augment, reason)))
    all_jobs = make_jobs(chosen, chosen_seeds, how)
    jobs, costs = take_shard(all_jobs), None
    if len(all_jobs) > SHOWN_ONE_BY_ONE:
        of_shard = f", {len(jobs):,} of them in this shard" if len(jobs) < len(all_jobs) else ""
        counts = f"configurations: {len(chosen):,}, seeds: {len(chosen_seeds):,}"
        on_event(Note(f"{len(all_jobs):,} runs ({counts}){of_shard}"))
        costs = {job.key: cost(job.configuration) for job in jobs}
    varied = [name for name, values in grid.items() if len(values) > 1]
    on_event(Planned(name_runs(jobs, varied), str(store_of(how)), costs))
    records = run_jobs(jobs, on_event)
    found = [Result(c, [records[key] for seed in chosen_seeds if (key := c.key(seed)) in records]) for c in chosen]
    return [result for result in found if result.runs]  # a shard may have no run of a configuration


def run_jobs(jobs: Sequence[Job], on_event: OnEvent = ignore, executor: Executor | None = None) -> dict[str, Record]:
    """The records of all jobs by key: from the store where it has them, otherwise trained now.

    The jobs share one execution. If runs fail, the others are finished and stored before the first error is raised.
    """
    if not jobs:
        return {}
    execution = jobs[0].execution
    store = Store(execution.store)
    records, missing = _look_up(jobs, store, on_event)
    remove_left_overs(execution.checkpoint_folder)
    if not missing:
        return records
    for dataset in dict.fromkeys(get_benchmark(job.configuration.benchmark).dataset for job in missing):
        fetch(dataset, on_event)
    failures: list[Exception] = []

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            records[event.key] = event.record
        if isinstance(event, Failed):
            failures.append(event.error)
        on_event(event)

    with contextlib.ExitStack() as exits:
        exits.callback(remove_left_overs, execution.checkpoint_folder)  # of workers that were killed
        if executor is None:
            executor = make_executor(execution)
            exits.callback(executor.close)
        device = executor.device or pick_device(execution.device)
        executor.run(into_cohorts(missing, executor.workers, device), listen)
    if failures:
        raise failures[0]
    return records


def _look_up(jobs: Sequence[Job], store: Store, on_event: OnEvent) -> tuple[dict[str, Record], list[Job]]:
    """The records that the store has, and the jobs that are left, each once."""
    records: dict[str, Record] = {}
    missing: dict[str, Job] = {}
    replaced: list[Record] = []  # of other code
    for job in {job.key: job for job in jobs}.values():
        if (record := job.find_record(store)) is not None:
            clean_up(job)
            records[job.key] = record
            on_event(Stored(job.key, record))
            continue
        job.check_learner()
        missing[job.key] = job
        if job.execution.fresh or (stored := store.find(job.key)) is None:
            continue
        if job.replaces(stored):
            replaced.append(stored)
        else:
            on_event(Note("its learner was not saved: training again to save it", job.key))
    if replaced:
        on_event(Note(f"{describe_other_code(replaced, len(records) + len(replaced))}: training them again"))
    return records, list(missing.values())


def check_names(methods: str | Iterable[str]) -> list[str]:
    """The names of one or several methods."""
    given: list[object] = [methods] if isinstance(methods, str | type) else list(methods)
    names = [name for name in given if isinstance(name, str)]
    if len(names) < len(given):
        raise InputError(
            f"run takes methods by name, or as FILE.py:NAME so that its processes can load them, not {given!r}; "
            "cclfp.make and cclfp.testing take a class"
        )
    return names


def check_values(name: str, values: object) -> list[float]:
    """One number, or several that make a grid. The values of augment are "on" and "off", which become bools."""
    several = [values] if isinstance(values, numbers.Real | str) else values
    if not isinstance(several, Iterable):
        raise InputError(f"{name}={values!r}: expected a number or several")
    several = list(several)
    if name == "augment":
        if wrong := [v for v in several if str(v).casefold() not in SWITCHES]:
            raise InputError(f"augment={wrong[0]}: expected on or off")
        return [SWITCHES[str(v).casefold()] for v in several]
    if not all(isinstance(v, numbers.Real) for v in several):
        raise InputError(f"{name}={values!r}: expected a number or several")
    return [float(v) for v in several]
