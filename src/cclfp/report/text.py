"""Writes tables as Markdown, as LaTeX that can be pasted into a paper and as CSV; and the page.

The page is one self-contained HTML file that works without a network. Without scripts it shows all tables and charts,
one below the other, and can save them; sorting, the details of a number and the values under the pointer need scripts.
"""

from __future__ import annotations

import base64
import csv
import functools
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from cclfp import metrics
from cclfp._version import __version__
from cclfp.methods import METHODS
from cclfp.paper import compare
from cclfp.report import drawing, styles, tables
from cclfp.report.charts import Chart, Panel
from cclfp.report.drawing import Drawing
from cclfp.report.tables import OWN, UNTUNED, Content, Table, verdict_of
from cclfp.runs.code import OTHER_CODE, OTHER_CODE_RISK
from cclfp.runs.configuration import show_value
from cclfp.runs.results import Result, benchmark_title, explain_other_code
from cclfp.streams.benchmarks import benchmark_names, get_benchmark


def render(template: str, **values: Any) -> str:
    """The text of a template, which calls the modules of the report."""
    return _environment(template.rpartition(".")[2]).get_template(template).render(values)


def render_line(template: str, **values: Any) -> str:
    """The text of a template without its line breaks."""
    return " ".join(render(template, **values).split())


@functools.cache
def _environment(kind: str) -> jinja2.Environment:
    """The templates of this kind of file. In HTML values are escaped, unless one is marked as safe."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=kind == "html",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    modules = (compare, drawing, metrics, styles, tables, sys.modules[__name__])
    environment.globals |= {module.__name__.rpartition(".")[2]: module for module in modules}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    if kind != "tex":
        return environment
    # In LaTeX, which is full of braces, << >> and <% %>.
    return environment.overlay("<%", "%>", "<<", ">>", "<#", "#>")


# Markdown -------------------------------------------------------------------------------------------------------------

OWN_COLUMNS = ("method", "average accuracy", "to the best", "p", "forgetting", "seconds per run", "seeds")


def own_texts(result: Result) -> list[str]:
    """A row of one's own, in the order of ``OWN_COLUMNS``."""
    forgetting = metrics.plus_minus(**result.mean_std("forgetting"))
    seconds = metrics.number(result.mean_std("seconds")["mean"], 1)
    comparison = [compare.show_difference(result.standing), compare.show_p(result.standing.p)]
    return [result.label, result.text() + tables.marks(result), *comparison, forgetting, seconds, str(len(result.runs))]


# CSV ------------------------------------------------------------------------------------------------------------------


def to_csv(several: Sequence[Table]) -> str:
    """One line per number."""
    lines = [_fields(table, result) for table in several for result in table.results]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    for line in lines:
        writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in line.values()])
    return text.getvalue()


def _fields(table: Table, result: Result) -> dict[str, Any]:
    """The values of a line by column. Tables of one's own have other columns than the paper's."""
    c, standing, is_papers = result.configuration, result.standing, table.name != OWN
    published_mean, published_std = result.published or (None, None)
    beside_papers = {
        "published_mean": published_mean,
        "published_std": published_std,
        "difference": result.difference,
        "verdict": verdict_of(result),
        "best": "yes" if standing.best else "no",
    }
    among_own = {
        "forgetting": result.mean_std("forgetting")["mean"],
        "seconds": result.mean_std("seconds")["mean"],
        "difference": standing.difference,
        "p": standing.p,
        "standing": standing.verdict,
    }
    return {
        "table": table.name if is_papers else table.title,
        "row": result.label,
        **{name: getattr(c, name) for name in ("method", "benchmark", "scenario", "buffer")},
        "mean": result.mean,
        "std": result.std,
        "seeds": len(result.runs),
        **(beside_papers if is_papers else among_own),
        "accuracies": " ".join(f"{seed}:{accuracy:.4f}" for seed, accuracy in result.accuracies.items()),
        **({"chosen": tables.describe_choice(result)} if is_papers else {}),
        "command": result.command(table.seeds),
        "diverged": " ".join(map(str, result.diverged)),
        "other_code": " ".join(map(str, result.other_code)),
    }


# LaTeX ----------------------------------------------------------------------------------------------------------------

REPLACEMENTS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    UNTUNED: r"$\dagger$",
    OTHER_CODE: r"$\ddagger$",
}


def escape_latex(text: str) -> str:
    r"""Text with its special characters as LaTeX commands.

    >>> print(escape_latex("50% of_x, α"))
    50\% of\_x, $\alpha$
    """
    return "".join(REPLACEMENTS.get(character, character) for character in text)


# The page -------------------------------------------------------------------------------------------------------------

SYMBOLS = {"within": "●", "above": "▲", "below": "▼", "unjudged": "◇", "missing": "○", "diverged": "✕"}
OWN_SYMBOLS = {"best": "★", "similar": "≈", "worse": "▼", "unknown": "◇"}
SEED_NUMBERS = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")
METHOD_GROUPS = {"joint": "bounds", "finetune": "bounds", "ccl-fp": "own", "ccl-fp+": "own"}
MOST_CLASSES = 20  # with more, only the best row's confusion matrix is shown


def render_page(content: Content, charts: Sequence[Chart], files: Mapping[str, bytes]) -> str:
    """The whole page; ``files`` are the tables and figures that it offers to save, by name."""
    return render(
        "page.html",
        content=content,
        charts=charts,
        files=files,
        version=__version__,
        other_code=explain_other_code(content.shown, OTHER_CODE_RISK),
        partial=sum(0 < len(result.runs) < len(content.seeds) for result in content.results),
        data={"cells": _cells(content), "verdicts": tables.VERDICTS, "symbols": SYMBOLS},
    )


def row_group(result: Result) -> int | str | None:
    """The group of a row: its memory size; else the bounds, the paper's own methods or the others."""
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
    """The values at every category of a panel, for the tooltip: the largest first, with the value of each seed."""
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
    """The details of every number by the identifier of its cell; of one's own by the numbers of table and row."""
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
    test = f"paired t-test over {s.common} common seeds, p {'' if (s.p or 0) < 0.001 else '= '}{compare.show_p(s.p)}"
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
