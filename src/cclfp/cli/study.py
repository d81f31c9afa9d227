"""``cclfp study``: the paper's tables, trained and set beside the published numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.output import (
    EngineOption,
    JsonOption,
    PrecisionOption,
    StoreOption,
    hyperparameters,
    plus_minus,
    print_json,
    print_table,
)
from cclfp.cli.run import parse_seeds
from cclfp.errors import InputError, unknown

if TYPE_CHECKING:
    from cclfp.engine.job import Job
    from cclfp.store import Record, Store
    from cclfp.study import Cell, Comparison

WHAT = ("accuracy", "buffer", "ablation", "all")


def study(
    table: Annotated[str, typer.Argument(metavar="|".join(WHAT), help="Which table of the paper.")],
    benchmark: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these benchmarks.", show_default=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these methods.", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N or A,B,...", help="How many seeds, or which.")] = "5",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "auto",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    store: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and train nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Train what a table of the paper needs and the store has not, and print ours beside the published numbers.

    The longest runs come first. What is finished is kept: stopped at any point, the same command goes on.

    [bold]Examples[/bold]

    cclfp study accuracy --benchmark split-mnist,rotated-mnist

    cclfp study all --method er,ccl-fp+ --seeds 3 --dry-run
    """
    if table not in WHAT:
        raise unknown("table", table, WHAT)
    chosen_seeds = parse_seeds(seeds)

    from cclfp.experiment import check_seeds, make_jobs
    from cclfp.store import Store
    from cclfp.study import TABLES
    from cclfp.study.training import longest_first, select

    cells = select(TABLES if table == "all" else [table], _names("--benchmark", benchmark), _names("--method", method))
    numbers = check_seeds(chosen_seeds)
    configurations = [cell.configuration() for cell in cells]
    jobs = longest_first(
        make_jobs(configurations, numbers, device=device, engine=engine, precision=precision, store=store)
    )
    if dry_run:
        _print_plan(jobs, json)
        return
    _train(cells, jobs, numbers)
    records = Store(jobs[0].store)
    comparisons = _compare(cells, records, numbers)
    if json:
        print_json({"store": str(jobs[0].store), "cells": [_to_dict(comparison) for comparison in comparisons]})
    else:
        _print_tables(comparisons, numbers)


def _names(option: str, given: str | None) -> list[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise InputError(f"{option} {given!r}: expected one name or several with commas, or no {option} for all")
    return names


def _train(cells: Sequence[Cell], jobs: Sequence[Job], seeds: Sequence[int]) -> None:
    """Train what is missing, with a line about each cell when its last run is done."""
    from cclfp.cli.progress import progress
    from cclfp.experiment import ABOUT_ALL, do_jobs
    from cclfp.study import compare
    from cclfp.study.training import cost

    keys = {cell: [cell.key(seed) for seed in seeds] for cell in cells}
    records: dict[str, Record] = {}
    try:
        with progress() as shown:

            def report(job: int, event: dict[str, Any]) -> None:
                shown.update(job, event)
                if event["event"] in ("stored", "done"):
                    key = jobs[job].key
                    records[key] = event["record"]
                    if event["event"] == "done":
                        for cell in [c for c in cells if key in keys[c] and all(k in records for k in keys[c])]:
                            shown.say(_line(compare(cell, [records[k] for k in keys[cell]])))

            names = [_label(job) for job in jobs]
            weights = [cost(job.configuration) for job in jobs]
            begun = {"event": "jobs", "names": names, "weights": weights, "store": str(jobs[0].store)}
            report(ABOUT_ALL, begun)
            do_jobs(jobs, report)
    except KeyboardInterrupt as stop:
        text = "stopped: what is finished is stored, and the same command goes on from the last checkpoint"
        typer.echo(text, err=True)
        raise typer.Exit(130) from stop


def _compare(cells: Sequence[Cell], store: Store, seeds: Sequence[int]) -> list[Comparison]:
    from cclfp.study import compare

    found = []
    for cell in cells:
        records = [store.find(cell.key(seed)) for seed in seeds]
        found.append(compare(cell, [record for record in records if record is not None]))
    return found


def _label(job: Job) -> str:
    c = job.configuration
    off = [name for name in ("w", "alpha", "beta") if c.method == "ccl-fp+" and c.hyperparameters[name] == 0]
    kind = " ".join([c.method, *(f"{name}=0" for name in off)])
    memory = "" if c.buffer in (None, 200) else f" memory {c.buffer}"
    return f"{kind}{memory} {c.benchmark} {c.scenario} seed {job.seed}"


def _line(comparison: Comparison) -> str:
    c = comparison.cell
    row = {"accuracy": c.row, "buffer": f"{c.row}, memory {c.buffer}", "ablation": f"components {c.row}"}[c.table]
    ours, paper = plus_minus(comparison.mean, comparison.std), plus_minus(*c.published)
    return f"{c.table} table, {c.benchmark} {c.scenario}, {row}: {ours} (paper {paper}, {_verdict(comparison)})"


def _verdict(comparison: Comparison) -> str:
    return comparison.verdict or "–"


def _print_plan(jobs: Sequence[Job], json: bool) -> None:
    from cclfp.store import Store
    from cclfp.study.training import steps

    path = jobs[0].store
    store = Store(path) if path.exists() else None  # a plan leaves no file behind
    missing = [job for job in jobs if store is None or store.find(job.key) is None]
    by_configuration: dict[str, list[Job]] = {}
    for job in missing:
        by_configuration.setdefault(job.configuration.key(0), []).append(job)
    plan: list[dict[str, Any]] = [
        {
            "method": several[0].configuration.method,
            "benchmark": several[0].configuration.benchmark,
            "scenario": several[0].configuration.scenario,
            "buffer": several[0].configuration.buffer,
            "hyperparameters": several[0].configuration.hyperparameters,
            "augment": several[0].configuration.augment,
            "seeds": [job.seed for job in several],
            "replica_steps": sum(steps(job.configuration) for job in several),
        }
        for several in by_configuration.values()
    ]
    total = sum(part["replica_steps"] for part in plan)
    if json:
        print_json({"store": str(path), "missing": len(missing), "replica_steps": total, "plan": plan})
        return
    if plan:
        rows = [
            [
                part["benchmark"],
                part["scenario"],
                part["method"],
                "–" if part["buffer"] is None else str(part["buffer"]),
                hyperparameters(part["hyperparameters"] | ({"augment": True} if part["augment"] else {})),
                ",".join(map(str, part["seeds"])),
                f"{part['replica_steps']:,}",
            ]
            for part in plan
        ]
        columns = ["benchmark", "scenario", "method", ">memory", "settings", "seeds", ">replica-steps"]
        print_table(columns, rows, "To be trained, the longest runs first")
    typer.echo(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in the store {path}")
    typer.echo(f"{len(missing)} runs to train, {total:,} replica-steps")


def _print_tables(comparisons: Sequence[Comparison], seeds: Sequence[int]) -> None:
    """A table for each column of the paper's, like that of ``cclfp run``."""
    from cclfp.streams import get_benchmark
    from cclfp.study import TABLES

    place = lambda c: (list(TABLES).index(c.cell.table), c.cell.benchmark, c.cell.scenario)  # noqa: E731
    order = list(dict.fromkeys(map(place, comparisons)))  # the paper's
    by_column = itertools.groupby(sorted(comparisons, key=lambda c: order.index(place(c))), key=place)
    for _, several in by_column:
        column = list(several)
        cell = column[0].cell
        memory = cell.table == "buffer"
        title = f"{TABLES[cell.table]}: {get_benchmark(cell.benchmark).title}, {cell.scenario}-incremental, "
        title += f"seed{'s' if len(seeds) > 1 else ''} {','.join(map(str, seeds))}, %"
        rows = [
            [
                *([str(c.cell.buffer)] if memory else []),
                c.cell.row,
                plus_minus(c.mean, c.std),
                plus_minus(*c.cell.published),
                "–" if c.difference is None else f"{c.difference:+.2f}",
                _verdict(c),
            ]
            for c in column
        ]
        first = "components" if cell.table == "ablation" else "method"
        columns = [
            *([">memory"] if memory else []),
            first,
            ">average accuracy",
            ">paper",
            ">difference",
            "within 2 std",
        ]
        print_table(columns, rows, title)
    typer.echo(_summary(comparisons))


def _summary(comparisons: Sequence[Comparison]) -> str:
    counts = {v: sum(c.verdict == v for c in comparisons) for v in ("within", "above", "below", None)}
    text = f"{len(comparisons)} cells: {counts['within']} within two standard deviations of the paper's number, "
    text += f"{counts['above']} above, {counts['below']} below"
    return text + (f", {counts[None]} with too few runs to say" if counts[None] else "")


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
        "published": c.published._asdict(),
        "runs": comparison.n,
        "mean": comparison.mean,
        "std": comparison.std,
        "difference": comparison.difference,
        "verdict": comparison.verdict,
    }
