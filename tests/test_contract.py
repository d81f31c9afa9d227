"""Every method keeps the contract. A new method adds one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cclfp.methods import METHODS
from cclfp.testing import CHECKS, Case

ROWS: list[dict[str, Any]] = [
    {"method": "joint"},
    {"method": "finetune"},
    {"method": "er"},
    {"method": "ccl-fp", "w": 0.3, "alpha": 0.2},
    {"method": "ccl-fp+", "w": 0.5, "alpha": 0.5, "beta": 0.1},
]


def test_every_method_has_a_row() -> None:
    assert [row["method"] for row in ROWS] == list(METHODS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["method"])
def test_contract(row: dict[str, Any], scenario: str, check: Callable[[Case], None]) -> None:
    hyper = {name: value for name, value in row.items() if name != "method"}
    check(Case(METHODS[row["method"]], scenario, hyper))
