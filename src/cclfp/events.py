"""What happens while datasets are read and runs are trained, as typed events, for one kind of listener.

An event about one run has that run's key. Whoever reports takes ``on_event``, and calls it with each event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from cclfp.errors import portable


@dataclasses.dataclass(frozen=True)
class Planned:
    """The runs of a command, before the first of them is trained."""

    labels: dict[str, str]  # the name of each run, by its key
    store: str
    costs: dict[str, float] | None = None  # how much work each run is, where the runs are many


@dataclasses.dataclass(frozen=True)
class Stored:
    """A run that was in the store already, and is not trained again."""

    key: str
    record: Any  # a Record of cclfp.runs


@dataclasses.dataclass(frozen=True)
class Step:
    """How far a run is."""

    key: str
    task: int  # counted from 1
    tasks: int
    step: int
    steps: int
    accuracy: float | None  # average, after the last task that was tested


@dataclasses.dataclass(frozen=True)
class Placed:
    """Runs whose training begins on a node of a cluster, or begins again there after another node was lost."""

    keys: list[str]  # those that are trained together
    node: str
    attempt: int  # counted from 1


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that was not in the store before and is now: it was trained here, or by another process meanwhile."""

    key: str
    record: Any  # a Record of cclfp.runs


@dataclasses.dataclass(frozen=True)
class Failed:
    """A run that could not be trained, or whose learner could not be saved."""

    key: str
    error: Exception

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed, (self.key, portable(self.error))  # for another process


@dataclasses.dataclass(frozen=True)
class Note:
    """A sentence for the user; without a key it is about no run in particular."""

    text: str
    key: str | None = None


@dataclasses.dataclass(frozen=True)
class DataProgress:
    """How far a step of downloading or reading a dataset is; ``total`` is 0 where it is not known."""

    what: str
    done: int
    total: int
    unit: str


Event = Planned | Stored | Placed | Step | Finished | Failed | Note | DataProgress
OnEvent = Callable[[Event], None]
Item = TypeVar("Item")


def ignore(event: Event) -> None:
    """Do nothing: the default listener."""


def with_progress(
    items: Iterable[Item], total: int, on_event: OnEvent, what: str, unit: str, every: int = 500
) -> Iterator[Item]:
    """Yield the items, and report the progress after every ``every`` of them."""
    for done, item in enumerate(items):
        if done % every == 0:
            on_event(DataProgress(what, done, total, unit))
        yield item
    on_event(DataProgress(what, total, total, unit))
