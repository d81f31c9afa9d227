"""What commands print: text, tables and JSON, in any encoding, into streams that may be closed, full or broken."""

from __future__ import annotations

import io
import json
import os
import re
import select
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cclfp.errors import visible

if TYPE_CHECKING:
    from rich.console import Console

    from cclfp.runs.configuration import Configuration

AS_IT_IS = re.compile(r"^(\s|[-*+] |\d+[.)] |cclfp )", re.MULTILINE)  # what begins lists, commands, indented lines
COMMAND = re.compile("[^:]*: cclfp ")  # how a line begins that ends in a command to be copied


class Table(NamedTuple):
    """Names of columns, ``>`` before those that are aligned to the right, and rows of texts and other values."""

    columns: Sequence[str]
    rows: Iterable[Iterable[Any]]
    title: str | None = None


class Answer(NamedTuple):
    """What a command has found or done, as a JSON document and as texts and tables, and how the command ends."""

    document: Mapping[str, Any]
    parts: Sequence[str | Table] = ()
    code: int = 0
    error: BaseException | None = None  # raised when the rest has been printed


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the document, or else the texts and tables."""
    if as_json:
        print_json(answer.document)
        return
    for part in answer.parts:
        print_table(part) if isinstance(part, Table) else print_text(part)


def print_json(value: Any) -> None:
    """JSON on stdout, in ASCII, which every encoding can hold."""
    print(json.dumps(value, indent=2, allow_nan=False, default=os.fspath))  # paths as text


def print_text(text: str, *, err: bool = False) -> None:
    """Lines on stdout or stderr. On a terminal they are wrapped between words.

    A word, such as a path, is never broken, and a command that is to be copied is on one line.
    """
    console = _console(err)
    for line in visible(text).split("\n"):
        if console.is_terminal and not COMMAND.match(line):
            line = textwrap.fill(line, max(console.width, 20), break_long_words=False, break_on_hyphens=False)
        print(line, file=sys.stderr if err else sys.stdout)


def print_table(table: Table) -> None:
    """A table on stdout, as wide as it needs to be where that is no terminal; on a terminal it is wrapped."""
    from rich import box
    from rich.table import Table as Grid

    console = _console()
    if table.title is not None:  # a grid's own title would be wrapped to its width
        console.print(visible(table.title), style="bold")
    grid = Grid(box=box.ROUNDED, header_style="bold")
    for name in table.columns:
        is_number = name.startswith(">")
        grid.add_column(name.removeprefix(">"), justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(visible(show_cell(value)) for value in row))
    console.print(grid)


def show_cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return hyperparameters(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _console(err: bool = False) -> Console:
    """For plain text, which may have brackets and colons in it."""
    from rich.console import Console

    how: dict[str, Any] = {"stderr": err, "markup": False, "emoji": False, "highlight": False}
    console = Console(**how)
    return console if console.is_terminal else Console(**how, width=1000)


def attributes(source: object, *names: str) -> dict[str, Any]:
    """What a JSON document has of an object."""
    return {name: getattr(source, name) for name in names}


def unwrap(text: str) -> str:
    """A text with each paragraph on one line, for a terminal to wrap. Lists, commands and indented lines stay.

    >>> unwrap("One\\nparagraph.\\n\\n- a\\n- list")
    'One paragraph.\\n\\n- a\\n- list'
    """
    paragraphs = [paragraph.strip("\n") for paragraph in text.split("\n\n")]
    return "\n\n".join(one if AS_IT_IS.search(one) else " ".join(one.split()) for one in paragraphs)


def hyperparameters(values: Mapping[str, float]) -> str:
    """Settings as users write them: ``lr=0.1 augment=on``."""
    from cclfp.runs.configuration import show_value

    return " ".join(f"{name}={show_value(value)}" for name, value in values.items())


def unusual_settings(c: Configuration) -> str:
    """The settings of a configuration, without augmentation where it is off."""
    return hyperparameters({name: value for name, value in c.settings.items() if name != "augment" or value})


# Streams --------------------------------------------------------------------------------------------------------------


def open_streams() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` fit for any text, and open those of the three that are closed.

    What cannot be written is dropped, so that no run fails because nobody reads; :func:`output_error` says why. Streams
    that something else put in place are left as they are.
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
    error: OSError | None = None

    def write(self, data: Any) -> int:
        while self.error is None:
            try:
                if (written := super().write(data)) is not None:
                    return written
                select.select([], [self], [])  # it does not block, and has no room
            except OSError as error:
                self.error = error
        return len(data)


def output_error() -> OSError | None:
    """Why stdout could not be written to."""
    sys.stdout.flush()
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "error", None)
