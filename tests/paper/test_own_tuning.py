"""Tuning own methods on own images, and cclfp run --auto."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from own import write_images, write_method

import cclfp
from cclfp.errors import InputError
from cclfp.methods import METHODS, setting
from cclfp.paper import search as search_module
from cclfp.paper.grids import GRIDS, stages
from cclfp.paper.search import Search, find_doubts, switched_off
from cclfp.paper.searches import latest_search
from cclfp.paper.trials import FIRST_PART, Settings, Trial, neighbours, search_in_time
from cclfp.runs.events import Finished, Note, Planned, Step
from cclfp.runs.store import Store

HOW: dict[str, Any] = {"tasks": 2, "backbone": "mlp", "memory": 20}
OPTIONS = ["--tasks", "2", "--backbone", "mlp", "--memory", "20", "--engine", "eager"]


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 1)  # no other process is started


class Trainer:
    """Scores settings by how near they are to the best ones; a run takes a second of one of the workers."""

    def __init__(self, stored: bool = False, workers: int = 1) -> None:
        self.now, self.a_run, self.workers = 0.0, 0.0 if stored else 1.0, workers
        self.calls: list[tuple[list[Settings], list[int]]] = []

    def clock(self) -> float:
        return self.now

    def train(self, several: Sequence[Settings], seeds: Sequence[int]) -> tuple[list[Trial], int]:
        self.calls.append((list(several), list(seeds)))
        self.now += self.a_run * -(-len(several) * len(seeds) // self.workers)
        trials = [Trial(s, [90 - 10 * abs(s["a"] - 3) - abs(s["b"] - 1) for _ in seeds]) for s in several]
        return trials, len(several) * len(seeds) if self.a_run else 0

    def search(self, seconds: float, seeds: int = 2, others: Sequence[Settings] = ()) -> list[Trial]:
        starts = [{"a": 1.0, "b": 0.0}, *others]
        grids = [{"a": [0.0, 1.0, 2.0, 3.0]}, {"b": [0.0, 1.0, 2.0]}]
        return search_in_time(starts, grids, range(seeds), self.train, seconds, self.clock, self.workers)


def test_with_enough_time_every_grid_is_searched_from_the_best_so_far_and_the_better_half_gets_another_seed() -> None:
    trainer = Trainer()
    found = trainer.search(100)
    assert found[0].settings == {"a": 3.0, "b": 1.0}
    tried = [([(s["a"], s["b"]) for s in several], seeds) for several, seeds in trainer.calls]
    assert tried == [
        ([(1, 0)], [0]),
        ([(2, 0), (0, 0), (3, 0)], [0]),
        ([(3, 1), (3, 2)], [0]),
        ([(3, 1), (3, 0), (3, 2)], [1]),
    ]


def test_another_start_is_tried_next_if_there_is_time_and_the_search_continues_from_the_better_one() -> None:
    for seconds, second in ((100.0, [(3, 2)]), (1.5, None)):
        trainer = Trainer()
        found = trainer.search(seconds, others=[{"a": 3.0, "b": 2.0}])
        tried = [[(s["a"], s["b"]) for s in several] for several, _ in trainer.calls]
        assert tried[0] == [(1, 0)]
        assert tried[1:2] == ([second] if second else [])
        assert found[0].settings == ({"a": 3.0, "b": 1.0} if second else {"a": 1.0, "b": 0.0})
        assert all(b == 2 for several in tried[2:3] for _, b in several)  # as the better one has


def test_with_much_time_the_best_get_more_seeds() -> None:
    found = Trainer().search(100, seeds=8)
    assert [trial.seeds for trial in found] == [3, 3, 2, 1, 1, 1]


def test_a_search_that_was_stopped_and_is_repeated_tries_the_same() -> None:
    """What was trained before is in the store, and takes no time."""
    grids = [{"a": [float(a) for a in range(FIRST_PART + 5)]}, {"b": [0.0, 1.0, 2.0]}]
    found = []
    for trainer in (Trainer(), Trainer(stored=True)):
        start = {"a": 1.0, "b": 0.0}
        trials = search_in_time([start], grids, range(4), trainer.train, 100, trainer.clock)
        found.append([(trial.settings, trial.seeds) for trial in trials])
    assert found[0] == found[1]
    assert len(found[0]) == FIRST_PART + 5 + 2


def test_no_worker_is_idle_where_time_is_short() -> None:
    for workers, tried in ((1, [1, 1, 1]), (2, [1, 2, 2]), (4, [1, 3, 2])):  # of four and three values
        trainer = Trainer(workers=workers)
        trainer.search(3.5)
        assert [len(several) for several, _ in trainer.calls] == tried
        assert trainer.now == 3


@given(seconds=st.floats(0.5, 60), seeds=st.integers(1, 4), workers=st.integers(1, 5))
def test_the_start_is_always_tried_the_time_is_kept_and_nothing_is_tried_twice(
    seconds: float, seeds: int, workers: int
) -> None:
    trainer = Trainer(workers=workers)
    found = trainer.search(seconds, seeds)
    assert trainer.calls[0] == ([{"a": 1.0, "b": 0.0}], [0])
    assert trainer.now <= max(1.0, seconds)
    runs = [(str(s), seed) for several, numbers in trainer.calls for s in several for seed in numbers]
    assert len(runs) == len(set(runs))
    assert found[0].seeds == max(trial.seeds for trial in found)


def test_when_the_first_run_is_stored_a_few_more_tell_how_long_a_run_takes() -> None:
    trainer = Trainer(stored=True)
    trainer.search(100)
    assert len(trainer.calls[1][0]) <= FIRST_PART


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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_searches_lr_and_augmentation_first_and_its_own_settings_after(method: str) -> None:
    first, *rest = stages(METHODS[method], augment=True, given={})
    assert list(first) == ["lr", "augment"]
    assert [name for grid in rest for name in grid] == [name for name in GRIDS[method] if name != "lr"]
    if method == "ccl-fp+":
        assert switched_off([first, *rest]) == {"w": 0, "alpha": 0, "beta": 0}  # CCL-FP+ can become ER


def test_an_own_method_is_tuned_on_own_images(one_core: None, tmp_path: Path) -> None:
    images, method = write_images(tmp_path / "pets.npz"), write_method(tmp_path / "half.py")
    notes: list[str] = []
    tuned = cclfp.tune(
        method,
        images=images,
        **HOW,
        lr=[0.01, 0.1],
        augment="off",
        seeds=1,
        engine="eager",
        store=tmp_path / "runs.sqlite",
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert notes[-1].endswith(": searching lr from 0.01 0.1; then half from 0.25 0.5")
    assert tuned.settings.keys() == {"lr", "half", "other", "augment"}
    assert tuned.settings["other"] == 1
    assert tuned.preset.method == "half"
    records = Store(tmp_path / "runs.sqlite").records()
    assert {record["seed"] for record in records} == {100}
    assert all(record["configuration"]["validation"] for record in records)
    tried = {tuple(sorted(record["configuration"]["hyperparameters"].items())) for record in records}
    assert len(tried) == len(tuned.trials) == 3
    assert "lr from 0.01 0.1, half from 0.25 0.5, one after the other" in tuned.preset.chosen


@pytest.mark.parametrize("budget", [None, 0.2])
def test_ccl_fp_plus_is_compared_with_er_first(
    budget: float | None, one_core: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Settings] = []

    def train(search: Search, several: Sequence[Settings], seeds: Sequence[int], limit: object) -> Any:
        tried.extend(several)
        return [Trial(s, [90.0 - s["w"] - s["alpha"] for _ in seeds]) for s in several], 0

    monkeypatch.setattr(Search, "_train", train)
    images = write_images(tmp_path / "pets.npz")
    tuned = cclfp.tune("ccl-fp+", images=images, **HOW, augment="off", budget=budget, store=tmp_path / "runs.sqlite")
    weights = [[s[name] for name in ("w", "alpha", "beta")] for s in tried[:2]]
    assert weights == [[0.5, 0.5, 0.01], [0, 0, 0]]
    assert (tuned.settings["w"], tuned.settings["alpha"]) == (0, 0)


def test_runs_of_a_search_are_named_by_what_differs_from_the_first(one_core: None, tmp_path: Path) -> None:
    planned: list[list[str]] = []
    cclfp.tune(
        "ccl-fp+",
        images=write_images(tmp_path / "pets.npz"),
        **HOW,
        settings={"lr": 0.03, "augment": "off", "w": [0, 0.5], "alpha": 0.5, "beta": [0, 0.01]},
        budget=1,
        engine="eager",
        store=tmp_path / "runs.sqlite",
        on_event=lambda event: planned.append(list(event.labels.values())) if isinstance(event, Planned) else None,
    )
    assert planned[:2] == [["ccl-fp+ seed 100"], ["ccl-fp+ w=0 beta=0 seed 100"]]
    assert all(len(set(labels)) == len(labels) for labels in planned)


def test_the_command_to_use_it_works(one_core: None, cli: Cli, tmp_path: Path) -> None:
    images, method = write_images(tmp_path / "pets.npz"), write_method(tmp_path / "half.py")
    answer = cli("tune", method, "half=0.1,0.2", "lr=0.1", "augment=off", "--images", images, *OPTIONS, "--seeds", "1")
    assert answer.code == 0, answer.err
    use = next(line for line in answer.out.splitlines() if line.startswith("to use it: cclfp "))
    again = cli(*shlex.split(use.removeprefix("to use it: cclfp ")), "--seeds", "1", "--engine", "eager")
    assert again.code == 0, again.err
    assert "half" in again.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["er"], "expected a benchmark (cclfp list benchmarks) or images of your own, one of the two"),
        (["er", "split-mnist", "--image-size", "8"], "an image size can be given with images of your own only"),
        (["er", "split-mnist", "w=0.1,0.2"], "unknown setting of er 'w'"),
        (["er", "split-mnist", "lr=big"], "expected a number"),
        (["er", "split-mnist", "lr=0.1,0.2", "--budget", "0"], "budget=0"),
        (["er", "pets-00000000"], "unknown benchmark 'pets-00000000'"),
        (["er", "permuted-mnist", "--tasks", "3"], "tasks cannot be chosen"),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli("tune", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_whole_numbers_in_a_methods_ranges_are_not_other_settings() -> None:
    """1 and 1.0 would be two rows of one table."""
    declared = setting(1.0, "how strong", low=0, search=(1, 2)).metadata["search"]
    assert [str(value) for value in declared] == ["1.0", "2.0"]


@pytest.mark.parametrize(
    "arguments", [["er", "split-mnist", "--memory", "20"], ["er", "--images", "pets"], ["half.py:Half", "split-mnist"]]
)
def test_presets_are_of_the_paper(arguments: list[str], cli: Cli, tmp_path: Path) -> None:
    """Refused before anything is read or trained."""
    answer = cli(
        "tune", *arguments, "lr=0.1,0.2", "--write", tmp_path / "presets.json", "--store", tmp_path / "s.sqlite"
    )
    assert (answer.code, answer.out) == (2, "")
    assert "presets are for the paper's methods and benchmarks" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_auto_tunes_each_method_reports_it_and_chooses_the_same_again(
    one_core: None, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = write_images(tmp_path / "pets.npz")
    command = ["run", "er,ccl-fp+", "--images", images, *OPTIONS, "--auto", "0.05", "--seeds", "1", "lr=0.03,0.1"]
    first = cli(*command)
    assert first.code == 0, first.err
    chosen = [line for line in first.out.splitlines() if " tried, " in line]
    assert [line.split(":")[0] for line in chosen] == ["er", "ccl-fp+"]
    assert "searching lr from 0.03 0.1 and augment from off on; then w from 0 0.1 0.3 0.5" in first.err

    def refuse(*_: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(Search, "_train", refuse)
    again = cli(*command)
    assert again.out == first.out
    assert "searched before, and the same settings are chosen" in again.err
    as_json = cli(*command, "--json").json
    assert [one["settings"]["lr"] for one in as_json["auto"]] == [
        one["hyperparameters"]["lr"] for one in as_json["configurations"]
    ]


def test_a_budget_below_one_run_is_refused(
    one_core: None, cli: Cli, small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MEASURED", 0.0)
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    for _ in range(2):  # what the first attempt has trained does not change the answer
        answer = cli("run", "er", "split-mnist", "--auto", "0.0001", "--engine", "eager")
        assert (answer.code, answer.out) == (2, "")
        assert "0.0001 minutes are too short to tune er on split-mnist (class): one run takes about" in answer.err
    answer = cli("run", "er", "split-mnist", "--auto", "-1")
    assert answer.code == 2
    assert "--auto -1: expected minutes" in answer.err


def test_compiling_does_not_count_as_the_time_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    limit = search_module._Limit("er on photos", minutes=1)
    limit.check(Step("a", 1, 5, 1, 1000, None))
    limit.check(Step("a", 1, 5, 1, 1000, None, compiling=True))
    for now, number in ((100.0, 2), (102.0, 102)):  # noqa: B007  the clock reads it
        limit.check(Step("a", 1, 5, number, 1000, None))  # 20 s for all
    slow: Any = {"seconds": 155.0}  # of which 100 were spent on compiling
    limit.check(Finished("a", slow))
    with pytest.raises(InputError, match="one run takes about 61 s"):
        limit.check(Finished("a", slow | {"seconds": 161.0}))
    now = 300.0
    with pytest.raises(InputError, match="one run takes about 1,980 s"):
        limit.check(Step("a", 1, 5, 103, 1000, None))


def test_auto_saves_the_learners_of_the_results_only(one_core: None, cli: Cli, tmp_path: Path) -> None:
    images, saved = write_images(tmp_path / "pets.npz"), tmp_path / "learners"
    answer = cli("run", "er", "--images", images, *OPTIONS, "--auto", "0.05", "--seeds", "2", "--save", saved)
    assert answer.code == 0, answer.err
    assert len(list(saved.iterdir())) == 2


def test_auto_refuses_what_cannot_be_trained_before_any_search(cli: Cli, small_mnist: Path) -> None:
    for command in (["run", "er,lwf", "rotated-mnist"], ["study", "mine", "--method", "er,lwf"]):
        more = ["--benchmark", "rotated-mnist"] if command[0] == "study" else []
        answer = cli(*command, *more, "--auto", "1")
        assert (answer.code, answer.out) == (2, "")
        assert "lwf is not defined in the domain scenario" in answer.err
        assert "searching" not in answer.err


def test_a_damaged_search_is_not_used(one_core: None, tmp_path: Path) -> None:
    images, store = write_images(tmp_path / "pets.npz"), tmp_path / "runs.sqlite"

    def tune() -> cclfp.paper.search.Tuned:
        options: dict[str, Any] = {"augment": "off", "seeds": 1, "engine": "eager", "store": store, "budget": 0.1}
        return cclfp.tune("er", images=images, **HOW, lr=[0.03, 0.1], repeatable=True, **options)

    assert tune().settings == tune().settings
    (file,) = (tmp_path / "runs.sqlite.searches").glob("*.json")
    text = file.read_text()
    for damaged in ("{}", text[:50], text.replace('"seeds": [', '"seeds": [7,'), text.replace('"settings"', '"sets"')):
        file.write_text(damaged)
        with pytest.raises(InputError, match="cannot be read as a stored search"):
            tune()


def test_what_is_doubtful_about_a_choice_is_said_by_tune_by_study_and_in_the_report(
    one_core: None, cli: Cli, small_mnist: Path, tmp_path: Path
) -> None:
    """One seed, the edge of the range, and a result below the preset's with the same seed."""
    store = ("--store", tmp_path / "runs.sqlite", "--engine", "eager")
    answer = cli("tune", "er", "split-mnist", "lr=0.0001,0.0003,0.001", "--seeds", "1", *store)
    assert answer.code == 0, answer.err
    notes = [line.removeprefix("note: ") for line in answer.out.splitlines() if line.startswith("note: ")]
    few, edge, worse = notes
    assert few == "chosen with 1 seed, which says little"
    assert edge.endswith("is at the edge of what was searched (0.0001 0.0003 0.001)")
    assert re.fullmatch(
        r"worse than the preset on the same held-out images: \d+\.\d\d against \d+\.\d\d % \(seed 100\)", worse
    )
    mine = cli("study", "mine", "--method", "er,finetune", "--benchmark", "split-mnist", "--seeds", "1", *store)
    assert f"(tuned; {'; '.join(notes)})" in " ".join(mine.out.split())
    cli("report", "--out", tmp_path / "out", *store[:2])
    assert f"- er: {'; '.join(notes)}" in (tmp_path / "out/tables/own.md").read_text()
    assert f'<p class="note">er: {notes[0]}; ' in (tmp_path / "out/index.html").read_text()


def test_a_search_of_before_there_were_doubts_is_read(one_core: None, tmp_path: Path) -> None:
    images, store = write_images(tmp_path / "pets.npz"), tmp_path / "runs.sqlite"
    options: dict[str, Any] = {"augment": "off", "seeds": 1, "engine": "eager", "store": store, **HOW}
    tuned = cclfp.tune("er", images=images, lr=[0.03, 0.1], **options)
    (file,) = (tmp_path / "runs.sqlite.searches").glob("*.json")
    content = json.loads(file.read_text())
    del content["doubts"], content["preset"]["inherited"], content["preset"]["halved"]
    file.write_text(json.dumps(content))
    found = latest_search(store, "er", tuned.problem)
    assert found is not None
    assert (found.settings, found.doubts, found.preset) == (tuned.settings, tuned.doubts, tuned.preset)
    assert len(found.doubts) == 2


def test_a_search_of_other_code_says_so_and_is_made_again_on_request(one_core: None, tmp_path: Path) -> None:
    images, store = write_images(tmp_path / "pets.npz"), tmp_path / "runs.sqlite"
    how: dict[str, Any] = {"augment": "off", "seeds": 1, "engine": "eager", "store": store, "lr": [0.03, 0.1], **HOW}

    def tune(**options: Any) -> cclfp.paper.search.Tuned:
        return cclfp.tune("er", images=images, repeatable=True, budget=1.0, **how, **options)

    first = tune()
    (file,) = (tmp_path / "runs.sqlite.searches").glob("*.json")
    content = json.loads(file.read_text())
    assert content["code"]["cclfp"] == cclfp.__version__
    assert tune() == first
    file.write_text(json.dumps({**content, "code": {"cclfp": "0.0.9", "source": "f" * 16}}))
    assert tune().doubts == [*first.doubts, "searched with other code (cclfp 0.0.9, code ffffffff)"]
    assert tune(other_code="retrain").doubts == first.doubts
    assert json.loads(file.read_text())["code"] == content["code"]


def test_few_seeds_and_edges_of_ranges_are_doubtful() -> None:
    grids: list[dict[str, list[float]]] = [{"lr": [0.01, 0.1, 1.0], "augment": [False, True]}, {"w": [0.0, 0.5]}]
    best = Trial({"lr": 0.1, "augment": True, "w": 0.0}, [80.0] * 3)
    assert find_doubts([best], grids) == []  # a weight of 0 is no edge
    assert find_doubts([], grids) == []
    largest = Trial({"lr": 1.0, "augment": True, "w": 0.0}, [80.0, 81.0])
    assert [text.split()[0] for text in find_doubts([largest], grids)] == ["chosen", "lr=1"]
