"""Parts of a grid for processes that know nothing of each other, such as the tasks of a Slurm array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cclfp.errors import InputError
from cclfp.runs.execution import Execution, parse_shard
from cclfp.runs.jobs import Job, cost_of, into_cohorts
from cclfp.runs.store import Store, exists


def take_shard(jobs: Sequence[Job]) -> list[Job]:
    """The jobs of the part that their execution names, of those whose records its store lacks.

    They are to be stored in :func:`store_of`. The same jobs and the same store give the same parts, on every
    machine; no job is in two parts. Without a shard, these are all jobs, unchanged.
    """
    execution = jobs[0].execution
    if execution.shard is None:
        return list(jobs)
    if execution.fresh or execution.other_code == "retrain":
        again = "fresh" if execution.fresh else "other_code='retrain'"
        raise InputError(
            f"shard={execution.shard!r} with {again}: the new records would not fit the store's; use an empty store"
        )
    number, count = parse_shard(execution.shard)
    part, store = cut(_missing(jobs), count)[number - 1], store_of(execution)
    _refuse_trained(part, store)
    return [job.with_execution(store=store, shard=None) for job in part]


def cut(jobs: Sequence[Job], count: int) -> list[list[Job]]:
    """The jobs in so many parts, of whole cohorts and of about the same cost."""
    parts: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for cohort in into_cohorts(jobs, count, "cpu"):  # the longest first; cut alike on machines with and without a GPU
        least = loads.index(min(loads))
        parts[least] += cohort
        loads[least] += cost_of(cohort)
    return parts


def store_of(execution: Execution) -> Path:
    """Where records are written: for a part of a grid ``shard-2-of-3.sqlite``, beside the store that all parts read."""
    if execution.shard is None:
        return execution.store
    number, count = parse_shard(execution.shard)
    return execution.store.with_name(f"shard-{number}-of-{count}.sqlite")


def _missing(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose records the store lacks, each once. The store is not created."""
    different = list({job.key: job for job in jobs}.values())
    path = jobs[0].execution.store
    if not exists(path):
        return different
    store = Store(path, read_only=True)
    return [job for job in different if store.find(job.key) is None]  # whatever learners there are: see find_record


def _refuse_trained(part: Sequence[Job], store: Path) -> None:
    """InputError where another part has runs of this one, because another grid was cut before."""
    for path in sorted(store.parent.glob("shard-*-of-*.sqlite")):
        if path == store:
            continue
        other = Store(path, read_only=True)
        if any(other.find(job.key) is not None for job in part):
            raise InputError(f"{path} has runs of this part, from another grid: cclfp runs import {path} first")
