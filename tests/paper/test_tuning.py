"""Choosing hyperparameters on held-out data: cclfp tune, and cclfp run --auto."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from own import write_images, write_method

import cclfp
from cclfp.cli.printing import describe_search
from cclfp.errors import InputError
from cclfp.methods import METHODS, setting
from cclfp.paper import tuning
from cclfp.paper.search import Settings, Trial, Tuned, latest_search, read_searches
from cclfp.paper.tuning import GRIDS, LR, outdated, plan_anywhere, ranges_of, tune
from cclfp.runs.events import Note, Planned
from cclfp.runs.problem import Problem
from cclfp.runs.settings import Preset, is_papers, make_one, read_presets, write_presets
from cclfp.runs.store import Store
from cclfp.streams import BENCHMARKS

PRESET = {"method": "er", "benchmark": "split-mnist", "scenario": "class", "hyperparameters": {"lr": 0.1}}
HOW: dict[str, Any] = {"tasks": 2, "backbone": "mlp", "memory": 20}
Calls = list[list[Settings]]
OPTIONS = ["--tasks=2", "--backbone=mlp", "--memory=20", "--engine=eager"]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pets.npz")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The settings of each call that would train: the best are w = 0.1, alpha = 0.01, beta = 1."""
    made: Calls = []

    def train(search: tuning._Search, several: Sequence[Settings], seeds: Sequence[int]) -> list[Trial]:
        made.append(list(several))
        wanted = {"w": 0.1, "alpha": 0.01, "beta": 1.0}
        scores = [90 - sum(abs(s[name] - value) for name, value in wanted.items() if name in s) for s in several]
        search.limit.trained += len(several) * len(seeds)
        return [Trial(s, [score] * len(seeds)) for s, score in zip(several, scores, strict=True)]

    monkeypatch.setattr(tuning._Search, "train", train)
    return made


def known_presets(scenario: str = "class", benchmark: str = "split-cifar10") -> list[Preset]:
    """Presets to inherit from, none of them the package's."""
    plus = dataclasses.asdict(METHODS["ccl-fp"].hyper(scenario, lr=0.2, w=0.4, alpha=0.7))
    return [
        Preset("er", benchmark, scenario, {"lr": 0.02}, False, "by hand"),
        Preset("ccl-fp", benchmark, scenario, plus, True, "by hand"),
    ]


# What is searched -----------------------------------------------------------------------------------------------------


def test_the_grids_are_of_settings_that_the_methods_know() -> None:
    assert set(GRIDS) <= set(METHODS)
    for kind in METHODS.values():
        assert {"lr"} <= set(ranges_of(kind)) <= {field.name for field in dataclasses.fields(kind.Hyper)}
    assert GRIDS["ccl-fp+"]["w"] == [0.1, 0.3, 0.5]  # the paper's ranges
    assert GRIDS["ccl-fp+"]["alpha"] == GRIDS["ccl-fp+"]["beta"] == GRIDS["ccl-fp"]["alpha"] == [0.01, 0.1, 0.5, 1.0]


@pytest.mark.parametrize("method", METHODS)
def test_anywhere_lr_and_augmentation_are_searched_first_and_a_methods_own_settings_after(method: str) -> None:
    plan = plan_anywhere(method, Problem("split-cifar10"), {})
    usual = make_one(method, Problem("split-cifar10"))
    first, *rest = plan.grids
    assert plan.start == {**usual.hyperparameters, "augment": usual.augment}
    assert list(first) == ["lr", "augment"]
    assert [name for grid in rest for name in grid] == [name for name in ranges_of(METHODS[method]) if name != "lr"]
    if method == "ccl-fp+":
        assert plan.starts == [plan.start, plan.start | {"w": 0, "alpha": 0, "beta": 0}]  # CCL-FP+ can become ER


def test_which_places_are_the_papers() -> None:
    others: list[dict[str, Any]] = [{"class_order": "labels"}, {"class_order": "random"}, {"tasks": 5}, {"memory": 500}]
    others += [{"backbone": "mlp"}, {"benchmark": "pets-219526c7"}]
    tiny = Problem("split-tiny-imagenet", scenario="task")
    for changes in [dict[str, Any](), {"class_order": "wnids"}, {"tasks": 10}, *others]:
        problem = dataclasses.replace(tiny, **changes)
        assert is_papers("er", problem) == (changes not in others), changes
    assert not is_papers("half.py:Half", Problem("split-mnist"))


@pytest.mark.parametrize(
    ("method", "tried", "found", "chosen"),
    [
        ("er", [6], {"lr": 0.01}, "(90.00 %): lr from 0.01 0.03 0.1, augment from on off"),
        ("ccl-fp", [3, 3], {"lr": 0.02, "w": 0.1, "alpha": 0.01},
         "(90.00 %): w from 0.1 0.3 0.5, alpha from 0.01 0.1 0.5 1, one after the other; "
         "inherited from er: lr=0.02 augment=off"),
        ("ccl-fp+", [4], {"lr": 0.02, "w": 0.4, "alpha": 0.7, "beta": 1.0},
         "(89.01 %): beta from 0.01 0.1 0.5 1; inherited from er: lr=0.02 augment=off; "
         "inherited from ccl-fp: w=0.4 alpha=0.7"),
        ("finetune", [], {"lr": 0.02}, "by cclfp tune; inherited from er: lr=0.02 augment=off"),
    ],
)  # fmt: skip
def test_on_a_convolutional_stream_settings_are_inherited_and_the_others_searched_one_by_one(
    method: str, tried: list[int], found: Settings, chosen: str, calls: Calls
) -> None:
    others = [preset for preset in known_presets() if preset.method != method]
    tuned = tune(method, "split-cifar10", "class", known=others)
    assert [len(call) for call in calls] == tried
    assert tuned.preset.hyperparameters == dataclasses.asdict(METHODS[method].hyper("class", **found))
    assert (tuned.preset.augment, len(tuned.trials)) == (method == "er", sum(tried))
    assert tuned.preset.chosen.endswith(chosen)
    for call in calls if method != "er" else []:
        assert {(s["lr"], s["augment"]) for s in call} == {(0.02, False)}


@pytest.mark.parametrize(("method", "known", "other"), [("ccl-fp+", 1, "ccl-fp"), ("finetune", 0, "er")])
def test_what_there_is_nothing_to_inherit_from_is_refused(method: str, known: int, other: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(method)} inherits .* tune {other} there first"):
        tune(method, "split-cifar10", "class", known=known_presets()[:known])


def test_with_halving_a_method_searches_its_own_step_size_too(calls: Calls) -> None:
    tuned = tune("ccl-fp+", "split-cifar10", "class", known=known_presets(), halving=24)
    assert [len(call) for call in calls] == [24, 12]
    values = {name: len({s[name] for s in calls[0]}) for name in ("lr", "w", "alpha", "beta", "augment")}
    assert values == {"lr": 3, "w": 3, "alpha": 4, "beta": 4, "augment": 1}  # spread over the grid
    er, augmented = (dataclasses.replace(known_presets()[0], augment=augment) for augment in (False, True))
    other_lr = dataclasses.replace(er, hyperparameters={"lr": 0.5})
    assert (outdated([other_lr, tuned.preset]), outdated([augmented, tuned.preset])) == ([], [tuned.preset])
    calls.clear()
    chosen = tune("a-gem", "split-cifar10", "class", known=known_presets(), halving=50).preset.chosen
    assert chosen.endswith("; inherited from er: augment=off; by successive halving of 4 settings")
    assert [len(call) for call in calls] == [4, 2]


def test_what_there_was_no_time_to_search_is_named(
    one_core: None, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 25.0 * sum(map(len, calls)))
    tuned = tune("ccl-fp", "split-cifar10", "class", known=known_presets()[:1], budget=1, device="cpu")
    assert "w from 0.1 0.3 0.5; not searched, as the time was too short: alpha; inherited" in tuned.preset.chosen
    assert tuned.preset.chosen.endswith("; by successive halving in 1 min, 2 settings tried")


def test_the_command_to_use_it_has_all_digits_and_is_quoted_for_the_shell() -> None:
    settings = {"lr": 0.0123456789, "half": 1.0}
    preset = Preset("half", "split-mnist", "class", settings, False, "by cclfp tune")
    problem = Problem("split-mnist", scenario="class", class_order="'a b',c")
    tuned = Tuned("own m.py:Half", problem, preset, {**settings, "augment": False}, [])
    chosen, _, use = map(str, describe_search(tuned, None).parts)
    assert chosen == "chosen: lr=0.0123456789 half=1 augment=off"
    words = shlex.split(use.removeprefix("to use it: "))
    assert words[:4] == ["cclfp", "run", "own m.py:Half", "split-mnist"]
    assert words[4:] == [*chosen.split()[1:], "--scenario", "class", "--class-order", "'a b',c"]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_tuned_on_every_benchmark(method: str, benchmark: str, calls: Calls) -> None:
    for scenario in BENCHMARKS[benchmark].scenarios:
        if scenario in METHODS[method].scenarios():
            tuned = tune(method, benchmark, scenario, known=known_presets(scenario, benchmark))
            assert tuned.preset.hyperparameters.keys() == {f.name for f in dataclasses.fields(METHODS[method].Hyper)}


def test_whole_numbers_in_a_methods_ranges_are_not_other_settings() -> None:
    """1 and 1.0 would be two rows of one table."""
    declared = setting(1.0, "how strong", low=0, search=(1, 2)).metadata["search"]
    assert [str(value) for value in declared] == ["1.0", "2.0"]


# Real searches --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_is_on_held_out_data_the_best_mean_wins_and_it_becomes_the_preset(
    one_core: None, small_mnist: Path, cli: Cli, tmp_path: Path
) -> None:
    file, store = tmp_path / "presets.json", Store(tmp_path / "runs.sqlite")
    command = ("tune", "er", "split-mnist", "--scenario", "task", "--engine", "eager", "--store", store.path)
    answer = cli(*command, "--write", file)
    assert answer.code == 0, answer.err
    records = store.records()
    assert all(record["configuration"]["validation"] for record in records)
    assert sorted({record["seed"] for record in records}) == [100, 101]
    scores = {
        lr: [r["average_accuracy"] or 0.0 for r in records if r["configuration"]["hyperparameters"]["lr"] == lr]
        for lr in LR
    }
    assert all(len(several) == 2 for several in scores.values())
    best = max(scores, key=lambda lr: sum(scores[lr]))
    (er,) = read_presets(file)
    chosen = f"by cclfp tune on held-out training data, seeds 100 and 101 ({sum(scores[best]) / 2:.2f} %): "
    assert er == Preset("er", "split-mnist", "task", {"lr": best}, False, chosen + "lr from 0.01 0.03 0.1 0.3")
    tried = "er on split-mnist, task-incremental, on held-out training images, %: the best of 4 settings"
    assert all(text in answer.out for text in (er.chosen, tried, f"written to {file}"))
    arguments = ("tune", "finetune", "split-mnist", *command[3:], "--budget", "5", "--write", file, "--json")
    document = cli(*arguments).json
    assert read_presets(file) == [er, Preset(**document["preset"])]
    assert "by successive halving in 5 min, 4 settings tried" in document["preset"]["chosen"]
    assert [len(trial["scores"]) for trial in document["trials"]] == [2, 2, 1, 1]
    assert cli(*arguments).json["preset"] == document["preset"]


@pytest.mark.slow
def test_a_setting_that_diverges_is_never_chosen(
    one_core: None, small_mnist: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path
) -> None:
    command = ("tune", "er", "split-mnist", "--store", tmp_path / "runs.sqlite", "--engine", "eager")
    monkeypatch.setitem(GRIDS, "er", {"lr": [1e20, 0.1, 1e8]})
    answer = cli(*command)
    assert (answer.code, answer.out.count("2 of 2 seeds diverged")) == (0, 2)
    assert "chosen: lr=0.1" in answer.out
    trials = cli(*command, "--json").json["trials"]
    found = [(len(t["scores"]), len(t["diverged"]), t["mean"] is None) for t in trials]
    assert found == [(2, 0, False), (0, 2, True), (0, 2, True)]
    monkeypatch.setitem(GRIDS, "er", {"lr": [1e20, 1e8]})
    answer = cli(*command, "--write", tmp_path / "presets.json")
    assert answer.code == 2
    assert "er on split-mnist (class): all settings that were tried (2) diverged, so none is chosen" in answer.err
    assert not (tmp_path / "presets.json").exists()


def test_an_own_method_is_tuned_on_own_images_and_the_command_to_use_it_works(
    one_core: None, cli: Cli, pets: Path, tmp_path: Path
) -> None:
    method, store = write_method(tmp_path / "half.py"), ("--store", tmp_path / "runs.sqlite")
    answer = cli("tune", method, "lr=0.01,0.1", "augment=off", "--images", pets, *OPTIONS, "--seeds", "1", *store)
    assert answer.code == 0, answer.err
    assert ": searching lr from 0.01 0.1, half from 0.25 0.5, one after the other" in answer.err
    records = Store(tmp_path / "runs.sqlite").records()
    assert {record["seed"] for record in records} == {100}
    assert all(record["configuration"]["validation"] for record in records)
    tried = {tuple(sorted(record["configuration"]["hyperparameters"].items())) for record in records}
    assert len(tried) == 3
    assert {dict(settings)["other"] for settings in tried} == {1}
    use = next(line for line in answer.out.splitlines() if line.startswith("to use it: cclfp "))
    again = cli(*shlex.split(use.removeprefix("to use it: cclfp ")), "--seeds", "1", "--engine", "eager")
    assert again.code == 0, again.err
    assert "half" in again.out


@pytest.mark.parametrize("budget", [None, 1])
def test_ccl_fp_plus_is_compared_with_er_first_and_runs_are_named_by_what_differs(
    budget: float | None, one_core: None, pets: Path, tmp_path: Path
) -> None:
    planned: list[list[str]] = []
    cclfp.tune(
        "ccl-fp+",
        images=pets,
        **HOW,
        settings={"lr": 0.03, "augment": "off", "w": [0, 0.5], "alpha": 0.5, "beta": [0, 0.01]},
        seeds=1,
        budget=budget,
        engine="eager",
        store=tmp_path / "runs.sqlite",
        on_event=lambda event: planned.append(list(event.labels.values())) if isinstance(event, Planned) else None,
    )
    first = [label for labels in planned for label in labels][:2]
    assert first == ["ccl-fp+ w=0.5 beta=0.01 seed 100", "ccl-fp+ w=0 beta=0 seed 100"]
    assert all(len(set(labels)) == len(labels) for labels in planned)


# cclfp run --auto -----------------------------------------------------------------------------------------------------


def test_auto_tunes_each_method_reports_it_saves_only_results_and_chooses_the_same_again(
    one_core: None, cli: Cli, monkeypatch: pytest.MonkeyPatch, pets: Path, tmp_path: Path
) -> None:
    command = ["run", "er,ccl-fp+", "--images", pets, *OPTIONS, "--auto", "0.05", "--seeds", "1", "lr=0.03,0.1"]
    first = cli(*command, "--save", tmp_path / "learners")
    assert first.code == 0, first.err
    assert len(list((tmp_path / "learners").iterdir())) == 2
    chosen = [line.split(": lr=")[0] for line in first.out.splitlines() if ": lr=" in line]
    assert chosen == ["er", "ccl-fp+"]
    assert "searching lr from 0.03 0.1, augment from off on, w from 0 0.1 0.3 0.5, " in first.err

    def refuse(*_: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(tuning._Search, "train", refuse)
    again = cli(*command, "--save", tmp_path / "learners")
    assert again.out == first.out
    assert "searched before, and the same settings are chosen" in again.err
    as_json = cli(*command, "--json").json
    assert [one["settings"]["lr"] for one in as_json["auto"]] == [
        one["hyperparameters"]["lr"] for one in as_json["configurations"]
    ]


def test_a_budget_below_one_run_is_refused(
    one_core: None, cli: Cli, small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.paper.search.MEASURED", 0.0)
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    for command in (["run", "--auto"], ["run", "--auto"], ["tune", "--budget"]):  # what is trained now changes nothing
        answer = cli(command[0], "er", "split-mnist", "--engine", "eager", command[1], "0.0001")
        assert (answer.code, answer.out) == (2, "")
        assert "0.0001 minutes are too short to tune er on split-mnist (class): one run takes about" in answer.err


# What is kept, and what is doubtful -----------------------------------------------------------------------------------


def test_a_kept_search_is_used_again_if_it_is_whole_and_of_this_code(
    one_core: None, pets: Path, tmp_path: Path
) -> None:
    store = tmp_path / "runs.sqlite"
    notes: list[str] = []

    def tune(**options: Any) -> Tuned:
        how: dict[str, Any] = {"augment": "off", "seeds": 1, "engine": "eager", "lr": [0.03, 0.1], "budget": 1, **HOW}
        how |= options
        listen = lambda event: notes.append(event.text) if isinstance(event, Note) else None  # noqa: E731
        return cclfp.tune("er", images=pets, repeatable=True, store=store, on_event=listen, **how)

    fail: Any = pytest.fail
    first = tune()
    assert tune() == first
    assert tune(budget=1.0) == first
    assert notes[-1].endswith("searched before, and the same settings are chosen")
    (file,) = (tmp_path / "runs.sqlite.searches").glob("*.json")
    text, content = file.read_text(), json.loads(file.read_text())
    assert content["code"]["cclfp"] == cclfp.__version__
    for damaged in ("{}", text[:50], text.replace('"seeds": [', '"seeds": [7,'), text.replace('"settings"', '"sets"')):
        file.write_text(damaged)
        notes.clear()
        assert tune() == first  # found again among the runs of the store
        assert sum(note.startswith(f"warning: the stored search {file} is left out, as ") for note in notes) == 1
    # One of before there were doubts and provenance is read, too.
    older = {**content, "preset": {**content["preset"]}}
    del older["doubts"], older["preset"]["inherited"], older["preset"]["halved"]
    file.write_text(json.dumps(older))
    found = latest_search(read_searches(store, fail), "er", first.problem)
    assert found is not None
    assert (found.settings, found.doubts, found.preset) == (first.settings, first.doubts, first.preset)
    assert len(found.doubts) == 2
    # One of other code says so, and is made again on request.
    file.write_text(json.dumps({**content, "code": {"cclfp": "0.0.9", "source": "f" * 16}}))
    assert tune().doubts == [*first.doubts, "searched with other code (cclfp 0.0.9, code ffffffff)"]
    assert tune(other_code="retrain").doubts == first.doubts
    assert json.loads(file.read_text())["code"] == content["code"]
    # So does one of today whose runs came from the store and are of other code, now and later.
    old: list[Any] = [{**r, "environment": {"cclfp": "0.0.8", "source": "e" * 16}} for r in Store(store).records()]
    for record in old:
        Store(store).add(record, replace=True)
    file.unlink()
    doubts = [*first.doubts, "searched with other code (cclfp 0.0.8, code eeeeeeee)"]
    assert tune().doubts == tune().doubts == doubts
    assert json.loads(file.read_text())["code"] == {"cclfp": "0.0.8", "source": "e" * 16}
    assert tune(other_code="retrain").doubts == tune().doubts == first.doubts


def test_what_is_doubtful_about_a_choice_is_said_by_tune_by_study_and_in_the_report(
    one_core: None, cli: Cli, small_mnist: Path, tmp_path: Path
) -> None:
    """One seed, the edge of the range, and a result below the preset's with the same seed."""
    store = ("--store", tmp_path / "runs.sqlite", "--engine", "eager")
    answer = cli("tune", "er", "split-mnist", "lr=0.0001,0.0003,0.001", "--seeds", "1", *store)
    assert answer.code == 0, answer.err
    notes = [line.removeprefix("note: ") for line in answer.out.splitlines() if line.startswith("note: ")]
    few, edge, worse = notes
    assert few == "chosen with 1 seed, too few to rule out chance"
    assert edge.endswith("is at the edge of what was searched (0.0001 0.0003 0.001)")
    assert re.fullmatch(
        r"worse than the preset on the same held-out images: \d+\.\d\d against \d+\.\d\d % \(seed 100\)", worse
    )
    mine = cli("study", "mine", "--method", "er,finetune", "--benchmark", "split-mnist", "--seeds", "1", *store)
    assert f"(tuned; {'; '.join(notes)})" in " ".join(mine.out.split())
    cli("report", "--out", tmp_path / "out", *store[:2])
    assert f"- er: {'; '.join(notes)}" in (tmp_path / "out/tables/own.md").read_text()
    assert f'<p class="note">er: {notes[0]}; ' in (tmp_path / "out/index.html").read_text()
    # A bad file beside it is named and left out.
    bad = tmp_path / "runs.sqlite.searches" / "bad.json"
    bad.write_text("{}")
    text = f"warning: the stored search {bad} is left out, as it cannot be read (KeyError('request')): delete it"
    answer = cli("report", "--out", tmp_path / "out", *store[:2])
    assert (answer.code, answer.err) == (0, f"{text}\n")
    assert f"- er: {'; '.join(notes)}" in (tmp_path / "out/tables/own.md").read_text()
    plan = cli("study", "mine", "--method", "er,si", "--benchmark", "split-mnist", "--dry-run", *store)
    assert (plan.code, plan.err.count(text)) == (0, 1)  # each file is read once


def test_few_seeds_and_edges_of_ranges_are_doubtful() -> None:
    grids: list[dict[str, list[float]]] = [{"lr": [0.01, 0.1, 1.0], "augment": [False, True]}, {"w": [0.0, 0.5]}]
    best = Trial({"lr": 0.1, "augment": True, "w": 0.0}, [80.0] * 3)
    assert best.doubts(grids) == []  # a weight of 0 is no edge
    largest = Trial({"lr": 1.0, "augment": True, "w": 0.0}, [80.0, 81.0])
    assert [text.split()[0] for text in largest.doubts(grids)] == ["chosen", "lr=1"]


# Files of presets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "missing 1 required positional argument: 'chosen'"),
        ({"hyperparameters": {"lr": -1}}, "lr=-1"),
        ({"hyperparameters": {}}, "hyperparameters lack lr, which er has"),
        ({"scenario": "domain"}, "it has: class, task"),
    ],
)
def test_a_file_that_has_no_presets_is_refused(changes: dict[str, Any], message: str, cli: Cli, tmp_path: Path) -> None:
    text = json.dumps([PRESET | {"augment": False} | ({"chosen": ""} if changes else {}) | changes])
    (tmp_path / "presets.json").write_text(text)
    answer = cli("tune", "er", "split-mnist", "--write", tmp_path / "presets.json")
    assert answer.code == 2
    assert "cannot be read as a file of presets" in answer.err
    assert message in answer.err
    assert (tmp_path / "presets.json").read_text() == text


def test_presets_that_inherited_what_has_changed_since_are_named(cli: Cli, tmp_path: Path, calls: Calls) -> None:
    """Without this a file of presets quietly keeps a step size that its source no longer has."""
    file = tmp_path / "my presets.json"
    write_presets(known_presets(), file)
    for method in ("ccl-fp", "ccl-fp+", "a-gem"):
        answer = cli("tune", method, "split-cifar10", "--write", file)
        assert "warning" not in answer.err
    assert outdated(read_presets(file)) == []
    answer = cli("tune", "er", "split-cifar10", "--write", file, "--json")
    assert read_presets(file)[0].hyperparameters["lr"] != 0.02
    assert json.loads(answer.out)["preset"]["method"] == "er"
    words = [shlex.split(line.split(": ")[2]) for line in answer.err.splitlines() if line.startswith("warning")]
    assert words == [
        ["cclfp", "tune", method, "split-cifar10", "--scenario", "class", "--write", str(file)]
        for method in ("a-gem", "ccl-fp", "ccl-fp+")
    ]
    for command in words:  # and these fix it
        assert cli(*command[1:]).code == 0
    assert outdated(read_presets(file)) == []


def test_a_choice_is_compared_with_a_preset_that_was_not_tried(one_core: None, small_mnist: Path) -> None:
    """A preset names the augmentation, which is not searched where images cannot be augmented."""
    known = [Preset("er", "split-mnist", "class", {"lr": 0.5}, False, "by hand")]
    found = tune("er", "split-mnist", halving=1, seeds=1, known=known, engine="eager")
    assert [trial.settings for trial in found.trials] == [{"lr": 0.01}]
