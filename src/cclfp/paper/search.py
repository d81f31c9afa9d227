"""The search for settings of one method at one place, on held-out training data."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence

from cclfp.errors import InputError
from cclfp.events import Event, Finished, Note, OnEvent, Planned, Step, Stored
from cclfp.metrics import count_of
from cclfp.paper.grids import Grid
from cclfp.paper.trials import Settings, Trial, search_in_time, spread, successive_halving
from cclfp.runs.configuration import PROTOCOL, Configuration, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import make_jobs, name_runs
from cclfp.runs.pool import make_executor
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import Preset, find_preset, make_one
from cclfp.runs.store import Store, exists

FIRST_SEED = 100  # no reported number uses this and the following ones
FOR_PRESET = 0.2  # the share of a budget that is spent on comparing the choice with the preset
ENOUGH_SEEDS = 3  # fewer say little
MEASURED = 1.0  # seconds of training that tell how long the rest will take


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The settings that were found, and all that was tried, the best first: nothing where there is nothing to search.

    ``preset`` has the hyperparameters and how they were chosen, ``settings`` what ``run`` needs to use them.
    """

    method: str  # a name or FILE.py:NAME
    problem: Problem
    preset: Preset
    settings: Settings
    trials: list[Trial]
    doubts: list[str] = dataclasses.field(default_factory=list)  # why the choice may not be the best, in words


class Search:
    """Trains settings of one method on held-out data."""

    def __init__(self, method: str, problem: Problem, execution: Execution, on_event: OnEvent) -> None:
        self.method, self.problem, self.on_event = method, problem, on_event
        self.name = f"{method} on {problem.name}"
        self.execution = dataclasses.replace(execution, save=None)  # nobody needs the learners of a search
        self.executor = make_executor(self.execution)  # one for all rounds of the search
        self._records: list[Record] = []  # of earlier rounds
        self._first: Settings | None = None  # what was trained first: runs are named by what differs from it

    def close(self) -> None:
        self.executor.close()

    def configuration(self, settings: Settings) -> Configuration:
        return make_one(self.method, dataclasses.replace(self.problem, validation=True), settings)

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        """The trial of each, and how many runs were not in the store; all in one call, together."""
        return self._train(several, seeds, None)

    def _train(
        self, several: Sequence[Settings], seeds: Sequence[int], limit: _Limit | None
    ) -> tuple[list[Trial], int]:
        chosen = [self.configuration(settings) for settings in several]
        jobs = make_jobs(chosen, seeds, self.execution)
        self._first = self._first or several[0]
        varied = [name for name in several[0] if len({settings[name] for settings in [self._first, *several]}) > 1]
        labels = name_runs(jobs, varied)
        trained = 0

        def listen(event: Event) -> None:
            nonlocal trained
            trained += isinstance(event, Finished)
            self.on_event(event)
            if limit is not None:
                limit.check(event)

        listen(Planned(labels, str(self.execution.store), dict.fromkeys(labels, 1.0)))
        records = run_jobs(jobs, listen, self.executor, self._records)
        self._records += records.values()
        trials = [
            _trial(settings, [records[configuration.key(seed)] for seed in seeds])
            for settings, configuration in zip(several, chosen, strict=True)
        ]
        return trials, trained

    def in_time(
        self, starts: Sequence[Settings], grids: Sequence[Grid], seeds: Sequence[int], minutes: float
    ) -> list[Trial]:
        """The trials that there is time for; InputError where it is too short for one run."""
        limit: _Limit | None = _Limit(self.name, minutes)

        def train(several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
            nonlocal limit
            only_first, limit = limit, None
            return self._train(several, seeds, only_first)

        return search_in_time(starts, grids, seeds, train, 60 * minutes, workers=self.executor.workers)

    def refuse_diverged(self, found: Sequence[Trial]) -> None:
        """InputError where even the best of several settings diverged."""
        if found[0].diverged:
            several = f"all {len(found)} settings" if len(found) > 1 else "the one setting"
            raise InputError(
                f"{self.name}: {several} that were tried diverged, so none is chosen; "
                "the runs are in the store (cclfp runs)"
            )

    def result(
        self,
        best: Settings,
        how: str,
        trials: list[Trial],
        grids: Sequence[Grid],
        inherited: dict[str, list[str]] | None = None,
        halved: int | None = None,
    ) -> Tuned:
        c = self.configuration(best)
        preset = Preset(c.method, c.benchmark, c.scenario, c.hyperparameters, c.augment, how, inherited or {}, halved)
        worse = self._compare_with_preset(best, trials[0]) if trials else []
        return Tuned(self.method, self.problem, preset, best, trials, [*find_doubts(trials, grids), *worse])

    def train_preset(self, best: Settings, trials: Sequence[Trial], most: float) -> None:
        """Train the preset, where there is one, with the seeds of the choice, unless that takes too many seconds."""
        preset, store = self.configuration({}), Store(self.execution.store)
        chosen = self.configuration(best)
        if find_preset(preset.method, preset.benchmark, preset.scenario) is None or preset == chosen:
            return
        seeds = [FIRST_SEED + i for i in range(trials[0].seeds)]
        missing = [seed for seed in seeds if store.find(preset.key(seed)) is None]
        took = [record["seconds"] for seed in seeds if (record := store.find(chosen.key(seed))) is not None]
        if missing and took and len(missing) * max(took) <= most:
            jobs = make_jobs([preset], missing, self.execution)
            labels = {job.key: f"the preset, seed {job.seed}" for job in jobs}
            self.on_event(Planned(labels, str(self.execution.store), dict.fromkeys(labels, 1.0)))
            run_jobs(jobs, self.on_event, self.executor)

    def _compare_with_preset(self, best: Settings, trial: Trial) -> list[str]:
        """Whether the choice was worse than the preset where both were trained with the same seeds."""
        preset, chosen = self.configuration({}), self.configuration(best)
        is_known = find_preset(preset.method, preset.benchmark, preset.scenario) is not None
        if not is_known or preset == chosen or not exists(self.execution.store):
            return []
        store, seeds = Store(self.execution.store, read_only=True), [FIRST_SEED + i for i in range(trial.seeds)]
        ours, theirs = (Result(c, []).find_runs(store, seeds).accuracies for c in (chosen, preset))
        if not (common := [seed for seed in ours if seed in theirs]):
            return []
        means = [sum(accuracies[seed] for seed in common) / len(common) for accuracies in (ours, theirs)]
        if means[0] >= means[1]:
            return []
        same = f"seed{'s' * (len(common) > 1)} {', '.join(map(str, common))}"
        return [f"worse than the preset on the same held-out images: {means[0]:.2f} against {means[1]:.2f} % ({same})"]


def find_doubts(trials: Sequence[Trial], grids: Sequence[Grid]) -> list[str]:
    """Too few seeds for a choice, or a choice at the edge of its range, in words; the best of the trials is the first.

    >>> find_doubts([Trial({"lr": 0.3}, [80.0])], [{"lr": [0.03, 0.1, 0.3]}])
    ['chosen with 1 seed, which says little', 'lr=0.3 is at the edge of what was searched (0.03 0.1 0.3)']
    """
    if not trials:
        return []
    best = trials[0]
    few = [f"chosen with {count_of(best.seeds, 'seed')}, which says little"] if best.seeds < ENOUGH_SEEDS else []
    searched = {name: values for grid in grids for name, values in grid.items() if name != "augment"}
    return few + [
        f"{name}={show_value(value)} is at the edge of what was searched ({' '.join(map(show_value, values))})"
        for name, values in searched.items()
        if (value := best.settings.get(name)) in (min(values), max(values)) and value and len(values) > 1
    ]


class _Limit:
    """Refuses a run that takes longer than a budget, also one that is in the store. Compiling does not count.

    A record does not say how long that took, so in the store it counts.
    """

    def __init__(self, name: str, minutes: float) -> None:
        self.name, self.minutes, self.began = name, minutes, time.monotonic()
        self.first: tuple[float, int] | None = None  # the time and the step of the first event since compiling
        self.compiling_since: float | None = None
        self.compile_seconds = 0.0

    def check(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._refuse_above(event.record["seconds"])
        if not isinstance(event, Step | Finished):
            return
        now = time.monotonic()
        if self.compiling_since is not None:
            self.compile_seconds += now - self.compiling_since
            self.compiling_since = None
        if isinstance(event, Finished):
            self._refuse_above(event.record["seconds"] - self.compile_seconds)
        elif event.compiling:
            self.first, self.compiling_since = None, now
        else:
            self.first = (now, event.step) if self.first is None else self.first
            since, steps = now - self.first[0], event.step - self.first[1]
            if steps and since >= MEASURED and now - self.began > 60 * self.minutes:
                self._refuse_above(since * event.steps / steps)

    def _refuse_above(self, seconds: float) -> None:
        if seconds <= 60 * self.minutes:
            return
        enough = math.ceil(seconds / 6) / 10
        raise InputError(
            f"{self.minutes:g} minutes are too short to tune {self.name}: one run takes about {seconds:,.0f} s; "
            f"give at least {enough:g} minutes, and several times that for a search"
        )


def tune_anywhere(
    search: Search, grids: list[Grid], ranges: Grid, numbers: Sequence[int], budget: float | None, halving: int | None
) -> Tuned:
    """Search the grids one after the other, beginning with the usual settings; all at once with ``halving``.

    Without ``halving``, the usual settings are compared first with all optional weights at 0, so that a method whose
    parts do not help on this data is not worse than without them, however short the time is.
    """
    start = usual_settings(search.method, search.problem, ranges)
    starts = [start, off] if (off := start | switched_off(grids)) != start else [start]
    search.on_event(Note(f"{search.name}: {describe_grids(grids, jointly=halving is not None)}"))
    trials: dict[str, Trial] = {}

    def best_of(candidates: Sequence[Settings]) -> Settings:
        found = successive_halving(candidates, numbers, search.train, None)
        trials.update({str(trial.settings): trial for trial in found})
        return found[0].settings

    if budget is not None and grids:
        trials = {str(trial.settings): trial for trial in search.in_time(starts, grids, numbers, budget)}
    elif halving is not None and grids:
        candidates = combine(start, {name: values for grid in grids for name, values in grid.items()}, halving)
        found = successive_halving(candidates, numbers, search.train, math.inf)
        trials = {str(trial.settings): trial for trial in found}
    else:
        best = best_of(starts) if len(starts) > 1 else start
        for grid in grids:
            best = best_of(combine(best, grid))
    order = sorted(trials.values(), key=lambda t: (bool(t.diverged), -t.seeds, t.rank))
    if order:
        search.refuse_diverged(order)
    text = describe_search(grids, [], {}, numbers, order)
    text += "" if budget is None else f"; in {budget:g} min, {len(order)} settings tried"
    text += "" if halving is None else f"; by successive halving of {len(order)} settings"
    best = order[0].settings if order else start
    if order:
        search.train_preset(best, order, math.inf if budget is None else FOR_PRESET * 60 * budget)
    return search.result(best, text, order, grids, halved=halving and len(order))


def usual_settings(method: str, problem: Problem, ranges: Grid) -> Settings:
    """The settings without any search; those with a range of their own are at its value nearest to the usual one."""
    usual = make_one(method, problem)
    known: Settings = {**usual.hyperparameters, "augment": usual.augment}
    known |= {name: value for name in PROTOCOL if name in ranges and (value := getattr(usual, name)) is not None}
    return known | {name: min(values, key=lambda v: abs(v - known[name])) for name, values in ranges.items()}


def switched_off(grids: Sequence[Grid]) -> Settings:
    """All settings that are searched and may be 0, at 0, such as the weights of a method's losses.

    >>> switched_off([{"lr": [0.1, 0.3], "augment": [False, True]}, {"w": [0.0, 0.5]}, {"alpha": [0.0, 1.0]}])
    {'w': 0.0, 'alpha': 0.0}
    """
    searched = {name: values for grid in grids for name, values in grid.items()}
    return {name: 0.0 for name, values in searched.items() if name != "augment" and 0 in values}


def combine(best: Settings, grid: Grid, most: int | None = None) -> list[Settings]:
    """All settings of a grid; at most so many, spread over it."""
    several = [best | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return several if most is None or most >= len(several) else spread(several)[:most]


def describe_grids(grids: Sequence[Grid], *, jointly: bool) -> str:
    """What will be searched, in words."""
    between = ", " if jointly else "; then "
    texts = [" and ".join(_range(name, values) for name, values in grid.items()) for grid in grids]
    return f"searching {between.join(texts)}" if grids else "nothing to search"


def _range(name: str, values: Sequence[float]) -> str:
    return f"{name} from {' '.join(map(show_value, values))}"


def _trial(settings: Settings, records: Sequence[Record]) -> Trial:
    trial = Trial(settings, [])
    for record in records:
        scores = trial.scores if record.get("diverged") is None else trial.diverged
        scores.append(float(record["average_accuracy"] or 0.0))
    return trial


def describe_search(
    grids: Sequence[Grid],
    left: Sequence[str],
    inherited: dict[str, Settings],
    seeds: Sequence[int],
    trials: Sequence[Trial],
) -> str:
    """How settings were chosen, in words; ``left`` are those that there was no time to search."""
    searched = [_range(name, values) for grid in grids for name, values in grid.items()]
    text = "by cclfp tune"
    if trials:
        used = list(map(str, seeds[: len(trials[0].scores)]))
        several = f"{', '.join(used[:-1])} and {used[-1]}" if len(used) > 1 else used[0]
        text += f" on held-out training data, seed{'s' if len(used) > 1 else ''} {several} "
        text += f"({trials[0].mean:.2f} %): {', '.join(searched)}"
        text += ", one after the other" if len(grids) > 1 else ""
    text += f"; not searched for want of time: {' '.join(left)}" if left else ""
    for other, settings in inherited.items():
        text += f"; inherited from {other}: {' '.join(f'{name}={show_value(v)}' for name, v in settings.items())}"
    return text
