"""A whole chart as an SVG file that stands alone."""

from __future__ import annotations

import textwrap
from html import escape

from cclfp.report import shapes
from cclfp.report.charts import Chart, ChartPanel, Series
from cclfp.report.panels import draw_panel
from cclfp.report.styles import DARK_COLOURS, LIGHT_COLOURS, colour_rules, style_sheet

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
        body += [shapes.group(i * (chart.panel_width + GAP), top, drawn) for i, (drawn, _) in enumerate(row)]
        top += max(height for _, height in row) + GAP
    if chart.has_legend:
        legend, top = _draw_legend(chart, width, top)
        body.append(legend)
    for note in filter(None, (chart.whisker_note, chart.empty_note)):
        lines, top = _draw_lines(note, width, shapes.CHARACTER, LINE_HEIGHT, "", top)
        body += lines
    size = f'width="{shapes.coordinate(width)}" height="{shapes.coordinate(top + 6)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" {size} '
        f'viewBox="0 0 {shapes.coordinate(width)} {shapes.coordinate(top + 6)}"><title>{escape(chart.title)}</title>'
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
        lines, height = _draw_lines(note, chart.panel_width, shapes.CHARACTER, LINE_HEIGHT, "missing", height)
        body += lines
    return "".join(body), height + 4


def _draw_lines(
    text: str, width: float, character: float, height: float, classes: str, top: float
) -> tuple[list[str], float]:
    """A text in lines that fit into a width, and the y coordinate of its end."""
    lines = textwrap.wrap(text, int((width - 8) / character))
    drawn = [shapes.text(4, top + height * (i + 1) - 4, line, classes) for i, line in enumerate(lines)]
    return drawn, top + height * len(lines)


def _draw_legend(chart: Chart, width: float, top: float) -> tuple[str, float]:
    """The legend in centred lines, and the y coordinate of its end."""
    lines: list[list[tuple[Series, float]]] = [[]]
    for series in chart.legend:
        needed = 26 + 6 + shapes.CHARACTER * len(series.label) + 16
        if sum(w for _, w in lines[-1]) + needed > width:
            lines.append([])
        lines[-1].append((series, needed))
    body = []
    for line in lines:
        x = (width - sum(w for _, w in line) + 16) / 2
        for series, needed in line:
            body.append(shapes.group(x, top, shapes.sample(chart, series) + shapes.text(32, 10, series.label, "label")))
            x += needed
        top += 20
    return "".join(body), top + 4
