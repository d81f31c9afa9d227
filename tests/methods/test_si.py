"""What is particular to SI; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import pytest
import torch
from by_hand import parameters, stream_of, tiny, train


@pytest.mark.parametrize(("path", "expected"), [(3.0, 4.0), (-1.5, 1.0), (-3.0, 0.0), (-9.0, 0.0)])
def test_an_importance_that_would_be_negative_is_zero(path: float, expected: float) -> None:
    learner = train(tiny("si", xi=0.5), stream_of()[:1])
    learner.observe(*stream_of()[1][0], 1)
    params = learner.model[0]
    for key, value in (("path", path), ("importance", 2.0)):
        learner.state[key] = {name: torch.full_like(p, value) for name, p in params.items()}
    learner.state["start"] = {name: p.detach() - 1 for name, p in params.items()}
    learner.end_task()
    for t in learner.state["importance"].values():  # 2 + path / (1 + 0.5), or 0
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
