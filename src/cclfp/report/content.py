"""What the report says: the paper's tables with our numbers, how each was made, and the charts' data."""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cclfp.metrics import mean_std
from cclfp.paper import (
    TABLES,
    Cell,
    Comparison,
    cells,
    columns,
    comparable,
    compare,
    conditions,
    figures,
    gather,
    gather_timings,
    run_time_cells,
)
from cclfp.runs.record import Record
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark

Column = tuple[str, str]  # a benchmark and a scenario
BOUND = "joint"  # trains on all tasks at once: an upper bound, not a candidate for the best
VERDICTS = {
    "within": "within two standard deviations of the paper's number",
    "above": "above the paper's number by more than two standard deviations",
    "below": "below the paper's number by more than two standard deviations",
    "unjudged": "one seed only, and no published standard deviation to judge it by",
    "missing": "not trained yet",
    "diverged": "all seeds diverged: there is no mean",
}
UNCOMMON = ("unjudged", "diverged")  # verdicts that are named only where a number has them
# What an environment is called, in the order of interest.
ENVIRONMENT = {
    "device_name": "device",
    "device": "kind of device",
    "engine": "engine",
    "precision": "precision",
    "threads": "threads",
    "cclfp": "cclfp",
    "torch": "torch",
    "commit": "commit",
    "source": "source",
    "platform": "platform",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of a table with our runs of it. ``best`` and ``best_published`` are of the column (and memory size)."""

    cell: Cell
    records: list[Record]
    comparison: Comparison
    best: bool = False
    best_published: bool = False

    @property
    def name(self) -> str:
        """Its row, in words: ``ER-Res., memory 200``."""
        row, memory = self.cell.row, self.cell.buffer
        return {"buffer": f"{row}, memory {memory}", "ablation": variant(row)}.get(self.cell.table, row)

    @property
    def verdict(self) -> str:
        """A key of ``VERDICTS``."""
        if self.comparison.mean is None:
            return "diverged" if self.comparison.seeds.diverged else "missing"
        return self.comparison.verdict or "unjudged"

    def command(self, seeds: Sequence[int]) -> str:
        """The command that makes the number, every hyperparameter said, so that a later preset does not change it."""
        c, benchmark = self.cell.configuration(), get_benchmark(self.cell.benchmark)
        words = ["cclfp", "run", c.method, c.benchmark]
        words += [f"{name}={exact(value)}" for name, value in c.hyperparameters.items()]
        words += [] if benchmark.no_augmentation else [f"augment={'on' if c.augment else 'off'}"]
        words += ["--scenario", c.scenario]
        words += [] if c.buffer is None else ["--buffer", str(c.buffer)]
        seeds = [record["seed"] for record in self.records] or seeds
        consecutive = list(seeds) == list(range(len(seeds)))
        words += ["--seeds", str(len(seeds)) if consecutive else ",".join(map(str, seeds)) + "," * (len(seeds) == 1)]
        for option in ("engine", "precision", "device", "threads"):
            used = {record["environment"].get(option) for record in self.records}
            words += [f"--{option}", str(used.pop())] if len(used) == 1 and None not in used else []
        words += ["--fresh"] if self.records else []  # a store that has the runs would give them back
        ours = self.comparison.seeds
        words += ["--include-diverged"] if ours.include_diverged and ours.diverged else []
        return shlex.join(words)

    @property
    def text(self) -> str:
        """Our number and how many of its seeds diverged; "missing" where there are no runs."""
        return self.comparison.text() if self.records else "missing"

    @property
    def untuned(self) -> bool:
        """A number of ours that is marked in every table: its hyperparameters are the method's defaults."""
        return self.comparison.mean is not None and not self.cell.has_preset

    @property
    def chosen(self) -> str:
        """Where its hyperparameters are from."""
        if not self.cell.has_preset:
            return "defaults, not tuned"
        if self.cell.settings:
            return "preset, but for what is left out"
        return "preset" if self.cell.buffer in (None, 200) else "preset, tuned with memory 200"

    @property
    def environments(self) -> list[dict[str, Any]]:
        """What its runs were made with, each environment once."""
        return _distinct([environment_of(record) for record in self.records])


@dataclasses.dataclass(frozen=True)
class Row:
    label: str
    buffer: int | None  # where the table's rows differ in it
    entries: list[Entry | None]  # by column; None: the paper has no number there


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: list[Column]
    rows: list[Row]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.entries if entry is not None]


@dataclasses.dataclass(frozen=True)
class Value:
    """A number in a chart: a mean over seeds, or the paper's."""

    mean: float
    std: float | None
    seeds: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """What is drawn in one colour: a value for each of the panel's stops, None where it is missing.

    ``key`` says which colour and mark: a method's name, or "ours" and "train" and such.
    """

    key: str
    label: str
    values: list[Value | None]
    paper: bool = False  # published numbers, drawn hollow


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    stops: list[str]  # along the axis of the tasks, memory sizes, methods or variants
    series: list[Series]
    places: list[float] = dataclasses.field(default_factory=list)  # where on a curve's axis the stops are
    note: str = ""
    diverged: dict[str, str] = dataclasses.field(default_factory=dict)  # by row of the table: "2 of 5 seeds diverged"

    @property
    def ours(self) -> list[Series]:
        return [series for series in self.series if not series.paper]

    def lacking(self, series: Series, stop: str) -> str:
        """What is said where there is no value: "missing", or "diverged" where all seeds did."""
        names = (series.label, stop, f"{series.label}, memory {stop}")
        return "diverged" if any(name in self.diverged for name in names) else "missing"

    @property
    def is_empty(self) -> bool:
        return all(value is None for series in self.ours for value in series.values)


@dataclasses.dataclass(frozen=True)
class Chart:
    """``kind``: "lines" (the stops along x), "bars" (one a stop, downwards; several series are stacked) or "dots"."""

    name: str
    title: str
    caption: str
    kind: str
    stop_title: str
    value_title: str
    panels: list[Panel]

    def notes(self, panel: Panel) -> list[str]:
        """What is to be said below a panel: what it lacks, where the drawing does not show that itself."""
        notes = [panel.note] if panel.note else []
        notes += ["; ".join(f"{name}: {remark}" for name, remark in panel.diverged.items())] if panel.diverged else []
        if self.kind == "dots" and panel.is_empty:
            return [*notes, "no runs yet"]
        if self.kind == "bars" or panel.is_empty:
            return notes
        if self.kind == "dots":
            lacking = _missing(panel, panel.ours[0])
        else:
            lacking = [name for series in panel.ours if (name := _lacking(panel, series))]
        return [*notes, f"missing: {'; '.join(lacking)}"] if lacking else notes


@dataclasses.dataclass(frozen=True)
class Content:
    seeds: list[int]
    tables: list[Table]
    charts: list[Chart]
    environments: list[dict[str, Any]]
    include_diverged: bool = False

    @property
    def entries(self) -> list[Entry]:
        return [entry for table in self.tables for entry in table.entries]

    def counts(self, entries: Sequence[Entry] | None = None) -> dict[str, int]:
        """How many cells have each verdict."""
        verdicts = [entry.verdict for entry in (self.entries if entries is None else entries)]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    @property
    def latest(self) -> str | None:
        """The day the newest of the runs was finished."""
        return max((r["finished_at"][:10] for entry in self.entries for r in entry.records), default=None)

    @property
    def runs(self) -> int:
        """How many runs the numbers are from; the tables share some."""
        return len({record["key"] for entry in self.entries for record in entry.records})


def collect(store: Store, seeds: Sequence[int], include_diverged: bool = False) -> Content:
    """Everything the report says, from the runs in a store.

    Runs that diverged are in no mean, and in no curve, unless ``include_diverged``.
    """
    tables = [_table(name, gather(cells(name), store, seeds), include_diverged) for name in TABLES]
    by_name = {table.name: table for table in tables}
    charts = [
        _evolution(by_name["accuracy"]),
        _forgetting(by_name["accuracy"]),
        _run_time(store),
        _buffer(by_name["buffer"]),
        _ablation(by_name["ablation"]),
    ]
    environments = [environment for table in tables for entry in table.entries for environment in entry.environments]
    return Content(list(seeds), tables, charts, _distinct(environments), include_diverged)


def environment_of(record: Record) -> dict[str, Any]:
    """What a run was made with, of what is worth telling."""
    return {name: record["environment"].get(name) for name in ENVIRONMENT}


@functools.cache
def title_of(benchmark: str) -> str:
    return get_benchmark(benchmark).title


def column_title(column: Column) -> str:
    return f"{title_of(column[0])}, {column[1]}"


def exact(value: float) -> str:
    """A hyperparameter as users write it, to the last digit: ``0.1``, ``1``."""
    return repr(float(value)).removesuffix(".0")


def _distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _table(name: str, found: dict[Cell, list[Record]], include_diverged: bool) -> Table:
    compared = {cell: compare(cell, found[cell], include_diverged) for cell in cells(name)}
    entries = {
        cell: Entry(
            cell,
            found[cell],
            comparison,
            best=_is_best(cell, {other: c.mean for other, c in compared.items()}),
            best_published=_is_best(cell, {other: other.published.mean for other in compared}),
        )
        for cell, comparison in compared.items()
    }
    by_row: dict[tuple[str, int | None], dict[Column, Entry]] = {}
    for cell, entry in entries.items():
        buffer = cell.buffer if name == "buffer" else None
        by_row.setdefault((cell.row, buffer), {})[cell.benchmark, cell.scenario] = entry
    rows = [Row(label, buffer, [row.get(c) for c in columns(name)]) for (label, buffer), row in by_row.items()]
    return Table(name, TABLES[name], columns(name), rows)


def _is_best(cell: Cell, means: dict[Cell, float | None]) -> bool:
    """Whether none of its column (and memory size) is better, by the digits shown, and all are there; but for Joint."""
    all_means = [
        mean
        for other, mean in means.items()
        if (other.benchmark, other.scenario) == (cell.benchmark, cell.scenario)
        and (cell.table != "buffer" or other.buffer == cell.buffer)
        and other.method != BOUND
    ]
    known = [round(mean, 2) for mean in all_means if mean is not None]
    mean = means[cell]
    return cell.method != BOUND and mean is not None and len(known) == len(all_means) and round(mean, 2) == max(known)


def _value(numbers: Sequence[float | None]) -> Value | None:
    """The mean over seeds, where there are any and all of them are known."""
    known = [number for number in numbers if number is not None]
    summary = mean_std(known)
    if summary["mean"] is None or len(known) < len(numbers):
        return None
    return Value(summary["mean"], summary["std"], tuple(known))


def _entries(table: Table, benchmark: str, scenario: str, methods: Sequence[str]) -> list[Entry]:
    """The methods' cells in a column of the accuracy table."""
    found = {e.cell.method: e for e in table.entries if (e.cell.benchmark, e.cell.scenario) == (benchmark, scenario)}
    return [found[method] for method in methods]


def _remarks(entries: Sequence[Entry | None]) -> dict[str, str]:
    """The rows of which seeds diverged, and how many."""
    named = {entry.name: entry.comparison.seeds.remark for entry in entries if entry is not None}
    return {name: remark for name, remark in named.items() if remark}


def _evolution(table: Table) -> Chart:
    (figure,) = [figure for figure in figures() if figure.name == "evolution"]
    panels = []
    for panel in figure.panels:
        tasks = get_benchmark(panel.benchmark).num_tasks or 0
        entries = _entries(table, panel.benchmark, panel.scenario, panel.methods)
        series = []
        for entry in entries:
            matrices = [run["accuracy_matrix"] for run in entry.comparison.seeds.counted]
            values = [_value([seen_so_far(matrix, t) for matrix in matrices]) for t in range(1, tasks + 1)]
            series.append(Series(entry.cell.method, entry.cell.row, values))
        stops = list(map(str, range(1, tasks + 1)))
        title = column_title((panel.benchmark, panel.scenario))
        panels.append(Panel(title, stops, series, list(map(float, stops)), diverged=_remarks(entries)))
    caption = (
        "After each task, the mean test accuracy on all tasks seen until then. The paper did not publish its curves."
    )
    return Chart("evolution", figure.title, caption, "lines", "tasks learned", "average accuracy (%)", panels)


def seen_so_far(matrix: Sequence[Sequence[float | None]], t: int) -> float | None:
    """The mean accuracy, after t tasks, on those t.

    >>> seen_so_far([[None, None], [90.0, None], [70.0, 80.0]], 2)
    75.0
    """
    seen = [] if t >= len(matrix) else list(matrix[t][:t])
    known = [accuracy for accuracy in seen if accuracy is not None]
    return sum(known) / t if len(known) == t else None


def _forgetting(table: Table) -> Chart:
    (figure,) = [figure for figure in figures() if figure.name == "forgetting"]
    panels = []
    for panel in figure.panels:
        entries = _entries(table, panel.benchmark, panel.scenario, panel.methods)
        values = [_value([run["forgetting"] for run in entry.comparison.seeds.counted]) for entry in entries]
        series, stops = [Series("ours", "forgetting", values)], [entry.cell.row for entry in entries]
        title = column_title((panel.benchmark, panel.scenario))
        panels.append(Panel(title, stops, series, diverged=_remarks(entries)))
    caption = (
        "How far the accuracy on a task lies, at the end, below the best it had: the mean over all tasks but the last. "
        "Less is better. The paper did not publish these numbers."
    )
    return Chart("forgetting", figure.title, caption, "bars", "method", "forgetting (%)", panels)


def _run_time(store: Store) -> Chart:
    (figure,) = [figure for figure in figures() if figure.name == "runtime"]
    panels = []
    for column, several in groupby(run_time_cells(), key=lambda cell: (cell.benchmark, cell.scenario)):
        shown = list(several)
        timings = gather_timings(shown, store)
        alike = comparable(timings)
        series = [
            Series(part, label, [Value(alike[c][f"{part}_seconds"], None) if c in alike else None for c in shown])
            for part, label in (("train", "training"), ("test", "testing"))
        ]
        others = [cell.row for cell in timings if cell not in alike]
        note = f"Each method alone on {conditions(next(iter(alike.values())))}" if alike else ""
        note += f"; measured otherwise, and left out: {', '.join(others)}" if others else ""
        panels.append(Panel(column_title(column), [cell.row for cell in shown], series, note=note))
    caption = (
        "Seconds of one run, training and testing after every task. Each method was trained alone, one run at a time, "
        "with the same engine on the same device, as cclfp study runtime does it. The paper did not publish its times."
    )
    return Chart("runtime", figure.title, caption, "bars", "method", "seconds a run", panels)


def _missing(panel: Panel, series: Series) -> list[str]:
    """The stops that a series has no value for, and not because its seeds diverged."""
    values = zip(panel.stops, series.values, strict=True)
    return [stop for stop, value in values if value is None and panel.lacking(series, stop) == "missing"]


def _lacking(panel: Panel, series: Series) -> str:
    """What a curve lacks: all of it, or some stops."""
    missing = _missing(panel, series)
    where = "" if len(missing) == len(panel.stops) else f" ({', '.join(missing)})"
    return series.label + where if missing else ""


def _buffer(table: Table) -> Chart:
    sizes = sorted({row.buffer for row in table.rows if row.buffer is not None})
    panels = []
    for i, column in enumerate(table.columns):
        series = []
        for label in dict.fromkeys(row.label for row in table.rows):
            found = {row.buffer: row.entries[i] for row in table.rows if row.label == label}
            method = next(entry.cell.method for entry in found.values() if entry is not None)
            series += [
                Series(method, label, [_ours(found.get(size)) for size in sizes]),
                Series(method, f"{label}, paper", [_papers(found.get(size)) for size in sizes], paper=True),
            ]
        places, diverged = [math.log10(size) for size in sizes], _remarks([row.entries[i] for row in table.rows])
        panels.append(Panel(column_title(column), list(map(str, sizes)), series, places, diverged=diverged))
    caption = "Average accuracy by the end of training, against the number of examples the memory holds."
    return Chart(
        "buffer",
        "Accuracy against the size of the memory",
        caption,
        "lines",
        "examples in memory",
        "average accuracy (%)",
        panels,
    )


def _ablation(table: Table) -> Chart:
    panels = []
    for i, column in enumerate(table.columns):
        series = [
            Series("ours", "ours", [_ours(row.entries[i]) for row in table.rows]),
            Series("ours", "paper", [_papers(row.entries[i]) for row in table.rows], paper=True),
        ]
        stops, diverged = [variant(row.label) for row in table.rows], _remarks([row.entries[i] for row in table.rows])
        panels.append(Panel(column_title(column), stops, series, diverged=diverged))
    caption = (
        "Which of the three components are there: feature propagation (w), contrastive rehearsal (α), the supervised "
        "contrastive loss (β). With none of them the method is ER, with the first two CCL-FP; all have CCL-FP+'s other "
        "hyperparameters."
    )
    return Chart("ablation", "What each component adds", caption, "dots", "components", "average accuracy (%)", panels)


def variant(label: str) -> str:
    """An ablation's row, with the method that it is.

    >>> variant("w, α")
    'w, α (CCL-FP)'
    """
    known = {"none": "ER", "w, α": "CCL-FP", "w, α, β": "CCL-FP+"}
    return f"{label} ({known[label]})" if label in known else label


def _ours(entry: Entry | None) -> Value | None:
    return None if entry is None else _value(list(entry.comparison.seeds.accuracies.values()))


def _papers(entry: Entry | None) -> Value | None:
    return None if entry is None else Value(entry.cell.published.mean, entry.cell.published.std)
