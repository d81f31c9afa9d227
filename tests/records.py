"""Records of runs that never were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cclfp.metrics import Matrix
from cclfp.runs.code import code
from cclfp.runs.configuration import Configuration
from cclfp.runs.record import MEASURES, Record, complete


def with_accuracy(record: Record, accuracy: float) -> Any:
    """The record with another result, which agrees with itself: this accuracy on every task at the end."""
    matrix = [*record["accuracy_matrix"][:-1], [accuracy] * len(record["accuracy_matrix"][-1])]
    return {**record, "accuracy_matrix": matrix, **{name: measure(matrix) for name, measure in MEASURES.items()}}


def made_up(
    configuration: Configuration, seed: int, matrix: Matrix, train: float = 2, test: float = 1, /, **environment: Any
) -> Any:
    """A record that agrees with itself, of this code."""
    given = {
        "seed": seed,
        "accuracy_matrix": matrix,
        "train_seconds": train,
        "test_seconds": test,
        "environment": {**code(configuration.to_dict()), **environment},
        "finished_at": "2026-01-01T00:00:00+00:00",
    }
    return complete(configuration, given)


def matrix_of(last: Sequence[float], scenario: str) -> list[list[float | None]]:
    """An accuracy matrix with this last row: a task is learned at 95 %, and the first one then rises to 97 %.

    A task before it is learned is at 40 % at first and at 45 % just before, in scenarios that test it then.
    """
    tasks = len(last)
    matrix: list[list[float | None]] = [[None] * tasks for _ in range(tasks + 1)]
    for t in range(1, tasks + 1):
        matrix[t][:t] = [95.0] * t
        matrix[t][0] = 97.0 if t > 1 else 95.0
    if scenario != "class":
        matrix[0] = [40.0] * tasks
        for t in range(1, tasks):
            matrix[t][t] = 45.0
    matrix[-1] = list(last)
    return matrix
