"""What commands print: text, tables, JSON."""

from __future__ import annotations

import codecs
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cclfp.errors import visible

if TYPE_CHECKING:
    from rich.console import Console

LEAST_WIDTH = 20  # columns that a wrapped text has at least
AS_IT_IS = re.compile(r"^(\s|[-*+] |\d+[.)] |cclfp )", re.MULTILINE)  # what begins lists, commands, indented lines
OTHER_CODE = "†"  # marks numbers that other code than this has made


def print_json(value: Any) -> None:
    """JSON on stdout, in UTF-8 or else in ASCII, which every reader of JSON takes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    try:
        text.encode("utf-8" if is_utf8 else "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    print(text)


def print_answer(as_json: bool, document: Mapping[str, Any], *lines: str) -> None:
    """What a command has done: a JSON document, or lines."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            print_text(line)


def attributes(source: object, *names: str) -> dict[str, Any]:
    """What a JSON document has of an object."""
    return {name: getattr(source, name) for name in names}


def print_text(text: str, *, err: bool = False, hang: str = "  ") -> None:
    """Lines on stdout or stderr. On a terminal they are wrapped between words, and ``hang`` indents the rest of a line.

    A word, such as a path, is never broken. A command that is to be copied is printed as it is, on a line of its own.
    """
    console = _console(err)
    for line in visible(text).split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + hang
        wrapper = textwrap.TextWrapper(
            max(console.width, LEAST_WIDTH), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        print(wrapper.fill(line) if console.is_terminal else line, file=sys.stderr if err else sys.stdout)


def print_table(columns: Sequence[str], rows: Iterable[Iterable[Any]], title: str | None = None) -> None:
    """A table of texts and other values on stdout; ``>`` before a column's name aligns it to the right.

    It is as wide as it needs to be where stdout is no terminal; on a terminal it is wrapped.
    """
    from rich import box
    from rich.table import Table

    console = _console()
    if title is not None:  # a table's own title would be wrapped to its width
        console.print(title, style="bold")
    table = Table(box=box.ROUNDED, header_style="bold")
    for name in columns:
        is_number = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(visible(_cell(value)) for value in row))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
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
