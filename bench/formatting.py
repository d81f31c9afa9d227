"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def format_number(value: float) -> str:
    """Three significant digits.

    >>> [format_number(value) for value in (0.1234, 1.234, 12.34, 1234)]
    ['0.123', '1.23', '12.3', '1,230']
    """
    rounded = float(f"{value:.3g}")
    return "0" if not rounded else f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:#.3g}"


def format_ratio(ratio: float) -> str:
    return f"{format_number(ratio)}×"


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A Markdown table; all columns except the first are aligned to the right if they are ``numbers``."""
    alignment = ["---", *["---:" if numbers else "---"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, alignment, *rows])


def table_of(rows: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> str:
    """A Markdown table: what each column shows of each row."""
    return format_table(list(columns), [[show(row) for show in columns.values()] for row in rows])
