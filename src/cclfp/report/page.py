"""The page: one self-contained HTML file that works without a network and, except for sorting, without scripts."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from importlib import resources
from itertools import groupby
from typing import NamedTuple

import jinja2

from cclfp._version import __version__
from cclfp.metrics import number, plus_minus, signed
from cclfp.paper.ranking import TEST
from cclfp.report.charts import Chart
from cclfp.report.components import CHANGES, EXPLANATION, MOST, TITLE, component_worths
from cclfp.report.content import Content
from cclfp.report.entries import ENVIRONMENT, RARE_VERDICTS, UPPER_BOUND, VERDICTS, Table, TableRow, benchmark_title
from cclfp.report.own_page import MOST_CLASSES, own_cell_data, shares
from cclfp.report.own_tables import HEAD, row_cells
from cclfp.report.page_data import cell_data, cell_id, hover_data
from cclfp.report.panels import draw_panel
from cclfp.report.shapes import sample
from cclfp.report.styles import ALL_STYLES, DARK_COLOURS, LIGHT_COLOURS, colour_rules, style_sheet
from cclfp.report.wording import UNTUNED, explain_table, label_headers, row_labels, tally

SYMBOLS = {"within": "●", "above": "▲", "below": "▼", "unjudged": "◇", "missing": "○", "diverged": "✕"}
OWN_SYMBOLS = {"best": "★", "similar": "≈", "worse": "▼", "unknown": "◇"}
MEDIA_TYPES = {
    "md": "text/markdown;charset=utf-8",
    "csv": "text/csv;charset=utf-8",
    "tex": "text/x-tex;charset=utf-8",
    "svg": "image/svg+xml",
}

Files = Mapping[str, bytes]  # by name, such as accuracy.csv


OWN = "own"  # the tab of a user's own runs


class Tab(NamedTuple):
    name: str
    title: str
    table: Table | None = None
    chart: Chart | None = None


def render_page(content: Content, files: Files) -> str:
    """The whole page; ``files`` are the tables and figures that it offers to save."""
    partial = sum(0 < entry.comparison.n < len(content.seeds) for entry in content.entries)
    return (
        _environment()
        .get_template("page.html")
        .render(
            content=content,
            files=files,
            version=__version__,
            made=_describe_runs(content),
            counts={name: count for name, count in content.counts().items() if count or name not in RARE_VERDICTS},
            partial=partial,
            tabs=_tabs(content),
            style=_read("page.css") + _chart_style(),
            script=_read("page.js"),
            data={
                "cells": cell_data(content) | own_cell_data(content.own.tables),
                "verdicts": VERDICTS,
                "symbols": SYMBOLS,
            },
        )
    )


def _tabs(content: Content) -> list[Tab]:
    tables = {table.name: table for table in content.tables}
    charts = {chart.name: chart for chart in content.charts}
    return [
        Tab("accuracy", "Accuracy", tables["accuracy"]),
        Tab("buffer", "Memory size", tables["buffer"], charts["buffer"]),
        Tab("ablation", "Ablation", tables["ablation"], charts["ablation"]),
        Tab("evolution", "Evolution", chart=charts["evolution"]),
        Tab("forgetting", "Forgetting", chart=charts["forgetting"]),
        Tab("runtime", "Run time", chart=charts["runtime"]),
        *([Tab(OWN, "Your runs")] if content.own.tables else []),
        Tab("provenance", "How it was made"),
    ]


@functools.cache
def _environment() -> jinja2.Environment:
    """The templates and the functions they use. Values are escaped, unless a template marks them as safe."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (benchmark_title, cell_id, component_worths, draw_panel, hover_data, label_headers, number)
    environment.filters |= {function.__name__: function for function in (*filters, row_labels, sample, signed, tally)}
    environment.filters |= {
        "benchmark_groups": _benchmark_groups,
        "data_url": _data_url,
        "explain": _explain,
        "row_group": _row_group,
        "own_row": row_cells,
        "shares": shares,
    }
    environment.globals |= {
        "components": {"title": TITLE, "explanation": EXPLANATION, "head": (*CHANGES, MOST)},
        "own_head": HEAD,
        "own_symbols": OWN_SYMBOLS,
        "significance": TEST,
        "MOST_CLASSES": MOST_CLASSES,
        "environment_titles": ENVIRONMENT,
        "file_titles": {"csv": "CSV", "md": "Markdown", "svg": "SVG", "tex": "LaTeX"},
        "plus_minus": plus_minus,
        "symbols": SYMBOLS,
        "untuned": UNTUNED,
        "verdicts": VERDICTS,
    }
    json_options = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_kwargs"] = json_options
    return environment


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _chart_style() -> str:
    """The style sheet of the charts, and the colours that they share with the page."""
    variables = {name: f"var(--{name})" for name in LIGHT_COLOURS}
    light, dark = (
        f":root{{{';'.join(f'--{name}:{colour}' for name, colour in colours.items())}}}\n"
        f"{colour_rules(ALL_STYLES, dark=colours is DARK_COLOURS)}"
        for colours in (LIGHT_COLOURS, DARK_COLOURS)
    )
    return f"{style_sheet(variables)}{light}@media screen and (prefers-color-scheme:dark){{\n{dark}}}\n"


def _describe_runs(content: Content) -> str:
    runs = f"{content.runs:,} run{'s' * (content.runs != 1)}"
    return f"From {runs}, the last of which finished on {content.latest}" if content.latest else "There are no runs yet"


def _explain(table: Table, content: Content) -> str:
    marks = f"{SYMBOLS['above']} and {SYMBOLS['below']}"
    return explain_table(table, content, "with the paper’s number and the difference below it", marks)


def _benchmark_groups(table: Table) -> list[tuple[str, int]]:
    """The benchmarks of adjacent columns, and the number of columns of each."""
    return [(name, len(list(group))) for name, group in groupby(table.columns, lambda column: column[0])]


def _row_group(row: TableRow) -> tuple[int | None, str]:
    """Equal for rows that stand together: of one memory size, or the bounds, the paper's own and the other methods."""
    methods = {entry.cell.method for entry in row.entries if entry is not None and entry.cell.table == "accuracy"}
    if methods & {UPPER_BOUND, "finetune"}:
        return row.buffer, "bounds"
    return row.buffer, "own" if methods & {"ccl-fp", "ccl-fp+"} else ""


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{MEDIA_TYPES[kind]};base64,{base64.b64encode(data).decode()}"
