"""``cclfp study``: the paper's tables beside the published numbers, run times, and tables of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from cclfp.cli import printing
from cclfp.cli.options import (
    RUN_ONLY,
    IncludeDivergedOption,
    JsonOption,
    SeedOption,
    SeedsOption,
    parse_names,
    parse_seeds,
    with_fields,
)
from cclfp.errors import InputError, unknown
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem

WHAT = ("accuracy", "buffer", "ablation", "all", "runtime", "mine")


@with_fields(leave_out=[*RUN_ONLY, "benchmark", "scenario", "memory"])
def study(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="accuracy, buffer or ablation, the tables of the paper; all three; runtime, its run-time figure; or "
            "mine, a table of your own.",
        ),
    ],
    benchmark: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these benchmarks.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Only these methods; for mine also FILE.py:NAME.", show_default=False),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Only these of class, task and domain; for mine by default each benchmark's first.",
            show_default=False,
        ),
    ] = None,
    *,
    problem: Problem,
    memory: Annotated[
        str | None, typer.Option(metavar="N,M,...", help="One size of the memory or several.", show_default="200")
    ] = None,
    auto: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Tune each method in each column first, for so many minutes (cclfp run --auto).",
            show_default=False,
        ),
    ] = None,
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    execution: Execution,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be trained, and train nothing.")] = False,
    include_diverged: IncludeDivergedOption = False,
    json: JsonOption = False,
) -> None:
    """Train what a table of the paper needs and the store does not have; print ours beside the published numbers.

    The longest runs come first, and each column is printed when it is complete. What is finished is kept: stopped at
    any point, the same command continues.

    mine takes any methods and benchmarks, also your own: --images and its options, --tasks, --backbone, --memory and
    --auto are for mine only. It marks the best of each column and says which others are worse beyond chance. Settings
    are those that cclfp tune or --auto found there, else the preset, else the defaults.

    runtime measures what the run-time figure shows: each method with one seed, which no table uses, one run at a time,
    all with the same engine (eager, unless --engine names one). Leave the machine alone while it runs.

    [bold]Examples[/bold]

    cclfp study accuracy --benchmark split-mnist,rotated-mnist

    cclfp study all --method er,ccl-fp+ --seeds 3 --dry-run

    cclfp study runtime --benchmark rotated-mnist

    cclfp study mine --benchmark photos-3fa2b1c0,split-mnist --method er,ccl-fp+,half.py:Half --tasks 5
    """
    if table not in WHAT:
        raise unknown("table", table, WHAT)
    chosen_seeds = None if seeds is None and seed is None else parse_seeds(seeds, seed)

    from cclfp.cli.progress import progress
    from cclfp.paper.study import OWN_OPTIONS, plan

    own = {name: getattr(problem, name) for name in OWN_OPTIONS if name not in ("memory", "auto")}
    own |= {"memory": parse_sizes("--memory", memory), "auto": auto}
    given = {name: value for name, value in own.items() if value is not None and value is not False}
    if given and table != "mine":
        option = next(iter(given)).replace("_", "-")
        raise InputError(f"--{option} is for a study of your own: cclfp study mine")
    if dry_run and auto is not None:
        raise InputError("--auto trains to find settings, and --dry-run trains nothing: leave out one of the two")
    with progress() as shown:
        planned = plan(
            table,
            benchmarks=parse_names("--benchmark", benchmark),
            methods=parse_names("--method", method),
            scenarios=parse_names("--scenario", scenario),
            seeds=chosen_seeds,
            execution=execution,
            on_event=shown.update,
            **given,
        )
    if dry_run:
        printing.print_plan(planned, json)
    elif execution.shard is not None:
        with progress() as shown:
            records = planned.train(shown.update)
        printing.print_shard(planned.execution, list(records.values()), json)
    else:
        printing.train(planned, include_diverged, json)


def parse_sizes(option: str, given: str | None) -> list[int] | None:
    """Whole numbers that are separated by commas; None where the option is not given."""
    if given is None:
        return None
    try:
        return [int(name) for name in parse_names(option, given)]
    except ValueError as error:
        raise InputError(f"{option} {given!r}: expected one whole number or several with commas") from error
