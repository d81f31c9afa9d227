"""A chart as data: its panels, their series, and a value per category and series."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from cclfp.report.styles import STYLES, Style

PANEL_WIDTH = 320.0


@dataclasses.dataclass(frozen=True)
class Value:
    """A number in a chart: a mean over seeds, or a published number."""

    mean: float
    std: float | None = None
    seeds: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of one colour: one per category of the panel, None where it is missing.

    ``key`` selects the style: a method's name, or "ours", "train" and the like.
    """

    key: str
    label: str
    values: list[Value | None]
    paper: bool = False  # published numbers, which are drawn hollow


@dataclasses.dataclass(frozen=True)
class ChartPanel:
    title: str
    categories: list[str]  # numbers of tasks, memory sizes, methods or components
    series: list[Series]
    positions: list[float] = dataclasses.field(default_factory=list)  # of the categories on the x axis of curves
    note: str = ""
    diverged: dict[str, str] = dataclasses.field(default_factory=dict)  # by row of the table: "2 of 5 seeds diverged"

    @property
    def ours(self) -> list[Series]:
        return [series for series in self.series if not series.paper]

    @property
    def is_empty(self) -> bool:
        return all(value is None for series in self.ours for value in series.values)

    def reason_missing(self, series: Series, category: str) -> str:
        """Why a series has no value there: "diverged" where all seeds diverged, else "missing"."""
        names = (series.label, category, f"{series.label}, memory {category}")
        return "diverged" if any(name in self.diverged for name in names) else "missing"

    def missing(self, series: Series) -> list[str]:
        """The categories for which a series has no value, except where its seeds diverged."""
        values = zip(self.categories, series.values, strict=True)
        return [name for name, value in values if value is None and self.reason_missing(series, name) == "missing"]

    def describe_missing(self, series: Series) -> str:
        """The label of a curve that is incomplete, with the missing categories unless it is missing altogether."""
        missing = self.missing(series)
        where = "" if len(missing) == len(self.categories) else f" ({', '.join(missing)})"
        return series.label + where if missing else ""


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

    Several bars in a row are stacked. Lines and dots have an axis of percentages, or a logarithmic one if ``log``.
    """

    name: str
    title: str
    caption: str
    kind: Literal["lines", "bars", "dots"]
    category_title: str
    value_title: str
    panels: list[ChartPanel]
    log: bool = False
    log_categories: bool = False  # whether the positions of categories are logarithms
    same_scale: bool = False  # whether all panels share the axis of values
    whiskers: bool = False  # whether curves show standard deviations; dots and single bars always do
    panel_width: float = PANEL_WIDTH
    styles: dict[str, Style] = dataclasses.field(default_factory=lambda: STYLES)
    format_value: Callable[[float], str] = short_number  # of the number beside a bar

    @property
    def legend(self) -> list[Series]:
        """One series per label, of those that are drawn, in the order of the styles."""
        every = [series for panel in self.drawn_panels for series in panel.series]
        drawn = {series.label: series for series in every if any(value is not None for value in series.values)}
        order = list(self.styles)
        return sorted(drawn.values(), key=lambda series: order.index(series.key))

    @property
    def has_legend(self) -> bool:
        """Whether the legend says anything: bars and dots of one series need none."""
        return len(self.legend) > (0 if self.kind == "lines" else 1)

    @property
    def whisker_note(self) -> str:
        """What whiskers show; empty where there are none."""
        single = self.kind == "bars" and all(len(panel.series) == 1 for panel in self.panels)
        if not (self.whiskers or self.kind == "dots" or single):
            return ""
        values = [value for panel in self.panels for series in panel.ours for value in series.values]
        shown = any(value is not None and value.std is not None for value in values)
        return "Whiskers: one standard deviation over our seeds, to each side of the mean." if shown else ""

    @property
    def drawn_panels(self) -> list[ChartPanel]:
        return [panel for panel in self.panels if not panel.is_empty]

    @property
    def empty_note(self) -> str:
        """Which panels are not drawn, because they have no runs; empty where all are."""
        titles = [panel.title for panel in self.panels if panel.is_empty]
        return f"No runs yet: {'; '.join(titles)}." if titles else ""

    @property
    def category_axis(self) -> str:
        """The title of the axis of categories."""
        return self.category_title + " (log scale)" * self.log_categories

    @property
    def value_axis(self) -> str:
        """The title of the axis of values."""
        if not self.log:
            return self.value_title
        return f"{self.value_title} (log scale)" if self.value_title else "log scale"

    def notes(self, panel: ChartPanel) -> list[str]:
        """The notes below a panel; they name missing values where the drawing does not show them."""
        notes = [panel.note] if panel.note else []
        if panel.diverged:
            notes.append("; ".join(f"{name}: {remark}" for name, remark in panel.diverged.items()))
        if self.kind == "bars":
            return notes
        if self.kind == "dots":
            missing = panel.missing(panel.ours[0])
        else:
            missing = [name for series in panel.ours if (name := panel.describe_missing(series))]
        return [*notes, f"missing: {'; '.join(missing)}"] if missing else notes
