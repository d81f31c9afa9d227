"""Every method keeps the contract. A new method adds one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS, Batch
from cclfp.testing import CHECKS, Case, toy_psi

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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method.name}-{case.scenario}")
def test_contract(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["method"])
def test_a_step_compiles_without_a_break(row: dict[str, Any]) -> None:
    """On the learner's own parameters, in the second task, to the same numbers."""
    case = Case(METHODS[row["method"]], "class", {name: value for name, value in row.items() if name != "method"})
    stream = case.stream()
    replica = Replica(case.learner(psi=toy_psi(random=False)), stream)
    Cohort([replica]).advance()
    learner = replica.learner
    learner.trainer.begin_task()
    raw = stream.train.rows(torch.arange(20))
    mask = learner.trainer.expect_tasks(torch.tensor(stream.task_ids(0))).train(raw.task)
    batch = Batch(raw.x, raw.y, raw.task, mask, 10, torch.arange(10), torch.arange(10) % 2 == 0)
    arguments = (*learner.trainer.model, batch, learner.trainer.hyper_tensors)
    eager = learner.trainer.method.step(*arguments)
    compiled = torch.compile(learner.trainer.method.step, fullgraph=True, backend="aot_eager")(*arguments)
    for a, b in zip(tree_leaves(eager), tree_leaves(compiled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
