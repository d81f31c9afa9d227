"""``cclfp study``: trains, and prints the paper's columns beside the published numbers, or those of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cclfp.cli.output import hyperparameters, number, print_json, print_table, print_text, signed
from cclfp.cli.printing import (
    ACCURACY,
    FORGETTING,
    PAPER,
    SECONDS,
    TextColumn,
    describe,
    explain_other_code,
    labels_of,
    print_rows,
    show_seeds,
)

if TYPE_CHECKING:
    from cclfp.cli.progress import Progress
    from cclfp.events import Event
    from cclfp.paper.study import Column, Study
    from cclfp.runs.record import Record
    from cclfp.runs.results import Result

MARKS = {"best": " *", "similar": " =", "worse": "", "unknown": ""}
DIFFERENCE: TextColumn = (">difference", lambda r: signed(r.difference))
VERDICT: TextColumn = ("within 2 std", lambda r: r.verdict or "–")


def train(study: Study, include_diverged: bool, json: bool) -> None:
    """Train what is missing and print the study, also if a run fails.

    Of the paper's tables there is a line about each cell when its last run is finished, and a column's table when all
    are. Columns that are not complete in the end are printed too.
    """
    from cclfp.cli.progress import progress

    printed: set[Column] = set()
    try:
        with progress() as shown:
            is_papers = study.what not in ("runtime", "mine")
            listen = _Listener(study, shown, printed, include_diverged, json) if is_papers else shown.update
            study.train(listen)
    finally:
        if study.what == "runtime":
            print_times(study, json)
        elif study.what == "mine":
            print_own(study, include_diverged, json)
        else:
            print_rest(study, printed, include_diverged, json)


class _Listener:
    """Prints what a study has completed: lines about cells, tables of columns."""

    def __init__(self, study: Study, shown: Progress, printed: set[Column], include_diverged: bool, json: bool) -> None:
        self.shown, self.printed, self.seeds, self.json = shown, printed, study.seeds, json
        cells = [dataclasses.replace(cell, include_diverged=include_diverged) for cell in study.results]
        self.cells = [(cell, [cell.key(seed) for seed in study.seeds]) for cell in cells]
        self.records: dict[str, Record] = {}

    def __call__(self, event: Event) -> None:
        from cclfp.events import Finished, Stored

        self.shown.update(event)
        if isinstance(event, Stored | Finished):
            self.records[event.key] = event.record
        if isinstance(event, Finished):
            self.print_complete(event.key)

    def print_complete(self, key: str) -> None:
        """Print what this run has completed."""
        from cclfp.paper.study import by_column

        found = [
            dataclasses.replace(c, runs=[self.records[k] for k in ks if k in self.records]) for c, ks in self.cells
        ]
        for result, (_, keys) in zip(found, self.cells, strict=True):
            if key in keys and len(result.runs) == len(keys):
                self.shown.say(line(result))
        for column, results in by_column(found).items():
            is_complete = all(len(result.runs) == len(self.seeds) for result in results)
            if is_complete and not self.json and column not in self.printed:
                self.printed.add(column)
                with self.shown.aside():
                    print_column(results, self.seeds)


def print_plan(study: Study, json: bool) -> None:
    """What would be trained, by configuration."""
    from cclfp.runs.jobs import steps

    planned = study.missing()
    parts: list[dict[str, Any]] = [
        {
            "method": (c := result.configuration).method,
            "method_file": c.to_dict().get("method_file"),
            "benchmark": c.benchmark,
            "scenario": c.scenario,
            "buffer": c.buffer,
            "hyperparameters": c.hyperparameters,
            "augment": c.augment,
            "preset": result.is_tuned,
            "from": result.chosen,
            "seeds": [job.seed for job in jobs],
            "replica_steps": sum(steps(job.configuration) for job in jobs),
        }
        for result, jobs in planned
    ]
    path, missing = str(study.store), sum(len(part["seeds"]) for part in parts)
    total = sum(part["replica_steps"] for part in parts)
    if json:
        counts = {"store": path, "missing": missing, "replica_steps": total}
        print_json({**counts, "plan": parts, "not_tuned": study.not_tuned})
        return
    if parts:
        columns = ["benchmark", "scenario", "method", ">memory", "settings", "from", "seeds", ">replica-steps"]
        rows = map(_plan_row, parts, labels_of([result for result, _ in planned]))
        title = "To be trained, the longest runs first"
        print_table(columns, rows, title, drop=("replica-steps", "from", "settings"))
    print_text(f"{len(study.jobs) - missing} of {len(study.jobs)} runs are in the store {path}")
    typer.echo(f"{missing} runs to train, {total:,} replica-steps")
    _print_not_tuned(study)


def _plan_row(part: dict[str, Any], method: str) -> list[str]:
    return [
        part["benchmark"],
        part["scenario"],
        method,
        "–" if part["buffer"] is None else str(part["buffer"]),
        hyperparameters(part["hyperparameters"] | ({"augment": True} if part["augment"] else {})),
        part["from"],
        ",".join(map(str, part["seeds"])),
        f"{part['replica_steps']:,}",
    ]


def print_rest(study: Study, printed: Collection[Column], include_diverged: bool, json: bool) -> None:
    """The columns that have runs and were not printed yet, then how many numbers agree; nothing where no run is."""
    from cclfp.paper.study import by_column

    found = study.found(include_diverged)
    if not any(result.runs for result in found):
        return
    if json:
        cells = [_cell_to_dict(result) for result in found]
        print_json({"store": str(study.store), "cells": cells, "not_tuned": study.not_tuned})
        return
    for column, results in by_column(found).items():
        if column not in printed and any(result.runs for result in results):
            print_column(results, study.seeds)
    print_text(_summary(found))
    explain_other_code(found)
    _print_not_tuned(study)


def print_column(results: Sequence[Result], seeds: Sequence[int]) -> None:
    """A column of the paper's as a table, like that of ``cclfp run``."""
    from cclfp.paper import TABLES

    first = results[0]
    title = ", ".join([*describe(first), show_seeds(seeds), "%"])
    columns = [ACCURACY, PAPER, DIFFERENCE, VERDICT]
    rows = [[result.label, *(text(result) for _, text in columns)] for result in results]
    heads = ["components" if first.table == "ablation" else "method", *(head for head, _ in columns)]
    if first.table == "buffer":
        heads = [">memory", *heads]
        rows = [[str(result.configuration.buffer), *row] for result, row in zip(results, rows, strict=True)]
    print_table(heads, rows, f"{TABLES[first.table]}: {title}")


def print_times(study: Study, json: bool) -> None:
    """How long each method's run took, per benchmark; a dash where it was not measured like the others."""
    from cclfp.runs.results import benchmark_title

    panels = study.panels()
    if json:
        print_json({"store": str(study.store), "panels": panels, "not_tuned": study.not_tuned})
        return
    for panel in panels:
        title = f"Run time: {benchmark_title(panel['benchmark'])}, {panel['scenario']}-incremental, "
        rows = [[name, *(number(seconds, 1) for seconds in times.values())] for name, times in panel["times"].items()]
        columns = ["method", ">training", ">testing", ">seconds per run"]
        print_table(columns, rows, f"{title}each method alone on {panel['made']}")
    _print_not_tuned(study)


def line(result: Result) -> str:
    """A cell of the paper in one line."""
    c = result.configuration
    row = {"buffer": f"{result.label}, memory {c.buffer}", "ablation": f"components {result.label}"}
    paper = f"paper {PAPER[1](result)}, {VERDICT[1](result)}"
    name = f"{result.table} table, {c.benchmark} {c.scenario}, {row.get(result.table, result.label)}"
    return f"{name}: {result.text()} ({paper})"


def _summary(results: Sequence[Result]) -> str:
    counts = {v: sum(result.verdict == v for result in results) for v in ("within", "above", "below", None)}
    diverged = sum(len(r.diverged) == len(r.runs) > 0 and r.mean is None for r in results)
    text = f"{len(results)} cells: {counts['within']} within two standard deviations of the paper's number, "
    text += f"{counts['above']} above, {counts['below']} below"
    text += f", {counts[None] - diverged} with too few runs to tell" if counts[None] > diverged else ""
    return text + (f", {diverged} of which all seeds diverged" if diverged else "")


def _print_not_tuned(study: Study) -> None:
    if several := study.not_tuned:
        names = ", ".join(f"{c['method']} on {c['benchmark']} ({c['scenario']})" for c in several)
        print_text(f"no preset, trained with the defaults and not tuned: {names}")


def _cell_to_dict(result: Result) -> dict[str, Any]:
    from cclfp.paper.numbers import missing_components

    c = result.configuration
    return {
        "table": result.table,
        "row": result.label,
        "benchmark": c.benchmark,
        "scenario": c.scenario,
        "method": c.method,
        "buffer": c.buffer,
        "settings": missing_components(result),
        "preset": result.is_tuned,
        "published": None if result.published is None else result.published._asdict(),
        "runs": len(result.runs),
        "mean": result.mean,
        "std": result.std,
        "difference": result.difference,
        "verdict": result.verdict,
        "diverged": result.diverged,
        "other_code": result.other_code,
    }


# cclfp study mine -----------------------------------------------------------------------------------------------------


def print_own(study: Study, include_diverged: bool, json: bool) -> None:
    """All that the store has of a study of one's own; nothing where it has none of its runs."""
    from cclfp.paper.study import by_column

    found = by_column(study.found(include_diverged)).values()
    columns = [several for several in found if any(result.runs for result in several)]
    results = [result for several in columns for result in several]
    if not columns:
        return
    if json:
        print_json({"store": str(study.store), "cells": [_own_to_dict(result) for result in results]})
        return
    for several in columns:
        _print_own_column(several, study.seeds)
    if len(columns) > 1:
        _print_all(columns)
    _print_explanation(columns)
    explain_other_code(results)


def _print_own_column(results: Sequence[Result], seeds: Sequence[int]) -> None:
    from cclfp.paper.compare import show_difference, show_p

    labels = labels_of(results)
    title = ", ".join([*describe(results[0], [results[0].table]), show_seeds(seeds)])
    best: TextColumn = (">to the best", lambda r: show_difference(r.standing))
    p: TextColumn = (">p", lambda r: show_p(r.standing.p))
    print_rows(results, labels, [ACCURACY, best, p, FORGETTING, SECONDS], f"{title}: mean ± std, %")
    for label, result in zip(labels, results, strict=True):
        print_text(f"  {label}: {_settings(result)} ({'; '.join([result.chosen, *result.doubts])})")


def _settings(result: Result) -> str:
    return hyperparameters(result.configuration.hyperparameters | {"augment": result.configuration.augment})


def _print_all(columns: Sequence[Sequence[Result]]) -> None:
    every = [result for several in columns for result in several]
    labels = labels_of(every)
    found = {(r.column, r.table, label): r for label, r in zip(labels, every, strict=True)}
    rows = [
        [label, *(_marked(found[several[0].column, several[0].table, label]) for several in columns)]
        for label in dict.fromkeys(labels)
    ]
    names = [describe(several[0], [several[0].table]) for several in columns]
    same = [part for part in names[0] if all(part in other for other in names)]
    heads = [", ".join(part for part in parts if part not in same) for parts in names]
    title = ", ".join(["All columns", *same])
    print_table(["method", *(f">{head}" for head in heads)], rows, f"{title}: mean ± std, %")


def _marked(result: Result) -> str:
    return ACCURACY[1](result) + (MARKS[result.standing.verdict] if result.runs else "")


def _print_explanation(columns: Sequence[Sequence[Result]]) -> None:
    from cclfp.paper.compare import TEST
    from cclfp.runs.results import LEVEL

    if any(len(several) > 1 for several in columns):
        print_text(TEST)
    if len(columns) > 1:
        print_text(f"* the best of its column, = not different from it beyond chance (p of {LEVEL:g} or more)")
    untuned = [result for several in columns for result in several if not result.is_tuned]
    if untuned:
        named = dict.fromkeys(f"{r.label} on {r.column[0]} ({r.column[1]})" for r in untuned)
        print_text(f"not tuned, trained with the defaults: {', '.join(named)} (cclfp tune, or --auto MINUTES)")


def _own_to_dict(result: Result) -> dict[str, Any]:
    c, s = result.configuration, result.standing
    return {
        "method": c.method,
        "given": result.label,
        "benchmark": c.benchmark,
        "scenario": c.scenario,
        "buffer": c.buffer,
        "settings": c.hyperparameters | {"augment": c.augment},
        "chosen": result.chosen,
        "doubts": list(result.doubts),
        "runs": len(result.runs),
        **{name: result.mean_std(name) for name in ("average_accuracy", "forgetting", "seconds")},
        "accuracies": {str(seed): accuracy for seed, accuracy in result.accuracies.items()},
        "diverged": result.diverged,
        "other_code": result.other_code,
        "standing": s.verdict,
        "difference": s.difference,
        "difference_std": s.std,
        "common_seeds": s.common,
        "p": s.p,
    }
