"""The parts that charts are drawn from, as SVG elements: texts, lines, curves, bars and marks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cclfp.report.charts import Chart, Series
from cclfp.report.styles import EMPHASISED, MARKS, THIN_MARKS, css_class

CHARACTER = 6.2  # the approximate width of a character at 12 px


def coordinate(value: float) -> str:
    """A coordinate with at most one decimal.

    >>> coordinate(12.34), coordinate(12.0)
    ('12.3', '12')
    """
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, classes: str = "", attributes: str = "") -> str:
    return f'<text x="{coordinate(x)}" y="{coordinate(y)}" class="{classes}"{attributes}>{escape(content)}</text>'


def group(x: float, y: float, content: str, *, rotated: bool = False) -> str:
    """Elements that are moved to a place, and turned to be read upwards if ``rotated``."""
    turn = " rotate(-90)" if rotated else ""
    return f'<g transform="translate({coordinate(x)} {coordinate(y)}){turn}">{content}</g>'


def horizontal(classes: str, start: float, end: float, y: float, attributes: str = "") -> str:
    path = f"M{coordinate(start)} {coordinate(y)}H{coordinate(end)}"
    return f'<path class="{classes}"{attributes} d="{path}"/>'


def vertical(classes: str, x: float, start: float, end: float, attributes: str = "") -> str:
    path = f"M{coordinate(x)} {coordinate(start)}V{coordinate(end)}"
    return f'<path class="{classes}"{attributes} d="{path}"/>'


def series_classes(series: Series) -> str:
    parts = [css_class(series.key), "paper" * series.paper, "strong" * (series.key in EMPHASISED)]
    return " ".join(part for part in parts if part)


def series_attribute(series: Series) -> str:
    """The attribute by which the page's script finds what belongs to a series."""
    return f' data-series="{escape(series.label)}"'


def curve(chart: Chart, series: Series, points: Sequence[tuple[float, float] | None]) -> str:
    """A line through the points, with a gap where one is missing."""
    words, pen = [], "M"
    for point in points:
        words += [] if point is None else [f"{pen}{coordinate(point[0])} {coordinate(point[1])}"]
        pen = "M" if point is None else "L"
    attributes = _dashes(chart, series) + series_attribute(series)
    return f'<path class="curve {series_classes(series)}"{attributes} d="{"".join(words)}"/>'


def name(series: Series, x: float, y: float, end: tuple[float, float]) -> str:
    """The label of a curve, with a line that leads to it from the curve's end."""
    classes, attribute = series_classes(series), series_attribute(series)
    points = " ".join(map(coordinate, end)), " ".join(map(coordinate, (x - 3, y)))
    leader = f'<path class="leader {classes}"{attribute} d="M{points[0]}L{points[1]}"/>'
    return leader + text(x, y + 4, series.label, f"name {classes}", attribute)


def bar(series: Series, start: float, end: float, y: float) -> str:
    left, right = sorted((start, end))
    place = f'x="{coordinate(left)}" y="{coordinate(y - 6)}" width="{coordinate(right - left)}" height="12"'
    return f'<rect class="bar {css_class(series.key)}"{series_attribute(series)} {place}/>'


def mark(chart: Chart, series: Series, x: float, y: float) -> str:
    shape, r = chart.styles[series.key].mark, 4.0 if series.key in ("ours", *EMPHASISED) else 3.3
    if series.paper and series.key == "ours":  # large enough to be seen around our mark
        shape, r = "diamond", 5.6
    thin = " thin" if shape in THIN_MARKS else ""
    lengths = {"x": x, "y": y, "l": x - r, "e": x + r, "t": y - r, "b": y + r, "r": r, "d": 2 * r}
    path = MARKS[shape].format(**{name: coordinate(value) for name, value in lengths.items()})
    return f'<path class="mark{thin} {series_classes(series)}"{series_attribute(series)} d="{path}"/>'


def sample(chart: Chart, series: Series) -> str:
    """The look of a series for a legend, 26 by 12 pixels."""
    if chart.kind == "bars":
        return f'<rect class="bar {css_class(series.key)}" x="7" width="12" height="12"/>'
    line = f'<path class="curve {series_classes(series)}"{_dashes(chart, series)} d="M0 6H26"/>'
    return ("" if chart.kind == "dots" else line) + mark(chart, series, 13, 6)


def _dashes(chart: Chart, series: Series) -> str:
    dashes = chart.styles[series.key].dashes
    return f' stroke-dasharray="{dashes}"' if dashes and not series.paper else ""
