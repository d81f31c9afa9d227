"""The charts of RESULTS.md, drawn with the code of the report's charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from formatting import format_number

from cclfp.core.files import write_atomic
from cclfp.report.charts import Chart, ChartPanel, Series, Value
from cclfp.report.drawing import draw_figure
from cclfp.report.styles import OWN_STYLES, STYLES, Style

OTHER, OURS = Style("#7a8591", "#8f9aa6", "4 2", "square"), STYLES["ours"]
BENCH_STYLES = STYLES | {
    "gem, eager": OTHER,
    "gem, not compiled": STYLES["gem"],
    "er, tf32": STYLES["er"],
    "er, bf16": OWN_STYLES["own-1"],
    "ccl-fp+, tf32": STYLES["ccl-fp+"],
    "ccl-fp+, bf16": OWN_STYLES["own-2"],
    "eager": OTHER,
    "compiled": OURS,
    "graph": OURS,
    "Avalanche": OTHER,
    "cclfp": OURS,
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
        drawn = [_line_panel(rows, field, panel_title) for field, panel_title in panels]
        chart = Chart(
            name=name,
            title=title,
            caption="",
            kind="lines",
            category_title=x_title,
            value_title="",
            panels=[panel for panel in drawn if panel.series],
            log=True,
            log_categories=True,
            same_scale=same_scale,
            panel_width=LINE_PANEL_WIDTH,
            styles=BENCH_STYLES,
        )
        return self._save(chart)

    def _save(self, chart: Chart) -> str:
        path = self.folder / "charts" / f"{chart.name}.svg"
        write_atomic(path, lambda file: file.write(draw_figure(chart, dark=True).encode()))
        return f"![{chart.title}](charts/{chart.name}.svg)"


def _row_chart(name: str, kind: Any, points: Sequence[Point], title: str, hardware: str, value_title: str) -> Chart:
    labels = list(dict.fromkeys(point.label for point in points))
    series = []
    for key in dict.fromkeys(point.series for point in points):
        found = {point.label: Value(point.value) for point in points if point.series == key}
        series.append(Series(key, key, [found.get(label) for label in labels]))
    return Chart(
        name=name,
        title=title,
        caption="",
        kind=kind,
        category_title="",
        value_title=value_title,
        panels=[ChartPanel(hardware, labels, series)],
        log=kind == "dots",
        panel_width=ROW_CHART_WIDTH,
        styles=BENCH_STYLES,
        format_value=format_number,
    )


def _line_panel(rows: Sequence[dict[str, Any]], field: str, title: str) -> ChartPanel:
    """A panel without the values that are not positive, which a logarithmic axis cannot show."""
    points = sorted({row["x"] for row in rows})
    series = []
    for key in dict.fromkeys(row["series"] for row in rows):
        found = {row["x"]: Value(row[field]) for row in rows if row["series"] == key and row[field] > 0}
        if found:
            series.append(Series(key, key, [found.get(x) for x in points]))
    return ChartPanel(title, [f"{x:,}" for x in points], series, [math.log10(x) for x in points])
