"""The methods and scripts in results/tried/, which RESULTS.md compares with ours."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import cclfp
from cclfp.core.memory import Examples
from cclfp.methods import METHODS
from cclfp.nets import MLP
from cclfp.streams.stream import Stream
from cclfp.testing import check_method

TRIED = Path(__file__).parents[1] / "results" / "tried"
ALL_OUTPUTS = runpy.run_path(str(TRIED / "all_outputs.py"))


@pytest.mark.slow
def test_lwf_with_one_softmax_compares_all_past_classes() -> None:
    one_softmax = runpy.run_path(str(TRIED / "lwf_one_softmax.py"))["OneSoftmax"]
    check_method(one_softmax, quick=True)
    seen = torch.tensor([True, True, False])
    classes = SimpleNamespace(classes_of=torch.eye(3, dtype=torch.bool).repeat_interleave(2, 1), seen=seen)
    context = SimpleNamespace(classes=classes)
    masks = one_softmax.end_task(object.__new__(one_softmax), {}, {}, {}, None, context)["masks"]
    assert masks.tolist() == [[True] * 4 + [False] * 2, [False] * 6, [False] * 6]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SI", "ER", "CCLFPPlus"])
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


def test_one_stream_is_trained_from_several_seeds() -> None:
    accuracy = runpy.run_path(str(TRIED / "one_stream.py"))["accuracy"]
    y = torch.arange(10).repeat(40)
    x = torch.zeros(400, 28, 28, dtype=torch.uint8)
    x[torch.arange(400), 2 * y] = 255  # a digit is a row of white pixels
    x, tasks = x[:, None], torch.arange(2).repeat_interleave(200)
    stream = Stream(
        scenario="domain",
        num_classes=10,
        classes=[list(range(10))] * 2,
        train=Examples(x, y, tasks),
        train_rows=list(torch.arange(400).split(200)),
        test=[Examples(x[:10], y[:10], tasks[:10])] * 2,
    )
    assert accuracy(stream, 0, 0.1) == 100
    assert accuracy(stream, 0, 0.001) == accuracy(stream, 0, 0.001)
    assert len({accuracy(stream, seed, 0.001) for seed in range(4)}) > 1
