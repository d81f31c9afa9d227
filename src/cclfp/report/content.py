"""Everything the report shows, collected from the runs in a store: the paper's tables and those of one's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from cclfp.methods import METHODS
from cclfp.paper.compare import rank_results
from cclfp.paper.numbers import TABLES, TIMING_SEED, cells, columns, gather_timings, run_time_cells
from cclfp.paper.searches import stored_doubts
from cclfp.report.tables import OWN, Column, Table, environments, place_title
from cclfp.runs.configuration import Configuration, method_labels, show_value
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
    timed: list[Result]  # the cells of the run-time figure, with the run that was made for its time
    other_runs: int  # that are in none of the paper's tables
    held_out: int  # runs on held-out data, which chose hyperparameters

    @property
    def results(self) -> list[Result]:
        """The cells of the paper's tables."""
        return [result for table in self.tables for result in table.results]

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The environments of all runs in the paper's tables, each once."""
        return environments(self.results)

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
    held_out = sum(record["configuration"].get("validation", False) for record in others)
    own = _own_tables(records, in_tables, include_diverged, store.path)
    timings = zip(timed, gather_timings(timed, store), strict=True)
    timed = [dataclasses.replace(cell, runs=[cast(Record, t)] if t else []) for cell, t in timings]
    return Content(list(seeds), tables, own, timed, len(others) - held_out, held_out)


# The paper's ----------------------------------------------------------------------------------------------------------


def _papers_table(name: str, store: Store, seeds: Sequence[int], include_diverged: bool) -> Table:
    rows: dict[tuple[str, int | None], dict[Column, Result]] = {}
    compared: dict[tuple[Column, int | None], list[Result]] = {}
    for cell in cells(name):
        memory = cell.configuration.buffer if name == "buffer" else None
        rows.setdefault((cell.label, memory), {})
        compared.setdefault((cell.column, memory), []).append(cell.find_runs(store, seeds, include_diverged))
    for (column, memory), results in compared.items():
        for result in _mark_best(results):
            rows[result.label, memory][column] = result
    in_columns = [[row.get(column) for column in columns(name)] for row in rows.values()]
    return Table(name, TABLES[name], columns(name), in_columns, seeds)


def _mark_best(results: Sequence[Result]) -> list[Result]:
    """Mark the highest mean of some results, as displayed: ours and the published one. Joint does not count."""
    joint, others = ([result for result in results if result.is_joint == is_joint] for is_joint in (True, False))
    ours = _highest([result.mean for result in others])
    papers = _highest([None if result.published is None else result.published.mean for result in others])
    standings = [Standing(best=a, best_published=b) for a, b in zip(ours, papers, strict=True)]
    return joint + [dataclasses.replace(r, standing=s) for r, s in zip(others, standings, strict=True)]


def _highest(means: Sequence[float | None]) -> list[bool]:
    """Which means are the highest: none where one is missing."""
    known = [round(mean, 2) for mean in means if mean is not None]
    return [mean == max(known) for mean in known] if len(known) == len(means) else [False] * len(means)


# One's own ------------------------------------------------------------------------------------------------------------


def _own_tables(
    records: Sequence[Record], in_tables: Collection[str], include_diverged: bool, store: Path
) -> list[Table]:
    """The tables of all records that share their benchmark and protocol with one that is in no table of the paper."""
    runs: dict[str, list[Record]] = {}
    results: dict[str, Result] = {}
    for record in records:
        c = Configuration.from_dict(record["configuration"])
        runs.setdefault(c.key(0), []).append(record)
        results.setdefault(c.key(0), Result(c, [], chosen="as they were run", include_diverged=include_diverged))
    places: dict[str, list[Result]] = {}
    for key, result in results.items():
        if not (c := result.configuration).validation:
            found = dataclasses.replace(result, runs=sorted(runs[key], key=lambda run: run["seed"]))
            places.setdefault(json.dumps([getattr(c, name) for name in SHARED]), []).append(found)
    return [
        table
        for place in places.values()
        if any(run["key"] not in in_tables for result in place for run in result.runs)
        for table in _tables_of_place(place, store)
    ]


def _tables_of_place(results: Sequence[Result], store: Path) -> list[Table]:
    """A table per size of the memory; methods without a memory are in each."""
    labelled = [
        dataclasses.replace(result, label=label, doubts=tuple(stored_doubts(store, result.configuration)))
        for result, label in zip(results, _labels(results), strict=True)
    ]
    order = {name: place for place, name in enumerate(METHODS)}  # a user's own come last
    tables = []
    sizes: Iterable[int | None] = sorted({size for r in results if (size := r.configuration.buffer) is not None})
    for size in sizes or [None]:
        rows = rank_results([result for result in labelled if result.configuration.buffer in (size, None)])
        rows.sort(key=lambda result: order.get(result.configuration.method, len(order)))
        title = ", ".join([place_title(rows[0]), *([] if size is None else [f"memory {size}"])])
        tables.append(Table(OWN, title, [rows[0].column], [[row] for row in rows]))
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


def _count(number: int) -> str:
    return f"{number:,} run is" if number == 1 else f"{number:,} runs are"
