"""``cclfp tune``: choose a method's hyperparameters on held-out training data."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.options import (
    RUN_ONLY,
    BenchmarkArgument,
    JsonOption,
    parse_settings,
    with_fields,
)
from cclfp.cli.output import print_json
from cclfp.cli.printing import print_tuned, tuned_to_dict
from cclfp.errors import InputError
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem


@with_fields(leave_out=[*RUN_ONLY, "benchmark", "shard"])
def tune(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A method (cclfp list methods; FILE.py:NAME is your own).")
    ],
    benchmark: BenchmarkArgument = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=V1,V2,...",
            help="Values to search in place of the usual ones; a setting with one value is fixed.",
            show_default=False,
        ),
    ] = None,
    *,
    problem: Problem,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Spend about this long, by successive halving: all settings get one seed, the better half another, "
            "and so on. By default all get all seeds.",
            show_default=False,
        ),
    ] = None,
    halving: Annotated[
        int | None,
        typer.Option(
            metavar="SETTINGS",
            help="Search by successive halving, however long it takes: at most so many settings, spread over the grid, "
            "get one seed, the better half another, and so on. Each method searches its own lr, on all benchmarks.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 100 on: no reported number uses these.")] = 2,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Put the preset into this file of presets, in the old one's place; others inherit from there too.",
            show_default=False,
        ),
    ] = None,
    execution: Execution,
    json: JsonOption = False,
) -> None:
    """Search a method's settings on held-out training images and print those that are best.

    Own images, own methods and ranges of your own: lr and augment, then the method's own settings one by one, which a
    method of yours declares with setting(..., search=(...)). The result is kept beside the store for cclfp study mine.

    The paper's methods on its benchmarks are searched as the presets were. On the MNIST streams all combinations are
    trained. On the others er searches lr and augment; the other methods inherit these and search their own one by one,
    and ccl-fp+ inherits w and alpha from ccl-fp. With --halving they inherit augment alone.

    [bold]Examples[/bold]

    cclfp tune ccl-fp split-mnist --scenario task

    cclfp tune er split-cifar10 --budget 10 --write presets.json

    cclfp tune fdr split-cifar10 --scenario task --halving 12

    cclfp tune half.py:Half photos-3fa2b1c0 half=0.1,0.5,0.9 --tasks 5 --backbone mlp
    """
    if benchmark is not None and "=" in benchmark:  # it is the first setting
        settings, benchmark = [benchmark, *(settings or [])], None
    ranges = parse_settings(settings or [])

    from cclfp.cli.progress import progress
    from cclfp.core.files import check_output
    from cclfp.paper.tuning import halved_settings, outdated, tune
    from cclfp.runs.settings import is_papers, prepare, presets, read_presets, with_preset, write_presets

    problem = dataclasses.replace(problem, benchmark=benchmark)
    if write is not None and (problem.images is not None or not is_papers(method, prepare(problem))):
        raise InputError(f"--write {write}: presets are for the paper's methods and benchmarks as they are there")
    if write is not None:
        check_output(write, lambda head: True)  # presets that cannot be read are refused next
    known = read_presets(write) if write is not None and write.exists() else None
    with progress() as shown:
        tuned = tune(
            method,
            problem=problem,
            settings=ranges,
            seeds=seeds,
            budget=budget,
            halving=halving,
            known=[*known, *presets()] if known is not None else None,
            execution=execution,
            on_event=shown.update,
        )
    if write is not None:
        changed = with_preset(known or [], tuned.preset)
        write_presets(changed, write)
        for preset in outdated(changed):
            words = ["tune", preset.method, preset.benchmark, "--scenario", preset.scenario, "--write", str(write)]
            if (halved := halved_settings(preset)) is not None:
                words += ["--halving", str(halved)]
            again = shlex.join(["cclfp", *words])
            typer.echo(f"warning: what {preset.method} inherited has changed, tune it again: {again}", err=True)
    if json:
        print_json(tuned_to_dict(tuned))
    else:
        print_tuned(tuned, write)
