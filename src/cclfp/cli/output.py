"""What commands print: tables, numbers, JSON."""

from __future__ import annotations

import codecs
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import typer

from cclfp.cli.streams import printable
from cclfp.errors import visible
from cclfp.metrics import number, plus_minus, signed

LEAST_WIDTH = 20  # columns that a wrapped text has at least
MOST_LINES = 3  # about so many lines a text in a table is wrapped to before a column is left out

OTHER_CODE = "†"  # marks numbers that other code than this has made

__all__ = ["hyperparameters", "number", "plus_minus", "print_json", "print_table", "print_text", "signed", "unwrap"]


def print_json(value: Any) -> None:
    """JSON on stdout, in UTF-8 or else in ASCII, which every reader of JSON takes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8" or printable(text) != text:
        text = json.dumps(value, indent=2, allow_nan=False)
    typer.echo(text)


def print_text(text: str, *, err: bool = False, hang: str = "  ") -> None:
    """Lines on stdout or stderr. On a terminal they are wrapped between words, and ``hang`` indents the rest of a line.

    A word, such as a path, is never broken. A command that is to be copied is printed as it is, on a line of its own.
    """
    from rich.console import Console

    console = Console(stderr=err)
    for line in visible(text).split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + hang
        how: dict[str, Any] = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
        parts = textwrap.wrap(line, max(console.width, LEAST_WIDTH), **how) if console.is_terminal else [line]
        typer.echo("\n".join(parts), err=err)


def unwrap(text: str) -> str:
    """A text with each paragraph on one line, for a terminal to wrap. Lists and indented lines stay as they are.

    >>> unwrap("One\\nparagraph.\\n\\n- a\\n- list")
    'One paragraph.\\n\\n- a\\n- list'
    """
    paragraphs = [paragraph.strip("\n") for paragraph in text.split("\n\n")]
    return "\n\n".join(
        paragraph if re.search(r"^(\s|[-*+] |\d+[.)] )", paragraph, re.MULTILINE) else " ".join(paragraph.split())
        for paragraph in paragraphs
    )


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, drop: Sequence[str] = ()
) -> None:
    """A table on stdout: numbers to the right, as wide as it needs to be where stdout is not a terminal.

    On a terminal it fits the width, and no word is broken. Left-aligned texts are wrapped; where that is not enough,
    columns are left out in the order of ``drop``, and in the end every row becomes a list of names and values.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)
    if title is not None:  # a table's own title would be wrapped to its width
        console.print(title, style="bold", highlight=False, markup=False)
    several = [[printable(visible(cell)) for cell in row] for row in rows]
    every = [Column(printable(visible(name)), [row[i] for row in several]) for i, name in enumerate(columns)]
    shown = _fit(every, drop, console.width)
    if shown is None:
        _print_lists(every, console)
        return
    console.print(_table(shown, console.width))
    if left_out := [column.name for column in every if column not in shown]:
        text = f"without {', '.join(left_out)}, for which the terminal is too narrow"
        console.print(text, style="dim", highlight=False, markup=False)


class Column:
    """A column of a table; ``>`` before its name aligns it to the right."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name, self.is_right, self.cells = name.removeprefix(">"), name.startswith(">"), cells

    @property
    def width(self) -> int:
        """How wide it is without wrapping."""
        return max(map(_cell_width, [self.name, *self.cells]))

    @property
    def least_width(self) -> int:
        """How wide it is at least: texts are wrapped to a few lines, numbers and dates only in the header."""
        words = max(_cell_width(word) for text in [self.name, *self.cells] for word in text.split() or [""])
        cells = max(map(_cell_width, self.cells), default=0)
        return max(words, cells if self.is_right else -(-cells // MOST_LINES))


def _cell_width(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _width(widths: Sequence[int]) -> int:
    """The width of a table with columns of these widths: each has a line and two spaces."""
    return sum(widths) + 3 * len(widths) + 1


def _least_width(columns: Sequence[Column]) -> int:
    return _width([column.least_width for column in columns])


def _fit(every: Sequence[Column], drop: Sequence[str], room: int) -> list[Column] | None:
    """The columns that fit: as few as possible are left out, in the order of ``drop``. None: too many would be."""
    missing: list[str] = []
    for name in ["", *drop]:
        missing.append(name)
        rest = [column for column in every if column.name not in missing]
        if rest and _least_width(rest) <= room:
            break
    else:
        return None
    for name in reversed(missing[:-1]):  # some may have been left out in vain
        fewer = [other for other in missing if other != name]
        if _least_width([column for column in every if column.name not in fewer]) <= room:
            missing = fewer
    return [column for column in every if column.name not in missing]


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """The width of each column: what it needs; the rest is for those that would be wrapped, first where little is."""
    widths = [column.least_width for column in columns]
    rest = room - _width(widths)
    for i in sorted(range(len(columns)), key=lambda i: columns[i].width - widths[i]):
        more = min(rest, columns[i].width - widths[i])
        widths[i], rest = widths[i] + more, rest - more
    return widths


def _table(columns: Sequence[Column], room: int) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.ROUNDED, header_style="bold")
    for column, width in zip(columns, _widths(columns, room), strict=True):
        justify: Literal["left", "right"] = "right" if column.is_right else "left"
        table.add_column(escape(column.name), justify=justify, overflow="fold", width=width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(escape, cells))  # a class may be called [red]
    return table


def _print_lists(columns: Sequence[Column], console: Any) -> None:
    """Each row as lines of a name and a value."""
    room = max(_cell_width(column.name) for column in columns)
    for cells in zip(*(column.cells for column in columns), strict=True):
        for column, cell in zip(columns, cells, strict=True):
            text = cell.replace("\n", ", ")
            console.print(f"{column.name:<{room}}  {text}", highlight=False, markup=False, soft_wrap=True)
        console.print()


def hyperparameters(values: dict[str, float]) -> str:
    from cclfp.runs.configuration import show_value

    return " ".join(f"{name}={show_value(value)}" for name, value in values.items())
