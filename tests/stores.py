"""Stores of made-up records, and what damages them."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from pathlib import Path

from records import made_up

from cclfp.runs.configuration import Configuration
from cclfp.runs.record import Record, checksum
from cclfp.runs.settings import configurations

MATRIX: list[list[float | None]] = [
    [None, None, None],
    [90.0, None, None],
    [80.1, 91.5, None],
    [70.0, 85.25, 0.1 + 0.2],
]


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
