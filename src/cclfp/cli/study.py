"""``cclfp study``: the paper's tables, trained and set beside the published numbers, and the time each method takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.output import (
    EngineOption,
    IncludeDivergedOption,
    JsonOption,
    PrecisionOption,
    StoreOption,
    hyperparameters,
    number,
    plus_minus,
    print_json,
    print_table,
    signed,
)
from cclfp.cli.run import parse_seeds
from cclfp.errors import InputError, unknown

if TYPE_CHECKING:
    from cclfp.paper import Cell, Comparison
    from cclfp.runs.job import Job, JobReport
    from cclfp.runs.store import Record, Store

    Train = Callable[[Sequence[Job], JobReport], object]
    Column = tuple[str, str, str]  # of a table: benchmark and scenario

WHAT = ("accuracy", "buffer", "ablation", "all", "runtime")


def study(
    table: Annotated[
        str, typer.Argument(metavar="|".join(WHAT), help="Which table of the paper, all three, or its run-time figure.")
    ],
    benchmark: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these benchmarks.", show_default=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these methods.", show_default=False)
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N or A,B,...", help="How many seeds, or which.", show_default="5")
    ] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = "auto",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    store: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and train nothing.")] = False,
    include_diverged: IncludeDivergedOption = False,
    json: JsonOption = False,
) -> None:
    """Train what a table of the paper needs and the store has not, and print ours beside the published numbers.

    The longest runs come first, and each column is printed when it is complete. What is finished is kept: stopped at
    any point, the same command goes on.

    runtime measures what the run-time figure shows: each method with one seed, that no table uses, one run at a time,
    all with the same engine (eager, if --engine names none). Leave the machine alone meanwhile.

    [bold]Examples[/bold]

    cclfp study accuracy --benchmark split-mnist,rotated-mnist

    cclfp study all --method er,ccl-fp+ --seeds 3 --dry-run

    cclfp study runtime --benchmark rotated-mnist
    """
    if table not in WHAT:
        raise unknown("table", table, WHAT)
    timing = table == "runtime"
    if timing and seeds is not None:
        raise InputError(f"--seeds {seeds}: run times are measured with one seed, which no table uses; leave it out")
    chosen_seeds = parse_seeds(seeds or "5")

    from cclfp.paper import TABLES, TIMING_SEED
    from cclfp.paper.training import do_one_by_one, longest_first, measured_here, select
    from cclfp.runs.experiment import check_seeds, do_jobs, make_jobs
    from cclfp.runs.store import Store

    cells = select(TABLES if table == "all" else [table], _names("--benchmark", benchmark), _names("--method", method))
    numbers = [TIMING_SEED] if timing else check_seeds(chosen_seeds)
    engine = "eager" if timing and engine == "auto" else engine
    configurations = [cell.configuration() for cell in cells]
    jobs = longest_first(
        make_jobs(configurations, numbers, device=device, engine=engine, precision=precision, store=store)
    )
    if timing:
        jobs = [measured_here(job) for job in jobs]
    if dry_run:
        _print_plan(cells, jobs, json)
        return
    printed: set[Column] = set()
    try:
        if timing:
            _train([], jobs, numbers, do_one_by_one, None, include_diverged)
        else:
            _train(cells, jobs, numbers, do_jobs, None if json else printed, include_diverged)
    finally:
        records = Store(jobs[0].store)
        if timing:
            _print_times(cells, records, json)
        else:
            _print_rest(cells, numbers, records, printed, include_diverged, json)


def _names(option: str, given: str | None) -> list[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise InputError(f"{option} {given!r}: expected one name or several with commas, or no {option} for all")
    return names


def _train(
    cells: Sequence[Cell],
    jobs: Sequence[Job],
    seeds: Sequence[int],
    train: Train,
    printed: set[Column] | None,
    include_diverged: bool,
) -> None:
    """Train what is missing: a line about each cell when its last run is done, and a column's table when all are.

    The columns are added to those ``printed``; where that is None no table is.
    """
    from cclfp.cli.progress import progress
    from cclfp.paper import compare
    from cclfp.paper.training import cost
    from cclfp.runs.experiment import ABOUT_ALL

    keys = {cell: [cell.key(seed) for seed in seeds] for cell in cells}
    records: dict[str, Record] = {}
    with progress() as shown:

        def report(job: int, event: dict[str, Any]) -> None:
            shown.update(job, event)
            if event["event"] in ("stored", "done"):
                records[jobs[job].key] = event["record"]
            if event["event"] == "done":
                tell(jobs[job].key)

        def tell(key: str) -> None:
            whole = [cell for cell in cells if all(k in records for k in keys[cell])]
            ours = {cell: compare(cell, [records[k] for k in keys[cell]], include_diverged) for cell in whole}
            for comparison in [comparison for cell, comparison in ours.items() if key in keys[cell]]:
                shown.say(_line(comparison))
            for column, several in _by_column(cells).items():
                if printed is not None and column not in printed and all(cell in ours for cell in several):
                    printed.add(column)
                    with shown.aside():
                        _print_column([ours[cell] for cell in several], seeds)

        names = [_label(job) for job in jobs]
        weights = [cost(job.configuration) for job in jobs]
        report(ABOUT_ALL, {"event": "jobs", "names": names, "weights": weights, "store": str(jobs[0].store)})
        train(jobs, report)


def _label(job: Job) -> str:
    c = job.configuration
    off = [name for name in ("w", "alpha", "beta") if c.method == "ccl-fp+" and c.hyperparameters[name] == 0]
    kind = " ".join([c.method, *(f"{name}=0" for name in off)])
    memory = "" if c.buffer in (None, 200) else f" memory {c.buffer}"
    return f"{kind}{memory} {c.benchmark} {c.scenario} seed {job.seed}"


def _line(comparison: Comparison) -> str:
    c = comparison.cell
    row = {"accuracy": c.row, "buffer": f"{c.row}, memory {c.buffer}", "ablation": f"components {c.row}"}[c.table]
    ours, paper = comparison.text(), plus_minus(*c.published)
    return f"{c.table} table, {c.benchmark} {c.scenario}, {row}: {ours} (paper {paper}, {_verdict(comparison)})"


def _verdict(comparison: Comparison) -> str:
    return comparison.verdict or "–"


def _print_plan(cells: Sequence[Cell], jobs: Sequence[Job], json: bool) -> None:
    from cclfp.paper.training import steps
    from cclfp.runs.job import finished
    from cclfp.runs.store import Store, exists

    path = jobs[0].store
    store = Store(path, read_only=True) if exists(path) else None  # a plan leaves no file behind
    missing = [job for job in jobs if store is None or finished(job, store) is None]
    tuned = {cell.key(0) for cell in cells if cell.has_preset}
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
            "preset": key in tuned,
            "seeds": [job.seed for job in several],
            "replica_steps": sum(steps(job.configuration) for job in several),
        }
        for key, several in by_configuration.items()
    ]
    total = sum(part["replica_steps"] for part in plan)
    if json:
        print_json(
            {
                "store": str(path),
                "missing": len(missing),
                "replica_steps": total,
                "plan": plan,
                "not_tuned": _not_tuned(cells),
            }
        )
        return
    if plan:
        rows = [
            [
                part["benchmark"],
                part["scenario"],
                part["method"],
                "–" if part["buffer"] is None else str(part["buffer"]),
                hyperparameters(part["hyperparameters"] | ({"augment": True} if part["augment"] else {})),
                "preset" if part["preset"] else "defaults",
                ",".join(map(str, part["seeds"])),
                f"{part['replica_steps']:,}",
            ]
            for part in plan
        ]
        columns = ["benchmark", "scenario", "method", ">memory", "settings", "from", "seeds", ">replica-steps"]
        print_table(columns, rows, "To be trained, the longest runs first")
    typer.echo(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in the store {path}")
    typer.echo(f"{len(missing)} runs to train, {total:,} replica-steps")
    _say_not_tuned(cells)


def _print_rest(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    store: Store,
    printed: set[Column],
    include_diverged: bool,
    json: bool,
) -> None:
    """The columns that have runs and were not printed yet, then how many numbers agree; nothing where there is none."""
    from cclfp.paper import compare, gather

    found = {cell: compare(cell, records, include_diverged) for cell, records in gather(cells, store, seeds).items()}
    if not any(comparison.n for comparison in found.values()):
        return
    if json:
        listed = [_to_dict(comparison) for comparison in found.values()]
        print_json({"store": str(store.path), "cells": listed, "not_tuned": _not_tuned(cells)})
        return
    for column, several in _by_column(cells).items():
        if column not in printed and any(found[cell].n for cell in several):
            _print_column([found[cell] for cell in several], seeds)
    typer.echo(_summary(list(found.values())))
    _say_not_tuned(cells)


def _by_column(cells: Iterable[Cell]) -> dict[Column, list[Cell]]:
    """In the paper's order."""
    columns: dict[Column, list[Cell]] = {}
    for cell in cells:
        columns.setdefault((cell.table, cell.benchmark, cell.scenario), []).append(cell)
    return columns


def _print_column(comparisons: Sequence[Comparison], seeds: Sequence[int]) -> None:
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


def _print_times(cells: Sequence[Cell], store: Store, json: bool) -> None:
    """How long each method's run took, benchmark by benchmark; a dash where it was not measured like the others."""
    from cclfp.paper import comparable, conditions, gather_timings
    from cclfp.streams import get_benchmark

    parts = ("train_seconds", "test_seconds", "seconds")
    panels: list[dict[str, Any]] = []
    for (_, benchmark, scenario), several in _by_column(cells).items():
        if alike := comparable(gather_timings(several, store)):
            times = {c.method: {part: alike[c][part] if c in alike else None for part in parts} for c in several}
            made = conditions(next(iter(alike.values())))
            panels.append({"benchmark": benchmark, "scenario": scenario, "made": made, "times": times})
    if json:
        print_json({"store": str(store.path), "panels": panels, "not_tuned": _not_tuned(cells)})
        return
    for panel in panels:
        title = f"Run time: {get_benchmark(panel['benchmark']).title}, {panel['scenario']}-incremental, "
        rows = [[name, *(number(times[part], 1) for part in parts)] for name, times in panel["times"].items()]
        columns = ["method", ">training", ">testing", ">seconds a run"]
        print_table(columns, rows, f"{title}each method alone on {panel['made']}")
    _say_not_tuned(cells)


def _summary(comparisons: Sequence[Comparison]) -> str:
    counts = {v: sum(c.verdict == v for c in comparisons) for v in ("within", "above", "below", None)}
    diverged = sum(len(c.seeds.diverged) == c.n > 0 and c.mean is None for c in comparisons)
    text = f"{len(comparisons)} cells: {counts['within']} within two standard deviations of the paper's number, "
    text += f"{counts['above']} above, {counts['below']} below"
    text += f", {counts[None] - diverged} with too few runs to say" if counts[None] > diverged else ""
    return text + (f", {diverged} of which all seeds diverged" if diverged else "")


def _not_tuned(cells: Iterable[Cell]) -> list[dict[str, str]]:
    """The methods and columns that have no preset: they are trained with the defaults."""
    places = dict.fromkeys((c.method, c.benchmark, c.scenario) for c in cells if not c.has_preset)
    return [{"method": method, "benchmark": benchmark, "scenario": scenario} for method, benchmark, scenario in places]


def _say_not_tuned(cells: Sequence[Cell]) -> None:
    if several := _not_tuned(cells):
        names = ", ".join(f"{c['method']} on {c['benchmark']} ({c['scenario']})" for c in several)
        typer.echo(f"no preset, trained with the defaults and not tuned: {names}")


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
