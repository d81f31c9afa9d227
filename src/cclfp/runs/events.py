"""The events of :mod:`cclfp.events`, by an older name."""

from __future__ import annotations

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
