"""What is particular to LwF; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import copy

import torch
from by_hand import parameters, stream_of, tiny, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cclfp.engine.replica import Replica
from cclfp.methods import Batch
from cclfp.methods.lwf import LwF, distillation
from cclfp.testing import Case, toy_psi
from cclfp.testing.case import train_replicas


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


def test_the_old_model_is_in_eval_mode_and_the_new_one_in_training() -> None:
    """Built from what users see: the old model's answers are ``logits`` at the end of the task."""
    case = Case(LwF, "task", {"lambda_o": 0.7, "T": 3.0})
    stream = case.stream()
    replica = Replica(case.learner(psi=toy_psi(random=False)), stream)
    train_replicas([replica], tasks=1)
    learner = replica.learner
    raw = stream.train.rows(stream.train_rows[1][:10])
    old = learner.logits(raw.x, task=0)[:, :2]
    mask = learner.mask.after_tasks(torch.tensor([1])).train(raw.task)
    before = copy.deepcopy({name: learner.state[name] for name in ("old", "buffers_old")})
    learner.begin_task()
    z = copy.deepcopy(learner.psi).train()(raw.x / 2)
    assert learner.f is not None
    logits = learner.f(z)
    head = torch.softmax(old / 3, -1) * torch.log_softmax(logits[:, :2] / 3, -1)
    expected = nn.functional.cross_entropy(logits[:, 2:4], raw.y - 2) - 0.7 * head.sum(-1).mean()
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(raw.x / 2, raw.y, raw.task, mask, 10, none, none.bool())
    loss, _ = learner.algorithm.loss(*learner.model, batch, learner.hyper_tensors)
    torch.testing.assert_close(loss, expected)

    learner.observe(raw.x, raw.y, 1)  # which trains the new model, BatchNorm's statistics included, and not the old one
    for name, now in (("old", learner.model[0]), ("buffers_old", learner.model[1])):
        assert all(torch.equal(t, learner.state[name][key]) for key, t in before[name].items())
        assert not any(torch.equal(t, now[key]) for key, t in before[name].items())
