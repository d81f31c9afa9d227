"""What is particular to SI; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import pytest
import torch
from by_hand import Paper, parameters, stream_of, tiny, train
from torch import Tensor

from cclfp.learner import Learner
from cclfp.methods import METHODS, Batch
from cclfp.methods.si import SI
from cclfp.testing import Case
from cclfp.testing.case import train_replicas


def far_from_home(lr: float, c: float) -> tuple[Learner, Tensor, Tensor, list[Tensor]]:
    """A learner at the start of the second task, with theta* elsewhere and importances of all sizes; a batch, and the
    gradient of its cross-entropy."""
    learner, stream = tiny("si", "domain", lr=lr, c=c), stream_of("domain")
    train(learner, stream[:1])
    learner.begin_task()
    g = torch.Generator().manual_seed(0)
    for name, p in learner.model[0].items():
        learner.state["importance"][name] = torch.rand(p.shape, dtype=torch.float64, generator=g)
        learner.state["start"][name] = p.detach() + torch.randn(p.shape, dtype=torch.float64, generator=g)
    x, y = stream[1][0]
    none = torch.empty(0, dtype=torch.int64)
    paper, batch = Paper(learner), Batch(x / 2, y, torch.ones_like(y), none, len(y), none, none)
    return learner, x, y, paper.gradient(lambda theta: paper.loss(theta, batch))


def test_a_surrogate_that_pulls_against_the_gradient() -> None:
    """omega is the task's gradient times the whole step's change, of either sign."""
    learner, x, y, gradients = far_from_home(lr=0.1, c=2.0)
    theta = parameters(learner)
    learner.observe(x, y, 1)
    path = list(learner.state["path"].values())
    for ours, g, before, after in zip(path, gradients, theta, parameters(learner), strict=True):
        torch.testing.assert_close(ours, -g * (after - before), rtol=1e-8, atol=1e-12)
    flat = torch.cat([t.flatten() for t in path])
    assert (flat > 0).any()
    assert (flat < 0).any(), "no omega was negative: the hard case was not met"


def test_a_weak_surrogate_is_that_of_sgd() -> None:
    """To first order in lr the step is SGD on L + c sum Omega (theta - theta*)^2."""
    learner, x, y, gradients = far_from_home(lr=1e-6, c=0.7)
    state, before = learner.state, parameters(learner)
    learner.observe(x, y, 1)
    for b, a, g, Omega, star in zip(
        before, parameters(learner), gradients, state["importance"].values(), state["start"].values(), strict=True
    ):
        torch.testing.assert_close((b - a) / 1e-6, g + 2 * 0.7 * Omega * (b - star), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("path", "expected"), [(3.0, 4.0), (-1.5, 1.0), (-3.0, 0.0), (-9.0, 0.0)])
def test_an_importance_that_would_be_negative_is_zero(path: float, expected: float) -> None:
    learner = train(tiny("si", xi=0.5), stream_of()[:1])
    params, buffers, _ = learner.model
    full = {
        name: {k: torch.full_like(p, v) for k, p in params.items()} for name, v in (("path", path), ("importance", 2.0))
    }
    start = {name: p.detach() - 1 for name, p in params.items()}
    hyper, context = learner.hyper_tensors, learner.task_context()
    state = learner.algorithm.end_task(params, buffers, {**full, "start": start}, hyper, context)
    for t in state["importance"].values():  # 2 + path / (1 + 0.5), or 0
        torch.testing.assert_close(t, torch.full_like(t, expected))


def test_any_strength_is_stable() -> None:
    """The stronger, the nearer to a network whose important parameters stand still; never NaN."""
    for c in (1e2, 1e4, 1e8):
        learner, stream = tiny("si", "domain", lr=0.3, c=c, xi=0.001), stream_of("domain", steps=10)
        ended = parameters(train(learner, stream[:1]))
        train(learner, stream[1:], 1)
        assert all(torch.isfinite(p).all() for p in parameters(learner))
    for now, then in zip(parameters(learner), ended, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=1e-3)


def test_without_strength_and_in_the_first_task_it_is_finetune() -> None:
    """BatchNorm's statistics included."""
    finetune, weak, strong = (
        Case(METHODS["finetune"], "class", {}).replica(),
        Case(SI, "class", {"c": 0.0}).replica(),
        Case(SI, "class", {"c": 5.0}).replica(),
    )
    for tasks, are_equal in ((1, True), (2, False)):
        for replica in (finetune, weak, strong):
            train_replicas([replica], tasks=tasks)
        states = [list(replica.learner.psi.state_dict().values()) for replica in (finetune, weak, strong)]
        assert all(map(torch.equal, states[0], states[1]))
        assert all(map(torch.equal, states[0], states[2])) == are_equal


def test_what_matters_is_held() -> None:
    """The stronger the surrogate, the less the important parameters move in the next task, of those that would."""
    moved = []
    for c in (0.0, 1.0):
        learner, stream = tiny("si", "domain", lr=0.1, c=c, xi=0.1), stream_of("domain", steps=30)
        before = parameters(train(learner, stream[:1]))
        Omega = [t.clone() for t in learner.state["importance"].values()]
        after = parameters(train(learner, stream[1:2], 1))
        moved.append(sum(float((w * (a - b) ** 2).sum()) for w, a, b in zip(Omega, after, before, strict=True)))
    assert moved[1] < 0.5 * moved[0]
