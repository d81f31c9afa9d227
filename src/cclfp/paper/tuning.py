"""Choosing hyperparameters on held-out training data: what ``cclfp tune`` does, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from cclfp import metrics
from cclfp.core.checks import check_whole
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS
from cclfp.paper.grids import CONVOLUTIONAL, GRIDS, Grid, inherits
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.events import Event, Finished, OnEvent, Planned, ignore
from cclfp.runs.execution import FIELDS, Execution, split_options
from cclfp.runs.executors import make_executor
from cclfp.runs.grid import configurations
from cclfp.runs.jobs import make_jobs
from cclfp.runs.presets import Preset, find_preset, presets
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.streams import BENCHMARKS

FIRST_SEED = 100  # no reported number uses these
FIRST_PART = 4  # settings that tell, under a budget, how long a run takes

Settings = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their average accuracies on held-out data, one per seed.

    ``diverged`` are those of the runs that diverged, ``scores`` those of the others; mean and standard deviation are
    of the others.
    """

    settings: Settings
    scores: list[float]
    diverged: list[float] = dataclasses.field(default_factory=list)

    @property
    def seeds(self) -> int:
        return len(self.scores) + len(self.diverged)

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        return metrics.mean_std(self.scores)["std"]

    @property
    def rank(self) -> tuple[bool, float]:
        """The smaller the better: settings with a run that diverged come last; otherwise by the mean of all runs."""
        return bool(self.diverged), -sum([*self.scores, *self.diverged]) / self.seeds

    def add(self, other: Trial) -> None:
        """Take over the runs of the same settings with other seeds."""
        self.scores.extend(other.scores)
        self.diverged.extend(other.diverged)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The preset that was found, and all that was tried, the best first: nothing where there is nothing to search."""

    preset: Preset
    trials: list[Trial]


def tune(
    method: str,
    benchmark: str,
    scenario: str | None = None,
    *,
    seeds: int = 2,
    budget: float | None = None,
    halving: int | None = None,
    known: Sequence[Preset] | None = None,
    execution: Execution | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> Tuned:
    """Search the method's grid on held-out training data with the seeds 100, 101, ...; the best mean accuracy wins.

    Settings with a run that diverged come last and are never chosen; InputError where all did.

    On the MLP's streams all combinations are trained at once. On the convolutional ones ER searches step size and
    augmentation; the other methods inherit these from ER's preset and search their own, one after the other; CCL-FP+
    inherits w and α from CCL-FP's too. A method with nothing of its own is not trained.

    With a ``budget`` in minutes the search is by successive halving: all settings get one seed, the better half of
    them another, and so on, as far as the time that a run was measured to take allows.

    With ``halving`` the search is by successive halving without a time limit, over at most that many settings, spread
    over the grid. A method then searches its own step size together with its other settings on the convolutional
    streams too, and inherits only the augmentation.

    ``known`` are the presets there are, to inherit from; by default those of the package. ``execution``, or
    its fields as keywords (``engine="graph"``), say how and where to train.
    """
    execution, others = split_options(execution, options)
    if others:
        raise unknown("option", next(iter(others)), sorted(FIELDS))
    if execution.shard is not None:
        raise InputError(f"shard={execution.shard!r}: a search needs the results of all its runs; use run or study")
    if method not in GRIDS:
        raise unknown("method", method, GRIDS)
    if benchmark not in BENCHMARKS:
        raise unknown("benchmark", benchmark, BENCHMARKS)
    chosen = BENCHMARKS[benchmark]
    scenario = chosen.scenarios[0] if scenario is None else scenario
    chosen.check(scenario)
    METHODS[method].check_scenario(scenario)
    numbers = [FIRST_SEED + i for i in range(check_whole("seeds", seeds, at_least=1))]
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"budget={budget}: expected minutes, more than 0")
    if halving is not None:
        check_whole("halving", halving, at_least=1)
        if budget is not None:
            raise InputError("budget and halving are two ways to limit a search: expected one of them")
    known = presets() if known is None else known
    # Whatever is not searched is as the method has it, not as the preset that this search replaces.
    best: Settings = dataclasses.asdict(METHODS[method].hyper(scenario))
    inherited, grids = _plan(method, benchmark, scenario, known, jointly=halving is not None)
    for settings in inherited.values():
        best |= settings
    search = _Search(method, benchmark, scenario, execution, on_event)
    trials: dict[str, Trial] = {}
    deadline = None if budget is None else time.monotonic() + 60 * budget
    searched: list[Grid] = []
    with contextlib.closing(search):
        for i, grid in enumerate(grids):
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic()) / (len(grids) - i)
            seconds = math.inf if halving is not None else seconds
            if seconds == 0 and searched:
                break
            searched.append(grid)
            candidates = [best | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
            if halving is not None and halving < len(candidates):
                candidates = _spread(candidates)[:halving]
            found = successive_halving(candidates, numbers, search.train, seconds)
            trials |= {str(trial.settings): trial for trial in found}
            if found[0].diverged:
                several = f"all {len(found)} settings" if len(found) > 1 else "the one setting"
                raise InputError(
                    f"{method} on {benchmark} ({scenario}): {several} that were tried diverged, so none is chosen; "
                    "the runs are in the store (cclfp runs)"
                )
            best = found[0].settings
    order = sorted(trials.values(), key=lambda t: (t.settings != best, bool(t.diverged), -t.seeds, t.rank))
    left = [name for grid in grids[len(searched) :] for name in grid]
    text = _provenance(searched, left, inherited, numbers, order)
    if budget is not None:
        text += f"; by successive halving in {budget:g} min, {len(order)} settings tried"
    if halving is not None:
        text += f"; by successive halving of {len(order)} settings"
    c = search.configuration(best)
    return Tuned(Preset(method, benchmark, scenario, c.hyperparameters, c.augment, text), order)


def outdated(known: Sequence[Preset]) -> list[Preset]:
    """Those on the convolutional streams that inherited other settings than the presets they come from have now.

    In the order in which to tune them again.

    >>> from cclfp.runs.presets import presets
    >>> outdated(presets())
    []
    """

    def is_outdated(preset: Preset) -> bool:
        if preset.method not in GRIDS or BENCHMARKS[preset.benchmark].backbone == "mlp":
            return False
        for other, names in _inherited(preset).items():
            source = find_preset(other, preset.benchmark, preset.scenario, known)
            if source is not None and _settings(source, names) != _settings(preset, names):
                return True
        return False

    order = {method: place for place, method in enumerate(GRIDS)}
    return sorted(filter(is_outdated, known), key=lambda preset: order[preset.method])


def successive_halving(
    candidates: Sequence[Settings],
    seeds: Sequence[int],
    train: Callable[[Sequence[Settings], Sequence[int]], tuple[list[Trial], int]],
    seconds: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Trial]:
    """The candidates that were tried, the best first: those with the most seeds, by their mean score.

    Those with a run that diverged are the last, and get no more seeds.

    ``train`` gives the trials of candidates, and how many runs had to be trained for them. Without a limit
    of ``seconds`` all get all seeds, in one call. With one, a few tell how long a run takes; then as many as fit into
    half the time get the first seed, the better half of these the second, and so on while there is time. An infinite
    limit gives all the first seed in one call.
    """
    if seconds is None:
        trials, _ = train(candidates, seeds)
        return sorted(trials, key=lambda trial: trial.rank)
    end = clock() + seconds
    a_run: float | None = None  # seconds, as last measured

    def try_out(several: Sequence[Settings], seed: int) -> list[Trial]:
        nonlocal a_run
        start = clock()
        found, trained = train(several, [seed])
        a_run = (clock() - start) / trained if trained else a_run
        return found

    def room(share: float) -> float:
        """How many runs a share of the time that is left has room for."""
        return share * max(0.0, end - clock()) // a_run if a_run and not math.isinf(end) else math.inf

    trials = []
    waiting = _spread(candidates)
    while waiting:
        is_last = a_run is not None or math.isinf(seconds)
        count = int(min(len(waiting), room(0.5))) if is_last else FIRST_PART
        if part := waiting[:count]:
            trials += try_out(part, seeds[0])
        waiting = [] if is_last else waiting[count:]
    for number, seed in enumerate(seeds[1:], start=1):
        survivors = sorted((t for t in trials if t.seeds == number), key=lambda trial: trial.rank)
        survivors = survivors[: int(min(-(-len(survivors) // 2), room(1.0)))]
        survivors = [trial for trial in survivors if not trial.diverged]
        if not survivors:
            break
        for trial, more in zip(survivors, try_out([t.settings for t in survivors], seed), strict=True):
            trial.add(more)
    return sorted(trials, key=lambda trial: (bool(trial.diverged), -trial.seeds, trial.rank))


def _spread(candidates: Sequence[Settings]) -> list[Settings]:
    """The candidates in an order whose beginning is spread over the grid: the fractions of the golden ratio."""
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(candidates)), key=lambda i: (i * golden) % 1)
    return [candidates[i] for i in order]


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


def halved_settings(preset: Preset) -> int | None:
    """How many settings the search had that chose the preset, where it was called with ``halving``."""
    found = re.search(r"; by successive halving of (\d+) settings", preset.chosen)
    return None if found is None else int(found.group(1))


def _inherited(preset: Preset) -> dict[str, list[str]]:
    """From which methods the preset was given which settings, as its provenance has it."""
    found = re.findall(r"; inherited from (\S+): ([^;]+)", preset.chosen)
    return {other: [part.partition("=")[0] for part in settings.split()] for other, settings in found}


def _settings(preset: Preset, names: Sequence[str]) -> Settings:
    settings: Settings = preset.hyperparameters | {"augment": preset.augment}
    return {name: settings[name] for name in names}


class _Search:
    """Trains settings of one method on held-out data."""

    def __init__(self, method: str, benchmark: str, scenario: str, execution: Execution, on_event: OnEvent) -> None:
        self.method, self.benchmark, self.scenario = method, benchmark, scenario
        self.execution, self.on_event = execution, on_event
        self.executor = make_executor(execution)  # one for all rounds of the search

    def close(self) -> None:
        self.executor.close()

    def configuration(self, settings: Settings) -> Configuration:
        values = {name: [value] for name, value in settings.items()}
        (found,) = configurations([self.method], self.benchmark, self.scenario, validation=True, settings=values)
        return found

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        """The trial of each, and how many runs were not in the store; all in one call, together."""
        chosen = [self.configuration(settings) for settings in several]
        jobs = make_jobs(chosen, seeds, self.execution)
        varied = [name for name in several[0] if len({settings[name] for settings in several}) > 1]
        labels = {job.key: job.label(varied) for job in jobs}
        trained = 0

        def listen(event: Event) -> None:
            nonlocal trained
            trained += isinstance(event, Finished)
            self.on_event(event)

        listen(Planned(labels, str(self.execution.store), dict.fromkeys(labels, 1.0)))
        records = run_jobs(jobs, listen, self.executor)
        trials = [
            _trial(settings, [records[configuration.key(seed)] for seed in seeds])
            for settings, configuration in zip(several, chosen, strict=True)
        ]
        return trials, trained


def _trial(settings: Settings, records: Sequence[Record]) -> Trial:
    trial = Trial(settings, [])
    for record in records:
        scores = trial.scores if record.get("diverged") is None else trial.diverged
        scores.append(float(record["average_accuracy"] or 0.0))
    return trial


def _provenance(
    grids: Sequence[Grid],
    left: Sequence[str],
    inherited: dict[str, Settings],
    seeds: Sequence[int],
    trials: Sequence[Trial],
) -> str:
    """How a preset was chosen, in words; ``left`` are the settings that there was no time to search."""
    searched = [f"{name} from {' '.join(map(show_value, values))}" for grid in grids for name, values in grid.items()]
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
