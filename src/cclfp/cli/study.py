"""``cclfp study``: the paper's tables, trained and set beside the published numbers, and the time each method takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cclfp.cli import study_output
from cclfp.cli.options import (
    CheckpointsOption,
    DeviceOption,
    EngineOption,
    GpusPerCohortOption,
    IncludeDivergedOption,
    JsonOption,
    OnOption,
    PrecisionOption,
    SeedOption,
    SeedsOption,
    ShardOption,
    StoreOption,
    parse_names,
    parse_seeds,
)
from cclfp.cli.shards import print_shard
from cclfp.errors import unknown

if TYPE_CHECKING:
    from cclfp.paper.study import Column, RunTimes, Study
    from cclfp.runs.events import Event
    from cclfp.runs.record import Record

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
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    store: StoreOption = None,
    on: OnOption = "local",
    gpus_per_cohort: GpusPerCohortOption = None,
    checkpoints: CheckpointsOption = None,
    shard: ShardOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be trained, and train nothing.")] = False,
    include_diverged: IncludeDivergedOption = False,
    json: JsonOption = False,
) -> None:
    """Train what a table of the paper needs and the store does not have; print ours beside the published numbers.

    The longest runs come first, and each column is printed when it is complete. What is finished is kept: stopped at
    any point, the same command continues.

    runtime measures what the run-time figure shows: each method with one seed, which no table uses, one run at a time,
    all with the same engine (eager, unless --engine names one). Leave the machine alone while it runs.

    [bold]Examples[/bold]

    cclfp study accuracy --benchmark split-mnist,rotated-mnist

    cclfp study all --method er,ccl-fp+ --seeds 3 --dry-run

    cclfp study runtime --benchmark rotated-mnist
    """
    if table not in WHAT:
        raise unknown("table", table, WHAT)
    chosen_seeds = None if seeds is None and seed is None else parse_seeds(seeds, seed)

    from cclfp.paper.study import RunTimes, plan
    from cclfp.runs.execution import Execution

    planned = plan(
        table,
        benchmarks=parse_names("--benchmark", benchmark),
        methods=parse_names("--method", method),
        seeds=chosen_seeds,
        execution=Execution.from_dict(
            {
                "engine": engine,
                "precision": precision,
                "device": device,
                "store": store,
                "on": on,
                "gpus_per_cohort": gpus_per_cohort,
                "checkpoints": checkpoints,
                "shard": shard,
            }
        ),
    )
    if dry_run:
        study_output.print_plan(planned, json)
    elif isinstance(planned, RunTimes):
        _measure(planned, json)
    elif shard is not None:
        _train_shard(planned, json)
    else:
        _train(planned, include_diverged, json)


def _measure(planned: RunTimes, json: bool) -> None:
    from cclfp.cli.progress import progress

    try:
        with progress() as shown:
            planned.train(shown.update)
    finally:
        study_output.print_times(planned, json)


def _train_shard(planned: Study, json: bool) -> None:
    from cclfp.cli.progress import progress

    with progress() as shown:
        records = planned.train(shown.update)
    print_shard(planned.execution, list(records.values()), json)


def _train(planned: Study, include_diverged: bool, json: bool) -> None:
    """Train what is missing: a line about each cell when its last run is finished, and a column's table when all are.

    Columns that are not complete in the end are printed too.
    """
    from cclfp.cli.progress import progress
    from cclfp.paper import compare
    from cclfp.runs.events import Finished, Stored

    printed: set[Column] = set()
    records: dict[str, Record] = {}
    keys = {cell: [cell.key(seed) for seed in planned.seeds] for cell in planned.cells}

    def listen(event: Event) -> None:
        shown.update(event)
        if isinstance(event, Stored | Finished):
            records[event.key] = event.record
        if isinstance(event, Finished):
            print_complete(event.key)

    def print_complete(key: str) -> None:
        """Print what this run has completed: lines about cells, tables of columns."""
        complete = [cell for cell in planned.cells if all(k in records for k in keys[cell])]
        ours = {cell: compare(cell, [records[k] for k in keys[cell]], include_diverged) for cell in complete}
        for cell, comparison in ours.items():
            if key in keys[cell]:
                shown.say(study_output.line(comparison))
        for column, cells in planned.columns.items():
            if not json and column not in printed and all(cell in ours for cell in cells):
                printed.add(column)
                with shown.aside():
                    study_output.print_column([ours[cell] for cell in cells], planned.seeds)

    try:
        with progress() as shown:
            planned.train(listen)
    finally:
        study_output.print_rest(planned, printed, include_diverged, json)
