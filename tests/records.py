"""Records of runs that never were, and what damages stores of them."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cclfp.metrics import Matrix
from cclfp.runs.code import code
from cclfp.runs.configuration import Configuration
from cclfp.runs.record import MEASURES, Record, checksum, complete
from cclfp.runs.settings import configurations

MATRIX: list[list[float | None]] = [
    [None, None, None],
    [90.0, None, None],
    [80.1, 91.5, None],
    [70.0, 85.25, 0.1 + 0.2],
]


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


@functools.cache
def configuration(method: str = "er") -> Configuration:
    (made,) = configurations([method], "split-mnist", tasks=3)
    return made


def record(seed: int = 0, method: str = "er") -> Record:
    made = made_up(configuration(method), seed, MATRIX, engine="eager", platform="Linux-test")
    again: Record = json.loads(json.dumps(made))  # with lists in the place of tuples
    return again


def write(path: Path, *statements: str) -> None:
    """As somebody would who knows SQL."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def seal(path: Path) -> None:
    """Give every row the checksum that fits it, as who knows the format could."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.row_factory = sqlite3.Row
        for row in database.execute("SELECT rowid AS number, * FROM runs").fetchall():
            values = dict(row)
            number = values.pop("number")
            database.execute("UPDATE runs SET checksum = ? WHERE rowid = ?", (checksum(values), number))


def flipped(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
