"""The charts as SVG: for the page, which colours them by its style sheet, and as figures that stand alone."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape

from cclfp.report.content import Chart, Panel, Series, Value

WIDTH, PLOT = 320.0, 150.0  # of a panel; how high a plot of curves is
TOP, RIGHT, BOTTOM, LEFT = 28.0, 12.0, 38.0, 50.0
ROW = 20.0
CHARACTER = 6.2  # about the width of one at 12 px
NOTE, NOTE_WIDTH = 14.0, 48  # a line's height, and how many characters fit
GAP = 16.0
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclasses.dataclass(frozen=True)
class Style:
    """How a series looks: its colour on light and on dark paper, its dashes and its mark.

    Every colour stands out from its paper (3:1 or more); who cannot tell two apart has the dashes and marks.
    """

    light: str
    dark: str
    dashes: str
    mark: str


STYLES = {
    "joint": Style("#222222", "#eeeeee", "7 3", "plus"),
    "finetune": Style("#6f6f6f", "#a3a3a3", "2 2", "cross"),
    "si": Style("#7d6b00", "#cdbb45", "6 2 2 2", "square"),
    "lwf": Style("#5a48b5", "#a99cf2", "6 2 2 2", "down"),
    "er": Style("#0069a8", "#57b4ea", "", "circle"),
    "gem": Style("#117733", "#55c27c", "", "square"),
    "a-gem": Style("#008c87", "#46cfc3", "5 2", "up"),
    "icarl": Style("#882255", "#d67fae", "", "diamond"),
    "fdr": Style("#b0489f", "#e08fd4", "6 2 2 2", "circle"),
    "hal": Style("#9a5a12", "#d9a066", "5 2", "diamond"),
    "ccl-fp": Style("#d06a00", "#ffb066", "4 2", "down"),
    "ccl-fp+": Style("#cc3311", "#ff7d60", "", "up"),
    "ours": Style("#0b5c8a", "#6cb8e6", "", "circle"),
    "train": Style("#0b5c8a", "#6cb8e6", "", "square"),
    "test": Style("#d06a00", "#ffb066", "", "square"),
}
MARKS = {
    "circle": "M{l} {y}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
    "square": "M{l} {t}h{d}v{d}h-{d}z",
    "diamond": "M{x} {t}L{e} {y}L{x} {b}L{l} {y}z",
    "up": "M{x} {t}L{e} {b}H{l}z",
    "down": "M{x} {b}L{e} {t}H{l}z",
    "plus": "M{x} {t}V{b}M{l} {y}H{e}",
    "cross": "M{l} {t}L{e} {b}M{e} {t}L{l} {b}",
}
PRINTED = {"ink": "#1c1c1e", "faint": "#5f5f66", "line": "#dcdce0", "paper": "#ffffff"}
RULES = """\
svg.chart text{{font-family:{font};font-size:12px;fill:{faint}}}
svg.chart .title{{font-size:13px;font-weight:600;fill:{ink}}}
svg.chart .label{{fill:{ink}}}
svg.chart .missing{{font-style:italic}}
svg.chart .value{{fill:{ink};stroke:{paper};stroke-width:3px;paint-order:stroke}}
svg.chart .end{{text-anchor:end}}
svg.chart .mid{{text-anchor:middle}}
svg.chart .grid{{stroke:{line};stroke-width:1;fill:none}}
svg.chart .axis{{stroke:{faint};stroke-width:1;fill:none}}
svg.chart .curve{{fill:none;stroke:currentColor;stroke-width:1.5;stroke-linejoin:round}}
svg.chart .k-ccl-fp-plus.curve{{stroke-width:2.4}}
svg.chart .paper.curve{{stroke-dasharray:1.5 3;stroke-width:1.2}}
svg.chart .mark{{fill:currentColor;stroke:{paper};stroke-width:0.8}}
svg.chart .paper.mark{{fill:{paper};stroke:currentColor;stroke-width:1.4}}
svg.chart .thin.mark{{fill:none;stroke:currentColor;stroke-width:1.8}}
svg.chart .whisker{{stroke:currentColor;stroke-width:1.2;fill:none}}
svg.chart .ink.whisker{{stroke:{ink}}}
svg.chart .bar{{fill:currentColor}}
"""


def rules(colours: dict[str, str], font: str = FONT) -> str:
    """The style sheet of the drawings, in these colours."""
    return RULES.format(font=font, **colours)


def css_name(key: str) -> str:
    """The class of a series.

    >>> css_name("ccl-fp+")
    'k-ccl-fp-plus'
    """
    return "k-" + key.replace("+", "-plus")


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A panel, where along ``axis`` ("x" or "y") its stops are, and the left, top, right and bottom of its plot."""

    body: str
    height: float
    axis: str
    at: list[float]
    frame: tuple[float, float, float, float]


def draw(chart: Chart, panel: Panel) -> Drawing:
    return _curves(chart, panel) if chart.kind == "lines" else _rows(chart, panel)


def figure(chart: Chart) -> str:
    """The whole chart as an SVG file: panels side by side, a legend below."""
    across = min(3, len(chart.panels))
    panels = [(draw(chart, panel), _note_lines(chart.notes(panel))) for panel in chart.panels]
    width, top, body = across * (WIDTH + GAP) - GAP, 8.0, []
    for start in range(0, len(panels), across):
        together = panels[start : start + across]
        for i, (drawing, notes) in enumerate(together):
            lines = [_text(4, drawing.height + (n + 1) * NOTE - 4, line, "missing") for n, line in enumerate(notes)]
            body.append(
                f'<g transform="translate({_n(i * (WIDTH + GAP))} {_n(top)})">{drawing.body}{"".join(lines)}</g>'
            )
        top += max(drawing.height + NOTE * len(notes) for drawing, notes in together) + GAP
    if len(entries := legend(chart)) > 1:
        drawn, top = _legend(chart, entries, width, top)
        body.append(drawn)
    colours = "".join(f".{css_name(key)}{{color:{style.light}}}\n" for key, style in STYLES.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" width="{_n(width)}" height="{_n(top)}" '
        f'viewBox="0 0 {_n(width)} {_n(top)}"><title>{escape(chart.title)}</title>'
        f"<style>{rules(PRINTED)}{colours}</style>"
        f'<rect width="{_n(width)}" height="{_n(top)}" fill="{PRINTED["paper"]}"/>{"".join(body)}</svg>\n'
    )


def legend(chart: Chart) -> list[Series]:
    """One series of each label."""
    return list({series.label: series for panel in chart.panels for series in panel.series}.values())


def sample(chart: Chart, series: Series) -> str:
    """What a series looks like, 26 x 12, for a legend."""
    if chart.kind == "bars":
        return f'<rect class="bar {css_name(series.key)}" x="7" width="12" height="12"/>'
    curve = "" if chart.kind == "dots" else f'<path class="curve {_names(series)}"{_dashes(series)} d="M0 6H26"/>'
    return curve + _mark(series, 13, 6)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from about low to about high, at most so many steps.

    >>> ticks(0, 100), ticks(97.1, 99.4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [97.0, 97.5, 98.0, 98.5, 99.0, 99.5])
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / count))
    step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (m * unit) <= count + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _curves(chart: Chart, panel: Panel) -> Drawing:
    """Curves over the panel's places, with marks, and whiskers of a standard deviation where they are few."""
    few = len(panel.stops) <= 6
    frame = left, top, right, bottom = LEFT, TOP, WIDTH - RIGHT, TOP + PLOT
    first, last = panel.places[0], panel.places[-1]
    at = [left + 8 + (right - left - 16) * (place - first) / (last - first) for place in panel.places]
    scale = _Scale(_reach(panel.series if few else panel.ours, few and not panel.is_empty), bottom, top)
    body = [_text(4, 15, panel.title, "title")]
    for tick in scale.ticks:
        body.append(f'<path class="grid" d="M{_n(left)} {_n(scale(tick))}H{_n(right)}"/>')
        body.append(_text(left - 6, scale(tick) + 4, f"{tick:g}", "end"))
    body.append(f'<path class="axis" d="M{_n(left)} {_n(bottom)}H{_n(right)}"/>')
    shown = set(range(len(at))) if few or len(at) <= 10 else {0, *range(4, len(at), 5)}
    body += [_text(at[i], bottom + 16, panel.stops[i], "mid") for i in sorted(shown)]
    body.append(_text((left + right) / 2, bottom + 31, chart.stop_title, "mid"))
    body.append(
        f'<g transform="translate(14 {_n((top + bottom) / 2)}) rotate(-90)">{_text(0, 0, chart.value_title, "mid")}</g>'
    )
    if panel.is_empty:
        body.append(_text((left + right) / 2, (top + bottom) / 2, "no runs yet", "mid missing"))
    for series in panel.series:
        points = [None if v is None else (x, scale(v.mean)) for x, v in zip(at, series.values, strict=True)]
        body.append(f'<path class="curve {_names(series)}"{_dashes(series)}{_said(series)} d="{_path(points)}"/>')
        for i, (x, value) in enumerate(zip(at, series.values, strict=True)):
            if value is not None and i in shown:
                ends = [] if value.std is None else [scale(value.mean - value.std), scale(value.mean + value.std)]
                if few and chart.name == "buffer" and ends and not series.paper:
                    whisker = f"M{_n(x)} {_n(ends[0])}V{_n(ends[1])}"
                    body.append(f'<path class="whisker {_names(series)}"{_said(series)} d="{whisker}"/>')
                body.append(_mark(series, x, scale(value.mean)))
    return Drawing("".join(body), bottom + BOTTOM, "x", at, frame)


def _rows(chart: Chart, panel: Panel) -> Drawing:
    """A row for each stop: a bar (the series stacked) or dots, with whiskers of a standard deviation."""
    bars = chart.kind == "bars"
    left = 14 + CHARACTER * max(map(len, panel.stops))
    frame = _, top, right, bottom = left, TOP, WIDTH - (44.0 if bars else RIGHT), TOP + ROW * len(panel.stops)
    at = [top + ROW * (i + 0.5) for i in range(len(panel.stops))]
    scale = _Scale(_bar_reach(panel) if bars else _reach(panel.series, True), left, right, count=4)
    body = [_text(4, 15, panel.title, "title")]
    for tick in [] if bars and panel.is_empty else scale.ticks:
        body.append(f'<path class="grid" d="M{_n(scale(tick))} {_n(top)}V{_n(bottom)}"/>')
        body.append(_text(scale(tick), bottom + 16, f"{tick:g}", "mid"))
    body.append(_text((left + right) / 2, bottom + 31, chart.value_title, "mid"))
    for y, stop, *values in zip(at, panel.stops, *(series.values for series in panel.series), strict=True):
        body.append(_text(left - 8, y + 4, stop, "label end"))
        lacking = panel.lacking(panel.series[0], stop)
        body += _bar(panel, values, y, scale, lacking) if bars else _dots(panel, values, y, scale)
    body.append(
        f'<path class="axis" d="M{_n(scale(max(scale.ticks[0], 0)) if bars else left)} {_n(top)}V{_n(bottom)}"/>'
    )
    return Drawing("".join(body), bottom + BOTTOM, "y", at, frame)


def _bar(panel: Panel, values: Sequence[Value | None], y: float, scale: _Scale, lacking: str) -> list[str]:
    known = [(series, value) for series, value in zip(panel.series, values, strict=True) if value is not None]
    if len(known) < len(values):
        return [_text(scale(0) + 6, y + 4, lacking, "missing")]
    body, reached = [], 0.0
    for series, value in known:
        ends = sorted((scale(reached), scale(reached + value.mean)))
        reached += value.mean
        place = f'x="{_n(ends[0])}" y="{_n(y - 6)}" width="{_n(ends[1] - ends[0])}" height="12"'
        body.append(f'<rect class="bar {css_name(series.key)}"{_said(series)} {place}/>')
    furthest = reached
    if len(known) == 1 and known[0][1].std is not None:
        low, furthest = reached - known[0][1].std, reached + known[0][1].std
        body.append(f'<path class="ink whisker" d="M{_n(scale(low))} {_n(y)}H{_n(scale(furthest))}"/>')
    return [*body, _text(max(scale(furthest), scale(0)) + 5, y + 4, short(reached), "value")]


def _dots(panel: Panel, values: Sequence[Value | None], y: float, scale: _Scale) -> list[str]:
    body = []
    for series, value in reversed(list(zip(panel.series, values, strict=True))):  # ours over the paper's
        if value is not None:
            if value.std is not None and not series.paper:
                ends = f"M{_n(scale(value.mean - value.std))} {_n(y)}H{_n(scale(value.mean + value.std))}"
                body.append(f'<path class="whisker {_names(series)}"{_said(series)} d="{ends}"/>')
            body.append(_mark(series, scale(value.mean), y))
    return body


def short(value: float) -> str:
    """Three digits or so.

    >>> short(12.345), short(0.0456), short(1234.5)
    ('12.3', '0.05', '1,234')
    """
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


class _Scale:
    """From values to places, with round ends."""

    def __init__(self, reach: tuple[float, float], start: float, end: float, count: int = 5) -> None:
        self.ticks = ticks(*reach, count)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.start + (self.end - self.start) * (min(max(value, low), high) - low) / (high - low)


def _reach(several: Iterable[Series], spread: bool) -> tuple[float, float]:
    """From the lowest to the highest of the values, with a standard deviation around them if ``spread``."""
    known = [value for series in several for value in series.values if value is not None]
    around = [(value.std or 0.0) if spread else 0.0 for value in known]
    low = min((value.mean - std for value, std in zip(known, around, strict=True)), default=0.0)
    high = max((value.mean + std for value, std in zip(known, around, strict=True)), default=100.0)
    low, high = max(low, 0.0), min(high, 100.0)  # they are percentages
    return (low, high) if high > low else (low - 1, high + 1)


def _bar_reach(panel: Panel) -> tuple[float, float]:
    totals = []
    for values in zip(*(series.values for series in panel.series), strict=True):
        known = [value for value in values if value is not None]
        total, std = (
            sum(value.mean for value in known),
            (known[0].std or 0.0) if len(values) == len(known) == 1 else 0.0,
        )
        totals += [total - std, total + std]
    low, high = min(0.0, *totals), max(0.0, *totals)
    return (low, high) if high > low else (0.0, 1.0)


def _legend(chart: Chart, entries: Sequence[Series], width: float, top: float) -> tuple[str, float]:
    """The legend in rows, centred, and where it ends."""
    lines: list[list[tuple[Series, float]]] = [[]]
    for series in entries:
        wide = 26 + 6 + CHARACTER * len(series.label) + 16
        if sum(w for _, w in lines[-1]) + wide > width:
            lines.append([])
        lines[-1].append((series, wide))
    body = []
    for line in lines:
        x = (width - sum(w for _, w in line) + 16) / 2
        for series, wide in line:
            drawn = sample(chart, series) + _text(32, 10, series.label, "label")
            body.append(f'<g transform="translate({_n(x)} {_n(top)})">{drawn}</g>')
            x += wide
        top += 20
    return "".join(body), top + 4


def _note_lines(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, NOTE_WIDTH)]


def _mark(series: Series, x: float, y: float) -> str:
    shape, r = STYLES[series.key].mark, 4.0 if series.key == "ours" else 3.4
    if series.paper and series.key == "ours":  # seen around ours
        shape, r = "diamond", 5.6
    thin = " thin" if shape in ("plus", "cross") else ""
    named = {"x": x, "y": y, "l": x - r, "e": x + r, "t": y - r, "b": y + r, "r": r, "d": 2 * r}
    path = MARKS[shape].format(**{name: _n(value) for name, value in named.items()})
    return f'<path class="mark{thin} {_names(series)}"{_said(series)} d="{path}"/>'


def _names(series: Series) -> str:
    return css_name(series.key) + (" paper" if series.paper else "")


def _said(series: Series) -> str:
    """What the page switches on and off."""
    return f' data-series="{escape(series.label)}"'


def _dashes(series: Series) -> str:
    dashes = STYLES[series.key].dashes
    return f' stroke-dasharray="{dashes}"' if dashes and not series.paper else ""


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A line through the points, with a gap where one is missing."""
    words, pen = [], "M"
    for point in points:
        words += [] if point is None else [f"{pen}{_n(point[0])} {_n(point[1])}"]
        pen = "M" if point is None else "L"
    return "".join(words)


def _text(x: float, y: float, text: str, names: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" class="{names}">{escape(text)}</text>'


def _n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")
