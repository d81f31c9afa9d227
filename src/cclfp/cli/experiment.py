"""``cclfp run``, ``tune``, ``study`` and ``report``: train methods, choose their settings, fill and write tables."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cclfp.cli import options
from cclfp.cli.options import app, argument, command, flag, option, parse_list, parse_names, parse_seeds, parse_settings
from cclfp.cli.output import Answer, attributes, print_text
from cclfp.cli.progress import Progress
from cclfp.errors import InputError
from cclfp.metrics import count_of
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem

if TYPE_CHECKING:
    from cclfp.paper.search import Tuned
    from cclfp.runs.results import Result
    from cclfp.runs.settings import Preset


@command(app)
def run(
    method: str = argument(
        ..., "A method, or several with commas (cclfp list methods; FILE.py:NAME is your own).", "METHOD"
    ),
    *,
    problem: Problem,
    settings: list[str] | None = argument(
        None,
        "Hyperparameters (cclfp show METHOD), batch=10, replay=10, epochs=1, augment=on|off (crop and mirror training "
        "images at random). Several values with commas train a grid. What is not set comes from the presets.",
        "NAME=VALUE",
    ),
    seeds: str | None = options.SEEDS,
    seed: int | None = options.SEED,
    auto: float | None = option(
        None,
        "First search lr, augment and each method's own settings on held-out training images, for so many minutes per "
        "method. NAME=A,B are then the values to search. The search is stored: the same command chooses the same.",
        "MINUTES",
    ),
    execution: Execution,
    include_diverged: bool = options.INCLUDE_DIVERGED,
) -> Answer:
    """Train methods on a benchmark over several seeds and print one table beside the paper's numbers.

    A finished run is kept in the store and not trained again; an interrupted one continues from its last checkpoint.

    [bold]Examples[/bold]

    cclfp run ccl-fp+ split-mnist
    cclfp run er,ccl-fp+ rotated-mnist --seeds 0,3,7 --json
    cclfp run ccl-fp split-mnist w=0.1,0.3,0.5 --scenario task --memory 500
    cclfp run ccl-fp+ --images photos/ --tasks 5
    cclfp run er,ccl-fp+ --images photos/ --tasks 5 --auto 10
    """
    names = parse_names("METHOD", method)
    values = parse_settings(settings)
    how: dict[str, Any] = {"seeds": parse_seeds(seeds, seed), "execution": execution}

    from cclfp.cli import printing
    from cclfp.runs.run import run

    searches: list[Tuned] | None = None
    with Progress() as shown:
        if auto is None:
            results = run(names, problem=problem, settings=values, **how, on_event=shown.update)
        else:
            results, searches = _run_tuned(auto, names, problem, values, **how, on_event=shown.update)
    if execution.shard is not None:
        return printing.describe_shard(execution, [run for result in results for run in result.runs])
    varied = [name for name, several in values.items() if len(several) > 1 and auto is None]
    answer = printing.describe_runs(results, varied, searches, include_diverged)
    saved = [] if execution.save is None else [f"learners saved in {execution.save}"]
    return answer._replace(parts=[*answer.parts, *saved])


def _run_tuned(
    minutes: float, methods: Sequence[str], problem: Problem, ranges: dict[str, list[Any]], *, seeds: Any, **how: Any
) -> tuple[list[Result], list[Tuned]]:
    """The results of each method with the settings that a search of so many minutes found, and the searches."""
    from cclfp.cli.printing import show_score
    from cclfp.methods import get_method
    from cclfp.paper.tuning import tune
    from cclfp.runs.jobs import check_seeds
    from cclfp.runs.run import run
    from cclfp.runs.settings import check_setting_names, make_one, prepare, settings_of

    check_setting_names(methods, ranges)
    seeds = check_seeds(seeds)
    problem = prepare(problem, how["on_event"])
    searched = dataclasses.replace(problem, validation=False, max_classes=None)
    for name in methods:
        make_one(name, problem)  # refuses what cannot be trained, before any search
    searches, results = [], []
    for name in dict.fromkeys(methods):  # all searches first: the first that is refused ends the command
        known = settings_of(get_method(name))
        own = {setting: values for setting, values in ranges.items() if setting in known}
        searches.append(tune(name, problem=searched, settings=own, budget=minutes, repeatable=True, **how))
    for tuned in searches:
        settings = {**tuned.settings, "augment": "on" if tuned.preset.augment else "off"}
        (result,) = run([tuned.method], problem=problem, seeds=seeds, settings=settings, **how)
        chosen = "nothing to search"
        if tuned.trials:
            best = show_score(tuned.trials[0])
            chosen = f"{count_of(len(tuned.trials), 'setting')} tried, {best} % on held-out images"
        results.append(dataclasses.replace(result, chosen=chosen, doubts=tuple(tuned.doubts)))
    return results, searches


@command(app, leave_out=[*options.RUN_ONLY, "shard"])
def tune(
    method: str = argument(..., "A method (cclfp list methods; FILE.py:NAME is your own).", "METHOD"),
    *,
    problem: Problem,
    settings: list[str] | None = argument(
        None, "Values to search in place of the usual ones; a setting with one value is fixed.", "NAME=V1,V2,..."
    ),
    budget: float | None = option(
        None,
        "Spend about this long, by successive halving: all settings get one seed, the better half another, and so on. "
        "By default all get all seeds.",
        "MINUTES",
    ),
    halving: int | None = option(
        None,
        "Search by successive halving, however long it takes: at most so many settings, spread over the grid, get one "
        "seed, the better half another, and so on. Each method searches its own lr, on all benchmarks.",
        "SETTINGS",
    ),
    seeds: int = option(2, "How many seeds, from 100 on: no reported number uses these."),
    write: Path | None = option(
        None,
        "Put the preset into this file of presets, in the old one's place; others inherit from there too.",
        "FILE.json",
    ),
    execution: Execution,
) -> Answer:
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
    cclfp tune half.py:Half photos-3fa2b1c0 half=0.1,0.5 --tasks 5 --backbone mlp
    """
    ranges = parse_settings(settings)

    from cclfp.cli import printing
    from cclfp.core.files import check_output
    from cclfp.paper.tuning import outdated, tune
    from cclfp.runs.settings import is_papers, prepare, presets, read_presets, with_preset, write_presets

    known: list[Preset] = []
    if write is not None:
        if problem.images is not None or not is_papers(method, prepare(problem)):
            raise InputError(f"--write {write}: presets are for the paper's methods and benchmarks as they are there")
        check_output(write, lambda head: True)  # presets that cannot be read are refused next
        known = read_presets(write) if write.exists() else []
    with Progress() as shown:
        tuned = tune(
            method,
            problem=problem,
            settings=ranges,
            seeds=seeds,
            budget=budget,
            halving=halving,
            known=[*known, *presets()],
            execution=execution,
            on_event=shown.update,
        )
    if write is not None:
        changed = with_preset(known, tuned.preset)
        write_presets(changed, write)
        for preset in outdated(changed):
            again = ["cclfp", "tune", preset.method, preset.benchmark, "--scenario", preset.scenario]
            again += ["--write", str(write)] + ([] if preset.halved is None else ["--halving", str(preset.halved)])
            text = f"warning: what {preset.method} inherited has changed, tune it again: {shlex.join(again)}"
            print_text(text, err=True)
    return printing.describe_search(tuned, write)


@command(app, leave_out=[*options.RUN_ONLY, "benchmark", "scenario", "memory"])
def study(
    table: str = argument(
        ...,
        "accuracy, buffer or ablation (tables of the paper), all (these three), runtime (its run-time figure), or mine "
        "(a table of your own).",
        "TABLE",
    ),
    benchmark: str | None = option(None, "Only these benchmarks.", "A,B,..."),
    method: str | None = option(None, "Only these methods; for mine also FILE.py:NAME.", "A,B,..."),
    scenario: str | None = option(
        None, "Only these of class, task and domain; for mine by default each benchmark's first.", "A,B,..."
    ),
    *,
    problem: Problem,
    memory: str | None = option(None, "One size of the memory or several.", "N,M,...", shown="200"),
    auto: float | None = option(
        None, "Tune each method in each column first, for so many minutes (cclfp run --auto).", "MINUTES"
    ),
    seeds: str | None = options.SEEDS,
    seed: int | None = options.SEED,
    execution: Execution,
    dry_run: bool = flag("--dry-run", "Print what would be trained, and train nothing."),
    include_diverged: bool = options.INCLUDE_DIVERGED,
) -> Answer:
    """Train what a table of the paper needs and the store does not have; print ours beside the published numbers.

    The longest runs come first. What is finished is kept and printed: stopped at any point, the same command continues.

    mine takes any methods and benchmarks, also your own: --images and its options, --tasks, --backbone, --memory and
    --auto are for mine only. It names the best of each column, and how likely the others differ from it by chance.
    Settings are those that cclfp tune or --auto found there, else the preset, else the defaults.

    runtime measures what the run-time figure shows: each method with one seed, which no table uses, one run at a time,
    all with the same engine (eager, unless --engine names one). Leave the machine alone while it runs.

    [bold]Examples[/bold]

    cclfp study accuracy --benchmark split-mnist,rotated-mnist
    cclfp study all --method er,ccl-fp+ --seeds 3 --dry-run
    cclfp study runtime --benchmark rotated-mnist
    cclfp study mine --images photos/ --method er,ccl-fp+,half.py:Half --tasks 5
    """
    chosen_seeds = None if seeds is None and seed is None else parse_seeds(seeds, seed)

    from cclfp.cli import printing
    from cclfp.paper.study import plan

    if dry_run and auto is not None:
        raise InputError("--auto trains to find settings, and --dry-run trains nothing: leave out one of the two")
    names: dict[str, Any] = {
        "benchmarks": parse_names("--benchmark", benchmark),
        "methods": parse_names("--method", method),
        "scenarios": parse_names("--scenario", scenario),
    }
    sizes = None if memory is None else parse_list("--memory", memory, int, "one whole number or several with commas")
    own = {**vars(problem), "memory": sizes, "auto": auto}
    with Progress() as shown:
        planned = plan(table, **names, **own, seeds=chosen_seeds, execution=execution, on_event=shown.update)
    if dry_run:
        return printing.describe_plan(planned)
    if execution.shard is not None:
        with Progress() as shown:
            records = planned.train(shown.update)
        return printing.describe_shard(execution, list(records.values()))
    failure: BaseException | None = None
    try:
        with Progress() as shown:
            planned.train(shown.update)
    except BaseException as error:  # noqa: BLE001  what is finished is printed all the same, and the error after it
        failure = error
    return printing.describe_study(planned, include_diverged)._replace(error=failure)


@command(app)
def report(
    out: Path = option(..., "The folder to write into, made where there is none.", "DIR"),
    store: Path = options.STORE,
    seeds: str = option("5", "How many seeds, or which.", "N or A,B,..."),
    include_diverged: bool = options.INCLUDE_DIVERGED,
    force: bool = options.FORCE,
) -> Answer:
    """Write the paper's tables and figures with the store's runs beside the published numbers, and all other runs.

    DIR/index.html is a page that works without a network; DIR/tables has Markdown, CSV and LaTeX, DIR/figures SVG, PDF
    and PNG. Numbers that have not been trained are shown as missing. Runs that are in none of the paper's tables, such
    as those of your own images and methods, are under "Your runs" in tables, charts and confusion matrices.

    [bold]Examples[/bold]

    cclfp report --out report/
    cclfp report --out report/ --store runs.sqlite --seeds 3
    """
    wanted = parse_seeds(seeds)

    from cclfp.report import write_report
    from cclfp.report.tables import count_verdicts, tally
    from cclfp.runs.code import OTHER_CODE_RISK, is_other_code, made_by
    from cclfp.runs.jobs import check_seeds
    from cclfp.runs.results import explain_other_code
    from cclfp.runs.store import Store

    how: dict[str, Any] = {"include_diverged": include_diverged, "force": force, "skip_bad": True}
    with Progress() as shown:
        opened = Store(store, read_only=True)
        content, written = write_report(opened, out, check_seeds(wanted), **how, on_event=shown.update)
    lines = [f"the paper's {tally(content.results)} (from {content.runs:,} runs in {store})"]
    lines += [f"{content.about_others}: see Your runs in {out / 'index.html'}"] if content.other_runs else []
    lines += [f"{content.about_held_out}: they are in no table"] if content.held_out else []
    lines += explain_other_code(content.shown, OTHER_CODE_RISK)
    document = {
        "store": store,
        **attributes(content, "runs", "other_runs"),
        "held_out_runs": content.held_out,
        "other_code": {run["key"]: made_by(run) for r in content.shown for run in r.runs if is_other_code(run)},
        "counts": count_verdicts(content.results),
        "files": written,
    }
    return Answer(document, [*lines, *(f"{file}  {file.stat().st_size / 1000:,.0f} kB" for file in written)])
