"""What is particular to FDR; tests/methods/test_papers.py compares it with its definition."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import stream_of, tiny, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

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
