"""What happens while runs are trained, as typed events. An event about one run has that run's key."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Callable
from typing import Any

from cclfp.data import Listener as DatasetListener
from cclfp.errors import InputError, RunError, shortage
from cclfp.runs.record import Record


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
    record: Record


@dataclasses.dataclass(frozen=True)
class Step:
    """How far a run is."""

    key: str
    task: int  # counted from 1
    tasks: int
    step: int
    steps: int
    accuracy: float | None  # average, after the last task that was tested
    compiling: bool = False  # whether the next step waits for the compiler


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
    record: Record


@dataclasses.dataclass(frozen=True)
class Failed:
    """A run that could not be trained, or whose learner could not be saved."""

    key: str
    error: Exception


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

KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Stored, Placed, Step, Finished, Failed, Note, DataProgress)
}


def ignore(event: Event) -> None:
    """Do nothing: the default listener."""


def to_json(event: Event) -> str:
    """An event as one line, for another process. An error that is not for the user becomes text with its traceback."""
    values = dict(vars(event))
    if isinstance(event, Failed):
        is_input = isinstance(event.error, InputError)
        text = str(event.error) if isinstance(event.error, InputError | RunError) else _explain(event.error)
        values["error"] = {"text": text, "is_input": is_input}
    return json.dumps({"event": type(event).__name__, **values})


def _explain(error: Exception) -> str:
    return shortage(error) or "".join(traceback.format_exception(error))


def from_json(line: str) -> Event:
    """The event that :func:`to_json` wrote."""
    values: dict[str, Any] = json.loads(line)
    kind = KINDS[values.pop("event")]
    if kind is Failed:
        error = values["error"]
        values["error"] = (InputError if error["is_input"] else RunError)(error["text"])
    return kind(**values)


class DatasetEvents(DatasetListener):
    """Passes on what happens to a dataset as events."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event

    def say(self, line: str) -> None:
        self.on_event(Note(line))

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        self.on_event(DataProgress(what, done, total, unit))
