"""What ``run``, ``study`` and ``tune`` answer: results as tables and as JSON, plans, searches."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cclfp.cli.options import FIELDS
from cclfp.cli.output import Answer, Table, attributes, hyperparameters, unusual_settings
from cclfp.metrics import count_of, number, of_seeds_diverged, plus_minus, signed
from cclfp.paper.compare import TEST, show_difference, show_p
from cclfp.paper.numbers import TABLES, missing_components, published_for
from cclfp.paper.search import Trial, Tuned
from cclfp.paper.study import MINE, RUNTIME, Study, by_column
from cclfp.runs.code import OTHER_CODE
from cclfp.runs.configuration import method_labels, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import seeds_in_words, steps
from cclfp.runs.record import Record
from cclfp.runs.results import Result, benchmark_title, describe_protocol, explain_other_code

SHOWN = 10  # how many of the settings that were tried are shown
TIMES = ("train_seconds", "test_seconds", "seconds")


def _accuracy(result: Result) -> str:
    """The number, with a mark where runs of other code are among its seeds; how many, where not all are."""
    others, count = len(result.other_code), len(result.runs)
    text = result.text(between="\n") + f" {OTHER_CODE}" * bool(others)
    return text + f"\n{OTHER_CODE} {others} of {count} seeds" * (0 < others < count)


# A column of a table: its title, ">" for numbers, and the text of a result.
Column = tuple[str, Callable[[Result], str]]
METHOD: Column = ("method", lambda r: r.label)
COMPONENTS: Column = ("components", lambda r: r.label)
MEMORY: Column = (">memory", lambda r: str(r.configuration.buffer))
ACCURACY: Column = (">average accuracy", _accuracy)
PAPER: Column = (">paper", lambda r: "–" if r.published is None else plus_minus(*r.published))
DIFFERENCE: Column = (">difference", lambda r: signed(r.difference))
VERDICT: Column = ("within 2 std", lambda r: r.verdict or "–")
TO_THE_BEST: Column = (">to the best", lambda r: show_difference(r.standing))
P: Column = (">p", lambda r: show_p(r.standing.p))
FORGETTING: Column = (">forgetting", lambda r: plus_minus(**r.mean_std("forgetting")))
SECONDS: Column = (">seconds per run", lambda r: number(r.mean_std("seconds")["mean"], 1))


def table_of(
    results: Sequence[Result], columns: Sequence[Column], seeds: Sequence[int], *others: str, table: str = ""
) -> Table:
    """A row per result. The title says what all of them are trained on, with what ``others`` add."""
    title = f"{table}{', '.join([*describe(results[0], *others), seeds_in_words(seeds)])}: mean ± std, %"
    return Table([head for head, _ in columns], [[text(r) for _, text in columns] for r in results], title)


def describe(result: Result, *others: str) -> list[str]:
    """What a result is trained on, in words."""
    c = result.configuration
    return [benchmark_title(c.benchmark), f"{c.scenario}-incremental", *others, *describe_protocol(c)]


def labelled(results: Sequence[Result]) -> list[Result]:
    """The results with the names of their methods, which tell versions of a file apart."""
    labels = method_labels([result.configuration for result in results])
    return [dataclasses.replace(result, label=label) for result, label in zip(results, labels, strict=True)]


def _describe_settings(result: Result) -> str:
    """The settings, where they come from, and why they may not be the best."""
    settings = hyperparameters(result.configuration.settings)
    return f"{result.label}: {settings} ({'; '.join([result.chosen, *result.doubts])})"


# cclfp run ------------------------------------------------------------------------------------------------------------


def describe_runs(
    results: Sequence[Result], varied: Sequence[str], searches: Sequence[Tuned] | None, include_diverged: bool
) -> Answer:
    """One row per configuration, with the settings that vary, and the published numbers where there are any."""
    results = [
        dataclasses.replace(r, published=published_for(r.configuration), include_diverged=include_diverged)
        for r in labelled(results)
    ]
    document = [r.to_dict() | {"published": r.published and r.published._asdict()} for r in results]
    auto = {} if searches is None else {"auto": [_tuned_to_dict(tuned) for tuned in searches]}
    others = [f"memory {size}" for size in {r.configuration.buffer for r in results} - {None}]
    others += ["tested on held-out training images"] * results[0].configuration.validation
    settings: list[Column] = [(name, functools.partial(_setting, name)) for name in varied]
    paper = [PAPER] if any(r.published for r in results) else []
    columns = [METHOD, *settings, ACCURACY, *paper, FORGETTING, SECONDS]
    table = table_of(results, columns, [run["seed"] for run in results[0].runs], *others)
    choices = [] if searches is None else map(_describe_settings, results)
    return Answer({"configurations": document, **auto}, [table, *explain_other_code(results), *choices])


def _setting(name: str, result: Result) -> str:
    """The value of a setting, which not all methods have."""
    value = {**result.configuration.to_dict(), **result.configuration.hyperparameters}.get(name)
    return "–" if value is None else show_value(value)


def describe_shard(execution: Execution, records: Sequence[Record]) -> Answer:
    """How many runs a part has, in which store they are, and how to put the parts together."""
    part, count = execution.part or (1, 1)
    store = execution.target
    parts = f"{shlex.quote(str(store.parent))}/shard-*-of-{count}.sqlite"
    document = {"shard": execution.shard, "store": store, "keys": [record["key"] for record in records]}
    command = f"cclfp runs import {parts} --store {shlex.quote(str(execution.store))}"
    runs = f"part {part} of {count}: {count_of(len(records), 'run')}, in {store}"
    return Answer(document, [runs, f"when all parts are there: {command}"])


# cclfp study ----------------------------------------------------------------------------------------------------------


def describe_plan(study: Study) -> Answer:
    """What would be trained, by configuration."""
    stored, planned = study.look_up()
    columns = ["benchmark", "scenario", "method", ">memory", "settings", "from", "seeds", ">replica-steps"]
    plan, rows = [], []
    for result, jobs in planned:
        c, seeds, cost = result.configuration, [job.seed for job in jobs], len(jobs) * steps(result.configuration)
        about = attributes(c, "method", "method_file", "benchmark", "scenario", "buffer", "hyperparameters", "augment")
        how = {"preset": result.is_tuned, "from": result.chosen, "seeds": seeds, "replica_steps": cost}
        plan.append(about | how)
        trained = (c.method_version, c.buffer, unusual_settings(c), result.chosen)
        rows.append([*result.column, *trained, seeds_in_words(seeds).split(" ", 1)[1], f"{cost:,}"])
    missing, total = sum(len(part["seeds"]) for part in plan), sum(part["replica_steps"] for part in plan)
    parts: list[Table | str] = [Table(columns, rows, "To be trained, the longest runs first")] if plan else []
    parts += [f"{len(study.jobs) - missing} of {len(study.jobs)} runs are in the store {study.store}"]
    parts += [text.removeprefix(f"{OTHER_CODE} ") for text in explain_other_code(stored)]  # the table has no marks
    parts += [f"{missing} runs to train, {total:,} replica-steps"]
    return _answer(study, {"missing": missing, "replica_steps": total, "plan": plan}, parts)


def _answer(study: Study, document: dict[str, Any], parts: Sequence[Table | str]) -> Answer:
    """What is found of a study, and which methods have neither a preset nor a search."""
    names = ", ".join(f"{c['method']} on {c['benchmark']} ({c['scenario']})" for c in study.not_tuned)
    untuned = [f"no preset, trained with the defaults and not tuned: {names}"] if names else []
    return Answer({"store": study.store, **document, "not_tuned": study.not_tuned}, [*parts, *untuned])


def describe_study(study: Study, include_diverged: bool) -> Answer:
    """A table for each column that has runs, and what there is to say about all; no text where no run is finished."""
    from cclfp.report.tables import tally  # here: it brings jinja2, which other commands do not need

    if study.what == RUNTIME:
        return _describe_times(study)
    found, is_mine = study.found(include_diverged), study.what == MINE
    columns = [results for results in by_column(found).values() if any(result.runs for result in results)]
    cells = [_own_to_dict(result) if is_mine else _cell_to_dict(result) for result in found]
    if not columns:
        return _answer(study, {"cells": cells}, [])
    tables = [part for results in columns for part in _describe_column(results, study.seeds)]
    test = [TEST] if any(len(results) > 1 for results in columns) else []
    summary = test if is_mine else [f"the paper's {tally(found)}"]
    return _answer(study, {"cells": cells}, [*tables, *summary, *explain_other_code(found)])


def _describe_column(results: Sequence[Result], seeds: Sequence[int]) -> list[Table | str]:
    """A column as a table like that of ``cclfp run``: the paper's beside its numbers, one's own beside its best."""
    table = results[0].table
    if table in TABLES:
        first = {"buffer": [MEMORY, METHOD], "ablation": [COMPONENTS]}.get(table, [METHOD])
        columns = [*first, ACCURACY, PAPER, DIFFERENCE, VERDICT]
        return [table_of(results, columns, seeds, table=f"{TABLES[table]}: ")]
    results = labelled(results)
    columns = [METHOD, ACCURACY, TO_THE_BEST, P, FORGETTING, SECONDS]
    return [table_of(results, columns, seeds, table), *(f"  {_describe_settings(result)}" for result in results)]


def _cell_to_dict(result: Result) -> dict[str, Any]:
    """A number of the paper for ``--json``, with ours."""
    return {
        "table": result.table,
        "row": result.label,
        **attributes(result.configuration, "benchmark", "scenario", "method", "buffer"),
        "settings": missing_components(result),
        "preset": result.is_tuned,
        "published": result.published and result.published._asdict(),
        "runs": len(result.runs),
        **attributes(result, "mean", "std", "difference", "verdict", "diverged", "other_code"),
    }


def _own_to_dict(result: Result) -> dict[str, Any]:
    """A number of one's own for ``--json``."""
    c, standing = result.configuration, result.standing
    return {
        **result.to_dict(),
        "given": result.label,
        "settings": c.hyperparameters | {"augment": c.augment},
        **attributes(result, "chosen", "doubts", "accuracies"),
        "runs": len(result.runs),
        "standing": standing.verdict,
        "difference": standing.difference,
        "difference_std": standing.std,
        "common_seeds": standing.common,
        "p": standing.p,
    }


def _describe_times(study: Study) -> Answer:
    """How long each method's run took, per benchmark; a dash where it was not measured like the others."""
    timed, panels, tables = study.timed(), [], []
    for made, results in timed:
        runs: dict[str, dict[str, Any]] = {r.configuration.method: dict(r.runs[0]) if r.runs else {} for r in results}
        times = {method: {name: run.get(name) for name in TIMES} for method, run in runs.items()}
        others = {r.configuration.method: version for r in results for version in r.other_code.values()}
        about = attributes(results[0].configuration, "benchmark", "scenario")
        panels.append({**about, "made": made, "times": times, "other_code": others})
        title = f"Run time: {', '.join(describe(results[0]))}, each method alone on {made}"
        heads = ["method", ">training", ">testing", ">seconds per run"]
        marks = {method: f"{method} {OTHER_CODE}" for method in others}
        rows = [[marks.get(method, method), *(number(v, 1) for v in of.values())] for method, of in times.items()]
        tables.append(Table(heads, rows, title))
    others_explained = explain_other_code([result for _, results in timed for result in results])
    return _answer(study, {"panels": panels}, [*tables, *others_explained])


# cclfp tune -----------------------------------------------------------------------------------------------------------


def _tuned_to_dict(tuned: Tuned) -> dict[str, Any]:
    """A search for ``--json``."""
    trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in tuned.trials]
    chosen = {"preset": dataclasses.asdict(tuned.preset), "settings": tuned.settings, "doubts": tuned.doubts}
    return {**chosen, "trials": trials}


def describe_search(tuned: Tuned, write: Path | None) -> Answer:
    """The best settings that were tried, what was chosen, and the command that uses it."""
    preset, problem = tuned.preset, tuned.problem
    settings = [f"{name}={show_value(value)}" for name, value in (tuned.settings | preset.settings).items()]
    given = attributes(problem, "scenario", "memory", "tasks", "class_order", "backbone")
    changed = {name.replace("_", "-"): str(value) for name, value in given.items() if value != FIELDS[name].default}
    options = [word for name, value in changed.items() for word in (f"--{name}", value)]
    lines = [f"chosen: {' '.join(settings)}", f"how: {preset.chosen}", *(f"note: {doubt}" for doubt in tuned.doubts)]
    lines += [f"to use it: {shlex.join(['cclfp', 'run', tuned.method, str(problem.benchmark), *settings, *options])}"]
    lines += [] if write is None else [f"written to {write}"]
    return Answer(_tuned_to_dict(tuned), [*([_table_of_trials(tuned)] if tuned.trials else []), *lines])


def _table_of_trials(tuned: Tuned) -> Table:
    """The best settings, with what varies among all."""
    preset, trials = tuned.preset, tuned.trials
    varied = [name for name in trials[0].settings if len({trial.settings[name] for trial in trials}) > 1]
    rows = [[*(show_value(t.settings[name]) for name in varied), show_score(t), t.seeds] for t in trials[:SHOWN]]
    title = f"{preset.method} on {preset.benchmark}, {preset.scenario}-incremental, on held-out training images, %: "
    title += f"the best of {count_of(len(trials), 'setting')}"
    diverged = sum(1 for trial in trials if trial.diverged)
    title += f", {diverged} of which diverged with some seed" if diverged else ""
    return Table([*(f">{name}" for name in varied), ">average accuracy", ">seeds"], rows, title)


def show_score(trial: Trial) -> str:
    """``79.47 ± 1.49``, and how many seeds diverged."""
    parts = [] if trial.mean is None else [plus_minus(trial.mean, trial.std)]
    return "\n".join(filter(None, [*parts, of_seeds_diverged(len(trial.diverged), trial.seeds)]))
