"""From names and settings to configurations; presets and published numbers."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torture.damage import forge_value

import cclfp
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.paper.numbers import LABELS
from cclfp.runs.configuration import Configuration
from cclfp.runs.execution import Execution
from cclfp.runs.settings import configurations, find_preset, presets, read_presets
from cclfp.streams import BENCHMARKS


def test_settings_come_from_the_preset_or_the_benchmark_and_can_be_set() -> None:
    preset = find_preset("ccl-fp+", "rotated-mnist", "domain")
    assert preset is not None
    (default,) = configurations(["ccl-fp+"], "rotated-mnist")
    assert default.scenario == "domain"
    assert preset.hyperparameters.items() <= default.hyperparameters.items()
    (changed,) = configurations(["ccl-fp+"], "rotated-mnist", settings={"w": [0.9]})
    assert changed.hyperparameters == default.hyperparameters | {"w": 0.9}
    assert find_preset("hal", "split-tiny-imagenet", "class") is None
    (hal,) = configurations(["hal"], "split-tiny-imagenet")
    assert (hal.hyperparameters["lr"], hal.augment) == (0.03, True)
    (mnist,) = configurations(["er"], "split-mnist")
    (cifar,) = configurations(["er"], "split-cifar10")
    assert (mnist.augment, cifar.augment) == (False, True)
    off, on = configurations(["er"], "split-cifar10", settings={"augment": [False, True]})
    assert (off.augment, on) == (False, cifar)
    assert off.key(0) != on.key(0)


def test_tau_is_1_in_the_domain_scenario_and_01_elsewhere() -> None:
    taus = {c: METHODS["ccl-fp+"].hyper(c).tau for c in ("class", "task", "domain")}  # type: ignore[attr-defined]
    assert taus == {"class": 0.1, "task": 0.1, "domain": 1.0}


def test_a_grid_is_all_combinations_without_repetition() -> None:
    grid = configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3, 0.1], "lr": [0.1, 0.01], "batch": [5]})
    values = [(c.hyperparameters["w"], c.hyperparameters["lr"]) for c in grid]
    assert values == [(0.1, 0.1), (0.1, 0.01), (0.3, 0.1), (0.3, 0.01)]
    assert {c.batch for c in grid} == {5}
    assert len(configurations(["er", "er"], "split-mnist")) == 1


def test_a_setting_goes_to_the_methods_that_know_it() -> None:
    options: dict[str, Any] = {"memory": 500, "settings": {"w": [0.2], "replay": [5]}}
    finetune, ccl = configurations(["finetune", "ccl-fp"], "split-mnist", **options)
    assert "w" not in finetune.hyperparameters
    assert (finetune.buffer, finetune.replay) == (None, None)
    assert (ccl.hyperparameters["w"], ccl.buffer, ccl.replay) == (0.2, 500, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"settings": {"alpa": 1.0}}, "unknown setting of ccl-fp 'alpa'. Did you mean 'alpha'"),
        ({"methods": ["finetune"], "replay": 5}, "unknown setting of finetune 'replay'"),
        ({"w": 2.0}, r"w=2.0: expected a number in \[0, 1\]"),
        ({"batch": 0}, "batch=0: expected a whole number, 1 or more"),
        ({"batch": 1e300}, "batch=.*expected a whole number, 1 or more"),
        ({"batch": float("nan")}, "batch=nan"),
        ({"w": []}, r"w=\[\]: expected a number or several"),
        *(({"w": bad}, "w=.*: expected a number or several") for bad in ("0.1", None, ["a"])),
        ({"checkpoint_every": "x"}, "checkpoint_every='x': expected seconds, 0 or more"),
        ({"augment": 0.5}, "augment=0.5: expected on or off"),
        ({"tasks": 0}, "tasks=0: expected a whole number, 1 or more"),
        ({"scenario": "klass"}, "Did you mean 'class'"),
        ({"methods": ["er", "gme"]}, "unknown method 'gme'. Did you mean 'gem'"),
        *(({"seeds": bad}, "seeds?=") for bad in (-1, [], [1, 1], [-1])),
        ({"seeds": range(20_000)}, r"seeds=range\(0, 20000\): expected 1 to 10,000"),
        ({"engin": "eager"}, "unknown setting of ccl-fp 'engin'. Did you mean 'engine'"),
        ({"methods": "er", "settings": {"engine": "eager"}}, "er 'engine'.*Known: lr, batch, replay, epochs, augment$"),
        ({"settings": {"lr": 0.03}, "lr": 0.1}, "lr: given twice, in settings and as a keyword"),
        ({"engine": "eager", "execution": Execution()}, "give engine as part of execution, not beside it"),
        ({"execution": {"engine": "eager"}}, r"expected a cclfp\.Execution"),
        ({"problem": 3, "benchmark": None}, r"problem=3: expected a cclfp\.Problem"),
        ({"problem": cclfp.Problem()}, "give benchmark as part of problem"),
        ({"methods": [], "lr": 0.1}, "no method was given"),
    ],
)
def test_run_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cclfp.run(**{"methods": "ccl-fp", "benchmark": "split-mnist", **arguments})


FILE = {"file": "/home/me/mine.py", "object": "Mine", "sha256": "0" * 64}
ROTATED = {"benchmark": "rotated-mnist", "scenario": "domain"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "gme"}, "unknown method 'gme'. Did you mean 'gem'"),
        ({"method": None}, "method is null: expected a string"),
        ({"benchmark": "<b>"}, 'benchmark is "<b>": expected a name of small letters'),
        ({"benchmark": "birds"}, "tasks is null: expected how many classes each task has"),
        ({"scenario": "domain"}, "split-mnist has no domain scenario"),
        ({"scenario": "domain", "benchmark": "birds", "tasks": (5, 5)}, "expected class or task, on own images"),
        ({"buffer": None}, "buffer=None: expected a whole number, 1 or more"),
        ({"buffer": 0}, "buffer=0: expected a whole number, 1 or more"),
        ({"replay": 10**400}, r"expected a whole number, 1 or more \(and below"),
        ({"method": "joint"}, "buffer is 200: expected null: joint has none"),
        ({"method": "joint", "buffer": None}, "replay is 10: expected null: joint has none"),
        ({"epochs": -1}, "epochs=-1: expected a whole number, 1 or more"),
        ({"batch": "<b>10</b>"}, "batch='<b>10</b>': expected a whole number"),
        ({"hyperparameters": {"lr": -1.0}}, r"lr=-1.0: expected a number in \(0, inf\)"),
        ({"hyperparameters": {"lr": "x"}}, "expected a finite number for each name"),
        ({"hyperparameters": {"lr": 10**400}}, "expected a finite number for each name"),
        ({"hyperparameters": 0.1}, "hyperparameters is 0.1: expected a finite number for each name"),
        ({"hyperparameters": {}}, "hyperparameters lack lr, which er has"),
        ({"hyperparameters": {"lr": 0.1, "w": 0.5}}, "unknown hyperparameter of er 'w'"),
        ({"hyperparameters": {"lr": 0.1, "scenario": 1}}, "unknown hyperparameter of er 'scenario'"),
        ({"augment": 1}, "augment is 1: expected true or false"),
        ({"augment": True}, "augment=on: split-mnist cannot be augmented"),
        ({"validation": "no"}, 'validation is "no": expected true or false'),
        ({"tasks": (4, 4)}, r"tasks is \[4, 4\]: expected how many classes each task has, 10 in all"),
        ({"tasks": "22222"}, 'tasks is "22222": expected how many classes'),
        ({**ROTATED, "tasks": (2,) * 5}, "expected null: all tasks have all classes"),
        ({"class_order": (0, 0)}, 'expected null, "random" or each of the numbers 0 to 9 once'),
        ({"class_order": [str(c) for c in range(10)]}, "each of the numbers 0 to 9 once"),
        ({"max_classes": 9}, "max_classes is 9: expected 10, the number of classes, or more"),
        ({"backbone": {"name": "mlp"}}, "expected null, a name and a width, or a .py file"),
        ({"backbone": {"name": "mlp", "width": 5000}}, "with N from 1 to 4096"),
        ({"backbone": {"name": "x.py:f", "width": 1}}, "expected null, a name and a width"),
        ({"backbone": {**FILE, "sha256": 5}}, "expected null, a name and a width"),
        ({"method": "mine", "method_file": {**FILE, "file": "\x1b[2J.py"}}, "expected a .py file, an object"),
        ({"method_file": FILE}, "has the name 'er' of a method that ships with cclfp"),
        ({"method": "<b>", "method_file": FILE}, "mine.py:Mine has the name '<b>'"),
    ],
)
def test_a_configuration_checks_itself(changes: dict[str, Any], message: str) -> None:
    (c,) = configurations(["er"], "split-mnist")
    with pytest.raises(InputError, match=message):
        dataclasses.replace(c, **changes)


def test_the_keys_of_runs_that_were_stored_before_there_were_more_settings() -> None:
    (c,) = configurations(["er"], "split-mnist")
    assert c.key(0) == "2286cda9b1ab4d9b257c2e19c7213bc09934c50791714737b7d6caa8d578f3a1"


@pytest.mark.parametrize(
    ("benchmark", "changes", "field", "value"),
    [
        ("split-mnist", {"backbone": "resnet18:width=8"}, "backbone", {"name": "resnet18", "width": 8}),
        ("split-mnist", {"validation": True}, "validation", True),
        ("split-mnist", {"class_order": "random"}, "class_order", "random"),
        ("split-mnist", {"class_order": range(9, -1, -1)}, "class_order", tuple(range(9, -1, -1))),
        ("split-mnist", {"max_classes": 12}, "max_classes", 12),
        ("split-mnist", {"settings": {"batch": [5.0]}}, "batch", 5),
        ("split-mnist", {"settings": {"replay": [5.0]}}, "replay", 5),
        ("split-mnist", {"settings": {"epochs": [2.0]}}, "epochs", 2),
        ("split-cifar100", {"tasks": 10}, "tasks", (10,) * 10),
        # Split Tiny ImageNet had the order of the labels before, and None stood for it.
        ("split-tiny-imagenet", {"class_order": "labels"}, "class_order", None),
    ],
)
def test_what_is_part_of_the_run(benchmark: str, changes: dict[str, Any], field: str, value: Any) -> None:
    (usual,) = configurations(["er"], benchmark)
    (other,) = configurations(["er"], benchmark, **changes)
    assert getattr(other, field) == value
    assert len({usual.key(0), usual.key(1), other.key(0)}) == 3
    assert (usual.is_papers_protocol, other.is_papers_protocol) == (True, False)
    for one in (usual, other):
        assert Configuration.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_the_usual_value_said_aloud_is_the_same_run() -> None:
    aloud: dict[str, Any] = {"backbone": "mlp", "class_order": range(10), "tasks": 5}
    assert configurations(["er"], "split-mnist", **aloud) == configurations(["er"], "split-mnist")


def test_a_backbone_file_counts_by_what_is_in_it(tmp_path: Path) -> None:
    def key(folder: str, text: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "net.py").write_text(text)
        (c,) = configurations(["er"], "split-mnist", backbone=f"{tmp_path / folder / 'net.py'}:make")
        return c.key(0)

    one = key("a", "def make(): pass")
    assert key("b", "def make(): pass") == one
    assert key("a", "def make(): return 1") != one


def test_presets() -> None:
    """What has been measured: the paper's methods on its MNIST streams, and more."""
    known = {
        (method, benchmark.name, scenario)
        for method in METHODS
        for benchmark in BENCHMARKS.values()
        for scenario in benchmark.scenarios
        if scenario in METHODS[method].scenarios()
    }
    there = [(p.method, p.benchmark, p.scenario) for p in presets()]
    assert len(there) == len(set(there))
    mnist = {one for one in known if one[1] in ("split-mnist", "permuted-mnist", "rotated-mnist") and one[0] in LABELS}
    assert len(mnist) == 44
    assert mnist <= set(there) <= known
    for preset in presets():
        assert preset.chosen.startswith("by cclfp tune"), preset
        if preset.benchmark.endswith("mnist"):
            assert "on held-out training data, seeds 100 and 101 (" in preset.chosen, preset
        assert preset.method != "ccl-fp+" or preset.hyperparameters["beta"] > 0


GOOD = [dataclasses.asdict(preset) for preset in presets()[:3]]


@given(random=st.randoms(use_true_random=False))
def test_a_mutated_file_of_presets_is_refused_or_the_same(random: Random) -> None:
    _, several = forge_value(random, GOOD)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "presets.json")
        path.write_text(json.dumps(several))
        try:
            found = read_presets(path)
        except InputError:
            return
    for preset, one in zip(found, several, strict=True):
        assert dataclasses.asdict(preset).items() >= one.items()
        METHODS[preset.method].hyper(preset.scenario, **preset.hyperparameters)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" + "9" * 5000 + "]", "", "[null]", "[[]]", "7"])
def test_a_hostile_file_of_presets_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text(text)
    with pytest.raises(InputError, match="cannot be read as a file of presets"):
        read_presets(tmp_path / "presets.json")


def test_a_file_that_a_preset_names_is_not_run(tmp_path: Path) -> None:
    file, ran = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'w')")
    (tmp_path / "presets.json").write_text(json.dumps([{**GOOD[0], "method": f"{file}:Mine"}]))
    with pytest.raises(InputError, match="unknown method"):
        read_presets(tmp_path / "presets.json")
    assert not ran.exists()
