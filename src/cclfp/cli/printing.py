"""What ``run`` and ``tune`` print, as tables and as JSON, and the columns of such tables."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
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
)
from cclfp.metrics import of_seeds_diverged

if TYPE_CHECKING:
    from cclfp.paper.search import Trial
    from cclfp.paper.searches import Tuned
    from cclfp.runs.execution import Execution
    from cclfp.runs.record import Record
    from cclfp.runs.results import Result

SHOWN = 10  # how many of the settings that were tried are shown

# A column of a table: its title, ">" for numbers, and the text of a result.
TextColumn = tuple[str, Callable[["Result"], str]]
ACCURACY: TextColumn = (">average accuracy", lambda r: _accuracy(r))
PAPER: TextColumn = (">paper", lambda r: "–" if r.published is None else plus_minus(*r.published))
FORGETTING: TextColumn = (">forgetting", lambda r: plus_minus(**r.mean_std("forgetting")))
SECONDS: TextColumn = (">seconds per run", lambda r: number(r.mean_std("seconds")["mean"], 1))


def print_rows(results: Sequence[Result], names: Sequence[str], columns: Sequence[TextColumn], title: str) -> None:
    """A row per result, which begins with its name."""
    rows = [[name, *(text(result) for _, text in columns)] for name, result in zip(names, results, strict=True)]
    print_table(["method", *(head for head, _ in columns)], rows, title, drop=("seconds per run", "forgetting"))


def describe(result: Result, memory: Sequence[str] = ()) -> list[str]:
    """What the results of a table are trained on, in words."""
    from cclfp.runs.results import benchmark_title, describe_protocol

    c = result.configuration
    return [benchmark_title(c.benchmark), f"{c.scenario}-incremental", *memory, *describe_protocol(c)]


def show_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}"


def labels_of(results: Sequence[Result]) -> list[str]:
    from cclfp.runs.configuration import method_labels

    return method_labels([result.configuration.to_dict() for result in results])


# cclfp run ------------------------------------------------------------------------------------------------------------


def print_results(results: Sequence[Result], varied: Sequence[str]) -> None:
    """One row per configuration, with the settings that vary and the published numbers where there are any."""
    from cclfp.paper import published_for
    from cclfp.runs.configuration import show_value

    def setting(name: str) -> TextColumn:
        def show(result: Result) -> str:
            value = {**result.configuration.to_dict(), **result.configuration.hyperparameters}.get(name)
            return "–" if value is None else show_value(value)

        return name, show

    results = [dataclasses.replace(result, published=published_for(result.configuration)) for result in results]
    first = results[0]
    memory = [f"memory {size}" for size in {r.configuration.buffer for r in results} - {None}]
    held_out = ["tested on held-out training images"] if first.configuration.validation else []
    title = ", ".join([*describe(first, memory), *held_out, show_seeds([run["seed"] for run in first.runs])])
    columns = [
        *map(setting, varied),
        ACCURACY,
        *([PAPER] if any(r.published for r in results) else []),
        FORGETTING,
        SECONDS,
    ]
    print_rows(results, labels_of(results), columns, f"{title}: mean ± std, %")
    explain_other_code(results)


def _accuracy(result: Result) -> str:
    """The number, with a mark where runs of other code are among its seeds; how many, where not all are."""
    others, count = len(result.other_code), len(result.runs)
    text = result.text(between="\n") + f" {OTHER_CODE}" * bool(others)
    return text + f"\n{OTHER_CODE} {others} of {count} seeds" * (0 < others < count)


def explain_other_code(results: Sequence[Result]) -> None:
    """What the mark means, below the tables that have one."""
    from cclfp.runs.code import OTHER_CODE_HINT, describe_other_code, is_other_code

    runs = {run["key"]: run for result in results for run in result.runs}.values()
    if others := [run for run in runs if is_other_code(run)]:
        print_text(f"{OTHER_CODE} {describe_other_code(others, len(runs))}: {OTHER_CODE_HINT}")


def result_to_dict(result: Result) -> dict[str, Any]:
    """A configuration for ``--json``, with the published number."""
    from cclfp.paper import published_for

    published = published_for(result.configuration)
    values = result.to_dict()
    rest = {name: values.pop(name) for name in ("diverged", "other_code", "runs")}
    return {**values, "published": None if published is None else published._asdict(), **rest}


def print_shard(execution: Execution, records: Sequence[Record], json: bool) -> None:
    """How many runs a part has, in which store they are, and how to put the parts together."""
    part, count = execution.part or (1, 1)
    store = execution.target
    if json:
        print_json({"shard": execution.shard, "store": str(store), "keys": [record["key"] for record in records]})
        return
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    typer.echo(f"part {part} of {count}: {runs}, in {store}" if records else f"part {part} of {count} has no runs")
    parts = f"{shlex.quote(str(store.parent))}/shard-*-of-{count}.sqlite"
    typer.echo(f"when all parts are there: cclfp runs import {parts} --store {shlex.quote(str(execution.store))}")


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
