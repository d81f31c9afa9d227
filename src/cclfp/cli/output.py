"""What commands print: tables, numbers, JSON."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import typer

from cclfp.cli.streams import printable
from cclfp.metrics import number, plus_minus, signed

__all__ = ["hyperparameters", "number", "plus_minus", "print_json", "print_table", "signed"]


def print_json(value: Any) -> None:
    """JSON on stdout, in UTF-8 or else in ASCII, which every reader of JSON takes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8" or printable(text) != text:
        text = json.dumps(value, indent=2, allow_nan=False)
    typer.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table on stdout: numbers to the right, as wide as it needs to be where stdout is not a terminal."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)
    if title is not None:  # a table's own title would be wrapped to its width
        console.print(title, style="bold", highlight=False, markup=False)
    table = Table(box=box.ROUNDED, header_style="bold")
    for column in columns:
        name = column.removeprefix(">")
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(printable(name), justify=justify, overflow="fold", no_wrap=name == "key")  # which is copied
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))  # a class may be called [red]
    console.print(table)


def hyperparameters(values: dict[str, float]) -> str:
    from cclfp.runs.configuration import show_value

    return " ".join(f"{name}={show_value(value)}" for name, value in values.items())
