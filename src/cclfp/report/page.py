"""The page: one self-contained HTML file that works without a network.

Without scripts it shows all tables and charts, one below the other, and can save them; sorting, the details of a number
and the values under the pointer need scripts.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp import metrics
from cclfp._version import __version__
from cclfp.methods import METHODS
from cclfp.paper.compare import show_p
from cclfp.report import drawing, styles, tables, text
from cclfp.report.charts import Chart, Panel
from cclfp.report.drawing import Drawing
from cclfp.report.tables import Content, Table
from cclfp.runs.code import OTHER_CODE_RISK
from cclfp.runs.configuration import show_value
from cclfp.runs.results import Result, benchmark_title, explain_other_code
from cclfp.streams.benchmarks import benchmark_names, get_benchmark

SYMBOLS = {"within": "●", "above": "▲", "below": "▼", "unjudged": "◇", "missing": "○", "diverged": "✕"}
OWN_SYMBOLS = {"best": "★", "similar": "≈", "worse": "▼", "unknown": "◇"}
SEED_NUMBERS = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")
METHOD_GROUPS = {"joint": "bounds", "finetune": "bounds", "ccl-fp": "own", "ccl-fp+": "own"}
MOST_CLASSES = 20  # with more, only the best row's confusion matrix is shown


def render_page(content: Content, charts: Sequence[Chart], files: Mapping[str, bytes]) -> str:
    """The whole page; ``files`` are the tables and figures that it offers to save, by name."""
    return text.render(
        "page.html",
        drawing=drawing,
        styles=styles,
        page=sys.modules[__name__],
        content=content,
        charts=charts,
        files=files,
        version=__version__,
        other_code=explain_other_code(content.shown, OTHER_CODE_RISK),
        partial=sum(0 < len(result.runs) < len(content.seeds) for result in content.results),
        data={"cells": _cells(content), "verdicts": tables.VERDICTS, "symbols": SYMBOLS},
    )


# For the templates ----------------------------------------------------------------------------------------------------


def row_group(result: Result) -> int | str | None:
    """Equal for rows that stand together: of one memory size, or the bounds, the paper's own and the other methods."""
    c = result.configuration
    return c.buffer if result.table == "buffer" else METHOD_GROUPS.get(c.method)


def class_names(table: Table) -> list[str] | None:
    """The names of a table's classes; None where its images are not on this machine."""
    ((name, _),) = table.columns
    return list(get_benchmark(name).classes) if name in benchmark_names() else None


def data_url(data: bytes, media_type: str) -> str:
    """A file as a link that saves it."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def hover_data(chart: Chart, panel: Panel, drawn: Drawing) -> dict[str, Any]:
    """The values at every category of a panel, for the tooltip: the largest first, with those of the seeds."""
    stops = []
    for i, (at, category) in enumerate(zip(drawn.positions, panel.categories, strict=True)):
        titles = {"evolution": f"after {category} task{'s' * (category != '1')}", "buffer": f"{category} examples"}
        lines = [
            [s.label, s.style.css_class, metrics.plus_minus(v.mean, v.std), [round(seed, 2) for seed in v.seeds]]
            for s, v in sorted(panel.known_at(i), key=lambda pair: -pair[1].mean)
        ]
        stops.append({"at": round(at, 1), "title": titles.get(chart.name, category), "lines": lines})
    return {"axis": "x" if chart.kind == "lines" else "y", "frame": [round(x, 1) for x in drawn.frame], "stops": stops}


# The data of the page's script ----------------------------------------------------------------------------------------


def cell_id(result: Result) -> str:
    """The identifier of a cell of the paper."""
    return "/".join([result.table, result.label, str(result.configuration.buffer or ""), *result.column])


def _cells(content: Content) -> dict[str, dict[str, Any]]:
    """The details of every number, by the identifier of its cell; for one's own of the number of the table and row."""
    cells = {cell_id(result): _details(result, content) for result in content.results}
    for i, table in enumerate(content.own):
        cells |= {f"own/{i}/{j}": _details(result, content, table) for j, result in enumerate(table.results)}
    return cells


def _details(result: Result, content: Content, own: Table | None = None) -> dict[str, Any]:
    runs, c = result.runs, result.configuration
    column = f"{benchmark_title(result.column[0])}, {result.column[1]}-incremental" if own is None else own.title
    verdict = tables.verdict_of(result) if own is None else result.standing.verdict
    settings = {name: show_value(value) for name, value in c.hyperparameters.items()}
    replays = c.method_file is not None or METHODS[c.method].replays is True
    protocol = ("batch", "replay", "epochs", "buffer") if replays else ("batch", "epochs", "buffer")
    settings |= {name: str(value) for name in protocol if (value := getattr(c, name))}
    return {
        "row": tables.row_name(result),
        "column": column,
        "verdict": verdict,
        **({} if own is None else {"says": _explain_standing(result)}),
        "mean": result.mean,
        "std": result.std,
        "difference": result.difference if own is None else result.standing.difference,
        "published": result.published and list(result.published),
        "matrix": _mean_matrix(result),
        "seeds": [[run["seed"], *map(dict(run).get, SEED_NUMBERS)] for run in runs],
        "counted": list(result.accuracies),
        "diverged": {run["seed"]: run["diverged"] for run in runs if run.get("diverged") is not None},
        "remark": result.remark,
        "alone": all(run["environment"].get("together") == 1 for run in runs),
        "command": result.command(content.seeds),
        "hyperparameters": settings | {"augment": "on" if c.augment else "off"},
        "chosen": tables.describe_choice(result),
        "environments": [
            {tables.ENVIRONMENT[name]: value for name, value in environment.items() if value is not None}
            for environment in tables.environments([result])
        ],
        "finished": max((run["finished_at"] for run in runs), default=None),
    }


def _explain_standing(result: Result) -> str:
    """How a row compares with the best of its table."""
    s = result.standing
    test = f"paired t-test over {s.common} common seeds, p {'' if (s.p or 0) < 0.001 else '= '}{show_p(s.p)}"
    return {
        "best": "the best of its table",
        "worse": f"worse than the best beyond chance ({test})",
        "similar": f"not different from the best beyond chance ({test})",
        "unknown": "too few common seeds to compare it with the best" if s.common else "not compared with others",
    }[s.verdict]


def _mean_matrix(result: Result) -> list[list[float | None]]:
    """The accuracy on each task after each task, as the mean over seeds; None where a task was not tested."""
    matrices = [run["accuracy_matrix"][1:] for run in result.counted]
    means = [
        [metrics.mean_std(values)["mean"] for values in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)
    ]
    return [[None if mean is None else round(mean, 1) for mean in row] for row in means]
