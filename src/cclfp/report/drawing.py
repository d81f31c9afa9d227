"""Draws charts as SVG: the elements, panels of curves, bars or dots, and whole figures."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from statistics import fmean

from cclfp.report.charts import Axis, Chart, Panel, Series, Value
from cclfp.report.styles import CHARACTER, OURS, style_sheet

Scale = Callable[[float], float]  # from values to coordinates

# Elements -------------------------------------------------------------------------------------------------------------

# The path of each mark: centre x, y; radius r; diameter d; left l, right e, top t and bottom b.
MARKS = {
    "circle": "M{l} {y}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
    "square": "M{l} {t}h{d}v{d}h-{d}z",
    "diamond": "M{x} {t}L{e} {y}L{x} {b}L{l} {y}z",
    "up": "M{x} {t}L{e} {b}H{l}z",
    "down": "M{x} {b}L{e} {t}H{l}z",
    "plus": "M{x} {t}V{b}M{l} {y}H{e}",
    "cross": "M{l} {t}L{e} {b}M{e} {t}L{l} {b}",
}
THIN_MARKS = ("plus", "cross")  # drawn as lines, without an area to fill


LINE_HEIGHT = 14.0  # of notes


def coordinate(value: float) -> str:
    """A coordinate with at most one decimal.

    >>> coordinate(12.34), coordinate(12.0)
    ('12.3', '12')
    """
    return f"{value:.1f}".removesuffix(".0")


class Sheet:
    """A drawing: its elements, one over the other, and its size. Elements of a series are marked with its label."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height, self.body = width, height, ""

    def text(self, x: float, y: float, content: str, classes: str = "", series: Series | None = None) -> None:
        x_y = f'x="{coordinate(x)}" y="{coordinate(y)}"'
        self.body += f'<text {x_y} class="{classes}"{_attribute(series)}>{escape(content)}</text>'

    def write(self, content: str, classes: str = "", character: float = CHARACTER, line: float = LINE_HEIGHT) -> None:
        """A text below all else, in lines that fit into the width."""
        for words in textwrap.wrap(content, int((self.width - 8) / character)):
            self.height += line
            self.text(4, self.height - 4, words, classes)

    def path(self, classes: str, *words: str | float, series: Series | None = None, dashes: str = "") -> None:
        """A path of these commands and coordinates."""
        joined = " ".join(word if isinstance(word, str) else coordinate(word) for word in words)
        d = re.sub(r" ?([A-Z]) ?", r"\1", joined)
        dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.body += f'<path class="{classes}"{dashes}{_attribute(series)} d="{d}"/>'

    def mark(self, series: Series, x: float, y: float) -> None:
        shape, r = series.style.mark, 4.0 if series.style is OURS or series.style.is_strong else 3.3
        if series.paper and series.style is OURS:  # large enough to be seen around our mark
            shape, r = "diamond", 5.6
        lengths = {"x": x, "y": y, "l": x - r, "e": x + r, "t": y - r, "b": y + r, "r": r, "d": 2 * r}
        d = MARKS[shape].format(**{name: coordinate(value) for name, value in lengths.items()})
        self.path(f"mark{' thin' * (shape in THIN_MARKS)} {series.classes}", d, series=series)

    def put(self, x: float, y: float, body: str, turn: str = "") -> None:
        """Other elements, moved to a place."""
        self.body += f'<g transform="translate({coordinate(x)} {coordinate(y)}){turn}">{body}</g>'


def _attribute(series: Series | None) -> str:
    """The attribute by which the page's script finds what belongs to a series."""
    return "" if series is None else f' data-series="{escape(series.label)}"'


def sample(chart: Chart, series: Series) -> Sheet:
    """The look of a series for a legend."""
    sheet = Sheet(26, 12)
    if chart.kind == "bars":
        sheet.body = f'<rect class="bar {series.style.css_class}" x="7" width="12" height="12"/>'
        return sheet
    if chart.kind == "lines":
        sheet.path(f"curve {series.classes}", "M0 6H26", dashes=series.dashes)
    sheet.mark(series, 13, 6)
    return sheet


# Axes -----------------------------------------------------------------------------------------------------------------


def linear_axis(low: float, high: float, count: int = 5) -> Axis:
    """Round numbers from about low to about high, with at most ``count`` steps between the two.

    >>> list(linear_axis(0, 100).ticks), list(linear_axis(97.1, 98.4).ticks.values())
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], ['97', '97.5', '98', '98.5'])
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / count))
    step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (m * unit) <= count + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 10) for i in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], {tick: f"{tick:,g}".replace("-", "−") for tick in ticks})


def _axis(ends: Sequence[float], count: int, *, bars: bool = False) -> Axis:
    """The axis of percentages between these ends, or of bars, which start at 0."""
    low, high = min(ends, default=0.0), max(ends, default=100.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if bars else (max(low, 0.0), min(high, 100.0))
    if low == high:  # one value, or bars of no length
        low, high = (0.0, 1.0) if bars else (low - 1, high + 1)
    return linear_axis(low, high, count)


def _stack(known: Sequence[tuple[Series, Value]]) -> Value:
    """The sum of the values of a row; with its standard deviation where there is but one."""
    return Value(sum(value.mean for _, value in known), known[0][1].std if len(known) == 1 else None)


# Panels ---------------------------------------------------------------------------------------------------------------

PLOT_HEIGHT = 150.0  # of curves
TOP, RIGHT, BOTTOM, LEFT = 28.0, 12.0, 38.0, 50.0  # margins around the plot
ROW_HEIGHT = 20.0
BAR_LABEL = 44.0  # the space for the number beside a bar
FEW = 6  # up to so many categories, all curves count for the axis and every mark is drawn
LABELLED = 10  # up to so many categories, all are labelled; else every fifth
NAME_GAP = 11.5  # between the names beside curves, from line to line
LONGEST_NAME = 12  # characters; curves with longer names are only in the legend


class Drawing(Sheet):
    """A drawn panel, and the positions of its categories: along x for curves, along y for bars and dots."""

    def __init__(self, left: float, right: float, bottom: float, positions: list[float], chart: Chart) -> None:
        super().__init__(chart.panel_width, bottom + BOTTOM)
        self.positions, self.frame = positions, (left, TOP, right, bottom)


def draw_panel(chart: Chart, panel: Panel) -> Drawing:
    return _draw_curves(chart, panel) if chart.kind == "lines" else _draw_rows(chart, panel)


def _draw_curves(chart: Chart, panel: Panel) -> Drawing:
    """Curves over the panel's positions, with marks, and the name of each curve beside its end where names fit."""
    few, named = len(panel.categories) <= FEW, _named_curves(panel)
    values = [value for series in (panel.series if few else panel.ours) for value in series.known]
    axis = panel.axis or _axis([end for v in values for end in (v.ends if few else [v.mean])], 5)
    left = max(LEFT, 28 + CHARACTER * max(map(len, axis.ticks.values())))
    right = chart.panel_width - max([RIGHT, *(14 + CHARACTER * len(series.label) for series in named)])
    bottom = TOP + PLOT_HEIGHT
    scale = axis.scale(bottom, TOP)
    first, last = panel.positions[0], panel.positions[-1]
    positions = [left + 8 + (right - left - 16) * (at - first) / (last - first) for at in panel.positions]
    marked = range(len(positions)) if len(positions) <= LABELLED else [0, *range(4, len(positions), 5)]
    drawing = Drawing(left, right, bottom, positions, chart)
    drawing.text(4, 15, panel.title, "title")
    for tick, label in axis.ticks.items():
        drawing.path("grid", "M", left, scale(tick), "H", right)
        drawing.text(left - 6, scale(tick) + 4, label, "end")
    drawing.path("axis", "M", left, bottom, "H", right)
    for at, label in _apart([(positions[i], panel.categories[i]) for i in marked]):
        drawing.text(at, bottom + 16, label, "mid")
    drawing.text((left + right) / 2, bottom + 31, chart.category_title, "mid")
    if chart.value_title:
        title = f'<text x="0" y="0" class="mid">{escape(chart.value_title)}</text>'
        drawing.put(14, (TOP + bottom) / 2, title, " rotate(-90)")
    for series in sorted(panel.series, key=lambda series: series.style.is_strong):
        _draw_curve(drawing, chart, series, marked, scale)
    _draw_names(drawing, named, scale)
    return drawing


def _draw_curve(drawing: Drawing, chart: Chart, series: Series, marked: Sequence[int], scale: Scale) -> None:
    """A line with a gap where a value is missing, and marks."""
    line: list[str | float] = []
    pen, known = "M", []
    for i, (x, value) in enumerate(zip(drawing.positions, series.values, strict=True)):
        if isinstance(value, str):
            pen = "M"
            continue
        line += [pen, x, scale(value.mean)]
        pen = "L"
        known += [(value, x)] if i in marked else []
    drawing.path(f"curve {series.classes}", *line, series=series, dashes=series.dashes)
    for value, x in known:
        _draw_value(drawing, chart, series, value, x, scale)


def _draw_value(drawing: Drawing, chart: Chart, series: Series, value: Value, at: float, scale: Scale) -> None:
    """The mark of a value of a curve or dot, ``at`` the position of its category, and its standard deviation."""
    lines, center, (low, high) = chart.kind == "lines", scale(value.mean), map(scale, value.ends)
    if chart.whiskers and value.std is not None and not series.paper:
        ends = ("M", at, low, "V", high) if lines else ("M", low, at, "H", high)
        drawing.path(f"whisker {series.classes}", *ends, series=series)
    drawing.mark(series, *((at, center) if lines else (center, at)))


def _named_curves(panel: Panel) -> list[Series]:
    """The curves that get a name beside them: ours that go to the end; none if the names are too long or too many."""
    curves = [series for series in panel.ours if not isinstance(series.values[-1], str)]
    fit = len(curves) * NAME_GAP <= PLOT_HEIGHT and all(len(series.label) <= LONGEST_NAME for series in curves)
    return curves if fit else []


def _draw_names(drawing: Drawing, named: Sequence[Series], scale: Scale) -> None:
    """The names of curves to the right of the plot, with lines that lead to them."""
    _, top, right, bottom = drawing.frame
    heights = sorted(((scale(series.known[-1].mean), series) for series in named), key=lambda pair: pair[0])
    places = spread_out([y for y, _ in heights], NAME_GAP, top, bottom)
    for (y, series), place in zip(heights, places, strict=True):
        ends = ("M", drawing.positions[-1], y, "L", right + 5, place)
        drawing.path(f"leader {series.classes}", *ends, series=series)
        drawing.text(right + 8, place + 4, series.label, f"name {series.classes}", series)


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
    levels = [fmean(several) for several in groups for _ in several]
    highest = end - (len(levels) - 1) * gap
    return [max(min(level, highest), start) + i * gap for i, level in enumerate(levels)]


def _apart(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The labels with their centres, without those that would touch one to their right."""
    kept: list[tuple[float, str]] = []
    limit = math.inf
    for at, label in reversed(labels):
        half = CHARACTER * len(label) / 2
        if at + half < limit:
            kept.append((at, label))
            limit = at - half
    return kept[::-1]


def _draw_rows(chart: Chart, panel: Panel) -> Drawing:
    """One row per category: bars or dots."""
    bars = chart.kind == "bars"
    left = 14 + CHARACTER * max(len(name) + name.count("@") for name in panel.categories)  # @ is wide
    right = chart.panel_width - (BAR_LABEL if bars else RIGHT)
    bottom = TOP + ROW_HEIGHT * len(panel.categories)
    rows = list(map(panel.known_at, range(len(panel.categories))))
    values = [_stack(known) for known in rows] if bars else [value for known in rows for _, value in known]
    ends = [end for value in values for end in value.ends]
    axis = panel.axis or _axis(ends, 4, bars=bars)
    scale = axis.scale(left, right)
    positions = [TOP + ROW_HEIGHT * (i + 0.5) for i in range(len(panel.categories))]
    drawing = Drawing(left, right, bottom, positions, chart)
    drawing.text(4, 15, panel.title, "title")
    for tick, label in axis.ticks.items():
        drawing.path("grid", "M", scale(tick), TOP, "V", bottom)
        drawing.text(scale(tick), bottom + 16, label, "mid")
    drawing.text((left + right) / 2, bottom + 31, chart.value_title, "mid")
    for i, (y, category, known) in enumerate(zip(positions, panel.categories, rows, strict=True)):
        drawing.text(left - 8, y + 4, category, "label end")
        if bars and known:
            _draw_bar(drawing, chart, known, y, scale)
        elif bars:
            drawing.text(scale(0) + 6, y + 4, str(panel.series[0].values[i]), "missing")
        else:
            for series, value in reversed(known):  # ours over the published ones
                _draw_value(drawing, chart, series, value, y, scale)
    drawing.path("axis", "M", scale(max(axis.low, 0)) if bars else left, TOP, "V", bottom)
    return drawing


def _draw_bar(drawing: Drawing, chart: Chart, known: Sequence[tuple[Series, Value]], y: float, scale: Scale) -> None:
    """The values stacked in one bar, their sum beside it, and the standard deviation of a single one."""
    start, total = 0.0, _stack(known)
    for series, value in known:
        left, right = sorted((scale(start), scale(start + value.mean)))
        place = f'x="{coordinate(left)}" y="{coordinate(y - 6)}" width="{coordinate(right - left)}" height="12"'
        drawing.body += f'<rect class="bar {series.style.css_class}"{_attribute(series)} {place}/>'
        start += value.mean
    low, high = map(scale, total.ends)
    if total.std is not None:
        drawing.path("ink whisker", "M", low, y, "H", high)
    drawing.text(max(high, scale(0)) + 5, y + 4, chart.format_value(total.mean), "value")


# Figures --------------------------------------------------------------------------------------------------------------

GAP = 16.0  # between panels
HEADING_HEIGHT, HEADING_CHARACTER = 22.0, 8.0  # of a line, and the approximate width of a character
MAX_ACROSS = 3  # panels side by side


def draw_figure(chart: Chart, *, dark: bool = False) -> str:
    """The chart's panels with its title, notes and legend; ``dark``: in dark colours where a browser prefers them."""
    panels = chart.drawn_panels
    across = max(1, min(MAX_ACROSS, len(panels)))
    sheet = Sheet(across * (chart.panel_width + GAP) - GAP, 6.0)
    sheet.write(chart.title, "heading", HEADING_CHARACTER, HEADING_HEIGHT)
    sheet.height += 8
    for start in range(0, len(panels), across):
        row = []
        for i, panel in enumerate(panels[start : start + across]):
            row.append(drawing := draw_panel(chart, panel))
            for note in panel.notes:
                drawing.write(note, "missing")
            sheet.put(i * (chart.panel_width + GAP), sheet.height, drawing.body)
        sheet.height += max(drawing.height for drawing in row) + 4 + GAP
    if chart.legend:
        _draw_legend(chart, sheet)
    for note in filter(None, (chart.whisker_note, chart.empty_note)):
        sheet.write(note)
    width, height = coordinate(sheet.width), coordinate(sheet.height + 6)
    styles = list(dict.fromkeys(series.style for panel in panels for series in panel.series))
    style = style_sheet(styles)
    style += f"@media (prefers-color-scheme:dark){{\n{style_sheet(styles, dark=True)}}}\n" if dark else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title>{escape(chart.title)}</title><style>{style}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>{sheet.body}</svg>\n'
    )


def _draw_legend(chart: Chart, sheet: Sheet) -> None:
    """The legend in centred lines."""
    lines: list[list[tuple[Series, float]]] = [[]]
    for series in chart.legend:
        needed = 26 + 6 + CHARACTER * len(series.label) + 16
        if sum(w for _, w in lines[-1]) + needed > sheet.width:
            lines.append([])
        lines[-1].append((series, needed))
    for line in lines:
        x = (sheet.width - sum(w for _, w in line) + 16) / 2
        for series, needed in line:
            entry = sample(chart, series)
            entry.text(32, 10, series.label, "label")
            sheet.put(x, sheet.height, entry.body)
            x += needed
        sheet.height += 20
    sheet.height += 4
