"""The data of the page's script: what it shows about a number, and about a place in a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cclfp.metrics import mean_std, plus_minus
from cclfp.report.charts import Chart, ChartPanel
from cclfp.report.content import Content
from cclfp.report.entries import ENVIRONMENT, Entry, benchmark_title, format_exactly
from cclfp.report.panels import Drawing
from cclfp.report.styles import css_class
from cclfp.runs.seeds import Seeds

SEED_NUMBERS = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")


def cell_id(entry: Entry) -> str:
    c = entry.cell
    return "/".join([c.table, c.row, str(c.buffer or ""), c.benchmark, c.scenario])


def cell_data(content: Content) -> dict[str, dict[str, Any]]:
    """The details of every number, by the identifier of its cell."""
    return {cell_id(entry): _details(entry, content) for entry in content.entries}


def _details(entry: Entry, content: Content) -> dict[str, Any]:
    cell, comparison, records = entry.cell, entry.comparison, entry.records
    return {
        "row": entry.name,
        "column": f"{benchmark_title(cell.benchmark)}, {cell.scenario}-incremental",
        "verdict": entry.verdict,
        "mean": comparison.mean,
        "std": comparison.std,
        "difference": comparison.difference,
        "published": list(cell.published),
        "matrix": mean_matrix(comparison.seeds),
        "seeds": [[run["seed"], *map(dict(run).get, SEED_NUMBERS)] for run in records],
        "counted": list(comparison.seeds.accuracies),
        "diverged": {run["seed"]: run["diverged"] for run in records if run.get("diverged") is not None},
        "remark": comparison.seeds.remark,
        "alone": all(run["environment"].get("together") == 1 for run in records),
        "command": entry.command(content.seeds),
        "hyperparameters": _settings(entry),
        "chosen": entry.chosen,
        "environments": [
            {ENVIRONMENT[name]: value for name, value in environment.items() if value is not None}
            for environment in entry.environments
        ],
        "finished": max((run["finished_at"] for run in records), default=None),
    }


def mean_matrix(seeds: Seeds) -> list[list[float | None]]:
    """The accuracy on each task after each task, as the mean over seeds; None where a task was not tested."""
    matrices = [run["accuracy_matrix"][1:] for run in seeds.counted]
    return [[_mean(values) for values in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _mean(values: Sequence[float | None]) -> float | None:
    mean = mean_std(values)["mean"]
    return None if mean is None else round(mean, 1)


def _settings(entry: Entry) -> dict[str, str]:
    c = entry.cell.configuration()
    settings = {name: format_exactly(value) for name, value in c.hyperparameters.items()}
    protocol = ("batch", "replay", "epochs", "buffer") if c.kind.replays is True else ("batch", "epochs", "buffer")
    settings |= {name: str(value) for name in protocol if (value := getattr(c, name))}
    return settings | {"augment": "on" if c.augment else "off"}


def hover_data(chart: Chart, panel: ChartPanel, drawing: Drawing) -> dict[str, Any]:
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
