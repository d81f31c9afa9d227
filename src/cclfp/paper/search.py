"""The search for the best of several settings: grids one after the other, with all seeds at once or in limited time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence

from cclfp import metrics
from cclfp.errors import InputError
from cclfp.events import Event, Finished, Step, Stored

MEASURED = 1.0  # seconds of training that tell how long a run will take

Settings = dict[str, float]
Grid = dict[str, list[float]]


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
    def rank(self) -> tuple[bool, int, float]:
        """The smaller the better: no run that diverged, then the most seeds, then the mean of all runs."""
        return bool(self.diverged), -self.seeds, -sum([*self.scores, *self.diverged]) / self.seeds

    def add(self, other: Trial) -> None:
        """Take over the runs of the same settings with other seeds."""
        self.scores.extend(other.scores)
        self.diverged.extend(other.diverged)


# Gives the trials of settings with these seeds, and how many runs had to be trained for them.
Train = Callable[[Sequence[Settings], Sequence[int]], tuple[list[Trial], int]]


class Limit:
    """A limit of time for a search whose runs are trained by several workers side by side; without minutes none."""

    def __init__(self, name: str, minutes: float = math.inf, workers: int = 1) -> None:
        self.name, self.minutes, self.workers = name, minutes, workers
        self.end = time.monotonic() + 60 * minutes
        self.a_run: float | None = None  # seconds of a worker, as last measured; None where all runs were in the store
        self.unmeasured = 1  # so many are tried as long as it is not known how long a run takes
        self._first_step: tuple[float, int] | None = None  # its time and number, since the last compiling
        self._has_compiled = False

    def train(self, train: Train, several: Sequence[Settings], seeds: Sequence[int], share: float = 1) -> list[Trial]:
        """The trials of the first settings, as many as a share of the remaining time has room for.

        At least one per worker if there is time for it at all. As long as all are in the store, it costs no time.
        """
        found: list[Trial] = []
        now = time.monotonic()
        until = min(self.end, now + max(share * (self.end - now), self.a_run or 0))
        while count := min(self.room(until), len(several) - len(found)):
            began = time.monotonic()
            trials, trained = train(several[len(found) :][:count], seeds)
            found += trials
            if trained:
                self.a_run = (time.monotonic() - began) * min(trained, self.workers) / trained
            else:
                self.unmeasured *= 2
        return found

    def room(self, until: float) -> int:
        """How many runs there is time for."""
        left = max(0.0, until - time.monotonic())
        if math.isinf(left):
            return sys.maxsize
        if self.a_run is None:
            return self.unmeasured if left else 0
        return int(left / self.a_run + 1e-6) * self.workers

    def check(self, event: Event) -> None:
        """InputError where the first run takes longer than the limit, also if it is in the store.

        Compiling does not count. A record does not say how long it took, so in the store it counts.
        """
        if self.a_run is not None or self.unmeasured > 1:
            return
        if isinstance(event, Stored) or (isinstance(event, Finished) and not self._has_compiled):
            self._refuse_above(event.record["seconds"])
        elif isinstance(event, Step) and event.compiling:
            self._first_step, self._has_compiled = None, True
        elif isinstance(event, Step):
            now = time.monotonic()
            since, first = self._first_step = self._first_step or (now, event.step)
            if event.step > first and now - since >= MEASURED and now > self.end:
                self._refuse_above((now - since) * event.steps / (event.step - first))

    def _refuse_above(self, seconds: float) -> None:
        if seconds > 60 * self.minutes:
            enough = math.ceil(seconds / 6) / 10
            raise InputError(
                f"{self.minutes:g} minutes are too short to tune {self.name}: one run takes about {seconds:,.0f} s; "
                f"give at least {enough:g} minutes, and several times that for a search"
            )


def search(
    starts: Sequence[Settings], grids: Sequence[Grid], seeds: Sequence[int], train: Train, limit: Limit | None
) -> list[Trial]:
    """The settings that were tried, the best first: those with the most seeds, by their mean score.

    The starts are tried first, if there are several. Then the grids are searched one after the other, each from the
    best settings so far. Without a limit all get all seeds.

    With a limit of time the first start, also an only one, tells how long a run takes, and each grid is searched as far
    as its share of the time allows, the smallest changes first. All that is with the first seed. Then successive
    halving: in the remaining time the better half of all settings gets the second seed, the better half of these the
    third, and so on. Settings with a run that diverged are the last, and get no more seeds.
    """
    first = seeds if limit is None else seeds[:1]
    limited = Limit("") if limit is None else limit
    trials: list[Trial] = []
    if limit is not None or len(starts) > 1:
        trials += limited.train(train, starts, first)
    for i, grid in enumerate(grids):
        best = min(trials, key=lambda trial: trial.rank).settings if trials else starts[0]
        tried = [trial.settings for trial in trials]
        candidates = combine(best, grid) if limit is None else neighbours(best, grid)
        waiting = [settings for settings in candidates if settings not in tried]
        trials += limited.train(train, waiting, first, 1 / (len(grids) - i + 1))  # one share is for more seeds
    for number, seed in enumerate(seeds[len(first) :], start=len(first)):
        survivors = sorted((trial for trial in trials if trial.seeds == number), key=lambda trial: trial.rank)
        survivors = [trial for trial in survivors[: -(-len(survivors) // 2)] if not trial.diverged]
        if min(len(survivors), limited.room(limited.end)) < 2:  # the best needs no more seeds where it is alone
            break
        found = limited.train(train, [trial.settings for trial in survivors], [seed])
        for trial, more in zip(survivors, found, strict=False):
            trial.add(more)
    return sorted(trials, key=lambda trial: trial.rank)


def combine(best: Settings, grid: Grid) -> list[Settings]:
    """All settings of a grid, with the best ones' other values."""
    return [best | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def neighbours(best: Settings, grid: Grid) -> list[Settings]:
    """All settings of a grid, those with the fewest and smallest changes of ``best`` first, larger before smaller.

    >>> neighbours({"lr": 0.1, "w": 0.5}, {"lr": [0.01, 0.1, 1.0]})
    [{'lr': 0.1, 'w': 0.5}, {'lr': 1.0, 'w': 0.5}, {'lr': 0.01, 'w': 0.5}]
    """

    def place(name: str, settings: Settings) -> int:
        return sum(value < settings[name] for value in grid[name])

    def distance(settings: Settings) -> tuple[int, int, int]:
        steps = [place(name, settings) - place(name, best) for name in grid]
        return sum(step != 0 for step in steps), sum(map(abs, steps)), -sum(steps)

    return sorted(combine(best, grid), key=distance)


def spread(several: Sequence[Settings]) -> list[Settings]:
    """The settings in an order whose beginning is spread over their grid: the fractions of the golden ratio."""
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(several)), key=lambda i: (i * golden) % 1)
    return [several[i] for i in order]
