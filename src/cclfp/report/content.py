"""Everything the report shows, collected from the runs in a store: the paper's tables and those of one's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cclfp.methods import METHODS
from cclfp.paper.compare import rank_results
from cclfp.paper.numbers import (
    TABLES,
    TIMING_SEED,
    Timing,
    cells,
    columns,
    gather_timings,
    run_time_cells,
)
from cclfp.paper.searches import stored_doubts
from cclfp.report.tables import OWN, Column, Table, distinct, environments, place_title
from cclfp.runs.configuration import USUAL, Configuration, method_labels, show_value
from cclfp.runs.record import Record
from cclfp.runs.results import Result, Standing
from cclfp.runs.store import Store

# What the runs of one table of one's own share, besides the size of the memory.
SHARED = ("benchmark", "scenario", "class_order", "tasks", "backbone", "batch", "epochs", "max_classes")


@dataclasses.dataclass(frozen=True)
class Content:
    """All that a report shows: the paper's tables, those of one's own runs, and how long the paper's methods took."""

    seeds: list[int]
    tables: list[Table]
    own: list[Table]
    timed: list[tuple[Result, Timing | None]]  # the cells of the run-time figure
    other_runs: int  # that are in none of the paper's tables
    held_out: int  # runs on held-out data, which chose hyperparameters

    @property
    def results(self) -> list[Result]:
        """The cells of the paper's tables."""
        return [result for table in self.tables for result in table.results]

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The environments of all runs in the paper's tables, each once."""
        return distinct([environment for result in self.results for environment in environments(result)])

    @property
    def latest(self) -> str | None:
        """The day on which the newest run finished."""
        return max((run["finished_at"][:10] for result in self.results for run in result.runs), default=None)

    @property
    def runs(self) -> int:
        """The number of runs behind the numbers; runs that several tables share count once."""
        return len({run["key"] for result in self.results for run in result.runs})

    @property
    def about_others(self) -> str:
        """``12 runs are not in the paper's tables``; empty where all are."""
        return f"{_count(self.other_runs)} not in the paper's tables" if self.other_runs else ""

    @property
    def about_held_out(self) -> str:
        """About the runs that no table shows."""
        return f"{_count(self.held_out)} on held-out images, made to choose hyperparameters" if self.held_out else ""


def collect(store: Store, seeds: Sequence[int], include_diverged: bool = False) -> Content:
    """The content of the report for these seeds of a store.

    Means and curves leave out runs that diverged, unless ``include_diverged``.
    """
    tables = [_papers_table(name, store, seeds, include_diverged) for name in TABLES]
    timed = run_time_cells()
    in_tables = {run["key"] for table in tables for result in table.results for run in result.runs}
    in_tables |= {cell.key(TIMING_SEED) for cell in timed}
    records = store.records()
    others = [record for record in records if record["key"] not in in_tables]
    held_out = sum(_values(record)["validation"] for record in others)
    own = [_with_doubts(table, store.path) for table in _own_tables(records, in_tables, include_diverged)]
    timings = list(zip(timed, gather_timings(timed, store), strict=True))
    return Content(list(seeds), tables, own, timings, len(others) - held_out, held_out)


# The paper's ----------------------------------------------------------------------------------------------------------


def _papers_table(name: str, store: Store, seeds: Sequence[int], include_diverged: bool) -> Table:
    results = _mark_best([cell.find_runs(store, seeds, include_diverged) for cell in cells(name)])
    by_row: dict[tuple[str, int | None], dict[Column, Result]] = {}
    for result in results:
        memory = result.configuration.buffer if name == "buffer" else None
        by_row.setdefault((result.label, memory), {})[result.column] = result
    rows = [[row.get(column) for column in columns(name)] for row in by_row.values()]
    return Table(name, TABLES[name], columns(name), rows, seeds)


def _mark_best(results: Sequence[Result]) -> list[Result]:
    """Mark the highest mean of each column (and memory size), as displayed: ours and the published one.

    Joint does not count, and nothing is the best of a column with a missing mean.
    """

    def group(result: Result) -> tuple[Column, int | None]:
        return result.column, result.configuration.buffer if result.table == "buffer" else None

    ours, papers = ({group(result): list[float | None]() for result in results} for _ in range(2))
    for result in results:
        if not result.is_joint:
            ours[group(result)].append(result.mean)
            papers[group(result)].append(None if result.published is None else result.published.mean)

    def is_best(result: Result, mean: float | None, means: Sequence[float | None]) -> bool:
        known = [round(other, 2) for other in means if other is not None]
        is_known = mean is not None and not result.is_joint and len(known) == len(means)
        return is_known and round(mean or 0.0, 2) == max(known)

    return [
        dataclasses.replace(
            result,
            standing=Standing(
                best=is_best(result, result.mean, ours[group(result)]),
                best_published=is_best(result, result.published and result.published.mean, papers[group(result)]),
            ),
        )
        for result in results
    ]


# One's own ------------------------------------------------------------------------------------------------------------


def _own_tables(records: Sequence[Record], in_tables: Collection[str], include_diverged: bool) -> list[Table]:
    """The tables of all records that share their benchmark and protocol with one that is in no table of the paper."""
    tested = [(record, values) for record in records if not (values := _values(record))["validation"]]
    outside = {_shared(values) for record, values in tested if record["key"] not in in_tables}
    places: dict[str, list[tuple[Record, dict[str, Any]]]] = {}
    for record, values in tested:
        if _shared(values) in outside:
            places.setdefault(_shared(values), []).append((record, values))
    return [table for several in places.values() for table in _tables_of_place(several, include_diverged)]


def _with_doubts(table: Table, store: Path) -> Table:
    """The table with what searches beside the store say about the settings that they chose."""
    rows: list[list[Result | None]] = [
        [dataclasses.replace(result, doubts=tuple(stored_doubts(store, result.configuration)))]
        for result in table.results
    ]
    return dataclasses.replace(table, rows=rows)


def _tables_of_place(several: Sequence[tuple[Record, dict[str, Any]]], include_diverged: bool) -> list[Table]:
    """A table per size of the memory; methods without a memory are in each."""
    found: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for record, values in several:
        file = values["method_file"]
        identity = json.dumps({**values, "method_file": None if file is None else file["sha256"]}, sort_keys=True)
        found.setdefault(identity, (values, []))[1].append(record)
    results = [
        Result(
            Configuration.from_dict(values),
            sorted(runs, key=lambda run: run["seed"]),
            chosen="as they were run",
            include_diverged=include_diverged,
        )
        for values, runs in found.values()
    ]
    results = [
        dataclasses.replace(result, label=label) for result, label in zip(results, _labels(results), strict=True)
    ]
    order = {name: place for place, name in enumerate(METHODS)}  # a user's own come last
    tables = []
    sizes = sorted({r.configuration.buffer for r in results if r.configuration.buffer is not None})
    for size in sizes if sizes else [None]:
        rows = rank_results([r for r in results if r.configuration.buffer in (size, None)])
        rows.sort(key=lambda result: order.get(result.configuration.method, len(order)))
        title = ", ".join([place_title(rows[0]), *([] if size is None else [f"memory {size}"])])
        tables.append(Table(OWN, title, [rows[0].column], [[row] for row in rows], memory=size))
    return tables


def _labels(results: Sequence[Result]) -> list[str]:
    """A name per result: the method, its version where there are several, and the settings that vary."""
    labels = []
    names = method_labels([result.configuration.to_dict() for result in results])
    for name, result in zip(names, results, strict=True):
        method = result.configuration.method
        alike = [other.settings for other in results if other.configuration.method == method]
        varied = [setting for setting in result.settings if len({other.get(setting) for other in alike}) > 1]
        labels.append(" ".join([name, *(f"{setting}={show_value(result.settings[setting])}" for setting in varied)]))
    return labels


def _values(record: Record) -> dict[str, Any]:
    """The configuration of a record, which may be older than a setting."""
    return {**USUAL, **record["configuration"]}


def _shared(values: dict[str, Any]) -> str:
    return json.dumps({name: values[name] for name in SHARED}, sort_keys=True)


def _count(number: int) -> str:
    return f"{number:,} run is" if number == 1 else f"{number:,} runs are"
