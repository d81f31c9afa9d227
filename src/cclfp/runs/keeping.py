"""What happens to the records of trained runs: they go into the store, or to the process that writes the store."""

from __future__ import annotations

import contextlib
from typing import Protocol

from cclfp.events import Note, OnEvent
from cclfp.metrics import number
from cclfp.runs.checkpoints import checkpoint_path, locked, remove_checkpoint
from cclfp.runs.jobs import Job
from cclfp.runs.record import Record
from cclfp.runs.store import Store


class Keeper(Protocol):
    """Takes the records of trained runs."""

    def reserve(self, job: Job, on_event: OnEvent) -> contextlib.AbstractContextManager[None]:
        """Let no other process train the run inside this context; wait for one that does."""

    def find(self, job: Job) -> Record | None:
        """The record that makes a job unnecessary."""

    def keep(self, job: Job, record: Record, on_event: OnEvent) -> Record:
        """Keep the record of a trained run, and return the one that counts."""

    def finish(self, job: Job, on_event: OnEvent) -> None:
        """Remove what only an unfinished run needs: its checkpoint."""


class InStore:
    """Writes records into a store. Several processes on one machine may do so."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def reserve(self, job: Job, on_event: OnEvent) -> contextlib.AbstractContextManager[None]:
        return locked(job, on_event)

    def find(self, job: Job) -> Record | None:
        return job.find_record(self.store)

    def keep(self, job: Job, record: Record, on_event: OnEvent) -> Record:
        again = job.execution.fresh or ((old := self.store.find(job.key)) is not None and job.replaces(old))
        kept = self.store.add(record, replace=again)
        if kept is not record:
            text = "the store has a record of this run already: that one stays"
            if kept["average_accuracy"] != record["average_accuracy"]:
                text += f", with {number(kept['average_accuracy'])} %; trained now it has "
                text += f"{number(record['average_accuracy'])} %"
            on_event(Note(text, job.key))
        return kept

    def finish(self, job: Job, on_event: OnEvent) -> None:
        remove_checkpoint(checkpoint_path(job), job, on_event)


class OnDriver:
    """Leaves all this to the process that has the store. The record travels there in the event of the finished run."""

    def reserve(self, job: Job, on_event: OnEvent) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def find(self, job: Job) -> Record | None:
        return None

    def keep(self, job: Job, record: Record, on_event: OnEvent) -> Record:
        return record

    def finish(self, job: Job, on_event: OnEvent) -> None: ...
