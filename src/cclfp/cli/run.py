"""``cclfp run``: train methods on a benchmark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.auto import run_tuned
from cclfp.cli.options import (
    BenchmarkArgument,
    IncludeDivergedOption,
    JsonOption,
    SeedOption,
    SeedsOption,
    parse_seeds,
    parse_settings,
    with_fields,
)
from cclfp.cli.output import print_json
from cclfp.cli.printing import print_chosen, print_results, print_shard, result_to_dict, tuned_to_dict
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem

if TYPE_CHECKING:
    from cclfp.paper.search import Tuned


@with_fields(leave_out=["benchmark"])
def run(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="A method, or several with commas (cclfp list methods; FILE.py:NAME is your own)."
        ),
    ],
    benchmark: BenchmarkArgument = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Hyperparameters (cclfp show METHOD), batch=10, replay=10, epochs=1, augment=on|off (crop and mirror "
            "training images at random). Several values with commas train a grid. What is not set comes from the "
            "presets.",
            show_default=False,
        ),
    ] = None,
    *,
    problem: Problem,
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    auto: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="First search lr, augment and each method's own settings on held-out training images, for so many "
            "minutes per method. NAME=A,B are then the values to search. The search is stored: the same command "
            "chooses the same.",
            show_default=False,
        ),
    ] = None,
    execution: Execution,
    include_diverged: IncludeDivergedOption = False,
    json: JsonOption = False,
) -> None:
    """Train methods on a benchmark over several seeds and print one table beside the paper's numbers.

    A finished run is kept in the store and not trained again; an interrupted one continues from its last checkpoint.

    [bold]Examples[/bold]

    cclfp run ccl-fp+ split-mnist

    cclfp run er,ccl-fp+ rotated-mnist --seeds 0,3,7 --json

    cclfp run ccl-fp split-mnist w=0.1,0.3,0.5 lr=0.03 --scenario task --memory 500

    cclfp run ccl-fp+ --images photos/ --tasks 5

    cclfp run er,ccl-fp+ --images photos/ --tasks 5 --auto 10
    """
    if benchmark is not None and "=" in benchmark:  # it is the first setting
        settings, benchmark = [benchmark, *(settings or [])], None
    names = [name.strip() for name in method.split(",") if name.strip()]
    values = parse_settings(settings or [])
    chosen_seeds = parse_seeds(seeds, seed)

    from cclfp.cli.progress import progress
    from cclfp.runs.run import run

    problem = dataclasses.replace(problem, benchmark=benchmark)
    searches: list[Tuned] = []
    with progress() as shown:
        options: dict[str, Any] = {"seeds": chosen_seeds, "execution": execution, "on_event": shown.update}
        if auto is None:
            results = run(names, problem=problem, settings=values, **options)
        else:
            found = run_tuned(auto, names, problem, values, **options)
            results, searches = [result for result, _ in found], [tuned for _, tuned in found]
            values = {}
    if execution.shard is not None:
        print_shard(execution, [run for result in results for run in result.runs], json)
    elif json:
        listed = [result_to_dict(result, include_diverged) for result in results]
        chosen = {"auto": [tuned_to_dict(tuned) for tuned in searches]} if auto is not None else {}
        print_json({"configurations": listed, **chosen})
    else:
        print_results(results, [name for name, several in values.items() if len(several) > 1], include_diverged)
        print_chosen(searches)
        if execution.save is not None:
            typer.echo(f"learners saved in {execution.save}")
