"""A listener that keeps what it is told."""

from __future__ import annotations

from cclfp.events import Event, Note


class Notes:
    """Keeps the lines of text among the events that it is called with."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self.lines.append(event.text)
