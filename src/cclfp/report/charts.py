"""A chart as data: its panels, their series, and a value per category and series."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

from cclfp.report.styles import CHARACTER, Style

MISSING, DIVERGED = "missing", "diverged"  # why there is no value: no runs, or all of them diverged
PANEL_WIDTH = 320.0
SHORTEST_BAR = 200.0  # the space for the longest bar and the number beside it


class Value(NamedTuple):
    """A number in a chart: a mean over seeds, or a published number."""

    mean: float
    std: float | None = None
    seeds: tuple[float, ...] = ()  # where there are several


class Axis(NamedTuple):
    """An axis of values from ``low`` to ``high``, with the labels of its ticks."""

    low: float
    high: float
    ticks: dict[float, str]


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of one colour: one per category of the panel, or why there is none."""

    style: Style
    label: str
    values: list[Value | str]
    paper: bool = False  # published numbers, which are drawn hollow

    @property
    def known(self) -> list[Value]:
        return [value for value in self.values if not isinstance(value, str)]

    @property
    def classes(self) -> str:
        """Its classes in the style sheet."""
        return self.style.css_class + " paper" * self.paper + " strong" * self.style.is_strong

    @property
    def dashes(self) -> str:
        return "" if self.paper else self.style.dashes


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    categories: list[str]  # numbers of tasks, memory sizes, methods or components
    series: list[Series]
    positions: list[float] = dataclasses.field(default_factory=list)  # of the categories on the x axis of curves
    notes: list[str] = dataclasses.field(default_factory=list)
    axis: Axis | None = None  # of values; else one with round numbers

    @property
    def ours(self) -> list[Series]:
        return [series for series in self.series if not series.paper]

    @property
    def is_empty(self) -> bool:
        return not any(series.known for series in self.ours)

    def missing(self, series: Series) -> list[str]:
        """The categories of which a series has no runs."""
        return [name for name, value in zip(self.categories, series.values, strict=True) if value == MISSING]


def short_number(value: float) -> str:
    """About three digits.

    >>> short_number(12.345), short_number(0.0456), short_number(1234.5)
    ('12.3', '0.05', '1,234')
    """
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels of one kind: "lines" (categories along x), "bars" or "dots" (one row per category).

    Several bars in a row are stacked.
    """

    name: str
    title: str
    kind: Literal["lines", "bars", "dots"]
    category_title: str
    value_title: str
    panels: list[Panel]
    caption: str = ""
    whiskers: bool = False  # whether curves show standard deviations; dots and single bars always do
    width: float = PANEL_WIDTH  # of a panel, or more for bars with long labels
    format_value: Callable[[float], str] = short_number  # of the number beside a bar

    @property
    def panel_width(self) -> float:
        """Enough for the longest label and a bar."""
        labels = [name for panel in self.panels for name in panel.categories] if self.kind == "bars" else []
        return max(self.width, SHORTEST_BAR + CHARACTER * max(map(len, labels), default=0))

    @property
    def drawn_panels(self) -> list[Panel]:
        return [panel for panel in self.panels if not panel.is_empty]

    @property
    def legend(self) -> list[Series]:
        """One series per label, of those that are drawn; none where it would say nothing."""
        every = [series for panel in self.drawn_panels for series in panel.series if series.known]
        found = list({series.label: series for series in every}.values())
        return found if self.kind == "lines" or len(found) > 1 else []

    @property
    def whisker_note(self) -> str:
        """What whiskers show; empty where there are none."""
        single = self.kind == "bars" and all(len(panel.series) == 1 for panel in self.panels)
        ours = [value for panel in self.panels for series in panel.ours for value in series.known]
        shown = (self.whiskers or self.kind == "dots" or single) and any(value.std is not None for value in ours)
        return "Whiskers: one standard deviation over our seeds, to each side of the mean." if shown else ""

    @property
    def empty_note(self) -> str:
        """Which panels are not drawn, because they have no runs; empty where all are."""
        titles = [panel.title for panel in self.panels if panel.is_empty]
        return f"No runs yet: {'; '.join(titles)}." if titles else ""

    def notes(self, panel: Panel) -> list[str]:
        """The notes below a panel; they name missing values where the drawing does not show them."""
        missing = panel.missing(panel.ours[0]) if self.kind == "dots" else []
        for series in panel.ours if self.kind == "lines" else []:
            if names := panel.missing(series):
                missing.append(series.label + (f" ({', '.join(names)})" if len(names) < len(panel.categories) else ""))
        return [*panel.notes, f"missing: {'; '.join(missing)}"] if missing else panel.notes
