"""The charts of RESULTS.md, drawn with the code of the report's charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from formatting import format_number

from cclfp.core.files import write_atomic
from cclfp.paper.numbers import LABELS
from cclfp.report.charts import MISSING, Axis, Chart, Panel, Series, Value
from cclfp.report.drawing import draw_figure
from cclfp.report.styles import OURS, STYLES, Style

OTHER = Style("other", "#7a8591", "#8f9aa6", "4 2", "square")
LOOKS = {
    **{name: STYLES[name] for name in LABELS},
    "gem, eager": OTHER,
    "er, tf32": STYLES["er"],
    "er, bf16": STYLES["own-1"],
    "ccl-fp+, tf32": STYLES["ccl-fp+"],
    "ccl-fp+, bf16": STYLES["own-2"],
    "eager": OTHER,
    "traced": OURS,
    "graph": OURS,
    "others": OTHER,
    "cclfp": OURS,
}
BENCH_STYLES = {name: dataclasses.replace(style, name=name) for name, style in LOOKS.items()}
MARGIN = 1.3  # by which factor a logarithmic axis goes beyond the values
# The leading digits of ticks on a logarithmic axis, by the least ratio of its ends
LOG_DIGITS: dict[int, tuple[float, ...]] = {
    20: (1, 2, 5),
    2: (1, 1.5, 2, 3, 4, 5, 7),
    1: (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8),
}
ROW_CHART_WIDTH = 640.0  # of bars and dots, whose labels are long
LINE_PANEL_WIDTH = 400.0


class Point(NamedTuple):
    """A value in a chart of bars or dots: the label of its row, its series and the value."""

    label: str
    series: str
    value: float


class Charts:
    """Draws into the folder ``charts`` beside a document; each method returns the Markdown that shows the chart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def bars(self, name: str, points: Sequence[Point], title: str, hardware: str, value_title: str) -> str:
        """One bar per point."""
        return self._save(_row_chart(name, "bars", points, title, hardware, value_title))

    def dots(self, name: str, points: Sequence[Point], title: str, hardware: str, value_title: str) -> str:
        """One row per label with one dot per series, on a logarithmic axis."""
        return self._save(_row_chart(name, "dots", points, title, hardware, value_title))

    def lines(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        title: str,
        x_title: str,
        panels: Sequence[tuple[str, str]],
        *,
        same_scale: bool,
    ) -> str:
        """One panel per value (field, title) over ``x`` and one line per ``series``; all axes are logarithmic."""
        values = {field: [row[field] for row in rows if row[field] > 0] for field, _ in panels}
        every = [value for several in values.values() for value in several]
        drawn = [
            _line_panel(rows, field, panel_title, log_axis(every if same_scale else values[field]))
            for field, panel_title in panels
            if values[field]
        ]
        chart = Chart(name, title, "lines", f"{x_title} (log scale)", "log scale", drawn, width=LINE_PANEL_WIDTH)
        return self._save(chart)

    def _save(self, chart: Chart) -> str:
        path = self.folder / "charts" / f"{chart.name}.svg"
        write_atomic(path, draw_figure(chart, dark=True).encode())
        return f"![{chart.title}](charts/{chart.name}.svg)"


def _row_chart(name: str, kind: Any, points: Sequence[Point], title: str, hardware: str, value_title: str) -> Chart:
    labels = list(dict.fromkeys(point.label for point in points))
    is_log = kind == "dots"
    series = []
    for key in dict.fromkeys(point.series for point in points):
        found = {point.label: _value(point.value, is_log) for point in points if point.series == key}
        series.append(Series(BENCH_STYLES[key], key, [found.get(label, MISSING) for label in labels]))
    axis = log_axis([point.value for point in points]) if is_log else None
    return Chart(
        name=name,
        title=title,
        kind=kind,
        category_title="",
        value_title=f"{value_title} (log scale)" if is_log else value_title,
        panels=[Panel(hardware, labels, series, axis=axis)],
        width=ROW_CHART_WIDTH,
        format_value=format_number,
    )


def _line_panel(rows: Sequence[dict[str, Any]], field: str, title: str, axis: Axis) -> Panel:
    """A panel without the values that are not positive, which a logarithmic axis cannot show."""
    points = sorted({row["x"] for row in rows})
    series = []
    for key in dict.fromkeys(row["series"] for row in rows):
        found = {row["x"]: _value(row[field], True) for row in rows if row["series"] == key and row[field] > 0}
        if found:
            series.append(Series(BENCH_STYLES[key], key, [found.get(x, MISSING) for x in points]))
    return Panel(title, [f"{x:,}" for x in points], series, [math.log10(x) for x in points], axis=axis)


def _value(value: float, is_log: bool) -> Value:
    return Value(math.log10(value) if is_log else value)


def log_axis(values: Sequence[float]) -> Axis:
    """A logarithmic axis around the values: drawings show the logarithms, labelled with the numbers."""
    low, high = min(values) / MARGIN, max(values) * MARGIN
    return Axis(math.log10(low), math.log10(high), {math.log10(tick): f"{tick:,g}" for tick in log_ticks(low, high)})


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between low and high, for a logarithmic axis.

    >>> log_ticks(0.3, 30), log_ticks(30, 130), log_ticks(240, 400)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [30.0, 40.0, 50.0, 70.0, 100.0], [250.0, 300.0, 350.0, 400.0])
    """
    digits = next(found for ratio, found in LOG_DIGITS.items() if high / low > ratio)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]
