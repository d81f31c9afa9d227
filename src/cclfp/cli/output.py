"""What the subcommands share: options, tables, numbers, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(help="The file that keeps run records. By default CCLFP_HOME/runs.sqlite.", show_default=False),
]


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


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
        table.add_column(name, justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))  # a class may be called [red]
    console.print(table)


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def plus_minus(mean: float | None, std: float | None) -> str:
    """``89.16 ± 1.14``; a dash for what is undefined."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def hyperparameters(values: dict[str, float]) -> str:
    from cclfp.configuration import show_value

    return " ".join(f"{name}={show_value(value)}" for name, value in values.items())
