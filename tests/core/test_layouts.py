"""The checks of saved values."""

from __future__ import annotations

import pytest
import torch

from cclfp.core.layouts import Like, check_layout, check_value
from cclfp.errors import DamagedError


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, None, "expected 0 or more"), (None, -9, "expected -9 or less"), (0, 3, "0 to 3")]
)
def test_the_message_names_the_bounds_that_exist(low: int | None, high: int | None, expected: str) -> None:
    with pytest.raises(DamagedError, match=f"n is -7, .*{expected}$"):
        check_value("n", -7, int, low, high)
    with pytest.raises(DamagedError, match=f"t has values from -7 to -7, .*{expected}$"):
        check_layout("t", torch.tensor([-7]), Like((1,), torch.int64, low, high))
