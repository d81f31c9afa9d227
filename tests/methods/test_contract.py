"""Every method keeps the contract. A new method adds one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from cclfp.errors import InputError
from cclfp.losses import cross_entropy
from cclfp.methods import METHODS
from cclfp.testing import CHECKS, Case
from cclfp.testing.case import train_replicas
from cclfp.testing.contract import in_second_task

ROWS: list[dict[str, Any]] = [
    {"method": "joint"},
    {"method": "finetune"},
    {"method": "si", "c": 0.5},
    {"method": "lwf"},
    {"method": "er"},
    {"method": "gem"},
    {"method": "a-gem"},
    {"method": "icarl"},
    {"method": "fdr"},
    {"method": "hal", "lam": 0.2, "steps": 20},
    {"method": "ccl-fp", "w": 0.3, "alpha": 0.2},
    {"method": "ccl-fp+", "w": 0.5, "alpha": 0.5, "beta": 0.1},
]


def test_every_method_has_a_row() -> None:
    assert [row["method"] for row in ROWS] == list(METHODS)


CASES = [
    Case(METHODS[row["method"]], scenario, {name: value for name, value in row.items() if name != "method"})
    for row in ROWS
    for scenario in METHODS[row["method"]].scenarios()
]
PARAMETERS = [
    pytest.param(
        case, marks=[] if case.scenario == "class" else [pytest.mark.slow], id=f"{case.method.name}-{case.scenario}"
    )
    for case in CASES
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", PARAMETERS)
def test_contract(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.scenario == "class"], ids=lambda case: case.method.name)
def test_every_step_returns_its_loss(case: Case) -> None:
    """It is the value of the method's loss before the step."""
    learner, batch = in_second_task(case)
    loss = learner.algorithm.step(*learner.model, batch, learner.hyper_tensors)[3]["loss"]  # type: ignore[misc]
    assert loss.shape == ()
    assert not loss.requires_grad
    params, buffers, state = learner.model
    if case.method.name == "a-gem":  # on the new examples
        n = batch.n_current
        z, _ = learner.algorithm.net.features(params, buffers, batch.x[:n])
        expected = cross_entropy(learner.algorithm.net.classify(params, z), batch.y[:n], batch.mask[:n])
    else:
        expected, *_ = learner.algorithm.loss(params, buffers, state, batch, learner.hyper_tensors)
    torch.testing.assert_close(loss, expected.detach())


@pytest.mark.parametrize(
    ("name", "hyper", "tasks"),
    [
        *(("si", {"c": 5.0}, 1), ("si", {"c": 0.0}, 3), ("lwf", {}, 1), ("lwf", {"lambda_o": 0.0}, 3)),
        *(("gem", {}, 1), ("a-gem", {}, 1), ("fdr", {}, 1)),
    ],
)
def test_without_a_past_or_its_weight_it_is_finetune(name: str, hyper: dict[str, float], tasks: int) -> None:
    """BatchNorm's statistics included: what is replayed and does not count yet is not even seen by them."""
    ours, finetune = Case(METHODS[name], "class", hyper).replica(), Case(METHODS["finetune"], "class", {}).replica()
    for replica in (ours, finetune):
        train_replicas([replica], tasks=tasks)
    assert all(map(torch.equal, tree_leaves(ours.learner.model[:2]), tree_leaves(finetune.learner.model[:2])))


@pytest.mark.parametrize(
    ("name", "reason"), [("lwf", "all tasks share their classes"), ("icarl", "its exemplars and distillation")]
)
def test_a_scenario_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"{name} is not defined in the domain scenario: {reason}"):
        Case(METHODS[name], "domain", {}).learner()
