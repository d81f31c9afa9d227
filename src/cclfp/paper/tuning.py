"""Choosing hyperparameters on held-out training data: what ``cclfp tune`` does, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.errors import InputError
from cclfp.events import Note, OnEvent, ignore
from cclfp.methods import METHODS, get_method
from cclfp.paper.grids import CONVOLUTIONAL, GRIDS, Grid, inherits, stages
from cclfp.paper.search import FIRST_SEED, Search, Tuned, combine, describe_search, tune_anywhere
from cclfp.paper.searches import find_search, make_request, save_search
from cclfp.paper.trials import Settings, Trial, successive_halving
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.settings import Preset, find_preset, is_papers, make_one, prepare, presets, read_keywords
from cclfp.streams import BENCHMARKS, get_benchmark

SEEDS = 2
AUTO_SEEDS = 8  # at most, as far as the time allows: on few images one seed says little


def tune(
    method: str,
    benchmark: str | None = None,
    scenario: str | None = None,
    *,
    seeds: int | None = None,
    budget: float | None = None,
    halving: int | None = None,
    settings: Mapping[str, Any] | None = None,
    known: Sequence[Preset] | None = None,
    repeatable: bool = False,
    problem: Problem | None = None,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> Tuned:
    """Search a method's settings on held-out training data with the seeds 100, 101, ...; the best mean accuracy wins.

    There are two seeds by default.

    Settings with a run that diverged come last and are never chosen; InputError where all did.

    A method of the paper on a benchmark of the paper is searched as the presets were. On the MLP's streams all
    combinations are trained at once. On the convolutional ones ER searches step size and augmentation; the other
    methods inherit these from ER's preset and search their own, one after the other; CCL-FP+ inherits w and α from
    CCL-FP's too. A method with nothing of its own is not trained.

    Anything else (a method ``FILE.py:NAME``, your own images, other tasks, backbones or memories, ranges of your own)
    searches lr and augmentation, then the method's own settings one after the other: those that its ``Hyper`` declares
    with ``search``, and the ranges in ``settings`` or given as keywords (``lr=[0.01, 0.1]``). The result is stored
    beside the runs, and ``study("mine", ...)`` uses it.

    With a ``budget`` in minutes the paper's search is by successive halving: all settings get one seed, the better half
    of them another, and so on, as far as the time that a run was measured to take allows. The other search tries the
    usual settings first, then those with every weight at 0 that may be 0, then the smallest changes; InputError where
    the time is too short for one run.

    With ``halving`` the search is by successive halving without a time limit, over at most that many settings, spread
    over the grid. A method then searches its own step size together with its other settings on the convolutional
    streams too, and inherits only the augmentation.

    With ``repeatable``, as for ``cclfp run --auto``, every method is searched in the second way, with up to eight
    seeds, and a search that was made before is not made again: it gives the same settings.

    ``known`` are the presets there are, to inherit from; by default those of the package. ``problem`` and
    ``execution``, or their fields as keywords (``engine="graph"``), say what is learned, and how and where.
    """
    keywords = {"benchmark": benchmark, "scenario": scenario, **options}
    what, how, ranges = read_keywords([method], settings, problem, execution, keywords)
    if how.shard is not None:
        raise InputError(f"shard={how.shard!r}: a search needs the results of all its runs; use run or study")
    if what.validation or what.max_classes is not None:
        raise InputError(
            "a search trains on held-out images, without room for more classes: leave out validation and max_classes"
        )
    what = prepare(what, on_event)
    make_one(method, what)  # refuses what cannot be trained
    seeds = (AUTO_SEEDS if repeatable else SEEDS) if seeds is None else check_whole("seeds", seeds, at_least=1)
    numbers = [FIRST_SEED + i for i in range(seeds)]
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"budget={budget}: expected minutes, more than 0")
    if halving is not None:
        check_whole("halving", halving, at_least=1)
        if budget is not None:
            raise InputError("budget and halving are two ways to limit a search: expected one of them")
    if is_papers(method, what) and not ranges and not repeatable:
        with contextlib.closing(Search(method, what, how, on_event)) as search:
            return _tune_as_presets(search, numbers, budget, halving, presets() if known is None else known)
    grids = stages(get_method(method), augment=get_benchmark(str(what.benchmark)).no_augmentation is None, given=ranges)
    request = make_request(method, what, grids, ranges, numbers, budget, halving)
    if repeatable and (found := find_search(how, request, method, what)) is not None:
        on_event(Note(f"{method} on {what.name}: searched before, and the same settings are chosen"))
        return found
    with contextlib.closing(Search(method, what, how, on_event)) as search:
        tuned = tune_anywhere(search, grids, ranges, numbers, budget, halving)
    save_search(how.store, request, tuned)
    return tuned


def _tune_as_presets(
    search: Search, numbers: Sequence[int], budget: float | None, halving: int | None, known: Sequence[Preset]
) -> Tuned:
    """The search that chose the presets of the paper's methods on its benchmarks."""
    method, benchmark, scenario = search.method, str(search.problem.benchmark), str(search.problem.scenario)
    # Whatever is not searched is as the method has it, not as the preset that this search replaces.
    best: Settings = dataclasses.asdict(METHODS[method].hyper(scenario))
    inherited, grids = _plan(method, benchmark, scenario, known, jointly=halving is not None)
    for settings in inherited.values():
        best |= settings
    trials: dict[str, Trial] = {}
    deadline = None if budget is None else time.monotonic() + 60 * budget
    searched: list[Grid] = []
    for i, grid in enumerate(grids):
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic()) / (len(grids) - i)
        seconds = math.inf if halving is not None else seconds
        if seconds == 0 and searched:
            break
        searched.append(grid)
        candidates = combine(best, grid, halving)
        found = successive_halving(candidates, numbers, search.train, seconds)
        trials |= {str(trial.settings): trial for trial in found}
        search.refuse_diverged(found)
        best = found[0].settings
    order = sorted(trials.values(), key=lambda t: (t.settings != best, bool(t.diverged), -t.seeds, t.rank))
    left = [name for grid in grids[len(searched) :] for name in grid]
    text = describe_search(searched, left, inherited, numbers, order)
    if budget is not None:
        text += f"; by successive halving in {budget:g} min, {len(order)} settings tried"
    if halving is not None:
        text += f"; by successive halving of {len(order)} settings"
    given = {other: list(settings) for other, settings in inherited.items()}
    return search.result(best, text, order, searched, given, halving and len(order))


def outdated(known: Sequence[Preset]) -> list[Preset]:
    """Those on the convolutional streams that inherited other settings than the presets they come from have now.

    In the order in which to tune them again.
    """

    def is_outdated(preset: Preset) -> bool:
        if preset.method not in GRIDS or BENCHMARKS[preset.benchmark].backbone == "mlp":
            return False
        for other, names in preset.inherited.items():
            source = find_preset(other, preset.benchmark, preset.scenario, known)
            if source is not None and _settings(source, names) != _settings(preset, names):
                return True
        return False

    order = {method: place for place, method in enumerate(GRIDS)}
    return sorted(filter(is_outdated, known), key=lambda preset: order[preset.method])


def _plan(
    method: str, benchmark: str, scenario: str, known: Sequence[Preset], *, jointly: bool
) -> tuple[dict[str, Settings], list[Grid]]:
    """What the method inherits from which other, and the grids to search one after the other; one grid if jointly."""
    grid = GRIDS[method]
    if BENCHMARKS[benchmark].backbone == "mlp":
        return {}, [grid]
    if method == "er":
        return {}, [CONVOLUTIONAL]
    inherited = {}
    for other, names in ({"er": ["augment"]} if jointly else inherits(method)).items():
        preset = find_preset(other, benchmark, scenario, known)
        if preset is None:
            text = f"{method} inherits {' and '.join(names)} from {other} on {benchmark} ({scenario})"
            raise InputError(f"{text}: tune {other} there first")
        inherited[other] = _settings(preset, names)
    if jointly:
        return inherited, [grid]
    taken = {name for settings in inherited.values() for name in settings}
    return inherited, [{name: values} for name, values in grid.items() if name not in taken]


def _settings(preset: Preset, names: Sequence[str]) -> Settings:
    settings: Settings = preset.hyperparameters | {"augment": preset.augment}
    return {name: settings[name] for name in names}
