"""Draws charts as SVG: axes, panels of curves, bars or dots between them, and whole figures."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain
from statistics import fmean

from cclfp.report import styles
from cclfp.report.charts import Chart, ChartPanel, Series, Value
from cclfp.report.styles import DARK_COLOURS, EMPHASISED, LIGHT_COLOURS, colour_rules, style_sheet

# Axes -----------------------------------------------------------------------------------------------------------------

MARGIN = 1.3  # by which factor a logarithmic axis goes beyond the values
# The leading digits of ticks on a logarithmic axis, by the least ratio of its ends
LOG_DIGITS: dict[int, tuple[float, ...]] = {
    20: (1, 2, 5),
    2: (1, 1.5, 2, 3, 4, 5, 7),
    1: (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8),
}


class Scale:
    """Maps values to coordinates from ``start`` to ``end``."""

    def __init__(self, low: float, high: float, ticks: list[float], start: float, end: float, log: bool) -> None:
        self.low, self.high, self.ticks = low, high, ticks
        self.start, self.end, self.log = start, end, log

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        low, high = self._transform(self.low), self._transform(self.high)
        return self.start + (self.end - self.start) * (self._transform(value) - low) / (high - low)

    def _transform(self, value: float) -> float:
        return math.log10(value) if self.log else value


def linear_scale(low: float, high: float, start: float, end: float, count: int = 5) -> Scale:
    ticks = linear_ticks(low, high, count)
    return Scale(ticks[0], ticks[-1], ticks, start, end, log=False)


def log_scale(low: float, high: float, start: float, end: float) -> Scale:
    low, high = low / MARGIN, high * MARGIN
    return Scale(low, high, log_ticks(low, high), start, end, log=True)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from about low to about high, with at most ``count`` steps between the two.

    >>> linear_ticks(0, 100), linear_ticks(97.1, 99.4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [97.0, 97.5, 98.0, 98.5, 99.0, 99.5])
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / count))
    step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (m * unit) <= count + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between low and high, for a logarithmic axis.

    >>> log_ticks(0.3, 30), log_ticks(30, 130), log_ticks(240, 400)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [30.0, 40.0, 50.0, 70.0, 100.0], [250.0, 300.0, 350.0, 400.0])
    """
    digits = next(found for ratio, found in LOG_DIGITS.items() if high / low > ratio)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def scale_of_values(
    chart: Chart, panel: ChartPanel, start: float, end: float, *, spread: bool, count: int = 5, ours: bool = False
) -> Scale:
    """The axis for the lines or dots of a panel, with room for standard deviations if ``spread``.

    With ``ours``, the published numbers do not count.
    """
    panels = chart.panels if chart.same_scale else [panel]
    series = list(chain.from_iterable(one.ours if ours else one.series for one in panels))
    if chart.log:
        return log_scale(*_positive_range(series), start, end)
    return linear_scale(*_percentage_range(series, spread), start, end, count)


def scale_of_bars(panel: ChartPanel, start: float, end: float, count: int = 4) -> Scale:
    """The axis for the bars of a panel, which start at 0."""
    ends = []
    for values in zip(*(series.values for series in panel.series), strict=True):
        known = [value for value in values if value is not None]
        total = sum(value.mean for value in known)
        std = (known[0].std or 0.0) if len(values) == len(known) == 1 else 0.0
        ends += [total - std, total + std]
    low, high = min(0.0, *ends), max(0.0, *ends)
    return linear_scale(low, high if high > low else 1.0, start, end, count)


def _positive_range(several: Sequence[Series]) -> tuple[float, float]:
    known = [value.mean for series in several for value in series.values if value is not None]
    return min(known, default=1.0), max(known, default=10.0)


def _percentage_range(several: Iterable[Series], spread: bool) -> tuple[float, float]:
    known = [value for series in several for value in series.values if value is not None]
    stds = [(value.std or 0.0) if spread else 0.0 for value in known]
    low = min((value.mean - std for value, std in zip(known, stds, strict=True)), default=0.0)
    high = max((value.mean + std for value, std in zip(known, stds, strict=True)), default=100.0)
    low, high = max(low, 0.0), min(high, 100.0)
    return (low, high) if high > low else (low - 1, high + 1)


# Panels ---------------------------------------------------------------------------------------------------------------

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
    room = max([14 + styles.CHARACTER * len(series.label) for series in named], default=0.0)
    top, right, bottom = TOP, chart.panel_width - max(RIGHT, room), TOP + PLOT_HEIGHT
    scale = scale_of_values(chart, panel, bottom, top, spread=few, ours=not few)
    left = max(LEFT, 28 + styles.CHARACTER * max(len(format_tick(tick)) for tick in scale.ticks))
    frame = left, top, right, bottom
    first, last = panel.positions[0], panel.positions[-1]
    positions = [left + 8 + (right - left - 16) * (at - first) / (last - first) for at in panel.positions]
    labelled = range(len(positions)) if len(positions) <= LABELLED else [0, *range(4, len(positions), 5)]
    body = [styles.text(4, 15, panel.title, "title"), *_curve_axes(chart, scale, frame)]
    labels = [(positions[i], panel.categories[i]) for i in labelled]
    body += [styles.text(at, bottom + 16, label, "mid") for at, label in _apart(labels)]
    body.append(styles.text((left + right) / 2, bottom + 31, chart.category_axis, "mid"))
    if chart.value_axis:
        title = styles.text(0, 0, chart.value_axis, "mid")
        body.append(styles.group(14, (top + bottom) / 2, title, rotated=True))
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
    return [styles.name(series, x, place, (end, y)) for (y, series), place in zip(heights, places, strict=True)]


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
        half = styles.CHARACTER * len(label) / 2
        if at + half < limit:
            kept.append((at, label))
            limit = at - half
    return kept[::-1]


def _curve_axes(chart: Chart, scale: Scale, frame: Frame) -> list[str]:
    left, _, right, bottom = frame
    body = []
    for tick in scale.ticks:
        body.append(styles.horizontal("grid", left, right, scale(tick)))
        body.append(styles.text(left - 6, scale(tick) + 4, format_tick(tick), "end"))
    return [*body, styles.horizontal("axis", left, right, bottom)]


def _draw_curve(
    chart: Chart, series: Series, positions: Sequence[float], marked: Sequence[int], scale: Scale
) -> list[str]:
    places = list(zip(positions, series.values, strict=True))
    body = [styles.curve(chart, series, [None if v is None else (x, scale(v.mean)) for x, v in places])]
    for i in marked:
        x, value = places[i]
        if value is None:
            continue
        if chart.whiskers and value.std is not None and not series.paper:
            low, high = scale(value.mean - value.std), scale(value.mean + value.std)
            classes, attribute = f"whisker {styles.series_classes(series)}", styles.series_attribute(series)
            body.append(styles.vertical(classes, x, low, high, attribute))
        body.append(styles.mark(chart, series, x, scale(value.mean)))
    return body


def _draw_rows(chart: Chart, panel: ChartPanel) -> Drawing:
    """One row per category: bars or dots."""
    bars = chart.kind == "bars"
    left = 14 + styles.CHARACTER * max(len(name) + name.count("@") for name in panel.categories)  # @ is wide
    right = chart.panel_width - (BAR_LABEL if bars else RIGHT)
    top, bottom = TOP, TOP + ROW_HEIGHT * len(panel.categories)
    if bars:
        scale = scale_of_bars(panel, left, right)
    else:
        scale = scale_of_values(chart, panel, left, right, spread=True, count=4)
    positions = [top + ROW_HEIGHT * (i + 0.5) for i in range(len(panel.categories))]
    body = [styles.text(4, 15, panel.title, "title")]
    for tick in scale.ticks:
        body.append(styles.vertical("grid", scale(tick), top, bottom))
        body.append(styles.text(scale(tick), bottom + 16, format_tick(tick), "mid"))
    body.append(styles.text((left + right) / 2, bottom + 31, chart.value_axis, "mid"))
    for i, (y, category) in enumerate(zip(positions, panel.categories, strict=True)):
        body.append(styles.text(left - 8, y + 4, category, "label end"))
        values = [series.values[i] for series in panel.series]
        if bars:
            body += _draw_bar(chart, panel, category, values, y, scale)
        else:
            body += _draw_dots(chart, panel, values, y, scale)
    body.append(styles.vertical("axis", scale(max(scale.ticks[0], 0)) if bars else left, top, bottom))
    return Drawing("".join(body), bottom + BOTTOM, "y", positions, (left, top, right, bottom))


def _draw_bar(
    chart: Chart, panel: ChartPanel, category: str, values: Sequence[Value | None], y: float, scale: Scale
) -> list[str]:
    """The values stacked in one bar, their sum beside it, and the standard deviation of a single one."""
    known = [(series, value) for series, value in zip(panel.series, values, strict=True) if value is not None]
    if not known:
        reason = panel.reason_missing(panel.series[0], category)
        return [styles.text(scale(0) + 6, y + 4, reason, "missing")]
    body, total = [], 0.0
    for series, value in known:
        body.append(styles.bar(series, scale(total), scale(total + value.mean), y))
        total += value.mean
    end = total
    if len(known) == 1 and known[0][1].std is not None:
        end = total + known[0][1].std
        body.append(styles.horizontal("ink whisker", scale(total - known[0][1].std), scale(end), y))
    return [*body, styles.text(max(scale(end), scale(0)) + 5, y + 4, chart.format_value(total), "value")]


def _draw_dots(chart: Chart, panel: ChartPanel, values: Sequence[Value | None], y: float, scale: Scale) -> list[str]:
    """A dot per value with its standard deviation; ours over the published ones."""
    body = []
    for series, value in reversed(list(zip(panel.series, values, strict=True))):
        if value is None:
            continue
        if value.std is not None and not series.paper:
            low, high = scale(value.mean - value.std), scale(value.mean + value.std)
            classes, attribute = f"whisker {styles.series_classes(series)}", styles.series_attribute(series)
            body.append(styles.horizontal(classes, low, high, y, attribute))
        body.append(styles.mark(chart, series, scale(value.mean), y))
    return body


# Figures --------------------------------------------------------------------------------------------------------------

GAP = 16.0  # between panels
LINE_HEIGHT = 14.0  # of notes
HEADING_HEIGHT, HEADING_CHARACTER = 22.0, 8.0  # of a line, and the approximate width of a character
MAX_ACROSS = 3  # panels side by side


def draw_figure(chart: Chart, *, dark: bool = False) -> str:
    """The title, the panels side by side with their notes, a legend, and what whiskers and missing panels mean.

    With ``dark``, a browser that prefers dark pages shows it in dark colours.
    """
    panels = chart.drawn_panels
    across = max(1, min(MAX_ACROSS, len(panels)))
    width = across * (chart.panel_width + GAP) - GAP
    body, top = _draw_lines(chart.title, width, HEADING_CHARACTER, HEADING_HEIGHT, "heading", 6.0)
    top += 8
    for start in range(0, len(panels), across):
        row = [_draw_panel(chart, panel) for panel in panels[start : start + across]]
        body += [styles.group(i * (chart.panel_width + GAP), top, drawn) for i, (drawn, _) in enumerate(row)]
        top += max(height for _, height in row) + GAP
    if chart.has_legend:
        legend, top = _draw_legend(chart, width, top)
        body.append(legend)
    for note in filter(None, (chart.whisker_note, chart.empty_note)):
        lines, top = _draw_lines(note, width, styles.CHARACTER, LINE_HEIGHT, "", top)
        body += lines
    size = f'width="{styles.coordinate(width)}" height="{styles.coordinate(top + 6)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" {size} '
        f'viewBox="0 0 {styles.coordinate(width)} {styles.coordinate(top + 6)}"><title>{escape(chart.title)}</title>'
        f'<style>{_style(chart, dark)}</style><rect class="page" {size}/>{"".join(body)}</svg>\n'
    )


def _style(chart: Chart, dark: bool) -> str:
    light = style_sheet(LIGHT_COLOURS) + colour_rules(chart.styles)
    if not dark:
        return light
    rules = style_sheet(DARK_COLOURS) + colour_rules(chart.styles, dark=True)
    return f"{light}@media (prefers-color-scheme:dark){{\n{rules}}}\n"


def _draw_panel(chart: Chart, panel: ChartPanel) -> tuple[str, float]:
    """A panel with its notes, and the height of both."""
    drawing = draw_panel(chart, panel)
    body, height = [drawing.body], drawing.height
    for note in chart.notes(panel):
        lines, height = _draw_lines(note, chart.panel_width, styles.CHARACTER, LINE_HEIGHT, "missing", height)
        body += lines
    return "".join(body), height + 4


def _draw_lines(
    text: str, width: float, character: float, height: float, classes: str, top: float
) -> tuple[list[str], float]:
    """A text in lines that fit into a width, and the y coordinate of its end."""
    lines = textwrap.wrap(text, int((width - 8) / character))
    drawn = [styles.text(4, top + height * (i + 1) - 4, line, classes) for i, line in enumerate(lines)]
    return drawn, top + height * len(lines)


def _draw_legend(chart: Chart, width: float, top: float) -> tuple[str, float]:
    """The legend in centred lines, and the y coordinate of its end."""
    lines: list[list[tuple[Series, float]]] = [[]]
    for series in chart.legend:
        needed = 26 + 6 + styles.CHARACTER * len(series.label) + 16
        if sum(w for _, w in lines[-1]) + needed > width:
            lines.append([])
        lines[-1].append((series, needed))
    body = []
    for line in lines:
        x = (width - sum(w for _, w in line) + 16) / 2
        for series, needed in line:
            body.append(styles.group(x, top, styles.sample(chart, series) + styles.text(32, 10, series.label, "label")))
            x += needed
        top += 20
    return "".join(body), top + 4
