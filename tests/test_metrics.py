"""Metrics on matrices worked out by hand."""

from __future__ import annotations

import pytest

from cclfp.metrics import Matrix, average_accuracy, backward_transfer, forgetting, forward_transfer

# Row t is after t tasks; three tasks.
WHOLE = [[10.0, 20.0, 30.0], [80.0, 25.0, 12.0], [85.0, 90.0, 42.0], [60.0, 75.0, 99.0]]
BEFORE = [[0.0, 99.0, 0.0], [50.0, 99.0, 0.0], [50.0, 60.0, 0.0], [50.0, 60.0, 0.0]]  # known before it is learned


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        # (60 + 75 + 99) / 3; the best before the end, (85 - 60 + 90 - 75) / 2; (60 - 80 + 75 - 90) / 2; (5 + 12) / 2
        (WHOLE, (78.0, 20.0, -17.5, 8.5)),
        (BEFORE, (110 / 3, 0.0, 0.0, 0.0)),
        ([[None, None], [70.0, None], [75.0, 90.0]], (82.5, -5.0, 5.0, None)),  # a task got better; the class scenario
        ([[None, None], [None, None], [70.0, 80.0]], (75.0, None, None, None)),  # joint
        ([[None], [70.0]], (70.0, None, None, None)),  # one task has nothing to forget
    ],
)
def test_metrics(matrix: Matrix, expected: tuple[float | None, ...]) -> None:
    metrics = (average_accuracy, forgetting, backward_transfer, forward_transfer)
    assert tuple(metric(matrix) for metric in metrics) == expected
