"""How charts look: a colour, dashes and a mark per series, the style sheet, and the shapes they are drawn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cclfp.report.charts import Chart, Series


@dataclasses.dataclass(frozen=True)
class Style:
    """The look of a series: its colour on a light and on a dark page, its dashes and its mark.

    Every colour has a contrast of at least 3:1 with its page. ``tests/report/test_report_colours.py`` computes how far
    apart the colours are for readers with and without colour-blindness. Dashes and marks also tell the series apart.
    """

    light: str
    dark: str
    dashes: str
    mark: str


STYLES = {
    "joint": Style("#1c1c1e", "#f4f4f6", "7 3", "plus"),
    "finetune": Style("#77777d", "#94949c", "2 2", "cross"),
    "si": Style("#6b2f01", "#ac5107", "6 2 2 2", "square"),
    "lwf": Style("#b379c0", "#815b74", "6 2 2 2", "down"),
    "er": Style("#0069a8", "#57b4ea", "", "circle"),
    "gem": Style("#16a56e", "#a9ff96", "", "square"),
    "a-gem": Style("#1a5249", "#9dcab1", "5 2", "up"),
    "icarl": Style("#942e79", "#ab68ba", "", "diamond"),
    "fdr": Style("#4c0c49", "#fec0f7", "6 2 2 2", "circle"),
    "hal": Style("#15197c", "#6783ec", "5 2", "diamond"),
    "ccl-fp": Style("#cf7b26", "#f3b01d", "4 2", "down"),
    "ccl-fp+": Style("#cc3311", "#ff7d60", "", "up"),
    "ours": Style("#0b5c8a", "#6cb8e6", "", "circle"),
    "train": Style("#0b5c8a", "#6cb8e6", "", "square"),
    "test": Style("#cf7b26", "#f3b01d", "", "square"),
}
# For methods of users, and for a method's rows with other settings
OWN_STYLES = {
    "own-1": Style("#794fe9", "#685ef7", "", "down"),
    "own-2": Style("#4c701a", "#d4dcbf", "5 2", "square"),
    "own-3": Style("#d15fea", "#fa7ed5", "2 2", "diamond"),
    "own-4": Style("#95173e", "#c61e54", "6 2 2 2", "up"),
    "own-5": Style("#2b37c9", "#2266a4", "5 2", "circle"),
    "own-6": Style("#a75c51", "#d5565d", "", "plus"),
    "own-7": Style("#6e119b", "#a936c2", "5 2", "cross"),
    "own-8": Style("#3d3564", "#757892", "2 2", "square"),
}
ALL_STYLES = STYLES | OWN_STYLES
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
EMPHASISED = ("er", "ccl-fp+")  # the methods that readers compare most: thicker curves, over the others
LIGHT_COLOURS = {"ink": "#1c1c1e", "faint": "#5f5f66", "line": "#dcdce0", "paper": "#ffffff"}
DARK_COLOURS = {"ink": "#ececee", "faint": "#a4a5ad", "line": "#33353b", "paper": "#131417"}
# Their widths are alike, so that the space for a text can be estimated.
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
RULES = """\
svg.chart text{{font-family:{font};font-size:12px;fill:{faint}}}
svg.chart .page{{fill:{paper}}}
svg.chart .heading{{font-size:15px;font-weight:600;fill:{ink}}}
svg.chart .title{{font-size:13px;font-weight:600;fill:{ink}}}
svg.chart .label{{fill:{ink}}}
svg.chart .name{{font-size:11px;fill:{ink}}}
svg.chart .strong.name{{font-weight:700}}
svg.chart .missing{{font-style:italic}}
svg.chart .value{{fill:{ink};stroke:{paper};stroke-width:3px;paint-order:stroke}}
svg.chart .end{{text-anchor:end}}
svg.chart .mid{{text-anchor:middle}}
svg.chart .grid{{stroke:{line};stroke-width:1;fill:none}}
svg.chart .axis{{stroke:{faint};stroke-width:1;fill:none}}
svg.chart .curve{{fill:none;stroke:currentColor;stroke-width:1.4;stroke-linejoin:round}}
svg.chart .strong.curve{{stroke-width:2.6}}
svg.chart .leader{{fill:none;stroke:currentColor;stroke-width:1}}
svg.chart .paper.curve{{stroke-dasharray:1.5 3;stroke-width:1.2}}
svg.chart .mark{{fill:currentColor;stroke:{paper};stroke-width:0.8}}
svg.chart .paper.mark{{fill:{paper};stroke:currentColor;stroke-width:1.4}}
svg.chart .thin.mark{{fill:none;stroke:currentColor;stroke-width:1.8}}
svg.chart .whisker{{stroke:currentColor;stroke-width:1.2;fill:none}}
svg.chart .ink.whisker{{stroke:{ink}}}
svg.chart .bar{{fill:currentColor}}
"""


def style_sheet(colours: dict[str, str]) -> str:
    """The style sheet of the drawings, with these colours for text, lines and page."""
    return RULES.format(font=FONT, **colours)


def colour_rules(styles: dict[str, Style], *, dark: bool = False) -> str:
    """A style sheet that gives each series its colour, one rule per line."""
    return "".join(
        f".{css_class(key)}{{color:{style.dark if dark else style.light}}}\n" for key, style in styles.items()
    )


def css_class(key: str) -> str:
    """The class of a series.

    >>> css_class("ccl-fp+"), css_class("gem, not compiled")
    ('k-ccl-fp-plus', 'k-gem-not-compiled')
    """
    return "k-" + key.replace("+", "-plus").replace(",", "").replace(" ", "-")


# Shapes ---------------------------------------------------------------------------------------------------------------

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
