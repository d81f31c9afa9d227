"""What ``run``, ``study`` and ``tune`` print: configurations over their seeds as tables and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence
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
    from cclfp.paper import Comparison
    from cclfp.paper.own_study import OwnResult, OwnStudy
    from cclfp.paper.search import Tuned
    from cclfp.paper.study import Column, RunTimes, Study
    from cclfp.paper.trials import Trial
    from cclfp.runs.execution import Execution
    from cclfp.runs.record import Record
    from cclfp.runs.run import Result
    from cclfp.runs.seeds import Seeds

MARKS = {"best": " *", "similar": " =", "worse": "", "unknown": ""}
SHOWN = 10  # how many of the settings that were tried are shown


def result_to_dict(result: Result, include_diverged: bool) -> dict[str, Any]:
    from cclfp.paper import published_for

    published = published_for(result.configuration)
    values = result.to_dict(include_diverged=include_diverged)
    rest = {name: values.pop(name) for name in ("diverged", "other_code", "runs")}
    return {**values, "published": None if published is None else published._asdict(), **rest}


def print_results(results: list[Result], varied: list[str], include_diverged: bool) -> None:
    from cclfp.nets.backbones import show_backbone
    from cclfp.paper import published_for
    from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code, is_other_code
    from cclfp.runs.configuration import method_labels, show_value
    from cclfp.streams.benchmarks import get_benchmark, show_order

    c = results[0].configuration
    buffers = {r.configuration.buffer for r in results} - {None}
    seeds = [run["seed"] for run in results[0].runs]
    title = f"{get_benchmark(c.benchmark).title}, {c.scenario}-incremental"
    title += "".join(f", memory {size}" for size in buffers)
    title += f", {order}" if (order := show_order(c.benchmark, c.class_order)) else ""
    title += "" if c.tasks is None else f", {len(c.tasks)} tasks"
    title += "" if c.backbone is None else f", {show_backbone(c.backbone)}"
    title += "" if c.max_classes is None else f", room for {c.max_classes} classes"
    title += ", tested on held-out training images" if c.validation else ""
    title += f", seed{'s' if len(seeds) > 1 else ''} {','.join(map(str, seeds))}: mean ± std, %"
    methods = method_labels([result.configuration.to_dict() for result in results])
    published = [published_for(result.configuration) for result in results]
    has_published = any(published)
    rows = []
    for result, method, paper in zip(results, methods, published, strict=True):
        ours = result.seeds(include_diverged)
        settings = {**result.configuration.to_dict(), **result.configuration.hyperparameters}
        rows.append(
            [
                method,
                *("–" if settings.get(name) is None else show_value(settings[name]) for name in varied),
                _mark(ours.text("average_accuracy", between="\n"), ours),
                *(["–" if paper is None else plus_minus(paper.mean, paper.std)] if has_published else []),
                plus_minus(**ours.mean_std("forgetting")),
                number(ours.mean_std("seconds")["mean"], 1),
            ]
        )
    columns = ["method", *varied, ">average accuracy", *([">paper"] if has_published else [])]
    columns += [">forgetting", ">seconds per run"]
    print_table(columns, rows, title, drop=("seconds per run", "forgetting"))
    runs = [run for result in results for run in result.runs]
    if others := [run for run in runs if is_other_code(run)]:
        print_text(f"{OTHER_CODE} {describe_other_code(others, len(runs))}: {OTHER_CODE_HINT}")


def _mark(text: str, ours: Seeds) -> str:
    """The text with a mark where runs of other code are among its seeds; how many, where not all are."""
    others, count = len(ours.other_code), len(ours.runs)
    return text + f" {OTHER_CODE}" * bool(others) + f"\n{OTHER_CODE} {others} of {count} seeds" * (0 < others < count)


def print_shard(execution: Execution, records: Sequence[Record], json: bool) -> None:
    """Say how many runs the part has, and in which store they are."""
    from cclfp.runs.execution import parse_shard
    from cclfp.runs.shards import store_of

    number, count = parse_shard(str(execution.shard))
    store = store_of(execution)
    if json:
        print_json({"shard": execution.shard, "store": str(store), "keys": [record["key"] for record in records]})
        return
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    typer.echo(f"part {number} of {count}: {runs}, in {store}" if records else f"part {number} of {count} has no runs")
    parts = f"{shlex.quote(str(store.parent))}/shard-*-of-{count}.sqlite"
    typer.echo(f"when all parts are there: cclfp runs import {parts} --store {shlex.quote(str(execution.store))}")


def print_plan(study: Study | OwnStudy, json: bool) -> None:
    """What would be trained, by configuration."""
    from cclfp.paper.study import missing_runs
    from cclfp.runs.jobs import name_methods

    planned = missing_runs(study)
    parts: list[dict[str, Any]] = [
        {
            "method": (c := runs.jobs[0].configuration).method,
            "method_file": c.to_dict().get("method_file"),
            "benchmark": c.benchmark,
            "scenario": c.scenario,
            "buffer": c.buffer,
            "hyperparameters": c.hyperparameters,
            "augment": c.augment,
            "preset": runs.has_preset,
            "from": runs.chosen,
            "seeds": [job.seed for job in runs.jobs],
            "replica_steps": runs.replica_steps,
        }
        for runs in planned
    ]
    path, missing = str(study.store), sum(len(part["seeds"]) for part in parts)
    total = sum(part["replica_steps"] for part in parts)
    if json:
        counts = {"store": path, "missing": missing, "replica_steps": total}
        print_json({**counts, "plan": parts, "not_tuned": study.not_tuned})
        return
    if parts:
        methods = name_methods([runs.jobs[0] for runs in planned])
        columns = ["benchmark", "scenario", "method", ">memory", "settings", "from", "seeds", ">replica-steps"]
        print_table(
            columns,
            map(_plan_row, parts, methods),
            "To be trained, the longest runs first",
            drop=("replica-steps", "from", "settings"),
        )
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
    found = study.comparisons(include_diverged)
    if not any(comparison.n for comparison in found.values()):
        return
    if json:
        listed = [_cell_to_dict(comparison) for comparison in found.values()]
        print_json({"store": str(study.store), "cells": listed, "not_tuned": study.not_tuned})
        return
    for column, cells in study.columns.items():
        if column not in printed and any(found[cell].n for cell in cells):
            print_column([found[cell] for cell in cells], study.seeds)
    print_text(_summary(list(found.values())))
    _print_not_tuned(study)


def print_column(comparisons: Sequence[Comparison], seeds: Sequence[int]) -> None:
    """A column of the paper's as a table, like that of ``cclfp run``."""
    from cclfp.paper import TABLES
    from cclfp.streams import get_benchmark

    cell = comparisons[0].cell
    memory = cell.table == "buffer"
    title = f"{TABLES[cell.table]}: {get_benchmark(cell.benchmark).title}, {cell.scenario}-incremental, "
    title += f"seed{'s' if len(seeds) > 1 else ''} {','.join(map(str, seeds))}, %"
    rows = [
        [
            *([str(c.cell.buffer)] if memory else []),
            c.cell.row,
            c.text(between="\n"),
            plus_minus(*c.cell.published),
            signed(c.difference),
            _verdict(c),
        ]
        for c in comparisons
    ]
    first = [">memory", "method"] if memory else ["components" if cell.table == "ablation" else "method"]
    print_table([*first, ">average accuracy", ">paper", ">difference", "within 2 std"], rows, title)


def print_times(study: RunTimes, json: bool) -> None:
    """How long each method's run took, per benchmark; a dash where it was not measured like the others."""
    from cclfp.streams import get_benchmark

    panels = study.panels()
    if json:
        print_json({"store": str(study.execution.store), "panels": panels, "not_tuned": study.not_tuned})
        return
    for panel in panels:
        title = f"Run time: {get_benchmark(panel['benchmark']).title}, {panel['scenario']}-incremental, "
        rows = [[name, *(number(seconds, 1) for seconds in times.values())] for name, times in panel["times"].items()]
        columns = ["method", ">training", ">testing", ">seconds per run"]
        print_table(columns, rows, f"{title}each method alone on {panel['made']}")
    _print_not_tuned(study)


def line(comparison: Comparison) -> str:
    """A cell in one line."""
    c = comparison.cell
    row = {"accuracy": c.row, "buffer": f"{c.row}, memory {c.buffer}", "ablation": f"components {c.row}"}[c.table]
    ours, paper = comparison.text(), plus_minus(*c.published)
    return f"{c.table} table, {c.benchmark} {c.scenario}, {row}: {ours} (paper {paper}, {_verdict(comparison)})"


def _verdict(comparison: Comparison) -> str:
    return comparison.verdict or "–"


def _summary(comparisons: Sequence[Comparison]) -> str:
    counts = {v: sum(c.verdict == v for c in comparisons) for v in ("within", "above", "below", None)}
    diverged = sum(len(c.seeds.diverged) == c.n > 0 and c.mean is None for c in comparisons)
    text = f"{len(comparisons)} cells: {counts['within']} within two standard deviations of the paper's number, "
    text += f"{counts['above']} above, {counts['below']} below"
    text += f", {counts[None] - diverged} with too few runs to tell" if counts[None] > diverged else ""
    return text + (f", {diverged} of which all seeds diverged" if diverged else "")


def _print_not_tuned(study: Study | OwnStudy) -> None:
    if several := study.not_tuned:
        names = ", ".join(f"{c['method']} on {c['benchmark']} ({c['scenario']})" for c in several)
        print_text(f"no preset, trained with the defaults and not tuned: {names}")


def _cell_to_dict(comparison: Comparison) -> dict[str, Any]:
    c = comparison.cell
    return {
        "table": c.table,
        "row": c.row,
        "benchmark": c.benchmark,
        "scenario": c.scenario,
        "method": c.method,
        "buffer": c.buffer,
        "settings": dict(c.settings),
        "preset": c.has_preset,
        "published": c.published._asdict(),
        "runs": comparison.n,
        "mean": comparison.mean,
        "std": comparison.std,
        "difference": comparison.difference,
        "verdict": comparison.verdict,
        "diverged": comparison.seeds.diverged,
    }


def print_own(study: OwnStudy, include_diverged: bool, json: bool) -> None:
    """All that the store has of the study; nothing where it has none of its runs."""
    columns = [several for several in study.results(include_diverged).values() if any(r.seeds.runs for r in several)]
    if not columns:
        return
    if json:
        cells = [_own_to_dict(result) for several in columns for result in several]
        print_json({"store": str(study.execution.store), "cells": cells})
        return
    for several in columns:
        _print_own_column(several, study.seeds)
    if len(columns) > 1:
        _print_all(columns)
    _print_explanation(columns)


def _print_own_column(results: Sequence[OwnResult], seeds: Sequence[int]) -> None:
    from cclfp.paper.ranking import show_p

    title = f"{', '.join(_parts(results))}, seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}: mean ± std, %"
    rows = [
        [
            label,
            _accuracy(r),
            "best" if r.standing.best else _difference(r),
            show_p(r.standing.p),
            plus_minus(**r.seeds.mean_std("forgetting")),
            number(r.seeds.mean_std("seconds")["mean"], 1),
        ]
        for label, r in zip(_labels(results), results, strict=True)
    ]
    columns = ["method", ">average accuracy", ">to the best", ">p", ">forgetting", ">seconds per run"]
    print_table(columns, rows, title, drop=("seconds per run", "forgetting"))
    for label, r in zip(_labels(results), results, strict=True):
        configuration = r.cell.configuration()
        settings = hyperparameters(configuration.hyperparameters | {"augment": configuration.augment})
        print_text(f"  {label}: {settings} ({r.cell.chosen})")


def _print_all(columns: Sequence[Sequence[OwnResult]]) -> None:
    labels = _labels(_flat(columns))
    methods = list(dict.fromkeys(labels))
    found = {(r.cell.column, method): r for method, r in zip(labels, _flat(columns), strict=True)}
    rows = [
        [method, *(_accuracy(found[several[0].cell.column, method], mark=True) for several in columns)]
        for method in methods
    ]
    names = [_parts(several) for several in columns]
    same = [part for part in names[0] if all(part in other for other in names)]
    heads = [", ".join(part for part in parts if part not in same) for parts in names]
    title = ", ".join(["All columns", *same])
    print_table(["method", *(f">{head}" for head in heads)], rows, f"{title}: mean ± std, %")


def _print_explanation(columns: Sequence[Sequence[OwnResult]]) -> None:
    from cclfp.paper.ranking import LEVEL, TEST

    if any(len(several) > 1 for several in columns):
        print_text(TEST)
    if len(columns) > 1:
        print_text(f"* the best of its column, = not different from it beyond chance (p of {LEVEL:g} or more)")
    untuned = [r for r in _flat(columns) if not r.cell.has_preset]
    if untuned:
        names = ", ".join(dict.fromkeys(f"{r.cell.method} on {r.cell.problem.name}" for r in untuned))
        print_text(f"not tuned, trained with the defaults: {names} (cclfp tune, or --auto MINUTES)")


def _flat(columns: Sequence[Sequence[OwnResult]]) -> list[OwnResult]:
    return [result for several in columns for result in several]


def _parts(results: Sequence[OwnResult]) -> list[str]:
    """What a column is trained on."""
    from cclfp.nets.backbones import show_backbone
    from cclfp.streams.benchmarks import get_benchmark, show_order

    place, c = results[0].cell.problem, results[0].cell.configuration()
    parts = [get_benchmark(c.benchmark).title, f"{place.scenario}-incremental", f"memory {place.memory}"]
    parts += [order] if (order := show_order(c.benchmark, c.class_order)) else []
    parts += [] if c.tasks is None else [f"{len(c.tasks)} tasks"]
    return parts + ([] if c.backbone is None else [show_backbone(c.backbone)])


def _labels(results: Sequence[OwnResult]) -> list[str]:
    from cclfp.runs.configuration import method_labels

    return method_labels([r.cell.configuration().to_dict() for r in results])


def _accuracy(result: OwnResult, *, mark: bool = False) -> str:
    if not result.seeds.runs:
        return "–"
    return result.seeds.text("average_accuracy", between="\n") + (MARKS[result.standing.verdict] if mark else "")


def _difference(result: OwnResult) -> str:
    s = result.standing
    if s.difference is None:
        return "–"
    return signed(s.difference) + ("" if s.std is None else f" ± {s.std:.2f}")


def _own_to_dict(result: OwnResult) -> dict[str, Any]:
    place, s = result.cell.problem, result.standing
    configuration = result.cell.configuration()
    return {
        "method": configuration.method,
        "given": result.cell.method,
        "benchmark": place.benchmark,
        "scenario": place.scenario,
        "buffer": configuration.buffer,
        "settings": configuration.hyperparameters | {"augment": configuration.augment},
        "chosen": result.cell.chosen,
        "runs": len(result.seeds.runs),
        **{name: result.seeds.mean_std(name) for name in ("average_accuracy", "forgetting", "seconds")},
        "accuracies": {str(seed): accuracy for seed, accuracy in result.seeds.accuracies.items()},
        "diverged": result.seeds.diverged,
        "standing": s.verdict,
        "difference": s.difference,
        "difference_std": s.std,
        "common_seeds": s.common,
        "p": s.p,
    }


def tuned_to_dict(tuned: Tuned) -> dict[str, Any]:
    """A search for ``--json``."""
    trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in tuned.trials]
    return {"preset": dataclasses.asdict(tuned.preset), "settings": tuned.settings, "trials": trials}


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
        print_text(f"{method}: {settings} ({how})")
