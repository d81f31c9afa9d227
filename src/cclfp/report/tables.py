"""Tables of results, the paper's and one's own: collected from a store, and described in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from cclfp.events import Note, OnEvent, ignore
from cclfp.methods import METHODS
from cclfp.metrics import count_of
from cclfp.paper.compare import component_worths, rank_results
from cclfp.paper.numbers import COMPONENTS, TABLES, TIMING_SEED, cells, gather_timings, run_time_cells
from cclfp.paper.search import Json, read_searches, stored_doubts
from cclfp.runs.code import OTHER_CODE, OTHER_CODE_RISK
from cclfp.runs.configuration import PROTOCOL, Configuration, method_labels, show_value
from cclfp.runs.record import Record
from cclfp.runs.results import Result, Standing, benchmark_title, describe_protocol, explain_other_code
from cclfp.runs.store import Store

Column = tuple[str, str]  # a benchmark and a scenario
OWN = "own"  # the name of tables of one's own
# What the runs of one table of one's own share, besides the size of the memory.
SHARED = ("benchmark", "scenario", "class_order", "tasks", "backbone", "batch", "epochs", "max_classes")
VERDICTS = {
    "within": "within two standard deviations of the paper's number",
    "above": "above the paper's number by more than two standard deviations",
    "below": "below the paper's number by more than two standard deviations",
    "unjudged": "only one seed, and no published standard deviation to compare with",
    "missing": "not trained yet",
    "diverged": "all seeds diverged, so there is no mean",
}
RARE_VERDICTS = ("unjudged", "diverged")  # shown only where a number has them
UNTUNED = "†"
# The fields of a record's environment that the report shows, with their titles, the most important first.
ENVIRONMENT = {"device_name": "device", "device": "kind of device"}
ENVIRONMENT |= {n: n for n in ("engine", "precision", "threads", "cclfp", "torch", "commit", "source", "platform")}


@dataclasses.dataclass(frozen=True)
class Table:
    """Results in rows and columns; None where a number is not defined. Tables of one's own have one column."""

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Result | None]]
    seeds: Sequence[int] = ()  # that were asked for

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows for result in row if result is not None]

    @property
    def heads(self) -> list[str]:
        """The titles of the columns before the numbers."""
        return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(self.name, ["Method"])

    @property
    def notes(self) -> list[str]:
        """What to know about its rows: doubts about settings that a search chose, and runs of other code."""
        doubts = [f"{result.label}: {'; '.join(result.doubts)}" for result in self.results if result.doubts]
        return doubts + explain_other_code(self.results, OTHER_CODE_RISK)


# Collected from a store -----------------------------------------------------------------------------------------------


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
    def shown(self) -> list[Result]:
        """All results, also those of one's own and of the run-time figure."""
        return [*self.results, *(result for table in self.own for result in table.results), *self.timed]

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
        return _runs_are(self.other_runs, "not in the paper's tables")

    @property
    def about_held_out(self) -> str:
        """About the runs that no table shows."""
        return _runs_are(self.held_out, "on held-out images, made to choose hyperparameters")


def collect(
    store: Store,
    seeds: Sequence[int],
    include_diverged: bool = False,
    on_event: OnEvent = ignore,
    *,
    skip_bad: bool = False,
) -> Content:
    """The content of the report for these seeds of a store; means and curves include diverged runs on request only.

    A bad record is an InputError or, with ``skip_bad``, left out with a note.
    """
    rows = store.rows()
    if skip_bad and (warning := store.describe_bad(rows)):
        on_event(Note(warning))
    found = [row.record for row in rows] if skip_bad else store.records()
    records = {record["key"]: record for record in found if record is not None}
    tables = [_papers_table(name, records, seeds, include_diverged) for name in TABLES]
    timed = gather_timings(run_time_cells(), records.get)
    in_tables = {run["key"] for table in tables for result in table.results for run in result.runs}
    in_tables |= {cell.key(TIMING_SEED) for cell in timed}
    others = [record for key, record in records.items() if key not in in_tables]
    held_out = sum(record["configuration"].get("validation", False) for record in others)
    own = _own_tables(records.values(), in_tables, include_diverged, read_searches(store.path, on_event))
    return Content(list(seeds), tables, own, timed, len(others) - held_out, held_out)


def _papers_table(name: str, records: Mapping[str, Record], seeds: Sequence[int], include_diverged: bool) -> Table:
    found = [cell.find_runs(records.get, seeds, include_diverged) for cell in cells(name)]
    rows: dict[tuple[str, ...], dict[Column, Result]] = {}
    for result in found:
        *memory, _ = labels = row_labels(result)
        compared = [r for r in found if r.column == result.column and row_labels(r)[:-1] == memory and not r.is_joint]
        best = _is_highest(result, compared, lambda r: r.mean)
        best_published = _is_highest(result, compared, lambda r: None if r.published is None else r.published.mean)
        standing = Standing(best=best, best_published=best_published)
        rows.setdefault(tuple(labels), {})[result.column] = dataclasses.replace(result, standing=standing)
    columns = list(dict.fromkeys(result.column for result in found))
    return Table(name, TABLES[name], columns, [[row.get(c) for c in columns] for row in rows.values()], seeds)


def _is_highest(result: Result, compared: Sequence[Result], mean_of: Callable[[Result], float | None]) -> bool:
    """Whether a mean is the highest of those compared, as displayed. False if one of them is missing."""
    means = [round(mean, 2) for r in compared if (mean := mean_of(r)) is not None]
    return not result.is_joint and len(means) == len(compared) and round(mean_of(result) or 0.0, 2) == max(means)


def _own_tables(
    records: Iterable[Record], in_tables: Collection[str], include_diverged: bool, searches: Sequence[Json]
) -> list[Table]:
    """The tables of all records that share their benchmark and protocol with one that is in no table of the paper."""
    found: dict[str, Result] = {}
    places: dict[str, list[Result]] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        c = Configuration.from_dict(record["configuration"])
        if c.validation:
            continue
        if (key := c.key(0)) not in found:
            found[key] = Result(c, [], chosen="as they were run", include_diverged=include_diverged)
            places.setdefault(json.dumps([getattr(c, name) for name in SHARED]), []).append(found[key])
        found[key].runs.append(record)
    return [
        table
        for several in places.values()
        if any(run["key"] not in in_tables for result in several for run in result.runs)
        for table in _tables_of_place(several, searches)
    ]


def _tables_of_place(results: Sequence[Result], searches: Sequence[Json]) -> list[Table]:
    """A table per size of the memory; methods without a memory are in each."""
    names = method_labels([result.configuration for result in results])
    labelled = [
        dataclasses.replace(
            result,
            label=" ".join([name, *_varied_settings(result.configuration, results)]),
            doubts=tuple(stored_doubts(searches, result.configuration)),
        )
        for result, name in zip(results, names, strict=True)
    ]
    order = {name: place for place, name in enumerate(METHODS)}  # a user's own come last
    tables = []
    sizes: Iterable[int | None] = sorted({size for r in results if (size := r.configuration.buffer) is not None})
    for size in sizes or [None]:
        rows = rank_results([result for result in labelled if result.configuration.buffer in (size, None)])
        rows.sort(key=lambda result: order.get(result.configuration.method, len(order)))
        title = place_title(rows[0]) if size is None else f"{place_title(rows[0])}, memory {size}"
        tables.append(Table(OWN, title, [rows[0].column], [[row] for row in rows]))
    return tables


def _varied_settings(c: Configuration, results: Sequence[Result]) -> list[str]:
    """The settings that tell a configuration from others of its method."""
    alike = [r.configuration.settings for r in results if r.configuration.method == c.method]
    varied = {n: value for n, value in c.settings.items() if any(other.get(n) != value for other in alike)}
    return [f"{name}={show_value(value)}" for name, value in varied.items()]


def _runs_are(number: int, what: str) -> str:
    return f"{count_of(number, 'run')} {'is' if number == 1 else 'are'} {what}" if number else ""


# In words -------------------------------------------------------------------------------------------------------------


def worths(table: Table) -> dict[str, dict[str, tuple[str, str]]]:
    """What each component is worth in our runs and in the paper, per column of the ablation; none for other tables."""
    found = {}
    for column in table.columns if table.name == "ablation" else []:
        cells = [result for result in table.results if result.column == column]
        ours = component_worths({cell.label: cell.accuracies for cell in cells})
        papers = component_worths({cell.label: {0: cell.published.mean} for cell in cells if cell.published})
        found[column_title(column)] = {name: (ours[name], papers[name]) for name in ours}
    return found


def verdict_of(result: Result) -> str:
    """A key of ``VERDICTS``."""
    if result.mean is None:
        return "diverged" if result.diverged else "missing"
    return result.verdict or "unjudged"


def count_verdicts(results: Sequence[Result], shown: bool = False) -> dict[str, int]:
    """How many results have each verdict. To be ``shown``, rare verdicts that no result has are left out."""
    verdicts = [verdict_of(result) for result in results]
    names = [name for name in VERDICTS if not shown or name in verdicts or name not in RARE_VERDICTS]
    return {name: verdicts.count(name) for name in names}


def tally(results: Sequence[Result]) -> str:
    """``44 numbers: 35 within, 5 above, 4 below, 0 missing``."""
    parts = [f"{count} {name}" for name, count in count_verdicts(results, shown=True).items()]
    return f"{len(results)} numbers: {', '.join(parts)}"


def marks(result: Result) -> str:
    """The marks that follow our number: † for default hyperparameters, ‡ for runs of other code."""
    return UNTUNED * (result.mean is not None and not result.is_tuned) + OTHER_CODE * bool(result.other_code)


def describe_choice(result: Result) -> str:
    """Where the hyperparameters come from."""
    if not result.table:
        return "; ".join([result.chosen, *result.doubts])
    if not result.is_tuned:
        return "defaults, not tuned"
    if result.table == "ablation" and result.label != ", ".join(COMPONENTS):
        return "preset, except for the components left out"
    return "preset" if result.configuration.buffer in (None, 200) else "preset, tuned with memory 200"


def row_labels(result: Result) -> list[str]:
    """The labels of a row: its name, with the size before it (memories) or the method behind it (components).

    >>> row_labels(Result(None, [], "w, α", table="ablation"))
    ['w, α (CCL-FP)']
    """
    known = {"none": "ER", "w, α": "CCL-FP", "w, α, β": "CCL-FP+"} if result.table == "ablation" else {}
    label = f"{result.label} ({known[result.label]})" if result.label in known else result.label
    return [str(result.configuration.buffer), label] if result.table == "buffer" else [label]


def row_name(result: Result) -> str:
    """A row in words: ``ER-Res., memory 200``."""
    return ", memory ".join(reversed(row_labels(result)))


def place_title(result: Result) -> str:
    """What a run was trained on, without the size of its memory."""
    c = result.configuration
    protocol = [f"{name}={v}" for name in ("batch", "epochs") if (v := getattr(c, name)) != PROTOCOL[name]]
    return ", ".join([column_title(result.column), *describe_protocol(c), *protocol])


def benchmarks(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The titles of the benchmarks of adjacent columns, and the number of columns of each."""
    return [(benchmark_title(name), len(list(group))) for name, group in groupby(columns, lambda column: column[0])]


def column_title(column: Column) -> str:
    return f"{benchmark_title(column[0])}, {column[1]}"


def environments(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The environments of all runs, each once, in the order of first occurrence."""
    runs = [run for result in results for run in result.runs]
    found = ({name: run["environment"].get(name) for name in ENVIRONMENT} for run in runs)
    return list({tuple(environment.values()): environment for environment in found}.values())
