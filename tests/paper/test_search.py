"""The search itself: what is tried, in which order and with how many seeds, with and without a limit of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cclfp.errors import InputError
from cclfp.events import Finished, Step, Stored
from cclfp.paper.search import Limit, Settings, Trial, neighbours, search

A, B = {"a": [0.0, 1.0, 2.0, 3.0]}, {"b": [0.0, 1.0, 2.0]}
START = {"a": 1.0, "b": 0.0}


class Trainer:
    """Scores settings by how near they are to the best ones; a run takes a second of one of the workers."""

    def __init__(self, stored: bool = False, workers: int = 1) -> None:
        self.now, self.a_run, self.workers = 0.0, 0.0 if stored else 1.0, workers
        self.calls: list[Any] = []  # the settings and the seeds of each
        self.made: list[Trial] = []  # all that it returned
        self.limit = Limit("er")

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> list[Trial]:
        self.calls.append(([(s["a"], s["b"]) for s in several], list(seeds)))
        self.now += self.a_run * -(-len(several) * len(seeds) // self.workers)
        if self.a_run:
            self.limit.trained += len(several) * len(seeds)
        found = [Trial(s, [90 - 10 * abs(s["a"] - 3) - abs(s["b"] - 1) for _ in seeds]) for s in several]
        self.made += found
        return found

    def search(
        self,
        seconds: float | None,
        seeds: int = 2,
        starts: Sequence[Settings] = (START,),
        grids: Sequence[dict[str, list[float]]] = (A, B),
    ) -> list[Trial]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.monotonic", lambda: self.now)
            self.limit = Limit("er", None if seconds is None else seconds / 60, workers=self.workers)
            return search(starts, grids, range(seeds), self.train, self.limit)


def test_without_a_limit_each_grid_is_searched_in_one_call_with_all_seeds() -> None:
    trainer = Trainer()
    found = trainer.search(None)
    assert trainer.calls == [([(0, 0), (1, 0), (2, 0), (3, 0)], [0, 1]), ([(3, 1), (3, 2)], [0, 1])]
    assert (found[0].settings, [trial.seeds for trial in found]) == ({"a": 3.0, "b": 1.0}, [2] * 6)
    trainer.calls.clear()
    trainer.search(None, starts=[START, {"a": 1.0, "b": 1.0}])
    assert trainer.calls[0] == ([(1, 0), (1, 1)], [0, 1])
    assert trainer.calls[1] == ([(0, 1), (2, 1), (3, 1)], [0, 1])  # from the better start, and nothing twice


def test_with_enough_time_every_grid_is_searched_from_the_best_so_far_and_the_better_half_gets_another_seed() -> None:
    trainer = Trainer()
    found = trainer.search(100)
    assert found[0].settings == {"a": 3.0, "b": 1.0}
    assert {trial.seeds for trial in trainer.made} == {1}  # trials are values: more seeds make new ones
    assert trainer.calls == [
        ([(1, 0)], [0]),
        ([(2, 0), (0, 0), (3, 0)], [0]),
        ([(3, 1), (3, 2)], [0]),
        ([(3, 1), (3, 0), (3, 2)], [1]),
    ]
    assert [trial.seeds for trial in Trainer().search(100, seeds=8)] == [3, 3, 2, 1, 1, 1]


def test_halving_without_a_limit_of_time_trains_each_round_in_one_call() -> None:
    trainer = Trainer()
    found = trainer.search(math.inf, seeds=3, starts=[{"a": float(a), "b": 1.0} for a in range(-5, 4)], grids=[])
    assert [(len(several), seeds) for several, seeds in trainer.calls] == [(9, [0]), (5, [1]), (3, [2])]
    assert [(trial.settings["a"], trial.seeds) for trial in found] == [
        *((3, 3), (2, 3), (1, 3), (0, 2), (-1, 2)),
        *((-2, 1), (-3, 1), (-4, 1), (-5, 1)),
    ]


@pytest.mark.parametrize(("seconds", "second"), [(100.0, [(3, 2)]), (1.5, None)])
def test_another_start_is_tried_next_if_there_is_time_and_the_search_continues_from_the_better_one(
    seconds: float, second: list[tuple[int, int]] | None
) -> None:
    trainer = Trainer()
    found = trainer.search(seconds, starts=[START, {"a": 3.0, "b": 2.0}])
    tried = [several for several, _ in trainer.calls]
    assert tried[0] == [(1, 0)]
    assert tried[1:2] == ([second] if second else [])
    assert found[0].settings == ({"a": 3.0, "b": 1.0} if second else START)
    assert all(b == 2 for several in tried[2:3] for _, b in several)  # as the better one has


def test_a_search_that_was_stopped_and_is_repeated_tries_the_same() -> None:
    """What was trained before is in the store, and takes no time: a few more tell how long a run takes."""
    grids = [{"a": [float(a) for a in range(9)]}, B]
    fresh, stored = Trainer(), Trainer(stored=True)
    first, again = (trainer.search(100, seeds=4, grids=grids) for trainer in (fresh, stored))
    assert [(trial.settings, trial.seeds) for trial in first] == [(trial.settings, trial.seeds) for trial in again]
    assert len(first) == 9 + 2
    assert [len(several) for several, _ in stored.calls[:3]] == [1, 2, 4]


@pytest.mark.parametrize(("workers", "tried"), [(1, [1, 1, 1]), (2, [1, 2, 2]), (4, [1, 3, 2])])
def test_no_worker_is_idle_where_time_is_short(workers: int, tried: list[int]) -> None:
    trainer = Trainer(workers=workers)
    trainer.search(3.5)
    assert ([len(several) for several, _ in trainer.calls], trainer.now) == (tried, 3)


@given(seconds=st.floats(0, 60), seeds=st.integers(1, 4), workers=st.integers(1, 5))
def test_the_start_is_always_tried_the_time_is_kept_and_nothing_is_tried_twice(
    seconds: float, seeds: int, workers: int
) -> None:
    trainer = Trainer(workers=workers)
    found = trainer.search(seconds, seeds)
    assert trainer.calls[0] == ([(1, 0)], [0])
    assert trainer.now <= max(1.0, seconds)
    runs = [(settings, seed) for several, numbers in trainer.calls for settings in several for seed in numbers]
    assert len(runs) == len(set(runs))
    assert found[0].seeds == max(trial.seeds for trial in found)


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, unique=True), min_size=1),
    st.data(),
)
def test_neighbours_are_all_settings_of_the_grid_and_begin_with_the_best(
    grid: dict[str, list[int]], data: st.DataObject
) -> None:
    best: Settings = {name: data.draw(st.sampled_from(values)) for name, values in grid.items()}
    found = neighbours(best, {name: list(map(float, values)) for name, values in grid.items()})
    assert found[0] == best
    assert len({str(settings) for settings in found}) == len(found) == math.prod(map(len, grid.values()))
    changes = [sum(settings[name] != best[name] for name in grid) for settings in found]
    assert changes == sorted(changes)


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_settings_with_a_run_that_diverged_come_last_and_get_no_more_seeds(seconds: float | None) -> None:
    calls: list[list[float]] = []

    def train(several: Sequence[Settings], seeds: Sequence[int]) -> list[Trial]:
        calls.append([s["x"] for s in several])
        scores = [[10 * s["x"] + seed for seed in seeds] for s in several]
        split = [len(seeds) - (s["x"] >= 6) for s in several]
        return [Trial(s, of[:n], of[n:]) for s, of, n in zip(several, scores, split, strict=True)]

    found = search([{"x": float(x)} for x in range(8)], [], [0, 1], train, Limit("er", seconds))
    if seconds is None:
        assert [trial.settings["x"] for trial in found] == [5, 4, 3, 2, 1, 0, 7, 6]
    else:
        seeds = [(5, 2), (4, 2), (3, 2), (2, 2), (1, 1), (0, 1), (7, 1), (6, 1)]
        assert [(trial.settings["x"], trial.seeds) for trial in found] == seeds
        assert sorted(calls[-1]) == [2, 3, 4, 5]
        assert (found[-1].mean, found[-1].diverged) == (None, [60.0])


def test_a_first_run_that_takes_longer_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    limit, slow = Limit("er on photos", 1), {"seconds": 61.0}
    for event in (Finished("a", slow), Stored("a", slow)):
        with pytest.raises(InputError, match="1 minutes are too short to tune er on photos: one run takes about 61 s"):
            limit.check(event)
    for now, number in ((100.0, 2), (102.0, 102)):  # noqa: B007  the clock reads it
        limit.check(Step("a", 1, 5, number, 1000, None))  # 20 s for all
    now = 300.0
    with pytest.raises(InputError, match="one run takes about 1,980 s"):
        limit.check(Step("a", 1, 5, 103, 1000, None))
