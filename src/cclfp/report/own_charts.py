"""Charts of the runs that are in none of the paper's tables."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from cclfp.methods import METHODS
from cclfp.report.charts import PANEL_WIDTH, Chart, ChartPanel, Series, Value
from cclfp.report.figures import accuracy_so_far, mean_value
from cclfp.report.own import OwnRow, OwnTable, is_joint
from cclfp.report.shapes import CHARACTER
from cclfp.report.styles import ALL_STYLES, OWN_STYLES

MOST_ROWS = 12  # that one panel draws
LONGEST = 42  # characters that fit above a panel
SHORTEST_BAR = 200.0  # the space for the longest bar and the number beside it


def own_charts(tables: Sequence[OwnTable]) -> list[Chart]:
    """Evolution, forgetting and run time, and accuracy by memory size where there are several; none without runs."""
    if not tables:
        return []
    drawn = {table.title: _drawn(table) for table in tables}
    keys = _style_keys(tables, drawn)
    charts = [
        _evolution(tables, drawn, keys),
        _forgetting(tables, drawn),
        _memory(tables, keys),
        _run_time(tables, drawn),
    ]
    return [chart for chart in charts if chart.panels]


def _drawn(table: OwnTable) -> list[OwnRow]:
    """The rows that charts show: those with the most seeds where there are many."""
    kept = sorted(table.rows, key=lambda row: -len(row.seeds.counted))[:MOST_ROWS]
    return [row for row in table.rows if row in kept]


def _title(table: OwnTable) -> str:
    """What fits above a panel; the note has the rest."""
    return table.title if len(table.title) <= LONGEST else table.name


def _note(table: OwnTable) -> str:
    parts = [] if _title(table) == table.title else [", ".join(table.details)]
    rest = len(table.rows) - MOST_ROWS
    return "; ".join(parts + ([f"{rest} rows of the table with fewer seeds are not drawn"] if rest > 0 else []))


def _style_keys(tables: Sequence[OwnTable], drawn: dict[str, list[OwnRow]]) -> dict[str, str]:
    """The style of each label: a built-in method has its own, once per place; all else one of those for users.

    Of these, one that no label has yet, else one that is not in the same place, else any.
    """
    keys: dict[str, str] = {}
    anyone = itertools.cycle(OWN_STYLES)
    for _, several in itertools.groupby(tables, key=lambda table: table.place):
        rows = [row for table in several for row in drawn[table.title]]
        taken = {keys[row.label] for row in rows if row.label in keys}
        for row in rows:
            if row.label in keys:
                continue
            method = row.configuration["method"]
            free = [style for used in (set(keys.values()), taken) for style in OWN_STYLES if style not in used]
            own = [method] if method in METHODS and method not in taken else free
            keys[row.label] = own[0] if own else next(anyone)
            taken.add(keys[row.label])
    return keys


def _evolution(tables: Sequence[OwnTable], drawn: dict[str, list[OwnRow]], keys: dict[str, str]) -> Chart:
    panels = []
    for table in tables:
        rows = [row for row in drawn[table.title] if row.seeds.counted and not is_joint(row.configuration)]
        tasks = range(1, len(table.rows[0].seeds.runs[0]["accuracy_matrix"]))
        if len(tasks) < 2 or not rows:
            continue
        series = []
        for row in rows:
            matrices = [run["accuracy_matrix"] for run in row.seeds.counted]
            values = [mean_value([accuracy_so_far(matrix, t) for matrix in matrices]) for t in tasks]
            series.append(Series(keys[row.label], row.label, values))
        positions = list(map(float, tasks))
        panels.append(ChartPanel(_title(table), list(map(str, tasks)), series, positions, note=_note(table)))
    return Chart(
        name="own-evolution",
        title="Average accuracy on all tasks seen so far",
        caption="The test accuracy on all tasks seen so far, after each task: the mean over the seeds of each row.",
        kind="lines",
        category_title="tasks learned",
        value_title="average accuracy (%)",
        panels=panels,
        styles=ALL_STYLES,
    )


def _forgetting(tables: Sequence[OwnTable], drawn: dict[str, list[OwnRow]]) -> Chart:
    panels = []
    for table in tables:
        rows = [row for row in drawn[table.title] if not is_joint(row.configuration)]
        values = [mean_value([run["forgetting"] for run in row.seeds.counted]) for row in rows]
        if any(value is not None for value in values):
            series = [Series("ours", "forgetting", values)]
            panels.append(ChartPanel(_title(table), [row.label for row in rows], series, note=_note(table)))
    return Chart(
        name="own-forgetting",
        title="Average forgetting by the end of training",
        caption="The best accuracy that a task had minus its accuracy at the end, as the mean over all tasks except "
        "the last. Less is better.",
        kind="bars",
        category_title="method",
        value_title="forgetting (%)",
        panels=panels,
        panel_width=_bar_panel_width(panels),
        styles=ALL_STYLES,
    )


def _run_time(tables: Sequence[OwnTable], drawn: dict[str, list[OwnRow]]) -> Chart:
    panels = []
    for table in tables:
        rows = drawn[table.title]
        series = [
            Series(part, label, [_seconds(row, part) for row in rows])
            for part, label in (("train", "training"), ("test", "testing"))
        ]
        panels.append(ChartPanel(_title(table), [row.label for row in rows], series, note=_conditions(table, rows)))
    return Chart(
        name="own-runtime",
        title="Run time, training and testing",
        caption="Seconds per run, for training and for testing after every task: the mean over the seeds of each row. "
        "The seconds of runs that trained together are their shares of the total, so only rows that were trained in "
        "the same way can be compared.",
        kind="bars",
        category_title="method",
        value_title="seconds per run",
        panels=panels,
        panel_width=_bar_panel_width(panels),
        styles=ALL_STYLES,
    )


def _bar_panel_width(panels: Sequence[ChartPanel]) -> float:
    """Enough for the longest label and a bar."""
    longest = max((len(label) for panel in panels for label in panel.categories), default=0)
    return max(PANEL_WIDTH, SHORTEST_BAR + CHARACTER * longest)


def _conditions(table: OwnTable, rows: Sequence[OwnRow]) -> str:
    """The note of a panel, and whether its times can be compared."""
    names = ("device_name", "engine", "precision", "threads", "together")
    made = {tuple(run["environment"].get(name) for name in names) for row in rows for run in row.seeds.runs}
    mixed = "these runs were not all made with the same device, engine and number of runs at a time"
    return "; ".join([text for text in (_note(table), mixed if len(made) > 1 else "") if text])


def _seconds(row: OwnRow, part: str) -> Value | None:
    runs = row.seeds.runs
    found = mean_value([run["train_seconds"] if part == "train" else run["test_seconds"] for run in runs])
    return None if found is None else dataclasses.replace(found, std=None)


def _memory(tables: Sequence[OwnTable], keys: dict[str, str]) -> Chart:
    panels = []
    for place, several in itertools.groupby(tables, key=lambda table: table.place):
        by_size = {table.memory: {row.label: row for row in table.rows} for table in several}
        sizes = [size for size in by_size if size is not None]
        labels = [label for label in keys if any(label in rows for rows in by_size.values())]
        if len(sizes) < 2:
            continue
        series = []
        for label in labels[:MOST_ROWS]:
            rows = [by_size[size].get(label) for size in sizes]
            values = [mean_value([] if row is None else list(row.seeds.accuracies.values())) for row in rows]
            series.append(Series(keys[label], label, values))
        positions = [math.log10(size) for size in sizes]
        panels.append(ChartPanel(place, list(map(str, sizes)), series, positions))
    return Chart(
        name="own-memory",
        title="Accuracy by memory size",
        caption="The average accuracy at the end of training, by the number of examples in the memory.",
        kind="lines",
        category_title="examples in memory",
        value_title="average accuracy (%)",
        panels=panels,
        styles=ALL_STYLES,
        whiskers=True,
        log_categories=True,
    )
