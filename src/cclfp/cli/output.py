"""What the subcommands share: options, tables, numbers, JSON."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cclfp.cli.streams import printable
from cclfp.metrics import number, plus_minus, signed

__all__ = [
    "EngineOption",
    "IncludeDivergedOption",
    "JsonOption",
    "PrecisionOption",
    "StoreOption",
    "hyperparameters",
    "number",
    "plus_minus",
    "print_json",
    "print_table",
    "signed",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(help="The file that keeps run records. By default CCLFP_HOME/runs.sqlite.", show_default=False),
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="auto|eager|compiled|graph",
        help="How to train: run by run in plain PyTorch; many runs as one compiled program (CPU); many runs in one "
        "CUDA graph. The numbers differ in rounding. auto picks what finishes first, and says it.",
    ),
]
IncludeDivergedOption = Annotated[
    bool,
    typer.Option(
        "--include-diverged",
        help="Include runs that diverged in the means. By default a mean is of the others, and says how many diverged.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|tf32|bf16", help="What psi is computed in. By default tf32 on CUDA, float32 on the CPU."
    ),
]


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
