"""A chart as data, and the report's charts: the paper's figures, two of its tables, and those of one's own runs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

from cclfp.metrics import mean_std
from cclfp.paper.numbers import FIGURES, PANELS, comparable
from cclfp.report.styles import CHARACTER, OURS, OWN_STYLES, STYLES, TEST, TRAIN, Style
from cclfp.report.tables import OWN, Column, Content, Table, column_title, place_title, row_name
from cclfp.runs.record import Record
from cclfp.runs.results import Result

MISSING, DIVERGED = "missing", "diverged"  # why there is no value: no runs, or all of them diverged
PANEL_WIDTH = 320.0
SHORTEST_BAR = 200.0  # the space for the longest bar and the number beside it


class Value(NamedTuple):
    """A number in a chart: a mean over seeds, or a published number."""

    mean: float
    std: float | None = None
    seeds: tuple[float, ...] = ()  # where there are several

    @property
    def ends(self) -> tuple[float, float]:
        """One standard deviation to each side of the mean."""
        std = self.std or 0.0
        return self.mean - std, self.mean + std


class Axis(NamedTuple):
    """An axis of values from ``low`` to ``high``, with the labels of its ticks."""

    low: float
    high: float
    ticks: dict[float, str]

    def scale(self, start: float, end: float) -> Callable[[float], float]:
        """Maps values to coordinates from ``start`` to ``end``."""
        low, high, _ = self
        return lambda value: start + (end - start) * (min(max(value, low), high) - low) / (high - low)


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

    def known_at(self, i: int) -> list[tuple[Series, Value]]:
        """The series that have a value of a category."""
        return [(series, value) for series in self.series if not isinstance(value := series.values[i], str)]


def short_number(value: float) -> str:
    """About three digits.

    >>> short_number(12.345), short_number(0.0456), short_number(1234.5)
    ('12.3', '0.05', '1,234')
    """
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels of one kind: "lines" (categories along x), "bars" or "dots" (one row per category; bars are stacked)."""

    name: str
    title: str
    kind: Literal["lines", "bars", "dots"]
    category_title: str
    value_title: str
    panels: list[Panel]
    whiskers: bool = False  # whether standard deviations are shown
    width: float = PANEL_WIDTH  # of a panel, or more for bars with long labels
    format_value: Callable[[float], str] = short_number  # of the number beside a bar

    @property
    def panel_width(self) -> float:
        """Enough for the longest label and a bar."""
        labels = [name for panel in self.panels for name in panel.categories] if self.kind == "bars" else []
        return max(self.width, SHORTEST_BAR + CHARACTER * max(map(len, labels), default=0))

    @property
    def drawn_panels(self) -> list[Panel]:
        """Those that have a number of ours."""
        return [panel for panel in self.panels if any(series.known for series in panel.ours)]

    @property
    def legend(self) -> list[Series]:
        """One series per label, of those that are drawn. Bars of one series need no legend."""
        every = [series for panel in self.drawn_panels for series in panel.series if series.known]
        found = list({series.label: series for series in every}.values())
        return found if self.kind == "lines" or len(found) > 1 else []

    @property
    def whisker_note(self) -> str:
        """What whiskers show; empty where there are none."""
        ours = [value for panel in self.panels for series in panel.ours for value in series.known]
        shown = self.whiskers and any(value.std is not None for value in ours)
        return "Whiskers: one standard deviation over our seeds, to each side of the mean." if shown else ""

    @property
    def empty_note(self) -> str:
        """The panels that are not drawn, as they have no runs; empty if all are drawn."""
        titles = [panel.title for panel in self.panels if panel not in self.drawn_panels]
        return f"No runs yet: {'; '.join(titles)}." if titles else ""


# The report's charts --------------------------------------------------------------------------------------------------

MOST_ROWS = 12  # of one's own runs that one panel draws
LONGEST = 42  # characters that fit above a panel
ACCURACY = "average accuracy (%)"
Measure = Callable[[Record], float | None]
# The title of the values of a bar chart, and its series: their style, label and field of a record.
BARS = {
    "forgetting": ("forgetting (%)", [(OURS, "forgetting", "forgetting")]),
    "runtime": ("seconds per run", [(TRAIN, "training", "train_seconds"), (TEST, "testing", "test_seconds")]),
}


class Group(NamedTuple):
    """What one panel shows: results with the same benchmark and scenario."""

    title: str
    results: Sequence[Result]
    notes: list[str]

    @property
    def compared(self) -> list[Result]:
        """All but the upper bound."""
        return [result for result in self.results if not result.is_joint]


def make_charts(content: Content) -> list[Chart]:
    """The paper's figures, its tables of memory sizes and components, and the charts of one's own runs."""
    accuracy, buffer, ablation = content.tables
    styles = _choose_styles([accuracy.results])
    evolution, forgetting = ([_group(accuracy, column) for column in PANELS[f]] for f in ("evolution", "forgetting"))
    mnist = _group(accuracy, ("split-mnist", "class"))
    timed = [
        Group(column_title(results[0].column), results, [f"Each method alone on {made}"] if made else [])
        for made, results in comparable(content.timed)
    ]
    return [
        _evolution("evolution", [*evolution, mnist._replace(title=f"{mnist.title} (not in the paper)")], styles),
        _bars("forgetting", forgetting),
        _bars("runtime", timed),
        _memory("buffer", [_group(buffer, column) for column in buffer.columns], styles),
        _ablation([_group(ablation, column) for column in ablation.columns]),
        *_own_charts(content.own),
    ]


def _own_charts(tables: Sequence[Table]) -> list[Chart]:
    """Evolution, forgetting, run time, and accuracy by memory size. A chart without runs is left out."""
    groups = [_group(table, *table.columns) for table in tables]
    places = {
        place: [result for group in several for result in group.results]
        for place, several in itertools.groupby(groups, lambda group: place_title(group.results[0]))
    }
    styles = _choose_styles(list(places.values()))
    charts = [
        _evolution("own-evolution", groups, styles),
        _bars("own-forgetting", groups),
        _memory("own-memory", [Group(place, results, []) for place, results in places.items()], styles),
        _bars("own-runtime", groups),
    ]
    return [dataclasses.replace(chart, panels=chart.drawn_panels) for chart in charts if chart.drawn_panels]


def _group(table: Table, column: Column) -> Group:
    """A column of a table. Of many rows of one's own, those with the most seeds are drawn."""
    title, notes = column_title(column), list[str]()
    if table.name == OWN and len(table.title) <= LONGEST:
        title = table.title
    elif table.name == OWN:
        notes.append(table.title.removeprefix(f"{title}, "))
    results = [result for result in table.results if result.column == column]
    if table.name == OWN and len(results) > MOST_ROWS:
        notes.append(f"{len(results) - MOST_ROWS} rows of the table with fewer seeds are not drawn")
        most = sorted(results, key=lambda result: -len(result.counted))[:MOST_ROWS]
        results = [result for result in results if result in most]
    diverged = [f"{row_name(result)}: {result.remark}" for result in results if result.remark]
    return Group(title, results, [*notes, "; ".join(diverged)] if diverged else notes)


def _choose_styles(places: Sequence[Sequence[Result]]) -> dict[str, Style]:
    """The style of each label. A method of the paper has its own, once per place.

    Any other label gets one of ``OWN_STYLES``: one that no label has, else one that is not in the same place, else any.
    """
    styles: dict[str, Style] = {}
    anyone = itertools.cycle(OWN_STYLES)
    for results in places:
        taken = {styles[result.label] for result in results if result.label in styles}
        for result in results:
            if result.label not in styles:
                usual = [style] if (style := STYLES.get(result.configuration.method)) else []
                unused = [style for style in OWN_STYLES if style not in styles.values()]
                free = [style for style in (*usual, *unused, *OWN_STYLES) if style not in taken]
                styles[result.label] = free[0] if free else next(anyone)
                taken.add(styles[result.label])
    return styles


# Each chart -----------------------------------------------------------------------------------------------------------


def _evolution(name: str, groups: Sequence[Group], styles: dict[str, Style]) -> Chart:
    """The accuracy on the tasks so far after each of them, a curve per result."""
    panels = []
    for group in groups:
        count = max((len(run["accuracy_matrix"]) - 1 for result in group.results for run in result.runs), default=0)
        tasks = range(1, count + 1) if count > 1 else []
        measures = [functools.partial(_accuracy_so_far, t) for t in tasks]
        series = [Series(styles[r.label], r.label, [_value(r, m) for m in measures]) for r in group.compared]
        panels.append(Panel(group.title, list(map(str, tasks)), series, list(map(float, tasks)), group.notes))
    return Chart(name, FIGURES["evolution"], "lines", "tasks learned", ACCURACY, panels)


def _accuracy_so_far(t: int, run: Record) -> float | None:
    """The mean accuracy on the first t tasks after training on them."""
    known = [accuracy for accuracy in run["accuracy_matrix"][t][:t] if accuracy is not None]
    return sum(known) / t if len(known) == t else None


def _bars(name: str, groups: Sequence[Group]) -> Chart:
    """Forgetting or run time, a bar per result."""
    figure = name.removeprefix("own-")
    value_title, parts = BARS[figure]
    panels = []
    for group in groups:
        results = group.compared if figure == "forgetting" else group.results
        series = [Series(look, label, [_value(r, itemgetter(field)) for r in results]) for look, label, field in parts]
        panels.append(Panel(group.title, [result.label for result in results], series, notes=group.notes))
    return Chart(name, FIGURES[figure], "bars", "method", value_title, panels, whiskers=len(parts) == 1)


def _memory(name: str, groups: Sequence[Group], styles: dict[str, Style]) -> Chart:
    """Accuracy by the size of the memory, if there are several. A method without a memory has the same for all."""
    panels = []
    for group in groups:
        sizes = sorted({size for result in group.results if (size := result.configuration.buffer) is not None})
        series = []
        labels = list(dict.fromkeys(result.label for result in group.results))
        for label in labels if name == "buffer" else labels[:MOST_ROWS]:
            found = {result.configuration.buffer: result for result in group.results if result.label == label}
            of_sizes = [found.get(size, found.get(None)) for size in sizes]
            series.append(Series(styles[label], label, list(map(_value, of_sizes))))
            if any(result.published for result in found.values()):
                series.append(Series(styles[label], f"{label}, paper", list(map(_published, of_sizes)), paper=True))
        if len(sizes) > 1:
            panels.append(Panel(group.title, list(map(str, sizes)), series, list(map(math.log10, sizes)), group.notes))
    title, categories = "Accuracy by memory size", "examples in memory (log scale)"
    return Chart(name, title, "lines", categories, ACCURACY, panels, whiskers=True)


def _ablation(groups: Sequence[Group]) -> Chart:
    panels = []
    for title, results, notes in groups:
        series = [
            Series(OURS, "ours", list(map(_value, results))),
            Series(OURS, "paper", list(map(_published, results)), paper=True),
        ]
        panels.append(Panel(title, [row_name(result) for result in results], series, notes=notes))
    title = "What each component adds"
    return Chart("ablation", title, "dots", "components", ACCURACY, panels, whiskers=True)


def _value(result: Result | None, measure: Measure = itemgetter("average_accuracy")) -> Value | str:
    """The mean of a measure over the seeds that are counted, or why there is none."""
    if result is None:
        return MISSING
    numbers = [measure(run) for run in result.counted]
    mean, std = mean_std(numbers).values()
    if mean is None:
        return DIVERGED if result.diverged else MISSING
    return Value(mean, std, () if std is None else tuple(number for number in numbers if number is not None))


def _published(result: Result | None) -> Value | str:
    return MISSING if result is None or result.published is None else Value(*result.published)
