"""Choosing hyperparameters on held-out training data: what ``cclfp tune`` does, from Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.errors import InputError
from cclfp.events import Event, Finished, Note, OnEvent, Planned, ignore
from cclfp.paper.grids import Plan, plan_anywhere, plan_preset
from cclfp.paper.search import Limit, Settings, Trial, combine, search, spread
from cclfp.paper.searches import Tuned, find_doubts, find_search, make_request, save_search
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import make_jobs, name_runs
from cclfp.runs.pool import Executor, make_executor
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import Preset, find_preset, is_papers, make_one, prepare, presets, read_keywords

FIRST_SEED = 100  # no reported number uses this and the following ones
SEEDS = 2
AUTO_SEEDS = 8  # at most, as far as the time allows: on few images one seed says little
FOR_PRESET = 0.2  # the share of a budget that is spent on comparing the choice with the preset


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

    There are two seeds by default. Settings with a run that diverged come last and are never chosen; InputError where
    all did.

    A method of the paper on a benchmark of the paper is searched as the presets were. On the MLP's streams all
    combinations are trained at once. On the convolutional ones ER searches step size and augmentation; the other
    methods inherit these from ER's preset and search their own, one after the other; CCL-FP+ inherits w and α from
    CCL-FP's too. A method with nothing of its own is not trained.

    Anything else (a method ``FILE.py:NAME``, your own images, other tasks, backbones or memories, ranges of your own)
    searches lr and augmentation, then the method's own settings one after the other: those that its ``Hyper`` declares
    with ``search``, and the ranges in ``settings`` or given as keywords (``lr=[0.01, 0.1]``). A method whose parts do
    not help there is not worse than without them: the search also starts with every weight at 0 that may be 0. The
    result is stored beside the runs, and ``study("mine", ...)`` uses it.

    With a ``budget`` in minutes all is tried with one seed, the usual settings first, then the smallest changes, as far
    as the time that a run was measured to take allows. The better half gets another seed, and so on (successive
    halving). InputError where the time is too short for one run.

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
    _check(what, how, budget, halving)
    what = prepare(what, on_event)
    make_one(method, what)  # refuses what cannot be trained
    seeds = (AUTO_SEEDS if repeatable else SEEDS) if seeds is None else check_whole("seeds", seeds, at_least=1)
    numbers = [FIRST_SEED + i for i in range(seeds)]
    known, request = presets() if known is None else known, None
    if is_papers(method, what) and not ranges and not repeatable:
        plan = plan_preset(method, what, known, jointly=halving is not None)
    else:
        plan = plan_anywhere(method, what, ranges)
        request = make_request(method, what, plan, numbers, budget, halving)
        if repeatable and (found := find_search(how, request, method, what)) is not None:
            on_event(Note(f"{method} on {what.name}: searched before, and the same settings are chosen"))
            return found
    how = dataclasses.replace(how, save=None)  # nobody needs the learners of a search
    with make_executor(how) as executor:  # one for all its rounds
        tuned = _Search(method, what, how, executor, on_event, plan, numbers, budget, halving).carry_out(known)
    if request is not None:
        save_search(how.store, request, tuned)
    return tuned


def _check(problem: Problem, execution: Execution, budget: float | None, halving: int | None) -> None:
    if execution.shard is not None:
        raise InputError(f"shard={execution.shard!r}: a search needs the results of all its runs; use run or study")
    if problem.validation or problem.max_classes is not None:
        raise InputError(
            "a search trains on held-out images, without room for more classes: leave out validation and max_classes"
        )
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"budget={budget}: expected minutes, more than 0")
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
    budget: float | None
    halving: int | None
    limit: Limit | None = None
    records: list[Record] = dataclasses.field(default_factory=list)  # of earlier rounds

    def carry_out(self, known: Sequence[Preset]) -> Tuned:
        """What was found; ``known`` are the presets, of which one may be better."""
        plan, name = self.plan, f"{self.method} on {self.problem.name}"
        self.on_event(Note(f"{name}: {f'searching {plan.describe()}' if plan.grids else 'nothing to search'}"))
        starts, grids = [plan.start] + [plan.switched_off] * (plan.switched_off != plan.start), plan.grids
        if self.budget is not None:
            self.limit = Limit(name, self.budget, self.executor.workers)
        elif self.halving is not None:
            self.limit = Limit(name)
            starts, grids = spread(combine(plan.start, plan.ranges))[: self.halving], []
        trials = search(starts, grids, self.seeds, self.train, self.limit) if plan.grids else []
        if trials and trials[0].diverged:
            several = f"all {len(trials)} settings" if len(trials) > 1 else "the one setting"
            raise InputError(
                f"{name}: {several} that were tried diverged, so none is chosen; the runs are in the store (cclfp runs)"
            )
        best = trials[0].settings if trials else plan.start
        c, tried = self.configuration(best), self.halving and len(trials)
        inherited = {other: list(settings) for other, settings in plan.inherited.items()}
        text = self._describe(trials)
        preset = Preset(c.method, c.benchmark, c.scenario, c.hyperparameters, c.augment, text, inherited, tried)
        doubts = [*find_doubts(trials, plan.grids), *(self._compare_with_preset(trials, known) if trials else [])]
        return Tuned(self.method, self.problem, preset, best, trials, doubts)

    def configuration(self, settings: Settings) -> Configuration:
        return make_one(self.method, dataclasses.replace(self.problem, validation=True), settings)

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        """The trial of each, and how many runs were not in the store; all in one call, together."""
        chosen = [self.configuration(settings) for settings in several]
        jobs = make_jobs(chosen, seeds, self.execution)
        start = self.plan.start
        varied = [name for name in several[0] if len({settings[name] for settings in [start, *several]}) > 1]
        labels = name_runs(jobs, varied)
        trained = 0

        def listen(event: Event) -> None:
            nonlocal trained
            trained += isinstance(event, Finished)
            self.on_event(event)
            if self.limit is not None:
                self.limit.check(event)

        listen(Planned(labels, str(self.execution.store), dict.fromkeys(labels, 1.0)))
        found = run_jobs(jobs, listen, self.executor, self.records)
        self.records += found.values()
        trials = [
            _trial(settings, [found[configuration.key(seed)] for seed in seeds])
            for settings, configuration in zip(several, chosen, strict=True)
        ]
        return trials, trained

    def _compare_with_preset(self, trials: Sequence[Trial], known: Sequence[Preset]) -> list[str]:
        """That the choice was worse than the preset with the same seeds, in words.

        Nothing where the preset was among what was tried, or where it takes too long to train it.
        """
        best, limit = trials[0], self.limit
        c = self.configuration(best.settings)
        if (preset := find_preset(c.method, c.benchmark, c.scenario, known)) is None:
            return []
        settings: Settings = {**preset.hyperparameters, "augment": preset.augment}
        was_tried = any(settings.items() <= {"augment": c.augment, **trial.settings}.items() for trial in trials)
        if was_tried or (limit is not None and best.seeds * (limit.a_run or 0) > FOR_PRESET * 60 * limit.minutes):
            return []
        seeds = self.seeds[: best.seeds]
        (theirs,), _ = self.train([best.settings | settings], seeds)
        if best.mean is None or theirs.mean is None or theirs.diverged or best.mean >= theirs.mean:
            return []
        means = f"{best.mean:.2f} against {theirs.mean:.2f} %"
        same = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return [f"worse than the preset on the same held-out images: {means} ({same})"]

    def _describe(self, trials: Sequence[Trial]) -> str:
        """How settings were chosen, in words."""
        plan, text, left = self.plan, "by cclfp tune", list[str]()
        if trials:
            if self.budget is not None:
                left = [name for name in plan.ranges if len({trial.settings[name] for trial in trials}) == 1]
            used = list(map(str, self.seeds[: len(trials[0].scores)]))
            several = f"seeds {', '.join(used[:-1])} and {used[-1]}" if len(used) > 1 else f"seed {used[0]}"
            text += f" on held-out training data, {several} ({trials[0].mean:.2f} %): {plan.describe(left)}"
        text += f"; not searched for want of time: {' '.join(left)}" if left else ""
        for other, settings in plan.inherited.items():
            text += f"; inherited from {other}: {' '.join(f'{name}={show_value(v)}' for name, v in settings.items())}"
        if self.budget is not None:
            text += f"; by successive halving in {self.budget:g} min, {len(trials)} settings tried"
        return text + (f"; by successive halving of {len(trials)} settings" if self.halving is not None else "")


def _trial(settings: Settings, records: Sequence[Record]) -> Trial:
    trial = Trial(settings, [])
    for record in records:
        scores = trial.scores if record.get("diverged") is None else trial.diverged
        scores.append(float(record["average_accuracy"] or 0.0))
    return trial
