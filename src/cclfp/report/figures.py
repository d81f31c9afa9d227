"""The report's charts: the paper's figures, and its tables of memory sizes and components drawn as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from cclfp.metrics import mean_std
from cclfp.paper import Figure, describe_conditions, figures, gather_timings, largest_comparable_group, run_time_cells
from cclfp.report.charts import Chart, ChartPanel, Series, Value
from cclfp.report.entries import Entry, Table, column_title, variant_name
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark


def make_charts(tables: Sequence[Table], store: Store) -> list[Chart]:
    """All charts of the report: accuracy by task, forgetting, run time, memory sizes and components."""
    by_name = {table.name: table for table in tables}
    return [
        _evolution_chart(by_name["accuracy"]),
        _forgetting_chart(by_name["accuracy"]),
        _run_time_chart(store),
        _memory_chart(by_name["buffer"]),
        _ablation_chart(by_name["ablation"]),
    ]


def _figure(name: str) -> Figure:
    (figure,) = [figure for figure in figures() if figure.name == name]
    return figure


def _evolution_chart(table: Table) -> Chart:
    """The paper's panels and one more, of Split MNIST, with the methods of the paper's forgetting figure."""
    figure, panels = _figure("evolution"), []
    extra = [panel for panel in _figure("forgetting").panels if panel.benchmark == "split-mnist"]
    for panel in [*figure.panels, *extra]:
        tasks = range(1, (get_benchmark(panel.benchmark).num_tasks or 0) + 1)
        entries = _entries(table, panel.benchmark, panel.scenario, panel.methods)
        series = []
        for entry in entries:
            matrices = [run["accuracy_matrix"] for run in entry.comparison.seeds.counted]
            values = [mean_value([accuracy_so_far(matrix, t) for matrix in matrices]) for t in tasks]
            series.append(Series(entry.cell.method, entry.cell.row, values))
        title = column_title((panel.benchmark, panel.scenario)) + (" (not in the paper)" if panel in extra else "")
        names, positions = list(map(str, tasks)), list(map(float, tasks))
        panels.append(ChartPanel(title, names, series, positions, diverged=_divergence(entries)))
    return Chart(
        name="evolution",
        title=figure.title,
        caption="The mean test accuracy on all tasks seen so far, after each task. The paper does not publish the "
        "numbers behind its curves, and has no curves of Split MNIST.",
        kind="lines",
        category_title="tasks learned",
        value_title="average accuracy (%)",
        panels=panels,
    )


def accuracy_so_far(matrix: Sequence[Sequence[float | None]], t: int) -> float | None:
    """The mean accuracy on the first t tasks after training on them.

    >>> accuracy_so_far([[None, None], [90.0, None], [70.0, 80.0]], 2)
    75.0
    """
    seen = [] if t >= len(matrix) else list(matrix[t][:t])
    known = [accuracy for accuracy in seen if accuracy is not None]
    return sum(known) / t if len(known) == t else None


def _forgetting_chart(table: Table) -> Chart:
    figure, panels = _figure("forgetting"), []
    for panel in figure.panels:
        entries = _entries(table, panel.benchmark, panel.scenario, panel.methods)
        values = [mean_value([run["forgetting"] for run in entry.comparison.seeds.counted]) for entry in entries]
        series, methods = [Series("ours", "forgetting", values)], [entry.cell.row for entry in entries]
        title = column_title((panel.benchmark, panel.scenario))
        panels.append(ChartPanel(title, methods, series, diverged=_divergence(entries)))
    return Chart(
        name="forgetting",
        title=figure.title,
        caption="The best accuracy that a task had minus its accuracy at the end, as the mean over all tasks except "
        "the last. Less is better. The paper does not publish these numbers.",
        kind="bars",
        category_title="method",
        value_title="forgetting (%)",
        panels=panels,
    )


def _run_time_chart(store: Store) -> Chart:
    figure, panels = _figure("runtime"), []
    for column, several in groupby(run_time_cells(), key=lambda cell: (cell.benchmark, cell.scenario)):
        shown = list(several)
        timings = gather_timings(shown, store)
        alike = largest_comparable_group(timings)
        series = [
            Series(part, label, [Value(alike[c][f"{part}_seconds"]) if c in alike else None for c in shown])
            for part, label in (("train", "training"), ("test", "testing"))
        ]
        others = [cell.row for cell in timings if cell not in alike]
        note = f"Each method alone on {describe_conditions(next(iter(alike.values())))}" if alike else ""
        note += f"; left out, because they were measured under other conditions: {', '.join(others)}" if others else ""
        panels.append(ChartPanel(column_title(column), [cell.row for cell in shown], series, note=note))
    return Chart(
        name="runtime",
        title=figure.title,
        caption="Seconds per run, for training and for testing after every task. cclfp study runtime trained each "
        "method alone, one run at a time, with the same engine on the same device. The paper does not publish its "
        "times.",
        kind="bars",
        category_title="method",
        value_title="seconds per run",
        panels=panels,
    )


def _memory_chart(table: Table) -> Chart:
    sizes = sorted({row.buffer for row in table.rows if row.buffer is not None})
    panels = []
    for i, column in enumerate(table.columns):
        series = []
        for label in dict.fromkeys(row.label for row in table.rows):
            found = {row.buffer: row.entries[i] for row in table.rows if row.label == label}
            method = next(entry.cell.method for entry in found.values() if entry is not None)
            series += [
                Series(method, label, [_our_value(found.get(size)) for size in sizes]),
                Series(method, f"{label}, paper", [_published_value(found.get(size)) for size in sizes], paper=True),
            ]
        positions, diverged = [math.log10(size) for size in sizes], _divergence([row.entries[i] for row in table.rows])
        panels.append(ChartPanel(column_title(column), list(map(str, sizes)), series, positions, diverged=diverged))
    return Chart(
        name="buffer",
        title="Accuracy by memory size",
        caption="The average accuracy at the end of training, by the number of examples in the memory.",
        kind="lines",
        category_title="examples in memory",
        value_title="average accuracy (%)",
        panels=panels,
        whiskers=True,
        log_categories=True,
    )


def _ablation_chart(table: Table) -> Chart:
    variants, panels = [variant_name(row.label) for row in table.rows], []
    for i, column in enumerate(table.columns):
        entries = [row.entries[i] for row in table.rows]
        series = [
            Series("ours", "ours", [_our_value(entry) for entry in entries]),
            Series("ours", "paper", [_published_value(entry) for entry in entries], paper=True),
        ]
        panels.append(ChartPanel(column_title(column), variants, series, diverged=_divergence(entries)))
    return Chart(
        name="ablation",
        title="What each component adds",
        caption="The components of each variant: feature propagation (w), contrastive rehearsal (α) and the supervised "
        "contrastive loss (β). Without any of them the method is ER, with the first two it is CCL-FP. All variants use "
        "CCL-FP+'s other hyperparameters.",
        kind="dots",
        category_title="components",
        value_title="average accuracy (%)",
        panels=panels,
    )


def _entries(table: Table, benchmark: str, scenario: str, methods: Sequence[str]) -> list[Entry]:
    """The entries of these methods in a column of the accuracy table."""
    found = {entry.cell.method: entry for entry in table.entries if entry.column == (benchmark, scenario)}
    return [found[method] for method in methods]


def _divergence(entries: Sequence[Entry | None]) -> dict[str, str]:
    """How many seeds diverged, by row, for the rows with such seeds."""
    remarks = {entry.name: entry.comparison.seeds.remark for entry in entries if entry is not None}
    return {name: remark for name, remark in remarks.items() if remark}


def mean_value(numbers: Sequence[float | None]) -> Value | None:
    """The mean over seeds; None where there are no seeds or a number is undefined."""
    known = [number for number in numbers if number is not None]
    summary = mean_std(known)
    if summary["mean"] is None or len(known) < len(numbers):
        return None
    return Value(summary["mean"], summary["std"], tuple(known))


def _our_value(entry: Entry | None) -> Value | None:
    return None if entry is None else mean_value(list(entry.comparison.seeds.accuracies.values()))


def _published_value(entry: Entry | None) -> Value | None:
    return None if entry is None else Value(*entry.cell.published)
