"""Runs that a study needs: which the store has, and training the others, the longest first."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from cclfp.events import OnEvent, Planned, ignore
from cclfp.runs.configuration import Configuration
from cclfp.runs.costs import cost
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, make_jobs, name_methods
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.shards import store_of, take_shard
from cclfp.runs.store import Store, exists


class TrainingPlan:
    """Configurations over seeds. Subclasses say which."""

    seeds: Sequence[int]
    execution: Execution

    def configurations(self) -> list[Configuration]:
        raise NotImplementedError

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """All runs that are needed, or those of its shard, each once, the longest first."""
        return take_shard(self._make_jobs())

    @property
    def store(self) -> Path:
        """Where the records are written."""
        return store_of(self.execution)

    def _make_jobs(self) -> list[Job]:
        jobs = make_jobs(self.configurations(), self.seeds, self.execution)
        return sorted({job.key: job for job in jobs}.values(), key=lambda job: -cost(job.configuration))

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

    def _planned(self) -> Planned:
        return Planned(
            {job.key: _label(job, method) for job, method in zip(self.jobs, name_methods(self.jobs), strict=True)},
            str(self.store),
            {job.key: cost(job.configuration) for job in self.jobs},
        )


def _label(job: Job, method: str) -> str:
    c = job.configuration
    off = [name for name in ("w", "alpha", "beta") if c.method == "ccl-fp+" and c.hyperparameters[name] == 0]
    kind = " ".join([method, *(f"{name}=0" for name in off)])
    memory = "" if c.buffer in (None, 200) else f" memory {c.buffer}"
    return f"{kind}{memory} {c.benchmark} {c.scenario} seed {job.seed}"
