"""Stores of made-up records, and what damages them."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from pathlib import Path

from records import made_up

from cclfp.runs import store as store_module
from cclfp.runs.configuration import Configuration
from cclfp.runs.record import JSON_COLUMNS, Record
from cclfp.runs.settings import configurations

MATRIX: list[list[float | None]] = [
    [None, None, None],
    [90.0, None, None],
    [80.1, 91.5, None],
    [70.0, 85.25, 0.1 + 0.2],
]


VERSION_1 = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY, method TEXT NOT NULL, benchmark TEXT NOT NULL, scenario TEXT NOT NULL, buffer INTEGER,
    seed INTEGER NOT NULL, configuration TEXT NOT NULL, average_accuracy REAL, forgetting REAL, backward_transfer REAL,
    forward_transfer REAL, accuracy_matrix TEXT NOT NULL, seconds REAL NOT NULL, train_seconds REAL NOT NULL,
    test_seconds REAL NOT NULL, environment TEXT NOT NULL, finished_at TEXT NOT NULL
)
"""


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


def make_version_1(path: Path, records: list[Record]) -> None:
    """As cclfp 0.1 wrote it at first."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(VERSION_1)
        for r in records:
            values = {name: json.dumps(v) if name in JSON_COLUMNS else v for name, v in r.items()}
            marks = ", ".join(f":{name}" for name in values)
            database.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks})", values)
        database.execute(f"PRAGMA application_id = {store_module.APPLICATION}")
        database.execute("PRAGMA user_version = 1")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")


def flipped(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
