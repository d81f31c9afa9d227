"""What is particular to LwF; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import torch
from by_hand import parameters, stream_of, tiny, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cclfp.methods.lwf import distillation


@st.composite
def answers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the new and of the old model, far apart or equal, and masks, some of them empty."""
    n, classes, tasks = draw(st.integers(1, 12)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    new, old = (scale * torch.randn(n, classes, dtype=torch.float64, generator=g) for _ in range(2))
    masks = torch.rand(tasks, classes, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return new, new.clone() if draw(st.booleans()) else old, masks


def by_heads(new: Tensor, old: Tensor, masks: Tensor, T: float) -> Tensor:
    """The same, one past task and its classes after the other."""
    heads = [(torch.softmax(old[:, m] / T, -1), torch.log_softmax(new[:, m] / T, -1)) for m in masks if m.any()]
    return torch.stack([new.new_zeros(len(new)), *(-(target * log_p).sum(-1) for target, log_p in heads)]).sum(0).mean()


@settings(max_examples=100, deadline=None)
@given(answers(), st.sampled_from([0.5, 1.0, 2.0]))
def test_distillation_is_that_of_loops_with_finite_gradients(given_: tuple[Tensor, Tensor, Tensor], T: float) -> None:
    new, old, masks = given_
    torch.testing.assert_close(distillation(new, old, masks, T), by_heads(new, old, masks, T), rtol=1e-9, atol=1e-9)
    for dtype in (torch.float32, torch.float64):
        leaf = new.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(distillation(leaf, old.to(dtype), masks, T), leaf)
        assert torch.isfinite(gradient).all()
        assert (gradient[:, ~masks.any(0)] == 0).all(), "a class of no past task was taught"


def test_undeclared_classes_are_distilled_like_declared_ones() -> None:
    ours, theirs = (train(tiny("lwf", tasks=tasks), stream_of()) for tasks in ([[0, 1], [2, 3], [4, 5]], None))
    assert all(map(torch.equal, parameters(ours), parameters(theirs)))
