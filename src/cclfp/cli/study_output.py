"""What ``cclfp study`` prints: the plan, columns of the paper's tables with our numbers, run times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cclfp.cli.output import hyperparameters, number, plus_minus, print_json, print_table, print_text, signed

if TYPE_CHECKING:
    from cclfp.paper import Comparison
    from cclfp.paper.own_study import OwnStudy
    from cclfp.paper.study import Column, RunTimes, Study


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
        listed = [_to_dict(comparison) for comparison in found.values()]
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


def _to_dict(comparison: Comparison) -> dict[str, Any]:
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
