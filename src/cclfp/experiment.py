"""Train methods on a benchmark over seeds and settings: what ``cclfp run`` does, from Python."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cclfp import metrics
from cclfp.configuration import Configuration, configurations
from cclfp.data import fetch
from cclfp.engine.job import Job, finished, pick_device
from cclfp.engine.pool import JobReport, do_all
from cclfp.errors import InputError
from cclfp.store import Record, Store, default_store
from cclfp.streams import get_benchmark
from cclfp.streams.benchmarks import ClassOrder
from cclfp.study import Published, published

MEASURES = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "seconds")


@dataclasses.dataclass(frozen=True)
class Result:
    """One configuration over its seeds."""

    configuration: Configuration
    runs: list[Record]

    def mean_std(self, measure: str) -> dict[str, float | None]:
        """Mean and standard deviation over seeds of ``"average_accuracy"``, ``"forgetting"``, ``"seconds"``, ..."""
        return metrics.mean_std([run[measure] for run in self.runs])

    @property
    def published(self) -> Published | None:
        """The paper's average accuracy for the same, where there is one."""
        c = self.configuration
        return published(c.method, c.benchmark, c.scenario, c.buffer) if c.is_papers_protocol else None

    def to_dict(self) -> dict[str, Any]:
        """As ``cclfp run --json`` prints it."""
        per_run = ("seed", *MEASURES[:4], "accuracy_matrix", "seconds")
        return {
            **self.configuration.to_dict(),
            **{measure: self.mean_std(measure) for measure in MEASURES},
            "published": None if self.published is None else self.published._asdict(),
            "runs": [{name: run[name] for name in per_run} for run in self.runs],
        }


def run(
    methods: str | Sequence[str],
    benchmark: str,
    *,
    scenario: str | None = None,
    seeds: int | Sequence[int] = 5,
    buffer: int = 200,
    class_order: ClassOrder | Sequence[int] = None,
    device: str = "auto",
    threads: int = 1,
    store: str | Path | None = None,
    save: str | Path | None = None,
    fresh: bool = False,
    checkpoint_every: float = 30.0,
    report: JobReport = lambda number, event: None,
    **settings: float | Sequence[float],
) -> list[Result]:
    """Train methods on a benchmark, one run a seed and combination of settings, spread over the cores.

    Finished runs come from the store instead of being trained again (unless ``fresh``), interrupted ones go on from
    their last checkpoint. ``settings`` are hyperparameters, ``batch``, ``replay`` and ``epochs``; a list of values
    makes a grid. Each run computes on ``threads`` threads; with the default of 1 its numbers do not depend on how many
    run beside it.

    >>> results = run("er", "split-mnist", seeds=1, lr=[0.03, 0.1])  # doctest: +SKIP
    >>> [result.mean_std("average_accuracy")["mean"] for result in results]  # doctest: +SKIP
    """
    names = [methods] if isinstance(methods, str) else list(methods)
    grid = {name: [v] if isinstance(v, int | float) else list(v) for name, v in settings.items()}
    order = class_order if class_order is None or isinstance(class_order, str) else tuple(class_order)
    chosen = configurations(names, benchmark, scenario, buffer=buffer, class_order=order, settings=grid)
    jobs = jobs_for(
        chosen,
        check_seeds(seeds),
        store=default_store() if store is None else Path(store),
        save=None if save is None else Path(save),
        device=device,
        threads=threads,
        fresh=fresh,
        checkpoint_every=checkpoint_every,
    )
    return run_jobs(chosen, jobs, report)


def jobs_for(
    chosen: Sequence[Configuration],
    seeds: Sequence[int],
    *,
    store: Path,
    save: Path | None,
    device: str,
    threads: int,
    fresh: bool,
    checkpoint_every: float,
) -> list[Job]:
    """A job for each configuration and seed, the seeds of one configuration together."""
    pick_device(device)
    if threads < 1:
        raise InputError(f"threads={threads}: expected 1 or more")
    if not checkpoint_every >= 0:
        raise InputError(f"checkpoint_every={checkpoint_every}: expected a number of seconds, 0 or more")
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"learners cannot be saved in {save}: {error}") from error
    return [
        Job(
            configuration=configuration,
            seed=seed,
            store=store,
            device=device,
            threads=threads,
            fresh=fresh,
            save=None if save is None else save / learner_file(configuration, seed),
            checkpoint_every=checkpoint_every,
        )
        for configuration in chosen
        for seed in seeds
    ]


def run_jobs(chosen: Sequence[Configuration], jobs: Sequence[Job], report: JobReport) -> list[Result]:
    """Do the jobs whose records are not in the store yet, and gather all records by configuration."""
    store = Store(jobs[0].store)
    records = {number: record for number, job in enumerate(jobs) if (record := finished(job, store)) is not None}
    for number, record in records.items():
        report(number, {"event": "stored", "record": record})
    missing = [number for number in range(len(jobs)) if number not in records]
    if missing:
        fetch(
            get_benchmark(chosen[0].benchmark).dataset, lambda line: report(missing[0], {"event": "note", "text": line})
        )
        workers = max(1, cores() // jobs[0].threads)
        done = do_all([jobs[n] for n in missing], workers, lambda i, event: report(missing[i], event))
        records |= dict(zip(missing, done, strict=True))
    return [
        Result(configuration, [records[n] for n, job in enumerate(jobs) if job.configuration == configuration])
        for configuration in chosen
    ]


def learner_file(configuration: Configuration, seed: int) -> str:
    c = configuration
    return f"{c.method}_{c.benchmark}_{c.scenario}_seed{seed}_{c.key(seed)[:8]}.ckpt"


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """5 -> 0, 1, 2, 3, 4; a sequence is taken as it is."""
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen) or any(not isinstance(s, int) or s < 0 for s in chosen):
        raise InputError(f"seeds={seeds!r}: expected how many (1 or more), or different whole numbers, 0 or more")
    return chosen


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
