"""The events of :mod:`cclfp.events`, by an older name; and as JSON for another process."""

from __future__ import annotations

import json
from typing import Any

from cclfp.errors import InputError, RunError, portable
from cclfp.events import (
    DataProgress,
    Event,
    Failed,
    Finished,
    Note,
    OnEvent,
    Placed,
    Planned,
    Step,
    Stored,
    ignore,
)

__all__ = [
    "DataProgress",
    "Event",
    "Failed",
    "Finished",
    "Note",
    "OnEvent",
    "Placed",
    "Planned",
    "Step",
    "Stored",
    "ignore",
]

KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Stored, Placed, Step, Finished, Failed, Note, DataProgress)
}


def to_json(event: Event) -> str:
    """An event as one line, for another process. An error that is not for the user becomes text with its traceback."""
    values = dict(vars(event))
    if isinstance(event, Failed):
        error = portable(event.error)
        values["error"] = {"text": str(error), "is_input": isinstance(error, InputError)}
    return json.dumps({"event": type(event).__name__, **values})


def from_json(line: str) -> Event:
    """The event that :func:`to_json` wrote."""
    values: dict[str, Any] = json.loads(line)
    kind = KINDS[values.pop("event")]
    if kind is Failed:
        error = values["error"]
        values["error"] = (InputError if error["is_input"] else RunError)(error["text"])
    return kind(**values)
