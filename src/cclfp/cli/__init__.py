"""The command ``cclfp``. Its subcommands are in :mod:`cclfp.cli.app`; this module turns their ends into exit codes."""

from __future__ import annotations

import errno
import sys

from cclfp.cli.signals import answer_signals, leave_signals
from cclfp.cli.streams import OutputError, open_streams
from cclfp.errors import InputError, RunError, Stopped, shortage, visible

RESUMABLE = ("run", "study", "tune")
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main() -> None:
    """Run the command line and exit.

    Exit codes: 2 for what a user can fix, 1 for another failure, 128 + n after signal n. Each comes
    with one message on stderr, except when a reader of stdout has seen enough (``| head``).
    """
    invoked: dict[str, str | None] = {"command": None}
    try:
        answer_signals()
        open_streams()
        code = _call(invoked)
        sys.stdout.flush()
        leave_signals()
    except Stopped as stop:
        code = 128 + stop.number
        rest = ": what is finished is stored, and the same command continues from the last checkpoint"
        print("stopped" + (rest if invoked["command"] in RESUMABLE else ""), file=sys.stderr)
    except OutputError as error:
        leave_signals()
        code = BROKEN_PIPE if error.number == errno.EPIPE else 1
        if code != BROKEN_PIPE:
            print(f"error: stdout cannot be written to: {error}", file=sys.stderr)
    sys.exit(code)


def _call(invoked: dict[str, str | None]) -> int | str | None:
    """Run the command that the arguments name and return its exit code. Its imports can be stopped by a signal, too."""
    try:
        from cclfp.cli.app import app

        app(obj=invoked)
    except SystemExit as done:  # how every command ends
        return done.code
    except InputError as error:
        from cclfp.cli.output import print_text

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
