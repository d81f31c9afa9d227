"""Choosing hyperparameters on held-out data."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.paper import search, trials, tuning
from cclfp.paper.grids import CONVOLUTIONAL, GRIDS
from cclfp.paper.trials import Settings, Trial, successive_halving
from cclfp.paper.tuning import outdated, tune
from cclfp.runs.events import ignore
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.settings import Preset, is_papers, presets, read_presets, with_preset, write_presets
from cclfp.runs.store import Store
from cclfp.streams import BENCHMARKS


class Trainer:
    """Scores settings by x, a little other for each seed; every run that is not stored takes its seconds."""

    def __init__(self, a_run: float, stored: int = 0) -> None:
        self.a_run, self.stored, self.now = a_run, stored, 0.0
        self.calls: list[tuple[list[float], list[int]]] = []

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        self.calls.append(([settings["x"] for settings in several], list(seeds)))
        runs = len(several) * len(seeds)
        free = min(self.stored, runs)
        self.stored -= free
        self.now += (runs - free) * self.a_run
        return [Trial(s, [s["x"] + seed / 1000 for seed in seeds]) for s in several], runs - free

    def search(self, candidates: int, seeds: int, seconds: float | None) -> list[tuple[float, int]]:
        settings = [{"x": float(x)} for x in range(candidates)]
        found = successive_halving(settings, range(100, 100 + seeds), self.train, seconds, lambda: self.now)
        return [(trial.settings["x"], len(trial.scores)) for trial in found]


def test_without_a_budget_all_settings_get_all_seeds_in_one_call() -> None:
    trainer = Trainer(1.0)
    assert trainer.search(6, 2, None) == [(x, 2) for x in (5, 4, 3, 2, 1, 0)]
    assert trainer.calls == [([0, 1, 2, 3, 4, 5], [100, 101])]


def test_with_time_enough_the_better_half_gets_the_next_seed() -> None:
    trainer = Trainer(1.0)
    found = trainer.search(16, 4, 1000)
    assert found[:2] == [(15, 4), (14, 4)]
    assert [n for _, n in found] == [4] * 2 + [3] * 2 + [2] * 4 + [1] * 8
    assert [(len(x), seeds) for x, seeds in trainer.calls] == [
        (4, [100]),
        (12, [100]),
        (8, [101]),
        (4, [102]),
        (2, [103]),
    ]


def test_halving_without_a_limit_trains_each_round_in_one_call() -> None:
    trainer = Trainer(1.0)
    found = trainer.search(9, 3, math.inf)
    assert [(len(x), seeds) for x, seeds in trainer.calls] == [(9, [100]), (5, [101]), (3, [102])]
    assert found == [(8, 3), (7, 3), (6, 3), (5, 2), (4, 2), (3, 1), (2, 1), (1, 1), (0, 1)]


@pytest.mark.parametrize("stored", [0, 3, 7])
@pytest.mark.parametrize("seconds", [8.0, 20.0, 33.0, 60.0])
def test_a_budget_is_kept(seconds: float, stored: int) -> None:
    trainer = Trainer(1.0, stored)
    found = trainer.search(48, 3, seconds)
    assert trainer.now <= seconds
    assert trainer.now >= min(seconds, 48 + 24 + 12) / 2  # and made use of
    assert found[0][1] == max(n for _, n in found)
    tried = sorted(x for x, _ in found)
    assert tried[0] < 16  # what was tried is spread over the grid
    assert tried[-1] >= 32
    assert len(set(tried)) == len(tried)


def test_what_cannot_be_paid_for_is_not_trained() -> None:
    trainer = Trainer(10.0)
    found = trainer.search(48, 2, 1.0)
    assert trainer.calls[0][1] == [100]
    assert len(trainer.calls) == 1  # the few that tell how long a run takes
    assert [n for _, n in found] == [1] * trials.FIRST_PART


def test_the_grids_are_of_settings_that_the_methods_know() -> None:
    assert list(GRIDS) == list(METHODS)
    for method, grid in GRIDS.items():
        names = {field.name for field in dataclasses.fields(METHODS[method].Hyper)}
        assert "lr" in grid
        assert set(grid) <= names
    assert GRIDS["ccl-fp+"]["w"] == [0.1, 0.3, 0.5]  # the paper's ranges
    assert GRIDS["ccl-fp+"]["alpha"] == GRIDS["ccl-fp+"]["beta"] == GRIDS["ccl-fp"]["alpha"] == [0.01, 0.1, 0.5, 1.0]


@pytest.mark.slow
def test_tune_trains_the_grid_on_held_out_data_and_chooses_the_best(small_mnist: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    tuned = tune("er", "split-mnist", "task", engine="eager", store=store.path)
    records = store.records()
    assert all(record["configuration"]["validation"] for record in records)
    assert sorted({record["seed"] for record in records}) == [100, 101]
    scores = {
        lr: [r["average_accuracy"] or 0.0 for r in records if r["configuration"]["hyperparameters"]["lr"] == lr]
        for lr in GRIDS["er"]["lr"]
    }
    assert all(len(several) == 2 for several in scores.values())
    best = max(scores, key=lambda lr: sum(scores[lr]))
    assert tuned.preset.hyperparameters == {"lr": best}
    assert [trial.settings["lr"] for trial in tuned.trials] == sorted(scores, key=lambda lr: -sum(scores[lr]))
    mean = sum(scores[best]) / 2
    assert tuned.preset.chosen == (
        f"by cclfp tune on held-out training data, seeds 100 and 101 ({mean:.2f} %): lr from 0.01 0.03 0.1 0.3"
    )
    assert (tuned.preset.method, tuned.preset.benchmark, tuned.preset.scenario) == ("er", "split-mnist", "task")


class Fake:
    """Stands in for training: the best settings are w = 0.1, alpha = 0.01, beta = 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[Settings]] = []
        monkeypatch.setattr(search.Search, "train", self.train)

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        self.calls.append(list(several))
        wanted = {"w": 0.1, "alpha": 0.01, "beta": 1.0}
        scores = [90 - sum(abs(s[name] - value) for name, value in wanted.items() if name in s) for s in several]
        trials = [Trial(s, [score] * len(seeds)) for s, score in zip(several, scores, strict=True)]
        return trials, len(several) * len(seeds)


def _known(scenario: str = "class", benchmark: str = "split-cifar10") -> list[Preset]:
    """Presets to inherit from, none of them the package's."""
    plus = dataclasses.asdict(METHODS["ccl-fp"].hyper(scenario, lr=0.2, w=0.4, alpha=0.7))
    return [
        Preset("er", benchmark, scenario, {"lr": 0.02}, False, "by hand"),
        Preset("ccl-fp", benchmark, scenario, plus, True, "by hand"),
    ]


def test_on_a_convolutional_stream_settings_are_inherited_and_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(monkeypatch)
    tuned = tune("ccl-fp", "split-cifar10", "class", known=_known())
    assert [len(call) for call in fake.calls] == [3, 4]
    assert all(s["lr"] == 0.02 and s["augment"] is False for call in fake.calls for s in call)
    usual = dataclasses.asdict(METHODS["ccl-fp"].hyper("class"))
    assert {(s["w"], s["alpha"]) for s in fake.calls[0]} == {(w, usual["alpha"]) for w in (0.1, 0.3, 0.5)}
    assert {s["w"] for s in fake.calls[1]} == {0.1}
    assert tuned.preset.hyperparameters == usual | {"lr": 0.02, "w": 0.1, "alpha": 0.01}
    assert not tuned.preset.augment
    assert tuned.trials[0].settings["w"] == 0.1
    assert len(tuned.trials) == 6  # what both searches tried is shown once
    assert tuned.preset.chosen == (
        "by cclfp tune on held-out training data, seeds 100 and 101 (90.00 %): w from 0.1 0.3 0.5, "
        "alpha from 0.01 0.1 0.5 1, one after the other; inherited from er: lr=0.02 augment=off"
    )


def test_ccl_fp_plus_goes_on_from_ccl_fp_on_a_convolutional_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch)
    tuned = tune("ccl-fp+", "split-cifar10", "class", known=_known())
    (call,) = fake.calls
    assert [s["beta"] for s in call] == [0.01, 0.1, 0.5, 1.0]
    assert {(s["lr"], s["augment"], s["w"], s["alpha"]) for s in call} == {(0.02, False, 0.4, 0.7)}
    assert tuned.preset.hyperparameters["beta"] == 1.0
    assert tuned.preset.chosen.endswith(
        "beta from 0.01 0.1 0.5 1; inherited from er: lr=0.02 augment=off; inherited from ccl-fp: w=0.4 alpha=0.7"
    )
    with pytest.raises(InputError, match="inherits w and alpha from ccl-fp .* tune ccl-fp there first"):
        tune("ccl-fp+", "split-cifar10", "class", known=_known()[:1])


def test_with_halving_a_method_searches_its_own_step_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch)
    tuned = tune("ccl-fp+", "split-cifar10", "class", known=_known(), halving=24)
    assert [len(call) for call in fake.calls] == [24, 12]
    assert {len({s[name] for s in fake.calls[0]}) for name in ("lr", "w")} == {3}  # spread over the grid
    assert {len({s[name] for s in fake.calls[0]}) for name in ("alpha", "beta")} == {4}
    assert {s["augment"] for s in fake.calls[0]} == {False}
    assert tuned.preset.chosen.endswith("; inherited from er: augment=off; by successive halving of 24 settings")
    other_lr = [dataclasses.replace(_known()[0], hyperparameters={"lr": 0.5}), tuned.preset]
    assert outdated(other_lr) == []
    augmented = [dataclasses.replace(_known()[0], augment=True), tuned.preset]
    assert outdated(augmented) == [tuned.preset]
    fake.calls.clear()
    assert "of 4 settings" in tune("a-gem", "split-cifar10", "class", known=_known(), halving=50).preset.chosen
    assert [len(call) for call in fake.calls] == [4, 2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"class_order": "wnids"}, True),
        ({"tasks": 10}, True),
        ({"class_order": "labels"}, False),
        ({"class_order": "random"}, False),
        ({"tasks": 5}, False),
        ({"memory": 500}, False),
        ({"backbone": "mlp"}, False),
        ({"method": "half.py:Half"}, False),
        ({"benchmark": "pets-219526c7"}, False),
    ],
)
def test_which_places_are_the_papers(changes: dict[str, Any], expected: bool) -> None:
    place = {"method": "er", "benchmark": "split-tiny-imagenet", "scenario": "task", **changes}
    assert is_papers(place.pop("method"), Problem(**place)) == expected


def test_what_there_was_no_time_to_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Fake(monkeypatch)
    now = iter([0.0, 0.0, *[1000.0] * 100])
    monkeypatch.setattr("cclfp.paper.tuning.time.monotonic", lambda: next(now))
    monkeypatch.setattr(tuning, "successive_halving", lambda c, seeds, train, seconds: [Trial(c[0], [50.0])])
    tuned = tune("ccl-fp", "split-cifar10", "class", known=_known(), budget=1)
    assert "w from 0.1 0.3 0.5; not searched for want of time: alpha; inherited from er" in tuned.preset.chosen
    assert tuned.preset.hyperparameters == dataclasses.asdict(METHODS["ccl-fp"].hyper("class", lr=0.02, w=0.1))


def test_the_best_mean_wins_and_what_is_not_searched_is_the_methods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {0.01: [90.0, 10.0], 0.03: [60.0, 61.0], 0.1: [0.0, 95.0], 0.3: [0.0, 0.0]}

    def train(self: object, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        return [Trial(s, scores[s["lr"]]) for s in several], len(several)

    monkeypatch.setattr(search.Search, "train", train)
    old = Preset(
        "ccl-fp", "split-mnist", "class", {"lr": 0.5, "w": 0.9, "alpha": 9.0, "eta": 9.0, "tau": 9.0}, True, ""
    )
    monkeypatch.setitem(GRIDS, "ccl-fp", {"lr": list(scores)})
    tuned = tune("ccl-fp", "split-mnist", known=[old])
    assert tuned.preset.hyperparameters == dataclasses.asdict(METHODS["ccl-fp"].hyper("class", lr=0.03))


def test_settings_with_a_run_that_diverged_come_last_and_get_no_more_seeds() -> None:
    calls: list[list[float]] = []

    def train(several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        calls.append([s["x"] for s in several])
        found = []
        for s in several:
            scores = [10 * s["x"] + seed for seed in seeds]
            found.append(Trial(s, scores[:-1], scores[-1:]) if s["x"] >= 6 else Trial(s, scores))
        return found, 0

    candidates = [{"x": float(x)} for x in range(8)]
    assert [t.settings["x"] for t in successive_halving(candidates, [0, 1], train, None)] == [5, 4, 3, 2, 1, 0, 7, 6]
    calls.clear()
    found = successive_halving(candidates, [0, 1], train, 1000.0)
    assert [(t.settings["x"], t.seeds) for t in found] == [
        *((5, 2), (4, 2), (3, 2), (2, 2)),
        *((1, 1), (0, 1)),
        *((7, 1), (6, 1)),
    ]
    assert calls[2:] == [[5, 4, 3, 2]]
    assert (found[-1].mean, found[-1].diverged) == (None, [60.0])


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist")
def test_a_setting_that_diverges_is_never_chosen(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 1)  # no other process is started
    command = ("tune", "er", "split-mnist", "--store", tmp_path / "runs.sqlite", "--engine", "eager")
    monkeypatch.setitem(GRIDS, "er", {"lr": [1e20, 0.1, 1e8]})
    answer = cli(*command)
    assert answer.code == 0
    assert "chosen: lr=0.1" in answer.out
    assert answer.out.count("2 of 2 seeds diverged") == 2
    assert "2 of 3 settings had a run that diverged: they are ranked last and never chosen" in answer.out
    trials = cli(*command, "--json").json["trials"]
    assert [(len(t["scores"]), len(t["diverged"])) for t in trials] == [(2, 0), (0, 2), (0, 2)]
    assert [t["mean"] is None for t in trials] == [False, True, True]
    monkeypatch.setitem(GRIDS, "er", {"lr": [1e20, 1e8]})
    preset = tmp_path / "presets.json"
    answer = cli(*command, "--write", preset)
    assert answer.code == 2
    assert "er on split-mnist (class): all 2 settings that were tried diverged, so none is chosen" in answer.err
    assert not preset.exists()


def test_er_searches_step_size_and_augmentation_on_a_convolutional_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch)
    tuned = tune("er", "split-tiny-imagenet", "task")
    (call,) = fake.calls
    assert [(s["lr"], s["augment"]) for s in call] == [
        (lr, augment) for lr in CONVOLUTIONAL["lr"] for augment in (True, False)
    ]
    assert "augment from on off" in tuned.preset.chosen


def test_a_method_with_nothing_of_its_own_inherits_all_and_is_not_trained(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    fake = Fake(monkeypatch)
    tuned = tune("finetune", "split-cifar10", "task", known=_known("task"))
    assert (fake.calls, tuned.trials) == ([], [])
    assert (tuned.preset.hyperparameters, tuned.preset.augment) == ({"lr": 0.02}, False)
    assert tuned.preset.chosen == "by cclfp tune; inherited from er: lr=0.02 augment=off"
    with pytest.raises(InputError, match="tune er there first"):
        tune("finetune", "split-cifar10", "task", known=[])
    answer = cli("tune", "finetune", "split-cifar10")
    assert answer.code == 0
    chosen, how, use = answer.out.splitlines()
    settings = chosen.removeprefix("chosen: ")
    assert how.startswith("how: by cclfp tune; inherited from er: ")
    assert use == f"to use it: cclfp run finetune split-cifar10 {settings} --scenario class"


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_tuned_on_every_benchmark(
    method: str, benchmark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(monkeypatch)
    for scenario in BENCHMARKS[benchmark].scenarios:
        if scenario in METHODS[method].scenarios():
            tuned = tune(method, benchmark, scenario, known=_known(scenario, benchmark))
            searching = search.Search(method, Problem(benchmark, scenario=scenario), Execution(), ignore)
            for settings in [s for call in fake.calls for s in call]:
                assert searching.configuration(settings).validation
            assert tuned.preset.hyperparameters.keys() == {f.name for f in dataclasses.fields(METHODS[method].Hyper)}


@pytest.mark.slow
def test_the_command_writes_the_preset(small_mnist: Path, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "presets.json"
    answer = cli("tune", "er", "split-mnist", "--engine", "eager", "--seeds", "1", "--write", file)
    assert answer.code == 0, answer.err
    assert "er on split-mnist, class-incremental, on held-out training images, %: 4 settings" in answer.out
    assert f"written to {file}" in answer.out
    (er,) = read_presets(file)
    assert er.chosen in answer.out
    assert "seed 100 (" in er.chosen
    arguments = ("tune", "finetune", "split-mnist", "--engine", "eager", "--budget", "5", "--write", file, "--json")
    document = cli(*arguments).json
    assert read_presets(file)[0] == er
    assert json.loads(file.read_text())[1] == document["preset"]
    assert "by successive halving in 5 min, 4 settings tried" in document["preset"]["chosen"]
    assert [len(trial["scores"]) for trial in document["trials"]] == [2, 2, 1, 1]
    assert cli(*arguments).json["preset"] == document["preset"]
    assert len(read_presets(file)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["erx", "split-mnist"], "unknown method 'erx'. Did you mean 'er'?"),
        (["er", "split-mnst"], "unknown benchmark 'split-mnst'. Did you mean 'split-mnist'?"),
        (["er", "split-mnist", "--scenario", "domain"], "split-mnist has no domain scenario"),
        (["lwf", "rotated-mnist"], "lwf"),
        (["er", "split-mnist", "--seeds", "0"], "seeds=0"),
        (["er", "split-mnist", "--budget", "0"], "budget=0.0: expected minutes, more than 0"),
        (["er", "split-mnist", "--budget", "nan"], "budget=nan"),
        (["er", "split-mnist", "--halving", "0"], "halving=0: expected"),
        (["er", "split-mnist", "--halving", "2", "--budget", "1"], "budget and halving are two ways to limit a search"),
        (["er", "split-mnist", "--engine", "warp"], "unknown engine 'warp'"),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli("tune", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


LACKING = {"method": "er", "benchmark": "split-mnist", "scenario": "class", "augment": False, "chosen": ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("{}", "expected a list of presets, got dict"),
        ('[{"method": "er"}]', "missing 5 required positional arguments"),
        (json.dumps([LACKING | {"hyperparameters": {}}]), "hyperparameters lack lr, which er has"),
        (json.dumps([LACKING | {"hyperparameters": {"lr": 0.1}, "augment": "yes"}]), 'augment is "yes": expected true'),
        (json.dumps([LACKING | {"hyperparameters": [0.1]}]), "hyperparameters is [0.1]: expected an object"),
        (json.dumps([LACKING | {"hyperparameters": {"lr": -1.0}}]), "lr=-1"),
        (json.dumps([LACKING | {"hyperparameters": {"lr": 0.1}, "method": "erx"}]), "unknown method 'erx'"),
        (json.dumps([LACKING | {"hyperparameters": {"lr": 0.1}, "benchmark": "mnis"}]), "unknown benchmark 'mnis'"),
        (json.dumps([LACKING | {"hyperparameters": {"lr": 0.1}, "scenario": "domain"}]), "it has: class, task"),
    ],
)
def test_a_file_that_has_no_presets_is_refused(text: str, message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text(text)
    answer = cli("tune", "er", "split-mnist", "--write", tmp_path / "presets.json")
    assert answer.code == 2
    assert "cannot be read as a file of presets" in answer.err
    assert message in answer.err
    assert (tmp_path / "presets.json").read_text() == text


def test_presets_that_inherited_what_has_changed_since_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a file of presets quietly keeps a step size that its source no longer has."""
    Fake(monkeypatch)
    file = tmp_path / "my presets.json"
    write_presets(_known(), file)
    for method in ("ccl-fp", "ccl-fp+", "a-gem"):
        answer = cli("tune", method, "split-cifar10", "--write", file)
    assert (outdated(read_presets(file)), answer.err) == ([], "")
    answer = cli("tune", "er", "split-cifar10", "--write", file, "--json")
    assert read_presets(file)[0].hyperparameters["lr"] != 0.02
    assert json.loads(answer.out)["preset"]["method"] == "er"
    words = [shlex.split(line.split(": ")[2]) for line in answer.err.splitlines() if line.startswith("warning")]
    assert words == [
        ["cclfp", "tune", method, "split-cifar10", "--scenario", "class", "--write", str(file)]
        for method in ("a-gem", "ccl-fp", "ccl-fp+")
    ]
    for command in words:  # and these mend it
        assert cli(*command[1:]).code == 0
    assert outdated(read_presets(file)) == []
    er = read_presets(file)[0]
    assert outdated([er, dataclasses.replace(er, method="half.py:Half", hyperparameters={"lr": 1.0})]) == []
    other = dataclasses.replace(er, benchmark="split-mnist")
    assert outdated([other, dataclasses.replace(other, method="a-gem", hyperparameters={"lr": 1.0})]) == []


def test_presets_come_back_as_they_were(tmp_path: Path) -> None:
    write_presets(presets(), tmp_path / "presets.json")
    assert read_presets(tmp_path / "presets.json") == presets()
    changed = dataclasses.replace(presets()[3], chosen="by hand")
    assert with_preset(presets(), changed) == [*presets()[:3], changed, *presets()[4:]]
    assert with_preset(presets()[:3], changed) == [*presets()[:3], changed]
