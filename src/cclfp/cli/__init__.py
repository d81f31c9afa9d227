"""The command ``cclfp``. Its subcommands are in :mod:`cclfp.cli.app`; this module turns their ends into exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from cclfp.cli.output import open_streams, output_error, print_text
from cclfp.errors import InputError, RunError, Stopped, shortage, visible

RESUMABLE = (["run"], ["study"], ["tune"])  # how their arguments begin
BROKEN_PIPE = 141  # 128 + SIGPIPE
ANSWERED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PATIENCE = 5.0  # seconds that cleaning up may take before another signal ends it


def main() -> None:
    """Run the command line and exit.

    Exit codes: 2 for what a user can fix, 1 for another failure, 128 + n after signal n. Each comes
    with one message on stderr, except when a reader of stdout has seen enough (``| head``).
    """
    try:
        answer_signals()
        open_streams()
        code = _call()
        if (error := output_error()) is not None:
            code = BROKEN_PIPE if error.errno == errno.EPIPE else 1
            if code != BROKEN_PIPE:
                print(f"error: stdout cannot be written to: {error.strerror}", file=sys.stderr)
        _on_signals(signal.SIG_DFL)  # there is nothing left to do but exit
    except Stopped as stop:
        code = 128 + stop.number
        rest = ": what is finished is stored, and the same command continues from the last checkpoint"
        print("stopped" + (rest if sys.argv[1:2] in RESUMABLE else ""), file=sys.stderr)
    sys.exit(code)


def _call() -> int | str | None:
    """Run the command that the arguments name and return its exit code. Its imports can be stopped by a signal, too."""
    try:
        from cclfp.cli.app import app

        app()
    except SystemExit as done:  # how every command ends
        return done.code
    except InputError as error:
        print_text(f"error: {error}", err=True)
        return 2
    except RunError as error:  # it may have a traceback, which is not wrapped
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 1
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if (text := shortage(error)) is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        return 2 if isinstance(error, ImportError) else 1  # with so little nothing can be begun
    return 0


def answer_signals() -> None:
    """Raise :class:`Stopped` at the first signal that asks to stop, so that every command cleans up.

    More signals while it cleans up are dropped: ``timeout`` and closed terminals send each of them twice.
    """
    since: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if since is None:
            since = time.monotonic()
            raise Stopped(number)
        if time.monotonic() - since > PATIENCE:
            os._exit(128 + number)

    _on_signals(stop)


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Set the handler of the signals. One that is ignored, as under ``nohup``, stays ignored."""
    if threading.current_thread() is threading.main_thread():  # Python allows it only there
        for number in ANSWERED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
