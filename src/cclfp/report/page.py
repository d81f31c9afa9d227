"""The page: one self-contained HTML file that works without a network and, except for sorting, without scripts."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

import jinja2

from cclfp._version import __version__
from cclfp.metrics import mean_std, number, plus_minus, signed
from cclfp.paper.compare import TEST, show_p
from cclfp.report.charts import Chart, ChartPanel
from cclfp.report.content import Content
from cclfp.report.drawing import Drawing, draw_panel
from cclfp.report.figures import make_charts, own_charts
from cclfp.report.styles import (
    ALL_STYLES,
    DARK_COLOURS,
    LIGHT_COLOURS,
    colour_rules,
    css_class,
    sample,
    style_sheet,
)
from cclfp.report.tables import (
    ENVIRONMENT,
    OWN,
    RARE_VERDICTS,
    UNTUNED,
    VERDICTS,
    WORTH_EXPLANATION,
    WORTH_HEAD,
    WORTH_TITLE,
    Table,
    component_worths,
    count_verdicts,
    describe_choice,
    environments,
    is_untuned,
    row_name,
    tally,
    verdict_of,
)
from cclfp.report.text import OWN_COLUMNS
from cclfp.runs.configuration import show_value
from cclfp.runs.results import Result, benchmark_title, format_exactly
from cclfp.streams.benchmarks import benchmark_names, get_benchmark

SYMBOLS = {"within": "●", "above": "▲", "below": "▼", "unjudged": "◇", "missing": "○", "diverged": "✕"}
OWN_SYMBOLS = {"best": "★", "similar": "≈", "worse": "▼", "unknown": "◇"}
MEDIA_TYPES = {
    "md": "text/markdown;charset=utf-8",
    "csv": "text/csv;charset=utf-8",
    "tex": "text/x-tex;charset=utf-8",
    "svg": "image/svg+xml",
}
SEED_NUMBERS = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")
MOST_CLASSES = 20  # with more, only the best row's confusion matrix is shown

Files = Mapping[str, bytes]  # by name, such as accuracy.csv


class Tab(NamedTuple):
    name: str
    title: str
    table: Table | None = None
    chart: Chart | None = None


def render_page(content: Content, files: Files) -> str:
    """The whole page; ``files`` are the tables and figures that it offers to save."""
    counts = count_verdicts(content.results)
    return (
        _environment()
        .get_template("page.html")
        .render(
            content=content,
            own_charts=own_charts(content.own),
            files=files,
            version=__version__,
            made=_describe_runs(content),
            counts={name: count for name, count in counts.items() if count or name not in RARE_VERDICTS},
            partial=sum(0 < len(result.runs) < len(content.seeds) for result in content.results),
            tabs=_tabs(content),
            style=_read("page.css") + _chart_style(),
            script=_read("page.js"),
            data={"cells": _cells(content), "verdicts": VERDICTS, "symbols": SYMBOLS},
        )
    )


def _tabs(content: Content) -> list[Tab]:
    tables = {table.name: table for table in content.tables}
    charts = {chart.name: chart for chart in make_charts(content)}
    return [
        Tab("accuracy", "Accuracy", tables["accuracy"]),
        Tab("buffer", "Memory size", tables["buffer"], charts["buffer"]),
        Tab("ablation", "Ablation", tables["ablation"], charts["ablation"]),
        Tab("evolution", "Evolution", chart=charts["evolution"]),
        Tab("forgetting", "Forgetting", chart=charts["forgetting"]),
        Tab("runtime", "Run time", chart=charts["runtime"]),
        *([Tab(OWN, "Your runs")] if content.own else []),
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
    filters = (benchmark_title, component_worths, describe_choice, draw_panel, environments, is_untuned, number)
    filters += (row_name, sample, signed, tally, verdict_of)  # type: ignore[assignment]
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {
        "benchmark_groups": _benchmark_groups,
        "cell_id": _cell_id,
        "class_names": _class_names,
        "data_url": _data_url,
        "explain": _explain,
        "hover_data": _hover_data,
        "own_texts": lambda result: [text(result) for text in OWN_COLUMNS.values()],
        "row_group": _row_group,
        "shares": _shares,
    }
    environment.globals |= {
        "components": {"title": WORTH_TITLE, "explanation": WORTH_EXPLANATION, "head": WORTH_HEAD},
        "own_head": list(OWN_COLUMNS),
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


def _explain(table: Table) -> str:
    marks = f"{SYMBOLS['above']} and {SYMBOLS['below']}"
    return table.explain("with the paper’s number and the difference below it", marks)


def _benchmark_groups(table: Table) -> list[tuple[str, int]]:
    """The benchmarks of adjacent columns, and the number of columns of each."""
    return [(name, len(list(group))) for name, group in groupby(table.columns, lambda column: column[0])]


def _row_group(row: Sequence[Result | None]) -> tuple[int | None, str]:
    """Equal for rows that stand together: of one memory size, or the bounds, the paper's own and the other methods."""
    known = [result for result in row if result is not None]
    memory = known[0].configuration.buffer if known[0].table == "buffer" else None
    methods = {result.configuration.method for result in known if result.table == "accuracy"}
    if methods & {"joint", "finetune"}:
        return memory, "bounds"
    return memory, "own" if methods & {"ccl-fp", "ccl-fp+"} else ""


def _class_names(table: Table) -> list[str] | None:
    """The names of a table's classes; None where its images are not on this machine."""
    ((name, _),) = table.columns
    return list(get_benchmark(name).classes) if name in benchmark_names() else None


def _shares(counts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Each row of a confusion matrix in percent of its sum.

    >>> _shares([[3, 1], [0, 0]])
    [[75.0, 25.0], [0.0, 0.0]]
    """
    return [[100 * count / (sum(row) or 1) for count in row] for row in counts]


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{MEDIA_TYPES[kind]};base64,{base64.b64encode(data).decode()}"


# The data of the page's script ----------------------------------------------------------------------------------------


def _cell_id(result: Result) -> str:
    """The identifier of a cell of the paper."""
    return "/".join([result.table, result.label, str(result.configuration.buffer or ""), *result.column])


def _cells(content: Content) -> dict[str, dict[str, Any]]:
    """The details of every number, by the identifier of its cell; for one's own of the number of the table and row."""
    own = [(f"{OWN}/{i}/{j}", t, r) for i, t in enumerate(content.own) for j, r in enumerate(t.results)]
    return {_cell_id(r): _details(r, content) for r in content.results} | {
        identifier: _details(result, content, table) for identifier, table, result in own
    }


def _details(result: Result, content: Content, own: Table | None = None) -> dict[str, Any]:
    runs = result.runs
    if own is None:
        is_about = {
            "row": row_name(result),
            "column": f"{benchmark_title(result.column[0])}, {result.column[1]}-incremental",
            "verdict": verdict_of(result),
        }
    else:
        is_about = {"row": result.label, "column": own.title, "verdict": result.standing.verdict}
        is_about["says"] = _explain_standing(result)
    return {
        **is_about,
        "mean": result.mean,
        "std": result.std,
        "difference": result.difference if own is None else result.standing.difference,
        "published": None if result.published is None else list(result.published),
        "matrix": _mean_matrix(result),
        "seeds": [[run["seed"], *map(dict(run).get, SEED_NUMBERS)] for run in runs],
        "counted": list(result.accuracies),
        "diverged": {run["seed"]: run["diverged"] for run in runs if run.get("diverged") is not None},
        "remark": result.remark,
        "alone": all(run["environment"].get("together") == 1 for run in runs),
        "command": result.command(content.seeds),
        "hyperparameters": _settings(result) if own is None else {n: show_value(v) for n, v in result.settings.items()},
        "chosen": describe_choice(result) if own is None else "; ".join([result.chosen, *result.doubts]),
        "environments": [
            {ENVIRONMENT[name]: value for name, value in environment.items() if value is not None}
            for environment in environments(result)
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
    return [[_mean(values) for values in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _mean(values: Sequence[float | None]) -> float | None:
    mean = mean_std(values)["mean"]
    return None if mean is None else round(mean, 1)


def _settings(result: Result) -> dict[str, str]:
    """All settings of a cell of the paper."""
    c = result.configuration
    settings = {name: format_exactly(value) for name, value in c.hyperparameters.items()}
    protocol = ("batch", "replay", "epochs", "buffer") if c.kind.replays is True else ("batch", "epochs", "buffer")
    settings |= {name: str(value) for name in protocol if (value := getattr(c, name))}
    return settings | {"augment": "on" if c.augment else "off"}


def _hover_data(chart: Chart, panel: ChartPanel, drawing: Drawing) -> dict[str, Any]:
    """The values at every category of a panel, for the tooltip."""
    stops = [
        {"at": round(at, 1), "title": _category_title(chart, category), "lines": _values_at(panel, i)}
        for i, (at, category) in enumerate(zip(drawing.positions, panel.categories, strict=True))
    ]
    return {"axis": drawing.axis, "frame": [round(x, 1) for x in drawing.frame], "stops": stops}


def _category_title(chart: Chart, category: str) -> str:
    titles = {"evolution": f"after {category} task{'s' * (category != '1')}", "buffer": f"{category} examples"}
    return titles.get(chart.name, category)


def _values_at(panel: ChartPanel, i: int) -> list[list[Any]]:
    """The values at a category, the largest first: label, class, text and seeds of each series."""
    known = [(series, value) for series in panel.series if (value := series.values[i]) is not None]
    known.sort(key=lambda pair: -pair[1].mean)
    return [
        [series.label, css_class(series.key), plus_minus(value.mean, value.std), [round(s, 2) for s in value.seeds]]
        for series, value in known
    ]
