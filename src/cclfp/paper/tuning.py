"""Choosing hyperparameters on held-out training data: what ``cclfp tune`` does, from Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.errors import InputError
from cclfp.events import Event, Note, OnEvent, Planned, ignore
from cclfp.methods import METHODS, Method, get_method
from cclfp.paper.search import Grid, Limit, Settings, Trial, Tuned, find_search, save_search, search, spread
from cclfp.runs.configuration import PROTOCOL, Configuration, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import make_jobs, name_runs, seeds_in_words
from cclfp.runs.pool import Executor, make_executor
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import Preset, find_preset, is_papers, make_one, prepare, presets, read_keywords
from cclfp.streams import BENCHMARKS, get_benchmark

FIRST_SEED = 100  # no reported number uses this and the following ones
SEEDS = 2
AUTO_SEEDS = 8  # at most, as far as the time allows: on few images one seed says little
FOR_PRESET = 0.2  # the share of a budget that is spent on comparing the choice with the preset

# What is searched -----------------------------------------------------------------------------------------------------

LR = [0.01, 0.03, 0.1, 0.3]
WEIGHTS = [0.01, 0.1, 0.5, 1.0]
# The ranges of the paper's methods, the paper's own for w, α and β. Any other method declares its own.
GRIDS: dict[str, Grid] = {
    "si": {"lr": LR, "c": [0.3, 1.0, 3.0], "xi": [0.01, 0.1]},
    "lwf": {"lr": LR, "lambda_o": [0.3, 1.0, 3.0]},
    "gem": {"lr": [0.003, 0.01, 0.03, 0.1], "gamma": [0.5, 1.0]},  # on Split MNIST, class, the smallest is best
    "icarl": {"lr": [0.03, 0.1, 0.3, 1.0]},
    "fdr": {"lr": LR, "alpha": [0.3, 1.0, 3.0]},
    "hal": {"lr": [0.01, 0.03, 0.1], "lam": [0.03, 0.1, 0.3]},  # lam lr^3 above 1e-4 diverges
    "ccl-fp": {"lr": [0.03, 0.1, 0.3], "w": [0.1, 0.3, 0.5], "alpha": WEIGHTS},
    "ccl-fp+": {"lr": [0.03, 0.1, 0.3], "w": [0.1, 0.3, 0.5], "alpha": WEIGHTS, "beta": WEIGHTS},
}
# On the convolutional streams a run takes minutes, and the product of all ranges hours. There ER searches these. The
# others inherit what it found and search their own settings one after the other; CCL-FP+ inherits CCL-FP's and adds β.
CONVOLUTIONAL: Grid = {"lr": [0.01, 0.03, 0.1], "augment": [True, False]}


def ranges_of(kind: type[Method]) -> Grid:
    """What is searched of a method: lr, and what its ``Hyper`` declares with ``setting(..., search=(...))``."""
    declared = {field.name: list(field.metadata.get("search", ())) for field in dataclasses.fields(kind.Hyper)}
    return GRIDS.get(kind.name) or {"lr": LR, **{name: values for name, values in declared.items() if values}}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a search starts, the grids it searches one after the other, and the settings inherited by their method."""

    start: Settings
    grids: list[Grid]
    inherited: dict[str, Settings] = dataclasses.field(default_factory=dict)

    @property
    def ranges(self) -> Grid:
        """All that is searched."""
        return {name: values for grid in self.grids for name, values in grid.items()}

    @property
    def starts(self) -> list[Settings]:
        """The start, also without all that may be 0, such as the weights of a method's losses.

        >>> Plan({"lr": 0.1, "w": 0.5}, [{"lr": [0.1, 0.3], "augment": [False, True]}, {"w": [0.0, 0.5]}]).starts
        [{'lr': 0.1, 'w': 0.5}, {'lr': 0.1, 'w': 0.0}]
        """
        off = self.start | {name: 0.0 for name, values in self.ranges.items() if name != "augment" and 0 in values}
        return [self.start] + [off] * (off != self.start)

    def describe(self, left: Sequence[str] = ()) -> str:
        """What is searched, in words, without the settings that are ``left`` out."""
        searched = {name: " ".join(map(show_value, of)) for name, of in self.ranges.items() if name not in left}
        text = ", ".join(f"{name} from {values}" for name, values in searched.items())
        return text + ", one after the other" * (sum(any(name in searched for name in grid) for grid in self.grids) > 1)


def plan_anywhere(method: str, problem: Problem, given: Grid) -> Plan:
    """The plan for any method on any benchmark: lr and augmentation together, then the method's own settings.

    It starts with the usual settings. On other data than the paper's a component of CCL-FP+ may not help: 0 switches it
    off, and without any it is ER. ``given`` are a user's ranges; a setting with one value is not searched.

    >>> plan_anywhere("fdr", Problem("split-cifar10"), {"lr": [0.5], "alpha": [1.0, 2.0]}).grids
    [{'augment': [False, True]}, {'alpha': [1.0, 2.0]}]
    """
    kind = get_method(method)
    own = ranges_of(kind)
    if kind.name in ("ccl-fp", "ccl-fp+"):
        own = {name: LR if name == "lr" else [0.0, *values] for name, values in own.items()}
    can_augment = get_benchmark(str(problem.benchmark)).no_augmentation is None
    first: Grid = {"lr": own["lr"], **({"augment": [False, True]} if can_augment else {})}
    searched = {name: values for name, values in {**first, **own, **given}.items() if len(values) > 1}
    together = {name: searched.pop(name) for name in first if name in searched}
    grids = ([together] if together else []) + [{name: values} for name, values in searched.items()]
    usual = make_one(method, problem)
    protocol = {name: value for name in PROTOCOL if name in given and (value := getattr(usual, name)) is not None}
    return Plan(_nearest({**usual.hyperparameters, "augment": usual.augment, **protocol}, given), grids)


def plan_preset(method: str, problem: Problem, known: Sequence[Preset], *, jointly: bool) -> Plan:
    """The plan that chose the presets of the paper's methods on its benchmarks.

    Whatever is not searched is as the method has it, not as the preset that the search replaces. ``jointly`` searches
    a method's own step size with its other settings on the convolutional streams too.
    """
    benchmark, scenario = str(problem.benchmark), str(problem.scenario)
    is_convolutional, sources = BENCHMARKS[benchmark].backbone != "mlp", dict[str, list[str]]()
    if is_convolutional and method != "er":
        sources = {"er": ["augment"] if jointly else list(CONVOLUTIONAL)}
        sources |= {"ccl-fp": ["w", "alpha"]} if method == "ccl-fp+" and not jointly else {}
    inherited: dict[str, Settings] = {}
    for other, names in sources.items():
        preset = find_preset(other, benchmark, scenario, known)
        if preset is None:
            text = f"{method} inherits {' and '.join(names)} from {other} on {benchmark} ({scenario})"
            raise InputError(f"{text}: tune {other} there first")
        inherited[other] = _taken(preset, names)
    taken = {name: value for settings in inherited.values() for name, value in settings.items()}
    grid = CONVOLUTIONAL if method == "er" and is_convolutional else ranges_of(METHODS[method])
    grids = [{name: values} for name, values in grid.items() if name not in taken] if "lr" in taken else [grid]
    start = dataclasses.asdict(METHODS[method].hyper(scenario)) | taken
    return Plan(_nearest(start, {name: values for one in grids for name, values in one.items()}), grids, inherited)


def _nearest(start: Settings, ranges: Grid) -> Settings:
    """The start, with the nearest value of each range."""
    return start | {name: min(values, key=lambda v: abs(v - start.get(name, 0))) for name, values in ranges.items()}


def _taken(preset: Preset, names: Sequence[str]) -> Settings:
    return {name: preset.settings[name] for name in names}


def outdated(known: Sequence[Preset]) -> list[Preset]:
    """The presets whose inherited settings have changed at their source, in the order in which to tune them again."""

    def is_outdated(preset: Preset) -> bool:
        place = (preset.benchmark, preset.scenario)
        sources = ((find_preset(other, *place, known), names) for other, names in preset.inherited.items())
        return any(source is not None and _taken(source, names) != _taken(preset, names) for source, names in sources)

    return sorted(filter(is_outdated, known), key=lambda preset: list(METHODS).index(preset.method))


# The search -----------------------------------------------------------------------------------------------------------


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

    There are two seeds by default. Settings with a run that diverged are never chosen; InputError where all did.

    A method of the paper on a benchmark of the paper is searched as the presets were. On the MLP's streams all
    combinations are trained at once. On the convolutional ones ER searches step size and augmentation; the others
    inherit these from ER's preset and search their own, one after the other; CCL-FP+ inherits w and α from CCL-FP's
    too. A method with nothing of its own is not trained.

    Anything else (a method ``FILE.py:NAME``, your own images, other tasks, backbones or memories, ranges of your own)
    searches lr and augmentation, then one after the other what the method's ``Hyper`` declares with ``search`` and the
    ranges in ``settings`` or given as keywords (``lr=[0.01, 0.1]``). It also starts with every weight at 0 that may be
    0: a method whose parts do not help is not worse than without them. The result is kept beside the runs, for
    ``study("mine", ...)``.

    With a ``budget`` in minutes all is tried with one seed, the usual settings first, then the smallest changes, as far
    as the measured time of a run allows. The better half gets another seed, and so on (successive halving). InputError
    where the time is too short for one run. ``halving`` is such a search without a limit of time, over at most so many
    settings, spread over the grid; a method then inherits only the augmentation.

    With ``repeatable``, as for ``cclfp run --auto``, every method is searched in the second way, with up to eight
    seeds, and a search that was made before gives the same settings without another.

    ``known`` are presets to inherit from, by default those of the package. ``problem`` and ``execution``, or their
    fields as keywords (``engine="graph"``), say what is learned, and how and where.
    """
    keywords = {"benchmark": benchmark, "scenario": scenario, **options}
    what, how, ranges = read_keywords([method], settings, problem, execution, keywords)
    _check(what, how, budget, halving, repeatable)
    budget = None if budget is None else float(budget)  # 1 and 1.0 are the same search
    what = prepare(what, on_event)
    make_one(method, what)  # refuses what cannot be trained
    seeds = (AUTO_SEEDS if repeatable else SEEDS) if seeds is None else check_whole("seeds", seeds, at_least=1)
    numbers = [FIRST_SEED + i for i in range(seeds)]
    known, request = presets() if known is None else known, None
    if is_papers(method, what) and not ranges and not repeatable:
        plan = plan_preset(method, what, known, jointly=halving is not None)
    else:
        plan = plan_anywhere(method, what, ranges)
        asked = {"start": plan.start, "grids": plan.grids, "seeds": numbers, "budget": budget, "halving": halving}
        request = {"place": make_one(method, what).place, **asked}
        if repeatable and (found := find_search(how, request, method, what, on_event)) is not None:
            on_event(Note(f"{method} on {what.name}: searched before, and the same settings are chosen"))
            return found
    how = dataclasses.replace(how, save=None)  # nobody needs the learners of a search
    with make_executor(how) as executor:  # one for all its rounds
        limit = Limit(f"{method} on {what.name}", budget, halving, executor.workers)
        searching = _Search(method, what, how, executor, on_event, plan, numbers, limit)
        tuned = searching.carry_out(known)
    return tuned if request is None else save_search(how.store, request, tuned, searching.records)


def _check(problem: Problem, execution: Execution, budget: float | None, halving: int | None, auto: bool) -> None:
    if execution.shard is not None:
        raise InputError(f"shard={execution.shard!r}: a search needs all its results: tune first, without shard")
    if problem.validation or problem.max_classes is not None:
        raise InputError(
            "a search trains on held-out images, without room for more classes: leave out validation and max_classes"
        )
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"{'--auto ' if auto else 'budget='}{budget}: expected minutes, more than 0")
    if halving is not None:
        check_whole("halving", halving, at_least=1)
        if budget is not None:
            raise InputError("budget and halving are two ways to limit a search: expected one of them")


@dataclasses.dataclass
class _Search:
    """Trains settings of one method on held-out data, as planned."""

    method: str
    problem: Problem
    execution: Execution
    executor: Executor
    on_event: OnEvent
    plan: Plan
    seeds: Sequence[int]
    limit: Limit
    records: list[Record] = dataclasses.field(default_factory=list)  # of earlier rounds

    def carry_out(self, known: Sequence[Preset]) -> Tuned:
        """Search, and compare what is found with the preset among those ``known``."""
        plan, name, halving = self.plan, self.limit.name, self.limit.halving
        self.on_event(Note(f"{name}: {f'searching {plan.describe()}' if plan.grids else 'nothing to search'}"))
        starts, grids = plan.starts, plan.grids
        if halving is not None:
            starts, grids = spread(plan.start, plan.ranges, halving), []
        trials = search(starts, grids, self.seeds, self.train, self.limit) if plan.grids else []
        if trials and trials[0].diverged:
            raise InputError(f"{name}: all settings that were tried ({len(trials)}) diverged, so none is chosen")
        best = trials[0].settings if trials else plan.start
        c, tried = self.configuration(best), halving and len(trials)
        inherited = {other: list(settings) for other, settings in plan.inherited.items()}
        text = self._describe(trials)
        preset = Preset(c.method, c.benchmark, c.scenario, c.hyperparameters, c.augment, text, inherited, tried)
        doubts = [*trials[0].doubts(plan.grids), *self._compare_with_preset(trials, known)] if trials else []
        return Tuned(self.method, self.problem, preset, best, trials, doubts)

    def configuration(self, settings: Settings) -> Configuration:
        return make_one(self.method, dataclasses.replace(self.problem, validation=True), settings)

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> list[Trial]:
        """The trial of each; all are trained together."""
        chosen = [self.configuration(settings) for settings in several]
        jobs = make_jobs(chosen, seeds, self.execution)
        labels = name_runs(jobs, list(self.plan.ranges))

        def listen(event: Event) -> None:
            self.on_event(event)
            self.limit.check(event)

        listen(Planned(labels, str(self.execution.store), dict.fromkeys(labels, 1.0)))
        found = run_jobs(jobs, listen, self.executor, labels=labels)
        self.records += found.values()
        trials = []
        for settings, c in zip(several, chosen, strict=True):
            trial = Trial(settings, [], [])
            for record in (found[c.key(seed)] for seed in seeds):
                scores = trial.scores if record.get("diverged") is None else trial.diverged
                scores.append(float(record["average_accuracy"] or 0.0))
            trials.append(trial)
        return trials

    def _compare_with_preset(self, trials: Sequence[Trial], known: Sequence[Preset]) -> list[str]:
        """A doubt if a preset that was not tried is better. It is not trained if that takes too long."""
        best = trials[0]
        c = self.configuration(best.settings)
        if (preset := find_preset(c.method, c.benchmark, c.scenario, known)) is None:
            return []
        was_tried = any(preset.settings.items() <= {"augment": c.augment, **t.settings}.items() for t in trials)
        if was_tried or best.seeds * (self.limit.a_run or 0) > FOR_PRESET * self.limit.seconds:
            return []
        seeds = self.seeds[: best.seeds]
        usable = {name: value for name, value in preset.settings.items() if name in best.settings}
        (theirs,) = self.train([best.settings | usable], seeds)
        if best.mean is None or theirs.mean is None or theirs.diverged or best.mean >= theirs.mean:
            return []
        means = f"{best.mean:.2f} against {theirs.mean:.2f} %"
        return [f"worse than the preset on the same held-out images: {means} ({seeds_in_words(seeds)})"]

    def _describe(self, trials: Sequence[Trial]) -> str:
        """How settings were chosen, in words."""
        plan, text, minutes = self.plan, "by cclfp tune", self.limit.minutes
        varied = {name for name in plan.ranges if len({trial.settings[name] for trial in trials}) > 1}
        left = [] if minutes is None or not trials else [name for name in plan.ranges if name not in varied]
        if trials:
            used = seeds_in_words(self.seeds[: len(trials[0].scores)])
            text += f" on held-out training data, {used} ({trials[0].mean:.2f} %): {plan.describe(left)}"
        text += f"; not searched, as the time was too short: {' '.join(left)}" if left else ""
        for other, settings in plan.inherited.items():
            text += f"; inherited from {other}: {' '.join(f'{name}={show_value(v)}' for name, v in settings.items())}"
        if minutes is not None:
            text += f"; by successive halving in {minutes:g} min, {len(trials)} settings tried"
        return text + (f"; by successive halving of {len(trials)} settings" if self.limit.halving is not None else "")
