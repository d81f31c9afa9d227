"""The search for the best of several settings, with all seeds at once or in limited time; what it found is kept.

It is kept beside the store of runs, so that repeating a search chooses the same settings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cclfp import metrics
from cclfp.core.files import write_file
from cclfp.errors import InputError
from cclfp.events import Event, Finished, Note, OnEvent, Step, Stored
from cclfp.runs.code import code, is_other_code, made_by
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record, parse_json
from cclfp.runs.settings import Preset, make_one

MEASURED = 1.0  # seconds of training that tell how long a run will take
ENOUGH_SEEDS = 3  # fewer cannot tell small differences from chance

Settings = dict[str, float]
Grid = dict[str, list[float]]
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their average accuracies on held-out data, one per seed."""

    settings: Settings
    scores: list[float]  # mean and standard deviation are of these
    diverged: list[float] = dataclasses.field(default_factory=list)  # of the runs that diverged

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

    def doubts(self, grids: Sequence[Grid]) -> list[str]:
        """Why it may not be the best, in words: too few seeds for a choice, or the edge of a range that was searched.

        >>> Trial({"lr": 0.3}, [80.0]).doubts([{"lr": [0.03, 0.1, 0.3]}])
        ['chosen with 1 seed, too few to rule out chance', 'lr=0.3 is at the edge of what was searched (0.03 0.1 0.3)']
        """
        few = [f"chosen with {metrics.count_of(self.seeds, 'seed')}, too few to rule out chance"]
        searched = {name: values for grid in grids for name, values in grid.items() if name != "augment"}
        return few * (self.seeds < ENOUGH_SEEDS) + [
            f"{name}={show_value(value)} is at the edge of what was searched ({' '.join(map(show_value, values))})"
            for name, values in searched.items()
            if (value := self.settings.get(name)) in (min(values), max(values)) and value and len(values) > 1
        ]


Train = Callable[[Sequence[Settings], Sequence[int]], list[Trial]]  # gives the trials of settings with these seeds


class Limit:
    """How far a search goes: so many minutes, or so many settings. Without either all settings get all seeds."""

    def __init__(self, name: str, minutes: float | None = None, halving: int | None = None, workers: int = 1) -> None:
        self.name, self.minutes, self.halving, self.workers = name, minutes, halving, workers
        self.seconds = math.inf if minutes is None else 60 * minutes
        self.end = time.monotonic() + self.seconds
        self.a_run: float | None = None  # seconds of a worker, as last measured; None where all runs were in the store
        self.trained = 0  # runs that were not in the store
        self.unmeasured = 1  # how many are tried while it is not known how long a run takes
        self._first_step: tuple[float, int] | None = None  # its time and number

    def train(self, train: Train, several: Sequence[Settings], seeds: Sequence[int], share: float = 1) -> list[Trial]:
        """The trials of the first settings: as many as fit into a share of the time, at least one per worker if any."""
        found: list[Trial] = []
        now = time.monotonic()
        until = min(self.end, now + max(share * (self.end - now), self.a_run or 0))
        while count := min(self.room(until), len(several) - len(found)):
            began, before = time.monotonic(), self.trained
            found += train(several[len(found) :][:count], seeds)
            if trained := self.trained - before:
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
            return self.unmeasured if left or self.unmeasured == 1 else 0  # the first is tried in any case
        return int(left / self.a_run + 1e-6) * self.workers

    def check(self, event: Event) -> None:
        """InputError where the first run takes longer than the limit, also if it is in the store."""
        self.trained += isinstance(event, Finished)
        if self.a_run is not None or self.unmeasured > 1:
            return
        seconds = event.record["seconds"] if isinstance(event, Stored | Finished) else 0.0  # of a run
        if isinstance(event, Step):
            now = time.monotonic()
            since, first = self._first_step = self._first_step or (now, event.step)
            if event.step > first and now - since >= MEASURED and now > self.end:
                seconds = (now - since) * event.steps / (event.step - first)
        if seconds > self.seconds:
            enough = math.ceil(seconds / 6) / 10
            raise InputError(
                f"{self.minutes:g} minutes are too short to tune {self.name}: one run takes about {seconds:,.0f} s; "
                f"give at least {enough:g} minutes, and several times that for a search"
            )


def search(
    starts: Sequence[Settings], grids: Sequence[Grid], seeds: Sequence[int], train: Train, limit: Limit
) -> list[Trial]:
    """The settings that were tried, the best first: those with the most seeds, by their mean score.

    The starts are tried first, if there are several. Then the grids are searched one after the other, each from the
    best settings so far. Without a limit all get all seeds. With one the first start tells how long a run takes, and
    each grid is searched with the first seed as far as its share of the time allows, the smallest changes first. Then
    the better half of all settings gets the second seed, the better half of these the third, and so on.
    """
    is_limited = limit.minutes is not None or limit.halving is not None
    first, trials = seeds[:1] if is_limited else seeds, list[Trial]()
    if is_limited or len(starts) > 1:
        trials += limit.train(train, starts, first)
    for i, grid in enumerate(grids):
        best = min(trials, key=lambda trial: trial.rank).settings if trials else starts[0]
        tried = [trial.settings for trial in trials]
        candidates = neighbours(best, grid) if is_limited else combine(best, grid)
        waiting = [settings for settings in candidates if settings not in tried]
        trials += limit.train(train, waiting, first, 1 / (len(grids) - i + 1))  # one share is for more seeds
    for number, seed in enumerate(seeds[len(first) :], start=len(first)):
        survivors = sorted((trial for trial in trials if trial.seeds == number), key=lambda trial: trial.rank)
        survivors = [trial for trial in survivors[: -(-len(survivors) // 2)] if not trial.diverged]
        if min(len(survivors), limit.room(limit.end)) < 2:  # the best needs no more seeds where it is alone
            break
        found = limit.train(train, [trial.settings for trial in survivors], [seed])
        for old, more in zip(survivors, found, strict=False):
            new = Trial(old.settings, old.scores + more.scores, old.diverged + more.diverged)
            trials[trials.index(old)] = new
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


def spread(start: Settings, grid: Grid, count: int) -> list[Settings]:
    """A number of settings that are spread over a grid, by the fractions of the golden ratio."""
    several, golden = combine(start, grid), (math.sqrt(5) - 1) / 2
    return [several[i] for i in sorted(range(len(several)), key=lambda i: (i * golden) % 1)[:count]]


# What a search found, and where it is kept ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The settings that a search found, and all that it tried."""

    method: str  # a name or FILE.py:NAME
    problem: Problem
    preset: Preset  # the hyperparameters, and how they were chosen
    settings: Settings  # what ``run`` needs to use them
    trials: list[Trial]  # the best first; none where there is nothing to search
    doubts: list[str] = dataclasses.field(default_factory=list)  # why the choice may not be the best, in words


def save_search(store: Path, request: Json, tuned: Tuned, records: Iterable[Record]) -> Tuned:
    """Keep the result of a search with the code of its runs. Returns it with a doubt if that is other code."""
    found = dataclasses.asdict(tuned)
    made_with = [record["environment"] for record in records if is_other_code(record)] or [code(request["place"])]
    content = {
        "request": request,
        **{name: found[name] for name in ("settings", "preset", "trials", "doubts")},
        "code": {n: made_with[0][n] for n in ("cclfp", "torch", "source", "commit") if n in made_with[0]},
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_file(_path(store, request), f"{json.dumps(content, indent=1)}\n".encode())
    return dataclasses.replace(tuned, doubts=[*tuned.doubts, *_other_code(content)])


def find_search(execution: Execution, request: Json, method: str, problem: Problem, on_event: OnEvent) -> Tuned | None:
    """The result of an earlier search; None if there is none, or if it is of other code and is to be made again."""
    path = _path(execution.store, request)
    content = None if execution.fresh or not path.exists() else _read(path, on_event)
    if content is None or (execution.other_code == "retrain" and _other_code(content)):
        return None
    return _tuned(content, method, problem)


def read_searches(store: Path, on_event: OnEvent) -> list[Json]:
    """All searches that are kept beside a store, the latest last. A bad one is left out, with a note."""
    found = [_read(path, on_event) for path in sorted(_path(store, {}).parent.glob("*.json"))]
    return sorted(filter(None, found), key=lambda content: content["finished_at"])


def latest_search(searches: Sequence[Json], method: str, problem: Problem) -> Tuned | None:
    """The latest search at a place; if there is none with this size of the memory, one with another size."""
    place = make_one(method, problem).place
    found = [content for content in searches if content["where"] == _where(place)]
    found = [content for content in found if content["request"]["place"]["buffer"] == place["buffer"]] or found
    return _tuned(found[-1], method, problem) if found else None


def stored_doubts(searches: Sequence[Json], configuration: Configuration) -> list[str]:
    """What the latest search says about a run's settings, if it chose them."""
    settings = {**configuration.hyperparameters, "augment": configuration.augment}
    found = [content for content in searches if content["where"] == _where(configuration.place)]
    found = [content for content in found if settings.items() <= content["settings"].items()]
    return found[-1]["doubts"] if found else []


def _read(path: Path, on_event: OnEvent) -> Json | None:
    """A kept search, checked; None, with a note, if it is bad. The doubts of an old one are found from its trials."""
    try:
        content: Json = parse_json(path.read_bytes())
        request, trials = content["request"], [Trial(**trial) for trial in content["trials"]]
        if _digest(request) != path.stem:
            raise InputError("it was changed")
        known = trials[0].doubts(request["grids"]) if trials else []
        doubts = list(content.get("doubts", known))
        found = {"preset": Preset(**content["preset"]), "trials": trials, "finished_at": str(content["finished_at"])}
        found |= {"settings": dict(content["settings"]), "doubts": doubts, "code": dict(content.get("code", {}))}
        return {"request": request, "where": _where(request["place"]), **found}
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        on_event(Note(f"warning: the stored search {path} is left out, as it cannot be read ({error!r}): delete it"))
    return None


def _tuned(content: Json, method: str, problem: Problem) -> Tuned:
    doubts = [*content["doubts"], *_other_code(content)]
    return Tuned(method, problem, content["preset"], content["settings"], content["trials"], doubts)


def _other_code(content: Json) -> list[str]:
    """Which other code made the search, in words; nothing if it was this code."""
    made: Any = {"environment": content["code"], "configuration": content["request"]["place"]}
    return [f"searched with other code ({made_by(made)})"] if is_other_code(made) else []


def _path(store: Path, request: Json) -> Path:
    return store.with_name(f"{store.name}.searches") / f"{_digest(request)}.json"


def _where(place: Json) -> str:
    """A checksum of a place without the size of the memory."""
    return _digest({**place, "buffer": None})


def _digest(values: Json) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
