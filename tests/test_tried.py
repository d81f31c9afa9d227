"""The methods and scripts in results/tried/, which RESULTS.md compares with ours."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.core.memory import Examples
from cclfp.data import get_dataset
from cclfp.learner import Learner
from cclfp.methods import METHODS
from cclfp.nets import MLP
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.streams.stream import Stream
from cclfp.testing import check_method
from cclfp.transforms import Normalise

TRIED = Path(__file__).parents[1] / "results" / "tried"
ALL_OUTPUTS = runpy.run_path(str(TRIED / "all_outputs.py"))
NARROW = runpy.run_path(str(TRIED / "narrow_resnets.py"))


@pytest.mark.slow
def test_lwf_with_one_softmax_compares_all_past_classes() -> None:
    one_softmax = runpy.run_path(str(TRIED / "lwf_one_softmax.py"))["OneSoftmax"]
    check_method(one_softmax, quick=True)
    seen = torch.tensor([True, True, False])
    classes = SimpleNamespace(classes_of=torch.eye(3, dtype=torch.bool).repeat_interleave(2, 1), seen=seen)
    context = SimpleNamespace(classes=classes)
    masks = one_softmax.end_task(object.__new__(one_softmax), {}, {}, {}, None, context)["masks"]
    assert masks.tolist() == [[True] * 4 + [False] * 2, [False] * 6, [False] * 6]


METHODS_TRIED = ["Finetune", "SI", "LwF", "ER", "GEM", "AGEM", "ICaRL", "CCLFP", "CCLFPPlus"]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS_TRIED)
def test_methods_on_all_outputs_keep_the_contract(name: str) -> None:
    check_method(ALL_OUTPUTS[name], quick=True)


def rows_of(method: Any, scenario: str, **hyper: Any) -> Tensor:
    """The rows of f after two tasks of two classes each, of six classes."""
    learner = cclfp.make(method, psi=MLP(8, (5,)), num_classes=6, scenario=scenario, memory=8, replay=4, **hyper)
    g = torch.Generator().manual_seed(0)
    for task in range(2):
        for _ in range(3):
            y = 2 * task + torch.randint(2, (4,), generator=g)
            learner.observe(torch.randn(4, 8, generator=g) + y[:, None], y, task=task)
        learner.end_task()
    assert learner.f is not None
    return learner.f.weight.detach()


@pytest.mark.parametrize("name", ["SI", "ER", "CCLFPPlus"])
def test_all_outputs_train_as_if_all_classes_had_been_seen(name: str) -> None:
    tried = ALL_OUTPUTS[name]
    ours = METHODS[tried.name.removesuffix("-all-outputs")]
    hyper = {"tau": 0.1} if name == "CCLFPPlus" else {}  # the domain scenario has another default

    rows = rows_of(tried, "class", **hyper)
    assert rows.equal(rows_of(ours, "domain", **hyper))
    assert not rows.equal(rows_of(ours, "class", **hyper))


def two_tasks() -> Stream:
    """Digits are rows of white pixels; the second task has the labels of the first in reverse."""
    y = torch.arange(10).repeat(40)
    x = torch.zeros(400, 28, 28, dtype=torch.uint8)
    x[torch.arange(400), 2 * y] = 255
    x, tasks = x[:, None], torch.arange(2).repeat_interleave(200)
    y = torch.where(tasks == 0, y, 9 - y)
    return Stream(
        scenario="domain",
        num_classes=10,
        classes=[list(range(10))] * 2,
        train=Examples(x, y, tasks),
        train_rows=list(torch.arange(400).split(200)),
        test=[Examples(x[rows], y[rows], tasks[rows]) for rows in torch.arange(400).split(200)],
    )


ONE_STREAM = runpy.run_path(str(TRIED / "one_stream.py"))


def test_one_stream_is_trained_and_tested_on_all_tasks() -> None:
    assert ONE_STREAM["accuracy"](two_tasks(), 0, 0.1) == 50  # it knows the second task, and so forgot the first


def test_one_stream_has_its_own_initial_values_and_order_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, make, observe = two_tasks(), cclfp.make, Learner.observe
    numbers = torch.arange(400)  # of the images, in two of their pixels
    stream.train.x[:, 0, 27, 0], stream.train.x[:, 0, 27, 1] = (numbers // 200).byte(), (numbers % 200).byte()
    made: list[tuple[Tensor, int]] = []
    orders: list[list[int]] = []

    def watched_make(method: str, **options: Any) -> Learner:
        made.append((options["psi"].layers[0].weight.clone(), options["seed"]))
        orders.append([])
        return make(method, **options)

    def watched_observe(learner: Learner, x: Tensor, y: Tensor, task: int) -> Any:
        orders[-1].extend((200 * x[:, 0, 27, 0].int() + x[:, 0, 27, 1]).tolist())
        return observe(learner, x, y, task)

    monkeypatch.setattr(cclfp, "make", watched_make)
    monkeypatch.setattr(Learner, "observe", watched_observe)
    for seed in (0, 1, 0):
        ONE_STREAM["accuracy"](stream, seed, 0.1)
    assert [seed for _, seed in made] == [0, 1, 0]
    assert made[0][0].equal(made[2][0])
    assert not made[0][0].equal(made[1][0])
    assert orders[0] == orders[2] != orders[1]
    for order in orders:
        assert [sorted(order[:200]), sorted(order[200:])] == [list(range(200)), list(range(200, 400))]


def test_unnormalised_inputs_are_pixels_between_0_and_1() -> None:
    x = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cifar10 = get_dataset("cifar10")
    assert cifar10.mean is not None
    assert cifar10.std is not None
    inputs = NARROW["Unnormalised"](nn.Identity())(Normalise(cifar10.mean, cifar10.std)(x))
    assert torch.allclose(inputs, x / 255, atol=1e-6)


@pytest.mark.parametrize("name", ["he", "unnormalised"])
def test_narrow_networks_are_drawn_from_the_seed(name: str) -> None:
    backbone = parse_backbone(f"{TRIED / 'narrow_resnets.py'}:{name}")
    stems = [next(make_psi(backbone, (3, 32, 32), seed).parameters()) for seed in (0, 1, 0)]
    assert stems[0].shape[0] == 8
    assert stems[0].equal(stems[2])
    assert not stems[0].equal(stems[1])
