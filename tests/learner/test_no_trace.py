"""What fails, and what a caller does to its own tensors, leaves no trace in a learner."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.core.memory import Memory
from cclfp.errors import InputError
from cclfp.learner.saving import learner_state
from cclfp.methods import METHODS, Method
from cclfp.methods.er import ER
from cclfp.testing import same, toy_psi
from cclfp.testing.case import equal


def learner(method: str | type[Method]) -> cclfp.Learner:
    return cclfp.make(method, psi=toy_psi(), num_classes=6, memory=12)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)), torch.tensor([0, 1, 0, 1, 1])


def test_a_step_that_fails_leaves_no_trace() -> None:
    class Moody(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and x.sum() > 1e6:
                raise RuntimeError("no")
            return super().forward(x)

    torch.manual_seed(0)
    module = Moody(8, 4)
    ours = cclfp.make("ccl-fp+", psi=module, num_classes=6, memory=3)
    with pytest.raises(RuntimeError, match="no"):
        ours.observe(torch.full((3, 8), 1e7), [0, 1, 0])
    assert ours.f is None
    ours.observe(*batch())
    before = copy.deepcopy(learner_state(ours))
    with pytest.raises(RuntimeError, match="no"):
        ours.observe(torch.full((3, 8), 1e7), [0, 1, 0], task=1)
    assert equal(before, learner_state(ours))


@pytest.mark.parametrize("method", ["er", "icarl"])
def test_a_batch_that_cannot_be_stored_leaves_no_trace(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, twin = learner(method), learner(method)
    for one in (ours, twin):
        one.observe(*batch())
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "write", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            ours.observe(*batch(seed=1))
    assert same(ours, twin)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, b, s: (p, {}, s), r"the buffer 1.running_mean not at all, expected the shape \(16,\)"),
        (lambda p, b, s: ({**p, "f.bias": p["f.bias"][:1]}, b, s), r"f.bias in the shape \(1,\), .* \(6,\)"),
        (lambda p, b, s: ({**p, "f.weight": p["f.weight"].T}, b, s), r"f.weight in the shape \(16, 6\)"),
        (lambda *three: (*three, {"loss": torch.ones(2)}), r"a tensor of shape \(2,\) as the loss"),
        (lambda *three: (*three, {"loss": 1.0}), "float as the loss, expected a 0-d tensor"),
        (lambda *three: (*three, torch.ones(())), r"\(dict, dict, dict, Tensor\), expected \(params, buffers, state\)"),
        (lambda *three: (*three, {}, {}), r"\(dict, dict, dict, dict, dict\), expected"),
    ],
)
def test_a_step_that_returns_something_else_leaves_no_trace(change: Any, message: str) -> None:
    class Wrong(ER):
        name = "wrong"

        def step(self, *arguments: Any) -> Any:
            stepped = super().step(*arguments)
            return change(*stepped[:3]) if len(arguments[3].slots) else stepped  # not in the first step

    ours, twin = learner(Wrong), learner(Wrong)
    for one in (ours, twin):
        one.observe(*batch())
    for seed in range(1, 4):  # the memory is full after two
        with pytest.raises(InputError, match=f"a step of wrong returned (.* )?{message}"):
            ours.observe(*batch(seed=seed))
        assert same(ours, twin)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_observed_may_be_overwritten_afterwards(method: str) -> None:
    ours, twin = learner(method), learner(method)
    for seed in (0, 1):
        x, y = batch(seed=seed)
        ours.observe(x, y)
        twin.observe(x.clone(), y.clone())
        x.zero_()
        y.zero_()
    for one in (ours, twin):
        one.end_task()
    assert same(ours, twin)
