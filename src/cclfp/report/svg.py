"""A whole chart as an SVG file that stands alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from cclfp.report import shapes
from cclfp.report.charts import Chart, Series
from cclfp.report.panels import draw_panel
from cclfp.report.styles import PRINT_COLOURS, colour_rules, style_sheet

GAP = 16.0  # between panels
NOTE_HEIGHT, NOTE_WIDTH = 14.0, 48  # of a line, in pixels; of the lines, in characters
MAX_ACROSS = 3  # panels side by side


def draw_figure(chart: Chart) -> str:
    """The panels side by side with their notes, and a legend below them."""
    across = min(MAX_ACROSS, len(chart.panels))
    panels = [(draw_panel(chart, panel), _wrap_notes(chart.notes(panel))) for panel in chart.panels]
    width, top, body = across * (chart.panel_width + GAP) - GAP, 8.0, []
    for start in range(0, len(panels), across):
        row = panels[start : start + across]
        for i, (drawing, notes) in enumerate(row):
            lines = [
                shapes.text(4, drawing.height + (n + 1) * NOTE_HEIGHT - 4, line, "missing")
                for n, line in enumerate(notes)
            ]
            body.append(shapes.group(i * (chart.panel_width + GAP), top, drawing.body + "".join(lines)))
        top += max(drawing.height + NOTE_HEIGHT * len(notes) for drawing, notes in row) + GAP
    if len(chart.legend) > 1:
        legend, top = _draw_legend(chart, width, top)
        body.append(legend)
    if chart.whisker_note:
        body.append(shapes.text(4, top + 8, chart.whisker_note))
        top += NOTE_HEIGHT + 4
    size = f'width="{shapes.coordinate(width)}" height="{shapes.coordinate(top)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" {size} '
        f'viewBox="0 0 {shapes.coordinate(width)} {shapes.coordinate(top)}"><title>{escape(chart.title)}</title>'
        f"<style>{style_sheet(PRINT_COLOURS)}{colour_rules(chart.styles)}</style>"
        f'<rect {size} fill="{PRINT_COLOURS["paper"]}"/>{"".join(body)}</svg>\n'
    )


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


def _wrap_notes(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, NOTE_WIDTH)]
