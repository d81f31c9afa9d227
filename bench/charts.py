"""The charts of RESULTS.md, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cclfp.core.files import write_atomic

COLOURS = {
    "er": "#3b75af",
    "ccl-fp+": "#d1495b",
    "gem": "#4f8a4f",
    "gem, eager": "#a9c6a5",
    "er, tf32": "#3b75af",
    "er, bf16": "#9dbcdc",
    "ccl-fp+, tf32": "#d1495b",
    "ccl-fp+, bf16": "#eda4ad",
    "eager": "#9aa5b1",
    "compiled": "#3b75af",
    "graph": "#3b75af",
    "Avalanche": "#9aa5b1",
    "cclfp": "#3b75af",
}
PLAIN = ",.6~r"  # numbers as people write them

Rows = list[dict[str, Any]]


class Charts:
    """Draws into the folder ``charts`` beside a document; each method gives the Markdown that shows the chart."""

    def __init__(self, folder: Path) -> None:
        try:
            import altair
        except ImportError as error:
            raise SystemExit("the charts are drawn by altair and vl-convert-python: install both") from error
        self.alt, self.folder = altair, folder

    def bars(self, name: str, rows: Rows, title: str) -> str:
        """A bar for each row: its name ``what``, its ``value``, and its ``series``, which gives the colour."""
        alt = self.alt
        base = alt.Chart(alt.Data(values=rows)).encode(
            y=alt.Y("what:N", sort=None, title=None),
            x=alt.X("value:Q", title=title, axis=alt.Axis(format=PLAIN, tickCount=6)),
        )
        bars = base.mark_bar(height={"band": 0.7}).encode(color=self._colour(rows, legend=False))
        values = base.mark_text(align="left", dx=5).encode(text=alt.Text("value:Q", format=",.3~r"))
        return self._save(name, (bars + values).properties(width=460, height=alt.Step(26)), title)

    def dots(self, name: str, rows: Rows, title: str) -> str:
        """As bars, but the values of all series on one line, on a logarithmic axis."""
        alt = self.alt
        base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("what:N", sort=None, title=None))
        x = alt.X("value:Q", title=title, **self._log([row["value"] for row in rows]))
        between = base.mark_line(color="#d5dade", strokeWidth=3).encode(x=x, detail="what:N")
        dots = base.mark_circle(size=90, opacity=1).encode(x=x, color=self._colour(rows))
        return self._save(name, (between + dots).properties(width=460, height=alt.Step(24)), title)

    def lines(self, name: str, rows: Rows, axis: str, panels: Sequence[tuple[str, str]], *, alike: bool) -> str:
        """A panel for each of several values (field, title) over ``x``, a line a series; both axes logarithmic.

        ``alike``: the values are in one unit, and the panels get the same axis.
        """
        alt = self.alt
        points = sorted({row["x"] for row in rows})
        scale = alt.Scale(type="log", nice=False, domain=[points[0], points[-1]])
        x = alt.X(
            "x:Q", title=axis, scale=scale, axis=alt.Axis(values=points, format=",d", grid=False, labelFlush=False)
        )
        drawn, every = [], [row[field] for row in rows for field, _ in panels if row[field] > 0]
        for field, title in panels:
            positive = [{"x": row["x"], "series": row["series"], "value": row[field]} for row in rows if row[field] > 0]
            y = alt.Y("value:Q", title=None, **self._log(every if alike else [row["value"] for row in positive]))
            base = alt.Chart(alt.Data(values=positive), title=title).encode(x=x, y=y, color=self._colour(rows))
            drawn.append((base.mark_line(strokeWidth=2) + base.mark_circle(size=50, opacity=1)).properties(width=320))
        return self._save(name, alt.hconcat(*drawn, spacing=40), f"{panels[0][1]}, by {axis}")

    def _colour(self, rows: Rows, *, legend: bool = True) -> Any:
        alt = self.alt
        series = list(dict.fromkeys(row["series"] for row in rows))
        scale = alt.Scale(domain=series, range=[COLOURS[one] for one in series])
        shown = alt.Legend(title=None, orient="top", symbolType="circle", symbolOpacity=1) if legend else None
        return alt.Color("series:N", scale=scale, legend=shown)

    def _log(self, values: Sequence[float]) -> dict[str, Any]:
        """A logarithmic scale with room around the values, and its axis."""
        low, high = min(values) / 1.3, max(values) * 1.3
        digits = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 4, 5, 7)
        labels = [digit * 10.0**power for power in range(-6, 10) for digit in digits]
        shown = [label for label in labels if low <= label <= high]
        scale = self.alt.Scale(type="log", nice=False, domain=[low, high])
        return {"scale": scale, "axis": self.alt.Axis(values=shown, format=PLAIN)}

    def _save(self, name: str, chart: Any, says: str) -> str:
        path = self.folder / "charts" / f"{name}.svg"
        looks = (
            chart.configure(font="sans-serif", background="white", padding=12)
            .configure_view(stroke=None, continuousHeight=220)
            .configure_title(fontSize=12, anchor="start", fontWeight="normal", color="#333")
            .configure_axis(
                labelFontSize=11,
                titleFontSize=11,
                titleFontWeight="normal",
                labelLimit=320,
                gridColor="#e8ebee",
                domainColor="#c3c9cf",
                tickColor="#c3c9cf",
            )
            .configure_legend(labelFontSize=11)
        )
        buffer = io.StringIO()
        looks.save(buffer, format="svg")
        write_atomic(path, lambda file: file.write(buffer.getvalue().encode()))
        return f"![{says}](charts/{name}.svg)"
