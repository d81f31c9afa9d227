"""The report's charts: the paper's figures, its tables of memory sizes and components, and those of one's own runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cclfp.metrics import mean_std
from cclfp.paper.numbers import FIGURES, PANELS, describe_conditions, largest_comparable_group
from cclfp.report.charts import DIVERGED, MISSING, Chart, Panel, Series, Value
from cclfp.report.content import Content
from cclfp.report.styles import OURS, OWN_STYLES, STYLES, TEST, TRAIN, Style
from cclfp.report.tables import Column, Table, column_title, place_title, row_name, variant_name
from cclfp.runs.record import Record
from cclfp.runs.results import Result

MOST_ROWS = 12  # of one's own runs that one panel draws
LONGEST = 42  # characters that fit above a panel
CAPTIONS = {
    "evolution": "The mean test accuracy on all tasks seen so far, after each task. The paper does not publish the "
    "numbers behind its curves, and has no curves of Split MNIST.",
    "own-evolution": "The test accuracy on all tasks seen so far, after each task: the mean over the seeds of each "
    "row.",
    "own-forgetting": "The best accuracy that a task had minus its accuracy at the end, as the mean over all tasks "
    "except the last. Less is better.",
    "runtime": "Seconds per run, for training and for testing after every task. cclfp study runtime trained each "
    "method alone, one run at a time, with the same engine on the same device. The paper does not publish its times.",
    "own-runtime": "Seconds per run, for training and for testing after every task: the mean over the seeds of each "
    "row. The seconds of runs that trained together are their shares of the total, so only rows that were trained in "
    "the same way can be compared.",
    "memory": "The average accuracy at the end of training, by the number of examples in the memory.",
    "ablation": "The components of each variant: feature propagation (w), contrastive rehearsal (α) and the supervised "
    "contrastive loss (β). Without any of them the method is ER, with the first two it is CCL-FP. All variants use "
    "CCL-FP+'s other hyperparameters.",
}
CAPTIONS["forgetting"] = f"{CAPTIONS['own-forgetting']} The paper does not publish these numbers."
ACCURACY = "average accuracy (%)"

Measure = Callable[[Record], float | None]


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
    """The paper's figures, and its tables of memory sizes and components."""
    accuracy, buffer, ablation = content.tables
    styles = _choose_styles([accuracy.results])
    evolution, forgetting = ([_group(accuracy, column) for column in PANELS[f]] for f in ("evolution", "forgetting"))
    extra = [
        group._replace(title=f"{group.title} (not in the paper)")
        for group, (benchmark, _) in zip(forgetting, PANELS["forgetting"], strict=True)
        if benchmark == "split-mnist"
    ]
    return [
        _evolution("evolution", [*evolution, *extra], styles),
        _forgetting("forgetting", forgetting),
        _run_time("runtime", _timed_alike(content.timed)),
        _memory("buffer", [_group(buffer, column) for column in buffer.columns], styles),
        _ablation([_group(ablation, column) for column in ablation.columns]),
    ]


def own_charts(tables: Sequence[Table]) -> list[Chart]:
    """Evolution, forgetting and run time, and accuracy by memory size where there are several; none without runs."""
    groups = list(map(_own_group, tables))
    places = {
        place: [result for group in several for result in group.results]
        for place, several in itertools.groupby(groups, lambda group: place_title(group.results[0]))
    }
    styles = _choose_styles(list(places.values()))
    charts = [
        _evolution("own-evolution", groups, styles),
        _forgetting("own-forgetting", groups),
        _memory("own-memory", [Group(place, results, []) for place, results in places.items()], styles),
        _run_time("own-runtime", [g._replace(notes=[*g.notes, *_mixed_conditions(g.results)]) for g in groups]),
    ]
    return [dataclasses.replace(chart, panels=chart.drawn_panels) for chart in charts if chart.drawn_panels]


def _group(table: Table, column: Column) -> Group:
    results = [result for result in table.results if result.column == column]
    return Group(column_title(column), results, _diverged(results))


def _own_group(table: Table) -> Group:
    """The rows of a table; those with the most seeds where there are many."""
    title = table.title if len(table.title) <= LONGEST else column_title(table.columns[0])
    most = sorted(table.results, key=lambda result: -len(result.counted))[:MOST_ROWS]
    notes = [table.title.removeprefix(f"{title}, ")] if title != table.title else []
    if len(table.rows) > MOST_ROWS:
        notes.append(f"{len(table.rows) - MOST_ROWS} rows of the table with fewer seeds are not drawn")
    drawn = [result for result in table.results if result in most]
    return Group(title, drawn, [*notes, *_diverged(drawn)])


def _diverged(results: Sequence[Result]) -> list[str]:
    """How many seeds of each row diverged, in one note; none where none did."""
    remarks = [f"{row_name(result)}: {result.remark}" for result in results if result.remark]
    return ["; ".join(remarks)] if remarks else []


def _choose_styles(places: Sequence[Sequence[Result]]) -> dict[str, Style]:
    """The style of each label: a method of the paper has its own, once per place; all else one of those for users.

    Of these, one that no label has yet, else one that is not in the same place, else any.
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
        series = [
            Series(styles[result.label], result.label, [_mean(result, _accuracy_after(t)) for t in tasks])
            for result in group.compared
        ]
        panels.append(Panel(group.title, list(map(str, tasks)), series, list(map(float, tasks)), group.notes))
    return Chart(name, FIGURES["evolution"], "lines", "tasks learned", ACCURACY, panels, CAPTIONS[name])


def _accuracy_after(t: int) -> Measure:
    """The mean accuracy on the first t tasks after training on them."""

    def measure(run: Record) -> float | None:
        known = [accuracy for accuracy in run["accuracy_matrix"][t][:t] if accuracy is not None]
        return sum(known) / t if len(known) == t else None

    return measure


def _forgetting(name: str, groups: Sequence[Group]) -> Chart:
    measures: list[tuple[Style, str, Measure]] = [(OURS, "forgetting", lambda run: run["forgetting"])]
    panels = [_bars(group.title, group.compared, measures, group.notes) for group in groups]
    return Chart(name, FIGURES["forgetting"], "bars", "method", "forgetting (%)", panels, CAPTIONS[name])


def _run_time(name: str, groups: Sequence[Group]) -> Chart:
    measures: list[tuple[Style, str, Measure]] = [
        (TRAIN, "training", lambda run: run["train_seconds"]),
        (TEST, "testing", lambda run: run["test_seconds"]),
    ]
    panels = [_bars(group.title, group.results, measures, group.notes) for group in groups]
    return Chart(name, FIGURES["runtime"], "bars", "method", "seconds per run", panels, CAPTIONS[name])


def _bars(
    title: str, results: Sequence[Result], measures: Sequence[tuple[Style, str, Measure]], notes: list[str]
) -> Panel:
    """A bar per result."""
    series = [Series(style, label, [_mean(r, measure) for r in results]) for style, label, measure in measures]
    return Panel(title, [result.label for result in results], series, notes=notes)


def _timed_alike(timed: Sequence[Result]) -> list[Group]:
    """A group per benchmark, whose times were measured under the same conditions; others do not count."""
    groups = []
    for column, several in itertools.groupby(timed, lambda result: result.column):
        results = list(several)
        alike = largest_comparable_group([result.runs[0] if result.runs else None for result in results])
        made = [describe_conditions(timing) for timing in alike if timing is not None]
        shown = [dataclasses.replace(r, runs=r.runs if t else []) for r, t in zip(results, alike, strict=True)]
        others = [r.label for r, one in zip(results, shown, strict=True) if r.runs and not one.runs]
        note = f"Each method alone on {made[0]}" if made else ""
        note += f"; left out, because they were measured under other conditions: {', '.join(others)}" if others else ""
        groups.append(Group(column_title(column), shown, [note] if note else []))
    return groups


def _mixed_conditions(results: Sequence[Result]) -> list[str]:
    """Why the times of a panel cannot be compared; nothing where they can."""
    names = ("device_name", "engine", "precision", "threads", "together")
    made = {tuple(run["environment"].get(name) for name in names) for result in results for run in result.runs}
    mixed = "these runs were not all made with the same device, engine and number of runs at a time"
    return [mixed] if len(made) > 1 else []


def _memory(name: str, groups: Sequence[Group], styles: dict[str, Style]) -> Chart:
    """Accuracy by the size of the memory, where there are several; a method without one has the same for all."""
    panels = []
    for group in groups:
        sizes = sorted({size for result in group.results if (size := result.configuration.buffer) is not None})
        series = []
        for label in list(dict.fromkeys(result.label for result in group.results))[:MOST_ROWS]:
            found = {result.configuration.buffer: result for result in group.results if result.label == label}
            of_sizes = [found.get(size, found.get(None)) for size in sizes]
            series.append(Series(styles[label], label, list(map(_accuracy, of_sizes))))
            if any(result.published for result in found.values()):
                series.append(Series(styles[label], f"{label}, paper", list(map(_published, of_sizes)), paper=True))
        if len(sizes) > 1:
            panels.append(Panel(group.title, list(map(str, sizes)), series, list(map(math.log10, sizes)), group.notes))
    title, categories = "Accuracy by memory size", "examples in memory (log scale)"
    return Chart(name, title, "lines", categories, ACCURACY, panels, CAPTIONS["memory"], whiskers=True)


def _ablation(groups: Sequence[Group]) -> Chart:
    panels = []
    for title, results, notes in groups:
        series = [
            Series(OURS, "ours", list(map(_accuracy, results))),
            Series(OURS, "paper", list(map(_published, results)), paper=True),
        ]
        panels.append(Panel(title, [variant_name(result.label) for result in results], series, notes=notes))
    title = "What each component adds"
    return Chart("ablation", title, "dots", "components", ACCURACY, panels, CAPTIONS["ablation"])


def _mean(result: Result | None, measure: Measure) -> Value | str:
    """The mean over the seeds, or why there is none."""
    if result is None or not result.runs:
        return MISSING
    numbers = [measure(run) for run in result.counted]
    mean, std = mean_std(numbers).values()
    if mean is None:
        return DIVERGED if result.diverged else MISSING
    return Value(mean, std, () if std is None else tuple(number for number in numbers if number is not None))


def _accuracy(result: Result | None) -> Value | str:
    return _mean(result, lambda run: run["average_accuracy"])


def _published(result: Result | None) -> Value | str:
    return MISSING if result is None or result.published is None else Value(*result.published)
