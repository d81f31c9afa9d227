"""Searches for the best of several settings: by successive halving, and one setting after the other in limited time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

from cclfp import metrics
from cclfp.paper.grids import Grid

FIRST_PART = 4  # settings that tell, under a budget, how long a run takes

Settings = dict[str, float]
# Gives the trials of settings with these seeds, and how many runs had to be trained for them.
Train = Callable[[Sequence[Settings], Sequence[int]], tuple[list["Trial"], int]]


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
    waiting = spread(candidates)
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


def spread(candidates: Sequence[Settings]) -> list[Settings]:
    """The candidates in an order whose beginning is spread over the grid: the fractions of the golden ratio."""
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(candidates)), key=lambda i: (i * golden) % 1)
    return [candidates[i] for i in order]


def search_in_time(
    starts: Sequence[Settings],
    grids: Sequence[Grid],
    seeds: Sequence[int],
    train: Train,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    workers: int = 1,
) -> list[Trial]:
    """The settings that were tried, the best first: those with the most seeds, by their mean score.

    ``workers`` runs are trained side by side, so that every round has as many, if there is time for one.

    The first of ``starts`` is trained first; that tells how long a run takes. The others follow. Then the grids are
    searched one after the other, each from the best settings so far, the smallest changes first, as far as each grid's
    share of the time allows. All that with the first seed. In the remaining time the better half of all settings gets
    the second seed, the better half of these the third, and so on.
    """
    timer = _Timer(train, clock() + seconds, clock, workers)
    trials = timer.train(starts[:1], seeds[0])
    trials += timer.train_first(starts[1:], seeds[0])
    for i, grid in enumerate(grids):
        best = min(trials, key=lambda trial: trial.rank).settings
        tried = [trial.settings for trial in trials]
        waiting = [settings for settings in neighbours(best, grid) if settings not in tried]
        parts = len(grids) - i + 1  # one is for more seeds
        trials += timer.train_first(waiting, seeds[0], 1 / parts)
    for number, seed in enumerate(seeds[1:], start=1):
        survivors = sorted((t for t in trials if t.seeds == number and not t.diverged), key=lambda trial: trial.rank)
        survivors = survivors[: -(-len(survivors) // 2)]
        if min(len(survivors), timer.room(1.0)) < 2:  # the best needs no more seeds where none is compared with it
            break
        found = timer.train_first([trial.settings for trial in survivors], seed)
        for trial, more in zip(survivors, found, strict=False):
            trial.add(more)
    return sorted(trials, key=lambda trial: (bool(trial.diverged), -trial.seeds, trial.rank))


def neighbours(best: Settings, grid: Grid) -> list[Settings]:
    """All settings of a grid, those with the fewest and smallest changes of ``best`` first, larger before smaller.

    >>> neighbours({"lr": 0.1, "w": 0.5}, {"lr": [0.01, 0.1, 1.0]})
    [{'lr': 0.1, 'w': 0.5}, {'lr': 1.0, 'w': 0.5}, {'lr': 0.01, 'w': 0.5}]
    """

    def distance(settings: Settings) -> tuple[int, int, int]:
        steps = [_place(grid[name], settings[name]) - _place(grid[name], best[name]) for name in grid]
        return sum(step != 0 for step in steps), sum(map(abs, steps)), -sum(steps)

    several = [best | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return sorted(several, key=distance)


def _place(values: Iterable[float], value: float) -> int:
    """How many values are smaller."""
    return sum(v < value for v in values)


class _Timer:
    """Trains settings, and knows how many more runs there is time for."""

    def __init__(self, train: Train, end: float, clock: Callable[[], float], workers: int) -> None:
        self._train, self._end, self._clock, self._workers = train, end, clock, workers
        self._a_run: float | None = None  # seconds of a worker, as last measured; None where all were in the store

    def train(self, several: Sequence[Settings], seed: int) -> list[Trial]:
        if not several:
            return []
        start = self._clock()
        found, trained = self._train(several, [seed])
        if trained:
            self._a_run = (self._clock() - start) * min(trained, self._workers) / trained
        return found

    def train_first(self, several: Sequence[Settings], seed: int, share: float = 1.0) -> list[Trial]:
        """The trials of the first settings, as many as a share of the remaining time has room for.

        At least one per worker if there is time for it at all. As long as all are in the store, it costs no time.
        """
        found: list[Trial] = []
        while len(found) < len(several):
            is_measured = self._a_run is not None
            count = int(max(self.room(share), min(self._workers, self.room(1.0))))
            found += self.train(several[len(found) :][:count], seed)
            if is_measured or not count:
                break
        return found

    def room(self, share: float) -> float:
        """How many runs a share of the remaining time has room for."""
        left = max(0.0, self._end - self._clock())
        if self._a_run is None:
            return FIRST_PART if left else 0
        return share * left // self._a_run * self._workers
