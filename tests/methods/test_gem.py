"""What is particular to GEM; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import copy
from unittest.mock import Mock

import pytest
import torch
from by_hand import stream_of, tiny, train
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_papers import project as by_quadprog
from torch import nn

import cclfp
from cclfp.methods import er, gem
from cclfp.methods.gem import GEM, past_gradient, project

# -- the projection -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 19), st.sampled_from(["random", "repeated", "opposite", "zero"]), st.integers(0, 2**32))
def test_the_projected_gradient_agrees_with_the_past(n: int, kind: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(n + 1, 30, dtype=torch.float64, generator=g)
    if kind == "repeated":
        rows[1:] = rows[1:][torch.randint(0, (n + 1) // 2, (n,), generator=g)]
    if kind == "opposite":
        rows[-1] = -rows[1]
    if kind == "zero":
        rows[torch.rand(n + 1, generator=g) < 0.3] = 0
    for gamma in (0.0, 0.5):
        x = project(rows, torch.tensor(gamma))
        expected = by_quadprog(rows[0], list(rows[1:]), gamma)
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
        if (rows[1:] @ rows[0] >= 0).all():
            assert torch.equal(x, rows[0])
        elif gamma == 0:  # but for the 1e-3 on the diagonal
            assert (rows[1:] @ x >= -0.02 * rows.norm(dim=1).max()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_agrees_is_left_as_it_is(dtype: torch.dtype) -> None:
    rows = torch.randn(6, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rows[1:] *= torch.sign(rows[1:] @ rows[0])[:, None]
    assert torch.equal(project(rows, torch.tensor(0.5)), rows[0])
    rows[3] = 0  # a product of 0 is no disagreement
    assert torch.equal(project(rows, torch.tensor(0.5)), rows[0])
    rows[4] = -rows[4]
    assert not torch.equal(project(rows, torch.tensor(0.5)), rows[0])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 19), st.floats(-6, 6), st.integers(0, 2**32))
@example(5, 6.0, 226)  # 13,000 times as long without the rounding on the diagonal
def test_float32_gradients_of_any_size(n: int, exponent: float, seed: int) -> None:
    """Also where the products' rounding is more than the 1e-3 on the diagonal: nearly opposite, large gradients."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(n + 1, 200, generator=g)
    half = n // 2
    rows[1 + half : 1 + 2 * half] = -rows[1 : 1 + half] + 1e-6 * rows[1 + half : 1 + 2 * half]
    rows = rows * 10**exponent
    x = project(rows, torch.tensor(0.0)).double()
    assert torch.isfinite(x).all()
    assert x.norm() <= 1.01 * rows[0].double().norm()  # a projection onto a cone


# -- the memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tasks", [20, None])
def test_twenty_tasks(num_tasks: int | None) -> None:
    """Where another implementation crashes: 20 tasks, 10 examples of each."""
    psi = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    learner = cclfp.make(GEM, psi=psi, num_classes=4, scenario="domain", memory=200, num_tasks=num_tasks, lr=0.1)
    for task in range(20):
        g = torch.Generator().manual_seed(task)
        for _ in range(4):
            learner.observe(torch.randn(10, 8, generator=g), torch.randint(0, 4, (10,), generator=g), task)
        past = learner.state.get("past", {})
        assert list(past) == [str(t) for t in range(task)]
        share = 200 // (num_tasks or task + 1)
        assert all(len(one["y"]) == min(share, 40) for one in past.values())
        assert learner.memory is not None
        held = learner.memory.examples()
        for name, one in past.items():  # what stays in the memory once the new task has its share
            of_task = held.x[held.task == int(name)]
            assert all(any(torch.equal(x, kept) for kept in of_task) for x in one["x"])
        learner.end_task()
        assert learner.state == {}
    assert all(torch.isfinite(p).all() for p in psi.parameters())


def test_classes_seen_within_a_task_count_for_the_past_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the classes are not declared, those of a task are not known when it begins."""
    spy = Mock(wraps=cclfp.losses.cross_entropy)
    for module in (er, gem):  # the loss on the batch, and those on the past
        monkeypatch.setattr(module, "cross_entropy", spy)
    learner = cclfp.make(GEM, psi=nn.Flatten(), num_classes=4, memory=8)
    x = torch.randn(2, 3)
    learner.observe(x, torch.tensor([0, 1]))
    learner.end_task()
    for label in (2, 3):
        spy.reset_mock()
        learner.observe(x, torch.tensor([label, label]))
        masks = [call.args[2] for call in spy.call_args_list]
        assert [mask[0].tolist() for mask in masks] == 2 * [[True, True, True, label == 3]]


@pytest.mark.parametrize("share", [1, 2])
def test_one_example_of_a_past_task_is_normalised_as_in_testing(share: int) -> None:
    """It has no statistics of its own: BatchNorm in training mode refuses it. Two have. GEM and A-GEM share this."""
    learner = train(tiny("gem", norm=True), stream_of()[:1])
    x, y = (t[:share] for t in stream_of()[1][0])
    assert learner.f is not None
    before = copy.deepcopy(learner.psi)
    z = copy.deepcopy(learner.psi).train(share > 1)(x)
    expected = torch.autograd.grad(nn.functional.cross_entropy(learner.f(z), y), learner.f.weight)
    mask = torch.ones(share, 6, dtype=torch.bool)
    grads = past_gradient(learner.algorithm.net, *learner.model[:2], x, y, mask)
    torch.testing.assert_close(grads["f.weight"], expected[0])
    assert all(map(torch.equal, learner.psi.state_dict().values(), before.state_dict().values()))
