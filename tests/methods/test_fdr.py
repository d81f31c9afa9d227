"""What is particular to FDR; tests/methods/test_papers.py compares it with its definition."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import parameters, stream_of, tiny, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cclfp.methods import METHODS, Batch
from cclfp.methods.fdr import FDR, function_distance
from cclfp.testing import Case
from cclfp.testing.case import train_replicas


@st.composite
def functions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a function, outputs of another (or of itself), and which examples count: all, some or none."""
    n, classes = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    logits, other = (scale * torch.randn(n, classes, dtype=torch.float64, generator=g) for _ in range(2))
    counts = torch.rand(n, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return logits, (logits if draw(st.booleans()) else other).softmax(-1), counts


@settings(max_examples=100, deadline=None)
@given(functions())
def test_the_distance_is_that_of_loops_with_finite_gradients(given_: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, q, counts = given_
    p = logits.softmax(-1)
    squares = [math.dist(a, b) ** 2 for a, b, c in zip(p.tolist(), q.tolist(), counts.tolist(), strict=True) if c]
    expected = math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0
    assert math.isclose(float(function_distance(p, q, counts)), expected, rel_tol=1e-9, abs_tol=1e-12)
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(function_distance(leaf.softmax(-1), q.to(dtype), counts), leaf)
        assert torch.isfinite(gradient).all()
        assert (gradient[~counts] == 0).all()


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_the_weight_is_used(scenario: str) -> None:
    """With it the network's answers to what it remembers change less."""
    stream, changes = stream_of(scenario, steps=40), []
    known = 0 if scenario == "task" else None
    for alpha in (0.0, 1.0):
        learner = train(tiny("fdr", scenario, memory=8, alpha=alpha), stream[:1])
        assert learner.memory is not None
        asked = learner.memory.examples().x.clone()
        before = learner.logits(asked, known).softmax(-1)
        train(learner, stream[2:], 2)
        changes.append(float((learner.logits(asked, known).softmax(-1) - before).square().mean().sqrt()))
    assert changes[1] < 0.8 * changes[0]


def test_without_weight_it_is_finetune() -> None:
    """The labels of the memory teach nothing."""
    ours, finetune = (train(tiny(*one), stream_of()) for one in (("fdr",), ("finetune",)))
    weightless = train(tiny("fdr", alpha=0.0), stream_of())
    for a, b in zip(parameters(weightless), parameters(finetune), strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(parameters(ours)[0], parameters(finetune)[0])


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_stored_outputs_are_those_of_predicting(scenario: str) -> None:
    """In eval mode, on inputs transformed as for predicting, at the end of the task an example came in."""
    replica = Case(FDR, scenario, {}).replica()
    held, before = torch.zeros(150, 6), torch.zeros(150, 6)
    for task in range(3):
        train_replicas([replica], tasks=task + 1)
        learner = replica.learner
        assert learner.memory is not None
        assert torch.equal(held, before), "ending a task changes the state before it, which someone may hold"
        x, _, own = learner.memory.examples()
        expected = learner.logits(x, task=own if scenario == "task" else None).softmax(-1)
        stored, new = learner.state["outputs"], own == task
        assert stored.shape == (150, 6)
        assert new.any()
        torch.testing.assert_close(stored[: len(x)][new], expected[new])
        assert torch.equal(stored[: len(x)][~new], before[: len(x)][~new])
        assert (stored[len(x) :] == 0).all()
        held, before = stored, stored.clone()


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tiny("fdr", memory=8), stream_of())
    monkeypatch.setattr("cclfp.nets.network.CHUNK", 9)  # three examples at a time
    in_parts = train(tiny("fdr", memory=8), stream_of())
    torch.testing.assert_close(whole.state, in_parts.state)


def test_leaking_to_new_classes_is_penalised() -> None:
    """What an old example gives to a class that came later counts, and the stored output has 0 there."""
    learner = train(tiny("fdr", memory=8, alpha=1.0), stream_of()[:1])
    stored = learner.state["outputs"]
    assert (stored[:, 2:] == 0).all()
    torch.testing.assert_close(stored[:, :2].sum(-1), torch.ones(8, dtype=torch.float64))
    mask = learner.mask.after_tasks(torch.tensor([1])).train(torch.tensor([1, 0]))
    learner.begin_task()
    assert learner.memory is not None
    held = learner.memory.examples()
    x = torch.stack([torch.zeros(3, dtype=torch.float64), held.x[0] / 2])
    y, task, slots = torch.tensor([2, held.y[0]]), torch.tensor([1, 0]), torch.tensor([0])
    losses = []
    for from_past_task in (True, False):
        batch = Batch(x, y, task, mask, 1, slots, torch.tensor([from_past_task]))
        losses.append(learner.algorithm.loss(*learner.model, batch, learner.hyper_tensors)[0])
    assert learner.f is not None
    p = learner.f(learner.psi(x[1:])).detach()[0, :4].softmax(-1)
    expected = math.dist(p.tolist(), stored[0, :4].tolist())
    assert expected > 0.01
    assert math.isclose((losses[0] - losses[1]).item(), expected, rel_tol=1e-9)


def test_the_first_task_is_that_of_finetune() -> None:
    """No replayed example counts yet, so they are not even seen by BatchNorm."""
    ours, finetune = Case(FDR, "class", {}).replica(), Case(METHODS["finetune"], "class", {}).replica()
    train_replicas([ours], tasks=1)
    train_replicas([finetune], tasks=1)
    for a, b in zip(ours.learner.psi.state_dict().values(), finetune.learner.psi.state_dict().values(), strict=True):
        assert torch.equal(a, b)
