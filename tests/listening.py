"""A listener that keeps what it is told about a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cclfp.data import Listener


class EventListener(Listener):
    """Passes everything on as dictionaries."""

    def __init__(self, keep: Callable[[dict[str, Any]], None]) -> None:
        self.keep = keep

    def say(self, line: str) -> None:
        self.keep({"event": "note", "text": line})

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        self.keep({"event": "data", "what": what, "done": done, "total": total, "unit": unit})
