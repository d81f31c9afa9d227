"""stdout and stderr of a command: in any encoding, closed, full or broken."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any


class OutputError(BaseException):
    """stdout cannot be written to. No Exception, so that nothing on the way takes it for a failed run."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.number = error.errno


def open_streams() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` fit for any text, and open those of the three that are closed.

    The first write to stdout that fails raises :class:`OutputError`, later ones are dropped. stderr has messages only:
    a run does not end because nobody reads them. Streams that something else put in place are left as they are.
    """
    if os.name != "posix":  # consoles of Windows take any text
        return
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # or the next file to be opened, perhaps the store, would be this stream
            mode = os.O_RDONLY if number == 1 else os.O_RDWR  # writing results into nothing would look like success
            os.set_inheritable(os.open(os.devnull, mode), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open(2, sys.stderr)


def _open(number: int, old: Any) -> io.TextIOWrapper:
    """The stream; what its encoding lacks is escaped, such as ``\\u4e2d``."""
    encoding = "utf-8" if old is None else old.encoding
    raw: Any = _Raw(number, "wb", closefd=False)
    is_terminal = number == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=is_terminal)


class _Raw(io.FileIO):
    failed = False

    def write(self, data: Any) -> int:
        while not self.failed:
            try:
                if (written := super().write(data)) is not None:
                    return written
                select.select([], [self], [])  # it does not block, and has no room
            except OSError as error:
                self.failed = True
                if self.fileno() == 1:
                    raise OutputError(error) from error
        return len(data)
