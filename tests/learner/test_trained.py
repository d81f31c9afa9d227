"""A trained learner in use: names, probabilities, features, as a module, with classes that come later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.core.arguments import check_names
from cclfp.data import DATASETS
from cclfp.data.formats import Source
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.nets import MLP, ResNet18
from cclfp.testing import same
from cclfp.transforms import Normalise

NAMES = ("cat", "dog", "black, white")
SHAPE = (3, 10, 10)


def images(n: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def trained(method: str = "er", psi: nn.Module | None = None, **arguments: Any) -> cclfp.Learner:
    """A learner of images after one task of two classes."""
    learner = cclfp.make(
        method,
        psi=MLP(300, (8, 8)) if psi is None else psi,
        num_classes=5,
        classes=NAMES,
        memory=10,
        lr=0.01,
        transform=Normalise([0.5] * 3, [0.2] * 3),
        **arguments,
    )
    for step in range(3):
        learner.observe(images(seed=step), torch.arange(8) % 2, task=0)
    learner.end_task()
    return learner


# -- predictions --------------------------------------------------------------------------------------------------


def test_probabilities_and_features_are_those_of_the_logits() -> None:
    learner, x = trained(), images()
    p = learner.predict_proba(x)
    assert torch.allclose(p.sum(-1), torch.ones(8))
    assert (p[:, 2:] == 0).all()
    assert torch.equal(p.argmax(-1), learner.predict(x))
    assert torch.equal(p, learner.logits(x).softmax(-1))
    assert learner.f is not None
    assert torch.allclose(learner.f(learner.features(x))[:, :2], learner.logits(x)[:, :2])
    with pytest.raises(InputError, match="shape"):
        learner.features(x[:, :1])


@pytest.mark.parametrize(
    ("method", "scenario"), [*((method, "class") for method in METHODS), ("er", "task"), ("icarl", "task")]
)
def test_the_module_agrees_with_predict(method: str, scenario: str, tmp_path: Path) -> None:
    learner = trained(method, ResNet18(3, 2), scenario=scenario, **({"steps": 2} if method == "hal" else {}))
    task = 0 if scenario == "task" else None
    learner.save(tmp_path / "learner")
    x = images(seed=9)
    for one in (learner, cclfp.load(tmp_path / "learner")):
        module = one.as_module(task)
        assert torch.equal(module(x), one.logits(x, task))
        module.train()  # which changes nothing
        assert torch.equal(module(x), one.logits(x, task))
        assert torch.equal(module(x).argmax(-1), learner.predict(x, task))
    before = module(x)
    for _ in range(3):
        one.observe(images(), torch.arange(8) % 2 + 2, task=1)
    assert torch.equal(module(x), before)
    assert not torch.equal(one.as_module(task)(x), before)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "icarl"])
def test_the_module_can_be_exported(method: str, tmp_path: Path) -> None:
    learner, x = trained(method, ResNet18(3, 2)), images(seed=9)
    program = torch.export.export(
        learner.as_module(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=64)}}
    )
    torch.export.save(program, tmp_path / "module.pt2")
    exported = torch.export.load(tmp_path / "module.pt2").module()
    for n in (2, 5, 8):
        assert torch.allclose(exported(x[:n]), learner.logits(x[:n]), atol=1e-5)


def test_a_module_of_what_is_not_trained_is_refused() -> None:
    with pytest.raises(InputError, match="no class has been seen yet"):
        cclfp.make("er", psi=nn.Flatten(), num_classes=2).as_module()
    with pytest.raises(InputError, match="nothing has been observed yet"):
        cclfp.make("er", psi=nn.Flatten(), num_classes=2, scenario="domain").as_module()
    with pytest.raises(InputError, match="no class of task 3 has been seen"):
        trained().as_module(task=3)


def test_a_loaded_learner_goes_on_in_its_precision(tmp_path: Path) -> None:
    learner = cclfp.make("er", psi=MLP(300, (8, 8)), num_classes=2)
    learner.autocast = torch.bfloat16
    x = images().float() / 255
    learner.observe(x, torch.arange(8) % 2)
    learner.save(tmp_path / "learner")
    loaded = cclfp.load(tmp_path / "learner")
    for one in (learner, loaded):
        one.observe(x, torch.arange(8) % 2)
    assert same(learner, loaded)
    assert torch.equal(loaded.as_module()(x), learner.logits(x))


# -- names and new classes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", DATASETS.values(), ids=DATASETS)
def test_classes_of_datasets_are_names(source: Source) -> None:
    assert check_names(source.classes, source.num_classes) == source.classes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tasks", [None, [[0, 1], [2]]])
def test_new_classes_take_free_rows(method: str, tasks: Any, tmp_path: Path) -> None:
    hyper: dict[str, Any] = {"steps": 2} if method == "hal" else {}
    learner = trained(method, tasks=tasks, **hyper)
    task = learner.add_task(["dog", "ox"])
    assert task == (1 if tasks is None else 2)
    assert learner.classes == (*NAMES, "ox")
    for step in range(2):
        learner.observe(images(seed=step), torch.tensor([1, 3] * 4), task)
        learner.save(tmp_path / "learner")  # in the middle of a task too
        assert same(learner, cclfp.load(tmp_path / "learner"))
    learner.end_task()
    learner.save(tmp_path / "learner")
    loaded = cclfp.load(tmp_path / "learner")
    assert same(learner, loaded)
    assert loaded.classes == (*NAMES, "ox")
    assert (loaded.predict_proba(images())[:, 3] > 0).all()
    assert set(loaded.predict(images(), task=task).tolist()) <= {1, 3}


def test_without_a_free_row_nothing_changes() -> None:
    learner, other = trained(tasks=[[0, 1], [2]]), trained(tasks=[[0, 1], [2]])
    for classes, message in (
        (["ox", "fox", "emu"], "no room for the new classes ox, fox, emu: the learner has 3 classes and room for 2"),
        ([7], "class 7 is out of range"),
        ([], "at least one class"),
        ("ox", "at least one class"),
        (["o\nx"], "expected the names"),
    ):
        with pytest.raises(InputError, match=message):
            learner.add_task(classes)
        assert same(learner, other)
    assert learner.add_task(["ox", "fox", "ox", 0]) == 2
    nameless = cclfp.make("er", psi=nn.Flatten(), num_classes=2)
    with pytest.raises(InputError, match="has no class names"):
        nameless.add_task(["ox"])


def test_every_task_that_is_added_has_an_id_of_its_own(tmp_path: Path) -> None:
    learner = trained()
    assert [learner.add_task([2]), learner.add_task(["ox"])] == [1, 2]
    with pytest.raises(InputError, match="no class of task 2 has been seen yet"):
        learner.predict(images(), task=2)
    learner.observe(images(), [3] * 8, task=2)
    learner.save(tmp_path / "learner")
    for one in (learner, cclfp.load(tmp_path / "learner")):
        assert set(one.predict(images()).tolist()) <= {0, 1, 3}
        assert one.add_task([2]) == 3


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=3))
def test_tasks_that_are_added_are_tasks_like_those_declared(added: list[list[int]]) -> None:
    """A learner to which tasks are added trains as one for which they were declared."""
    declared = [[0, 1], *added]
    x, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    ours = cclfp.make("er", psi=nn.Flatten(), num_classes=5, tasks=[[0, 1]])
    theirs = cclfp.make("er", psi=nn.Flatten(), num_classes=5, tasks=declared)
    for task, classes in enumerate(declared):
        if task:
            assert ours.add_task(classes) == task
            y = torch.tensor([classes[i % len(classes)] for i in range(4)])
        for learner in (ours, theirs):
            learner.observe(x, y, task)
            learner.end_task()
        assert torch.equal(ours.logits(x), theirs.logits(x))
