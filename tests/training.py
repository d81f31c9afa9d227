"""Training jobs in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cclfp.runs.configuration import Configuration
from cclfp.runs.events import Event, Failed, Finished, Note, OnEvent, Step, ignore
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.record import Record
from cclfp.runs.store import Store
from cclfp.runs.training import train_together

RESULT = ("key", "average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "accuracy_matrix")


def make_job(configuration: Configuration, seed: int, store: Path, **execution: Any) -> Job:
    """A job of the eager engine on the CPU, unless the execution's fields say otherwise."""
    usual = {"device": "cpu", "engine": "eager", "checkpoint_every": 0.0, "store": store}
    return Job(configuration, seed, Execution(**{**usual, **execution}))


def train(job: Job, on_event: OnEvent = ignore) -> Record:
    """Train and store one run; an error is raised."""
    (record,) = train_all([job], on_event)
    return record


def train_all(jobs: list[Job], on_event: OnEvent = ignore) -> list[Record]:
    """Train and store runs as one cohort; the first error is raised."""
    records: dict[str, Record] = {}
    errors: list[Exception] = []

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            records[event.key] = event.record
        elif isinstance(event, Failed):
            errors.append(event.error)
        on_event(event)

    train_together(jobs, listen, Store(jobs[0].execution.store))
    if errors:
        raise errors[0]
    return [records[job.key] for job in jobs]


def result(record: Record) -> dict[str, Any]:
    """What a run has found, without how and when."""
    return {name: value for name, value in record.items() if name in RESULT}


class Stop(Exception):
    """Stands for a SIGKILL at a chosen moment."""


def texts(events: list[Event]) -> list[str]:
    """The notes among events."""
    return [event.text for event in events if isinstance(event, Note)]


def stop_at(step: int, error: type[BaseException] = Stop) -> OnEvent:
    """A listener that raises at a step."""

    def listen(event: Event) -> None:
        if isinstance(event, Step) and event.step >= step:
            raise error

    return listen
