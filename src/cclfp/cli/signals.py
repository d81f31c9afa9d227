"""Signals that ask a process to stop, as an exception: every command cleans up and ends its children."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from cclfp.errors import Stopped

ANSWERED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PATIENCE = 5.0  # seconds that cleaning up may take before another signal ends it


def answer_signals() -> None:
    """Raise :class:`Stopped` at the first signal. One that is ignored, as under ``nohup``, stays ignored.

    More signals while the process cleans up are dropped: ``timeout`` and closed terminals send each of them twice.
    """
    since: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if since is None:
            since = time.monotonic()
            raise Stopped(number)
        if time.monotonic() - since > PATIENCE:
            os._exit(128 + number)

    _set(stop)


def leave_signals() -> None:
    """From now on a signal ends the process at once and silently: there is nothing left to do but exit."""
    _set(signal.SIG_DFL)


def _set(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows it only there
        for number in ANSWERED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
