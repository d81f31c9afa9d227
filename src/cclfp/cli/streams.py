"""stdout and stderr of a command: in any encoding, closed, full or broken."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
import unicodedata
from typing import Any, BinaryIO

ERRORS = "cclfp.replace"  # the name of our handler of characters that an encoding lacks
REPLACEMENTS = {
    **dict.fromkeys("–—−‐‑─━┄┅┈┉╌╍═╴╶╸╺", "-"),
    **dict.fromkeys("│┃┆┇┊┋╎╏║╵╷╹╻", "|"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    "±": "+/-",
    "×": "x",
    "·": ".",
    "°": " degrees",
    "…": "~",  # as wide as itself, since tables are cut with it
    "•": "*",
    "†": "+",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "\N{NO-BREAK SPACE}": " ",
}


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
        sys.stdout = _open(1, sys.stdout, needed=True)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open(2, sys.stderr, needed=False)


def printable(text: str) -> str:
    """A text with what stdout's encoding lacks replaced, so that its width is known before it is printed."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, ERRORS).decode(encoding)


def _open(number: int, old: Any, *, needed: bool) -> io.TextIOWrapper:
    encoding = "utf-8" if old is None else old.encoding
    raw: Any = _Raw(number, needed=needed)
    return _Text(io.BufferedWriter(raw), encoding, ERRORS, line_buffering=not needed or raw.isatty())


class _Raw(io.FileIO):
    def __init__(self, number: int, *, needed: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self.needed, self.failed = needed, False

    def write(self, data: Any) -> int:
        if not self.failed:
            try:
                while (written := super().write(data)) is None:  # it does not block and has no room
                    select.select([], [self], [])
                return written
            except OSError as error:
                if self.needed:
                    self.failed = True
                    raise OutputError(error) from error
        return len(data)


class _Text(io.TextIOWrapper):
    @property
    def buffer(self) -> BinaryIO:
        """Hidden: ``typer.echo`` would write UTF-8 into it where the encoding is ASCII."""
        raise AttributeError("buffer")


def _replace(error: UnicodeError) -> tuple[str, int]:
    """In ASCII what an encoding lacks: a look-alike, a Greek letter's name, else an escape such as ``\\u4e2d``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    words = unicodedata.name(character, "").split()
    if character in REPLACEMENTS:
        text = REPLACEMENTS[character]
    elif words[:1] == ["BOX"]:
        text = "+"
    elif words[:3] == ["GREEK", "SMALL", "LETTER"] and len(words) == 4:
        text = words[3].lower()
    else:
        text = character.encode("ascii", "backslashreplace").decode()
    return text, error.start + 1


codecs.register_error(ERRORS, _replace)
