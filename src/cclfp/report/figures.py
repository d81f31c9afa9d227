"""The report's charts: the paper's figures, its tables of memory sizes and components, and those of one's own runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from cclfp.metrics import mean_std
from cclfp.paper.numbers import FIGURES, PANELS, describe_conditions, largest_comparable_group
from cclfp.report.charts import PANEL_WIDTH, Chart, ChartPanel, Series, Value
from cclfp.report.content import Content
from cclfp.report.styles import ALL_STYLES, CHARACTER, OWN_STYLES, STYLES
from cclfp.report.tables import Table, column_title, first, place_title, row_name, variant_name
from cclfp.runs.results import Result
from cclfp.streams import get_benchmark

MOST_ROWS = 12  # that one panel of one's own runs draws
LONGEST = 42  # characters that fit above a panel
SHORTEST_BAR = 200.0  # the space for the longest bar and the number beside it
TIMES = {"train": "training", "test": "testing"}
ABOUT: dict[str, dict[str, Any]] = {
    "evolution": {
        "title": FIGURES["evolution"],
        "kind": "lines",
        "category_title": "tasks learned",
        "value_title": "average accuracy (%)",
    },
    "forgetting": {
        "title": FIGURES["forgetting"],
        "caption": "The best accuracy that a task had minus its accuracy at the end, as the mean over all tasks except "
        "the last. Less is better.",
        "kind": "bars",
        "category_title": "method",
        "value_title": "forgetting (%)",
    },
    "runtime": {
        "title": FIGURES["runtime"],
        "kind": "bars",
        "category_title": "method",
        "value_title": "seconds per run",
    },
    "memory": {
        "title": "Accuracy by memory size",
        "caption": "The average accuracy at the end of training, by the number of examples in the memory.",
        "kind": "lines",
        "category_title": "examples in memory",
        "value_title": "average accuracy (%)",
        "whiskers": True,
        "log_categories": True,
    },
    "ablation": {
        "title": "What each component adds",
        "caption": "The components of each variant: feature propagation (w), contrastive rehearsal (α) and the "
        "supervised contrastive loss (β). Without any of them the method is ER, with the first two it is CCL-FP. All "
        "variants use CCL-FP+'s other hyperparameters.",
        "kind": "dots",
        "category_title": "components",
        "value_title": "average accuracy (%)",
    },
}


def make_charts(content: Content) -> list[Chart]:
    """The paper's figures, and its tables of memory sizes and components."""
    accuracy, buffer, ablation = content.tables
    return [
        _evolution_chart(accuracy),
        _forgetting_chart(accuracy),
        _run_time_chart(content),
        Chart("buffer", panels=_memory_panels(buffer), **ABOUT["memory"]),
        Chart("ablation", panels=_ablation_panels(ablation), **ABOUT["ablation"]),
    ]


def _evolution_chart(table: Table) -> Chart:
    """The paper's panels and one more, of Split MNIST, with the methods of the paper's forgetting figure."""
    panels = []
    extra = [column for column in PANELS["forgetting"] if column[0] == "split-mnist"]
    for column in [*PANELS["evolution"], *extra]:
        results = _column(table, column)
        title = column_title(column) + (" (not in the paper)" if column in extra else "")
        tasks = get_benchmark(column[0]).num_tasks or 0
        panels.append(_evolution(title, tasks, results, diverged=_divergence(results)))
    caption = (
        "The mean test accuracy on all tasks seen so far, after each task. The paper does not publish the numbers "
        "behind its curves, and has no curves of Split MNIST."
    )
    return Chart("evolution", panels=panels, caption=caption, **ABOUT["evolution"])


def _forgetting_chart(table: Table) -> Chart:
    panels = []
    for column in PANELS["forgetting"]:
        results = _column(table, column)
        panels.append(_forgetting(column_title(column), results, diverged=_divergence(results)))
    caption = f"{ABOUT['forgetting']['caption']} The paper does not publish these numbers."
    return Chart("forgetting", panels=panels, **ABOUT["forgetting"] | {"caption": caption})


def _run_time_chart(content: Content) -> Chart:
    panels = []
    for column, several in itertools.groupby(content.timed, key=lambda pair: pair[0].column):
        cells, timings = zip(*several, strict=True)
        alike, names = largest_comparable_group(timings), [cell.label for cell in cells]
        values = {
            part: [None if timing is None else Value(timing[f"{part}_seconds"]) for timing in alike] for part in TIMES
        }
        made = [describe_conditions(timing) for timing in alike if timing is not None]
        others = [n for n, timing, one in zip(names, timings, alike, strict=True) if one is None and timing is not None]
        note = f"Each method alone on {made[0]}" if made else ""
        note += f"; left out, because they were measured under other conditions: {', '.join(others)}" if others else ""
        panels.append(_run_time(column_title(column), names, values, note))
    caption = (
        "Seconds per run, for training and for testing after every task. cclfp study runtime trained each method "
        "alone, one run at a time, with the same engine on the same device. The paper does not publish its times."
    )
    return Chart("runtime", panels=panels, caption=caption, **ABOUT["runtime"])


def _memory_panels(table: Table) -> list[ChartPanel]:
    memories = {table.memory_of(row): None for row in table.rows}
    sizes = sorted(size for size in memories if size is not None)
    panels = []
    for i, column in enumerate(table.columns):
        series = []
        for label in dict.fromkeys(first(row).label for row in table.rows):
            found = {table.memory_of(row): row[i] for row in table.rows if first(row).label == label}
            values = [found.get(size) for size in sizes]
            key = next(_style_key(result) for result in found.values() if result is not None)
            series += [
                Series(key, label, [_accuracy(result) for result in values]),
                Series(key, f"{label}, paper", [_published(result) for result in values], paper=True),
            ]
        diverged = _divergence([row[i] for row in table.rows])
        panels.append(_memory(column_title(column), sizes, series, diverged=diverged))
    return panels


def _ablation_panels(table: Table) -> list[ChartPanel]:
    variants, panels = [variant_name(first(row).label) for row in table.rows], []
    for i, column in enumerate(table.columns):
        results = [row[i] for row in table.rows]
        series = [
            Series("ours", "ours", [_accuracy(result) for result in results]),
            Series("ours", "paper", [_published(result) for result in results], paper=True),
        ]
        panels.append(ChartPanel(column_title(column), variants, series, diverged=_divergence(results)))
    return panels


def _column(table: Table, column: tuple[str, str]) -> list[Result]:
    """The results in a column, but for the upper bound."""
    return [result for result in table.results if result.column == column and not result.is_joint]


def _style_key(result: Result) -> str:
    method = result.configuration.method
    return method if method in STYLES else "ours"


def _divergence(results: Sequence[Result | None]) -> dict[str, str]:
    """How many seeds diverged, by row, for the rows with such seeds."""
    remarks = {row_name(result): result.remark for result in results if result is not None}
    return {name: remark for name, remark in remarks.items() if remark}


# One's own runs -------------------------------------------------------------------------------------------------------


def own_charts(tables: Sequence[Table]) -> list[Chart]:
    """Evolution, forgetting and run time, and accuracy by memory size where there are several; none without runs."""
    drawn = {table.title: _drawn(table) for table in tables}
    keys = _style_keys(tables, drawn)
    evolution, forgetting, memory, times = list[ChartPanel](), list[ChartPanel](), list[ChartPanel](), []
    for table in tables:
        title, note, results = _title(table), _note(table), drawn[table.title]
        tasks = len(table.results[0].runs[0]["accuracy_matrix"]) - 1
        curves = [result for result in results if result.counted and not result.is_joint]
        if tasks > 1 and curves:
            evolution.append(_evolution(title, tasks, curves, keys, note=note))
        forgotten = _forgetting(title, [result for result in results if not result.is_joint], note=note)
        if not forgotten.is_empty:
            forgetting.append(forgotten)
        seconds = {part: [_seconds(result, part) for result in results] for part in TIMES}
        conditions = "; ".join(filter(None, (note, _mixed_conditions(results))))
        times.append(_run_time(title, [result.label for result in results], seconds, conditions))
    for place, several in itertools.groupby(tables, key=lambda table: place_title(table.results[0])):
        memory += _own_memory(place, list(several), keys)
    caption = "The test accuracy on all tasks seen so far, after each task: the mean over the seeds of each row."
    times_caption = (
        "Seconds per run, for training and for testing after every task: the mean over the seeds of each row. The "
        "seconds of runs that trained together are their shares of the total, so only rows that were trained in the "
        "same way can be compared."
    )
    charts = [
        Chart("own-evolution", panels=evolution, caption=caption, **ABOUT["evolution"]),
        Chart("own-forgetting", panels=forgetting, panel_width=_bar_panel_width(forgetting), **ABOUT["forgetting"]),
        Chart("own-memory", panels=memory, **ABOUT["memory"]),
        Chart(
            "own-runtime",
            panels=times,
            caption=times_caption,
            panel_width=_bar_panel_width(times),
            **ABOUT["runtime"],
        ),
    ]
    return [dataclasses.replace(chart, styles=ALL_STYLES) for chart in charts if chart.panels]


def _drawn(table: Table) -> list[Result]:
    """The rows that charts show: those with the most seeds where there are many."""
    kept = sorted(table.results, key=lambda result: -len(result.counted))[:MOST_ROWS]
    return [result for result in table.results if result in kept]


def _title(table: Table) -> str:
    """What fits above a panel; the note has the rest."""
    return table.title if len(table.title) <= LONGEST else column_title(table.columns[0])


def _note(table: Table) -> str:
    title = _title(table)
    parts = [] if title == table.title else [table.title.removeprefix(f"{title}, ")]
    rest = len(table.rows) - MOST_ROWS
    return "; ".join(parts + ([f"{rest} rows of the table with fewer seeds are not drawn"] if rest > 0 else []))


def _style_keys(tables: Sequence[Table], drawn: dict[str, list[Result]]) -> dict[str, str]:
    """The style of each label: a method of the paper has its own, once per place; all else one of those for users.

    Of these, one that no label has yet, else one that is not in the same place, else any.
    """
    keys: dict[str, str] = {}
    anyone = itertools.cycle(OWN_STYLES)
    for _, several in itertools.groupby(tables, key=lambda table: place_title(table.results[0])):
        results = [result for table in several for result in drawn[table.title]]
        taken = {keys[result.label] for result in results if result.label in keys}
        for result in results:
            if result.label in keys:
                continue
            method = result.configuration.method
            free = [style for used in (set(keys.values()), taken) for style in OWN_STYLES if style not in used]
            own = [method] if method in STYLES and method not in taken else free
            keys[result.label] = own[0] if own else next(anyone)
            taken.add(keys[result.label])
    return keys


def _own_memory(place: str, tables: Sequence[Table], keys: dict[str, str]) -> list[ChartPanel]:
    """A panel, if there are several sizes."""
    by_size = {t.memory: {result.label: result for result in t.results} for t in tables if t.memory is not None}
    if len(by_size) < 2:
        return []
    labels = [label for label in keys if any(label in results for results in by_size.values())]
    found = {label: [results.get(label) for results in by_size.values()] for label in labels[:MOST_ROWS]}
    series = [Series(keys[label], label, list(map(_accuracy, results))) for label, results in found.items()]
    return [_memory(place, list(by_size), series)]


def _mixed_conditions(results: Sequence[Result]) -> str:
    """Why the times of a panel cannot be compared; empty where they can."""
    names = ("device_name", "engine", "precision", "threads", "together")
    made = {tuple(run["environment"].get(name) for name in names) for result in results for run in result.runs}
    mixed = "these runs were not all made with the same device, engine and number of runs at a time"
    return mixed if len(made) > 1 else ""


def _seconds(result: Result, part: str) -> Value | None:
    runs = result.runs
    found = mean_value([run["train_seconds"] if part == "train" else run["test_seconds"] for run in runs])
    return None if found is None else dataclasses.replace(found, std=None)


def _bar_panel_width(panels: Sequence[ChartPanel]) -> float:
    """Enough for the longest label and a bar."""
    longest = max((len(label) for panel in panels for label in panel.categories), default=0)
    return max(PANEL_WIDTH, SHORTEST_BAR + CHARACTER * longest)


# Panels ---------------------------------------------------------------------------------------------------------------


def _evolution(
    title: str, count: int, results: Sequence[Result], keys: dict[str, str] | None = None, **more: Any
) -> ChartPanel:
    """The accuracy after each of so many tasks, a curve per result."""
    tasks, series = range(1, count + 1), []
    for result in results:
        matrices = [run["accuracy_matrix"] for run in result.counted]
        values = [mean_value([accuracy_so_far(matrix, t) for matrix in matrices]) for t in tasks]
        key = _style_key(result) if keys is None else keys[result.label]
        series.append(Series(key, result.label, values))
    return ChartPanel(title, list(map(str, tasks)), series, list(map(float, tasks)), **more)


def _forgetting(title: str, results: Sequence[Result], **more: Any) -> ChartPanel:
    values = [mean_value([run["forgetting"] for run in result.counted]) for result in results]
    return ChartPanel(title, [result.label for result in results], [Series("ours", "forgetting", values)], **more)


def _run_time(title: str, names: list[str], values: dict[str, list[Value | None]], note: str) -> ChartPanel:
    series = [Series(part, label, values[part]) for part, label in TIMES.items()]
    return ChartPanel(title, names, series, note=note)


def _memory(title: str, sizes: Sequence[int], series: list[Series], **more: Any) -> ChartPanel:
    return ChartPanel(title, list(map(str, sizes)), series, [math.log10(size) for size in sizes], **more)


def accuracy_so_far(matrix: Sequence[Sequence[float | None]], t: int) -> float | None:
    """The mean accuracy on the first t tasks after training on them.

    >>> accuracy_so_far([[None, None], [90.0, None], [70.0, 80.0]], 2)
    75.0
    """
    seen = [] if t >= len(matrix) else list(matrix[t][:t])
    known = [accuracy for accuracy in seen if accuracy is not None]
    return sum(known) / t if len(known) == t else None


def mean_value(numbers: Sequence[float | None]) -> Value | None:
    """The mean over seeds; None where there are no seeds or a number is undefined."""
    known = [number for number in numbers if number is not None]
    summary = mean_std(known)
    if summary["mean"] is None or len(known) < len(numbers):
        return None
    return Value(summary["mean"], summary["std"], tuple(known))


def _accuracy(result: Result | None) -> Value | None:
    return None if result is None else mean_value(list(result.accuracies.values()))


def _published(result: Result | None) -> Value | None:
    return None if result is None or result.published is None else Value(*result.published)
