"""One panel of a chart as SVG elements: curves, bars or dots between axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean

from cclfp.report import shapes
from cclfp.report.charts import Chart, ChartPanel, Series, Value
from cclfp.report.scales import Scale, scale_of_bars, scale_of_values
from cclfp.report.styles import EMPHASISED

PLOT_HEIGHT = 150.0  # of curves
TOP, RIGHT, BOTTOM, LEFT = 28.0, 12.0, 38.0, 50.0  # margins around the plot
ROW_HEIGHT = 20.0
BAR_LABEL = 44.0  # the space for the number beside a bar
FEW = 6  # up to so many categories, all curves count for the axis and every mark is drawn
LABELLED = 10  # up to so many categories, all are labelled; else every fifth
NAME_GAP = 11.5  # between the names beside curves, from line to line
LONGEST_NAME = 12  # characters; curves with longer names are only in the legend

Frame = tuple[float, float, float, float]  # left, top, right and bottom of the plot


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A drawn panel, its height, and the positions of its categories along ``axis`` ("x" or "y")."""

    body: str
    height: float
    axis: str
    positions: list[float]
    frame: Frame


def draw_panel(chart: Chart, panel: ChartPanel) -> Drawing:
    return _draw_curves(chart, panel) if chart.kind == "lines" else _draw_rows(chart, panel)


def format_tick(value: float) -> str:
    return f"{value:,g}".replace("-", "−")


def _draw_curves(chart: Chart, panel: ChartPanel) -> Drawing:
    """Curves over the panel's positions, with marks, and the name of each curve beside its end where names fit."""
    few, named = len(panel.categories) <= FEW, _named_curves(panel)
    room = max([14 + shapes.CHARACTER * len(series.label) for series in named], default=0.0)
    top, right, bottom = TOP, chart.panel_width - max(RIGHT, room), TOP + PLOT_HEIGHT
    scale = scale_of_values(chart, panel, bottom, top, spread=few, ours=not few)
    left = max(LEFT, 28 + shapes.CHARACTER * max(len(format_tick(tick)) for tick in scale.ticks))
    frame = left, top, right, bottom
    first, last = panel.positions[0], panel.positions[-1]
    positions = [left + 8 + (right - left - 16) * (at - first) / (last - first) for at in panel.positions]
    labelled = range(len(positions)) if len(positions) <= LABELLED else [0, *range(4, len(positions), 5)]
    body = [shapes.text(4, 15, panel.title, "title"), *_curve_axes(chart, scale, frame)]
    labels = [(positions[i], panel.categories[i]) for i in labelled]
    body += [shapes.text(at, bottom + 16, label, "mid") for at, label in _apart(labels)]
    body.append(shapes.text((left + right) / 2, bottom + 31, chart.category_axis, "mid"))
    if chart.value_axis:
        title = shapes.text(0, 0, chart.value_axis, "mid")
        body.append(shapes.group(14, (top + bottom) / 2, title, rotated=True))
    for series in sorted(panel.series, key=lambda series: series.key in EMPHASISED):
        body += _draw_curve(chart, series, positions, labelled, scale)
    body += _draw_names(named, positions[-1], scale, right + 8)
    return Drawing("".join(body), bottom + BOTTOM, "x", positions, frame)


def _named_curves(panel: ChartPanel) -> list[Series]:
    """The curves that get a name beside them: ours that go to the end; none if the names are too long or too many."""
    curves = [series for series in panel.ours if series.values[-1] is not None]
    fit = len(curves) * NAME_GAP <= PLOT_HEIGHT and all(len(series.label) <= LONGEST_NAME for series in curves)
    return curves if fit else []


def _draw_names(named: Sequence[Series], end: float, scale: Scale, x: float) -> list[str]:
    """The names at ``x`` of curves that end at ``end``."""
    heights = [(scale(value.mean), series) for series in named if (value := series.values[-1]) is not None]
    heights.sort(key=lambda pair: pair[0])
    places = spread_out([y for y, _ in heights], NAME_GAP, scale.end, scale.start)
    return [shapes.name(series, x, place, (end, y)) for (y, series), place in zip(heights, places, strict=True)]


def spread_out(wanted: Sequence[float], gap: float, start: float, end: float) -> list[float]:
    """Places near the wanted ones, which are in order: at least ``gap`` apart, and from ``start`` to ``end``.

    >>> spread_out([9, 10, 11, 28], gap=5, start=0, end=30)
    [5.0, 10.0, 15.0, 28.0]
    """
    groups: list[list[float]] = []  # of places that touch each other, each without the gaps before it
    for i, y in enumerate(wanted):
        groups.append([y - i * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    levels = [fmean(group) for group in groups for _ in group]
    highest = end - (len(levels) - 1) * gap
    return [max(min(level, highest), start) + i * gap for i, level in enumerate(levels)]


def _apart(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The labels with their centres, without those that would touch one to their right."""
    kept: list[tuple[float, str]] = []
    limit = math.inf
    for at, label in reversed(labels):
        half = shapes.CHARACTER * len(label) / 2
        if at + half < limit:
            kept.append((at, label))
            limit = at - half
    return kept[::-1]


def _curve_axes(chart: Chart, scale: Scale, frame: Frame) -> list[str]:
    left, _, right, bottom = frame
    body = []
    for tick in scale.ticks:
        body.append(shapes.horizontal("grid", left, right, scale(tick)))
        body.append(shapes.text(left - 6, scale(tick) + 4, format_tick(tick), "end"))
    return [*body, shapes.horizontal("axis", left, right, bottom)]


def _draw_curve(
    chart: Chart, series: Series, positions: Sequence[float], marked: Sequence[int], scale: Scale
) -> list[str]:
    places = list(zip(positions, series.values, strict=True))
    body = [shapes.curve(chart, series, [None if v is None else (x, scale(v.mean)) for x, v in places])]
    for i in marked:
        x, value = places[i]
        if value is None:
            continue
        if chart.whiskers and value.std is not None and not series.paper:
            low, high = scale(value.mean - value.std), scale(value.mean + value.std)
            classes, attribute = f"whisker {shapes.series_classes(series)}", shapes.series_attribute(series)
            body.append(shapes.vertical(classes, x, low, high, attribute))
        body.append(shapes.mark(chart, series, x, scale(value.mean)))
    return body


def _draw_rows(chart: Chart, panel: ChartPanel) -> Drawing:
    """One row per category: bars or dots."""
    bars = chart.kind == "bars"
    left = 14 + shapes.CHARACTER * max(len(name) + name.count("@") for name in panel.categories)  # @ is wide
    right = chart.panel_width - (BAR_LABEL if bars else RIGHT)
    top, bottom = TOP, TOP + ROW_HEIGHT * len(panel.categories)
    if bars:
        scale = scale_of_bars(panel, left, right)
    else:
        scale = scale_of_values(chart, panel, left, right, spread=True, count=4)
    positions = [top + ROW_HEIGHT * (i + 0.5) for i in range(len(panel.categories))]
    body = [shapes.text(4, 15, panel.title, "title")]
    for tick in scale.ticks:
        body.append(shapes.vertical("grid", scale(tick), top, bottom))
        body.append(shapes.text(scale(tick), bottom + 16, format_tick(tick), "mid"))
    body.append(shapes.text((left + right) / 2, bottom + 31, chart.value_axis, "mid"))
    for i, (y, category) in enumerate(zip(positions, panel.categories, strict=True)):
        body.append(shapes.text(left - 8, y + 4, category, "label end"))
        values = [series.values[i] for series in panel.series]
        if bars:
            body += _draw_bar(chart, panel, category, values, y, scale)
        else:
            body += _draw_dots(chart, panel, values, y, scale)
    body.append(shapes.vertical("axis", scale(max(scale.ticks[0], 0)) if bars else left, top, bottom))
    return Drawing("".join(body), bottom + BOTTOM, "y", positions, (left, top, right, bottom))


def _draw_bar(
    chart: Chart, panel: ChartPanel, category: str, values: Sequence[Value | None], y: float, scale: Scale
) -> list[str]:
    """The values stacked in one bar, their sum beside it, and the standard deviation of a single one."""
    known = [(series, value) for series, value in zip(panel.series, values, strict=True) if value is not None]
    if not known:
        reason = panel.reason_missing(panel.series[0], category)
        return [shapes.text(scale(0) + 6, y + 4, reason, "missing")]
    body, total = [], 0.0
    for series, value in known:
        body.append(shapes.bar(series, scale(total), scale(total + value.mean), y))
        total += value.mean
    end = total
    if len(known) == 1 and known[0][1].std is not None:
        end = total + known[0][1].std
        body.append(shapes.horizontal("ink whisker", scale(total - known[0][1].std), scale(end), y))
    return [*body, shapes.text(max(scale(end), scale(0)) + 5, y + 4, chart.format_value(total), "value")]


def _draw_dots(chart: Chart, panel: ChartPanel, values: Sequence[Value | None], y: float, scale: Scale) -> list[str]:
    """A dot per value with its standard deviation; ours over the published ones."""
    body = []
    for series, value in reversed(list(zip(panel.series, values, strict=True))):
        if value is None:
            continue
        if value.std is not None and not series.paper:
            low, high = scale(value.mean - value.std), scale(value.mean + value.std)
            classes, attribute = f"whisker {shapes.series_classes(series)}", shapes.series_attribute(series)
            body.append(shapes.horizontal(classes, low, high, y, attribute))
        body.append(shapes.mark(chart, series, scale(value.mean), y))
    return body
