"""What ``run``, ``study`` and ``tune`` print: configurations over their seeds as tables and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cclfp.cli.output import (
    OTHER_CODE,
    hyperparameters,
    number,
    plus_minus,
    print_json,
    print_table,
    print_text,
    signed,
)
from cclfp.metrics import of_seeds_diverged

if TYPE_CHECKING:
    from cclfp.cli.progress import Progress
    from cclfp.events import Event
    from cclfp.paper.search import Tuned
    from cclfp.paper.study import Column, Study
    from cclfp.paper.trials import Trial
    from cclfp.runs.execution import Execution
    from cclfp.runs.record import Record
    from cclfp.runs.results import Result

MARKS = {"best": " *", "similar": " =", "worse": "", "unknown": ""}
SHOWN = 10  # how many of the settings that were tried are shown

# A column of a table: its title, ">" for numbers, and the text of a result.
TextColumn = tuple[str, Callable[["Result"], str]]
ACCURACY: TextColumn = (">average accuracy", lambda r: _accuracy(r))
PAPER: TextColumn = (">paper", lambda r: "–" if r.published is None else plus_minus(*r.published))
DIFFERENCE: TextColumn = (">difference", lambda r: signed(r.difference))
VERDICT: TextColumn = ("within 2 std", lambda r: r.verdict or "–")
FORGETTING: TextColumn = (">forgetting", lambda r: plus_minus(**r.mean_std("forgetting")))
SECONDS: TextColumn = (">seconds per run", lambda r: number(r.mean_std("seconds")["mean"], 1))


def _print(results: Sequence[Result], names: Sequence[str], columns: Sequence[TextColumn], title: str) -> None:
    """A row per result, which begins with its name."""
    rows = [[name, *(text(result) for _, text in columns)] for name, result in zip(names, results, strict=True)]
    print_table(["method", *(head for head, _ in columns)], rows, title, drop=("seconds per run", "forgetting"))


def _about(result: Result, memory: Sequence[str] = ()) -> list[str]:
    """What the results of a table are trained on, in words."""
    from cclfp.runs.results import benchmark_title, describe_protocol

    c = result.configuration
    return [benchmark_title(c.benchmark), f"{c.scenario}-incremental", *memory, *describe_protocol(c)]


def _show_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}"


def _labels(results: Sequence[Result]) -> list[str]:
    from cclfp.runs.configuration import method_labels

    return method_labels([result.configuration.to_dict() for result in results])


# cclfp run ------------------------------------------------------------------------------------------------------------


def print_results(results: Sequence[Result], varied: Sequence[str], include_diverged: bool) -> None:
    """One row per configuration, with the settings that vary and the published numbers where there are any."""
    from cclfp.paper import published_for
    from cclfp.runs.configuration import show_value

    def setting(name: str) -> TextColumn:
        def show(result: Result) -> str:
            value = {**result.configuration.to_dict(), **result.configuration.hyperparameters}.get(name)
            return "–" if value is None else show_value(value)

        return name, show

    results = [
        dataclasses.replace(r, published=published_for(r.configuration), include_diverged=include_diverged)
        for r in results
    ]
    first = results[0]
    memory = [f"memory {size}" for size in {r.configuration.buffer for r in results} - {None}]
    held_out = ["tested on held-out training images"] if first.configuration.validation else []
    title = ", ".join([*_about(first, memory), *held_out, _show_seeds([run["seed"] for run in first.runs])])
    columns = [
        *map(setting, varied),
        ACCURACY,
        *([PAPER] if any(r.published for r in results) else []),
        FORGETTING,
        SECONDS,
    ]
    _print(results, _labels(results), columns, f"{title}: mean ± std, %")
    _explain_other_code(results)


def _accuracy(result: Result) -> str:
    """The number, with a mark where runs of other code are among its seeds; how many, where not all are."""
    others, count = len(result.other_code), len(result.runs)
    text = result.text(between="\n") + f" {OTHER_CODE}" * bool(others)
    return text + f"\n{OTHER_CODE} {others} of {count} seeds" * (0 < others < count)


def _explain_other_code(results: Sequence[Result]) -> None:
    """What the mark means, below the tables that have one."""
    from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code, is_other_code

    runs = {run["key"]: run for result in results for run in result.runs}.values()
    if others := [run for run in runs if is_other_code(run)]:
        print_text(f"{OTHER_CODE} {describe_other_code(others, len(runs))}: {OTHER_CODE_HINT}")


def result_to_dict(result: Result, include_diverged: bool) -> dict[str, Any]:
    """A configuration for ``--json``, with the published number."""
    from cclfp.paper import published_for

    published = published_for(result.configuration)
    values = result.to_dict(include_diverged=include_diverged)
    rest = {name: values.pop(name) for name in ("diverged", "other_code", "runs")}
    return {**values, "published": None if published is None else published._asdict(), **rest}


def print_shard(execution: Execution, records: Sequence[Record], json: bool) -> None:
    """How many runs a part has, in which store they are, and how to put the parts together."""
    from cclfp.runs.execution import parse_shard
    from cclfp.runs.jobs import store_of

    part, count = parse_shard(str(execution.shard))
    store = store_of(execution)
    if json:
        print_json({"shard": execution.shard, "store": str(store), "keys": [record["key"] for record in records]})
        return
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    typer.echo(f"part {part} of {count}: {runs}, in {store}" if records else f"part {part} of {count} has no runs")
    parts = f"{shlex.quote(str(store.parent))}/shard-*-of-{count}.sqlite"
    typer.echo(f"when all parts are there: cclfp runs import {parts} --store {shlex.quote(str(execution.store))}")


# cclfp study ----------------------------------------------------------------------------------------------------------


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

    planned = study.missing_by_result()
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
        rows = map(_plan_row, parts, _labels([result for result, _ in planned]))
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
    _explain_other_code(found)
    _print_not_tuned(study)


def print_column(results: Sequence[Result], seeds: Sequence[int]) -> None:
    """A column of the paper's as a table, like that of ``cclfp run``."""
    from cclfp.paper import TABLES

    first = results[0]
    title = ", ".join([*_about(first), _show_seeds(seeds), "%"])
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
    _explain_other_code(results)


def _print_own_column(results: Sequence[Result], seeds: Sequence[int]) -> None:
    from cclfp.paper.compare import show_difference, show_p

    labels = _labels(results)
    title = ", ".join([*_about(results[0], [results[0].table]), _show_seeds(seeds)])
    best: TextColumn = (">to the best", lambda r: show_difference(r.standing))
    p: TextColumn = (">p", lambda r: show_p(r.standing.p))
    _print(results, labels, [ACCURACY, best, p, FORGETTING, SECONDS], f"{title}: mean ± std, %")
    for label, result in zip(labels, results, strict=True):
        print_text(f"  {label}: {_settings(result)} ({'; '.join([result.chosen, *result.doubts])})")


def _settings(result: Result) -> str:
    return hyperparameters(result.configuration.hyperparameters | {"augment": result.configuration.augment})


def _print_all(columns: Sequence[Sequence[Result]]) -> None:
    every = [result for several in columns for result in several]
    labels = _labels(every)
    found = {(r.column, r.table, label): r for label, r in zip(labels, every, strict=True)}
    rows = [
        [label, *(_marked(found[several[0].column, several[0].table, label]) for several in columns)]
        for label in dict.fromkeys(labels)
    ]
    names = [_about(several[0], [several[0].table]) for several in columns]
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


# cclfp tune -----------------------------------------------------------------------------------------------------------


def tuned_to_dict(tuned: Tuned) -> dict[str, Any]:
    """A search for ``--json``."""
    trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in tuned.trials]
    chosen = {"preset": dataclasses.asdict(tuned.preset), "settings": tuned.settings, "doubts": tuned.doubts}
    return {**chosen, "trials": trials}


def print_tuned(tuned: Tuned, write: Path | None) -> None:
    preset = tuned.preset
    if tuned.trials:
        _print_trials(tuned)
    settings = hyperparameters(tuned.settings | preset.hyperparameters | {"augment": preset.augment})
    place = tuned.problem
    options = ["--scenario", str(place.scenario)]
    options += ["--memory", str(place.memory)] if place.memory != 200 else []
    options += [] if place.tasks is None else ["--tasks", str(place.tasks)]
    options += [] if place.class_order is None else ["--class-order", str(place.class_order)]
    options += [] if place.backbone is None else ["--backbone", place.backbone]
    print_text(f"chosen: {settings}")
    print_text(f"how: {preset.chosen}")
    for doubt in tuned.doubts:
        print_text(f"note: {doubt}")
    typer.echo(f"to use it: cclfp run {tuned.method} {place.benchmark} {settings} {shlex.join(options)}")
    if write is not None:
        typer.echo(f"written to {write}")


def _print_trials(tuned: Tuned) -> None:
    from cclfp.runs.configuration import show_value

    varied = [name for name in tuned.trials[0].settings if len({t.settings[name] for t in tuned.trials}) > 1]
    rows = [
        [
            *(show_value(trial.settings[name]) for name in varied),
            _score(trial),
            str(trial.seeds),
        ]
        for trial in tuned.trials[:SHOWN]
    ]
    preset, count = tuned.preset, len(tuned.trials)
    title = f"{preset.method} on {preset.benchmark}, {preset.scenario}-incremental, on held-out training images, %: "
    title += f"the best {SHOWN} of {count} settings" if count > SHOWN else f"{count} setting{'' if count == 1 else 's'}"
    print_table([*(f">{name}" for name in varied), ">average accuracy", ">seeds"], rows, title)
    if diverged := sum(bool(trial.diverged) for trial in tuned.trials):
        print_text(f"{diverged} of {count} settings had a run that diverged: they are ranked last and never chosen")


def _score(trial: Trial) -> str:
    remark = of_seeds_diverged(len(trial.diverged), trial.seeds)
    parts = [] if trial.mean is None else [plus_minus(trial.mean, trial.std)]
    return "\n".join(parts + [remark] * bool(remark))


def print_chosen(searches: Sequence[Tuned]) -> None:
    """What each search chose, from how many settings."""
    from cclfp.runs.configuration import method_labels
    from cclfp.runs.settings import make_one

    methods = method_labels([make_one(tuned.method, tuned.problem).to_dict() for tuned in searches])
    for method, tuned in zip(methods, searches, strict=True):
        best = tuned.trials[0] if tuned.trials else None
        how = "nothing to search"
        if best is not None:
            count = len(tuned.trials)
            how = f"{count} setting{'s' * (count > 1)} tried, {plus_minus(best.mean, best.std)} % on held-out images"
        settings = hyperparameters(tuned.settings | {"augment": tuned.preset.augment})
        print_text(f"{method}: {settings} ({'; '.join([how, *tuned.doubts])})")
