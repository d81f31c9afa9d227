"""Run records in SQLite: one file, write-ahead logging, any number of processes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cclfp.errors import InputError
from cclfp.files import home

VERSION = 1
SCHEMA = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY,            -- of the configuration and seed
    method TEXT NOT NULL,
    benchmark TEXT NOT NULL,
    scenario TEXT NOT NULL,
    buffer INTEGER,                  -- null: the method has no memory
    seed INTEGER NOT NULL,
    configuration TEXT NOT NULL,     -- JSON
    average_accuracy REAL,           -- percent
    forgetting REAL,
    backward_transfer REAL,
    forward_transfer REAL,
    accuracy_matrix TEXT NOT NULL,   -- JSON: row t is after t tasks
    seconds REAL NOT NULL,           -- training and testing
    train_seconds REAL NOT NULL,
    test_seconds REAL NOT NULL,
    environment TEXT NOT NULL,       -- JSON: engine, precision, threads, device, versions, commit
    finished_at TEXT NOT NULL        -- UTC
)
"""
JSON_COLUMNS = ("configuration", "accuracy_matrix", "environment")

Record = dict[str, Any]


def default_store() -> Path:
    return home() / "runs.sqlite"


class Store:
    """The records in one file, which is made at the first use.

    >>> import tempfile
    >>> Store(Path(tempfile.mkdtemp()) / "runs.sqlite").records()
    []
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path.with_name(path.name + ".checkpoints")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._connect() as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("BEGIN IMMEDIATE")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    database.execute(SCHEMA)
                    database.execute(f"PRAGMA user_version = {VERSION}")
                database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"{path} cannot be used as a store of runs: {error}") from error
        if version not in (0, VERSION):
            raise InputError(f"{path} was written by another version of cclfp (store format {version}, not {VERSION})")

    def find(self, key: str) -> Record | None:
        """The record of a finished run."""
        with self._connect() as database:
            row = database.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
        return None if row is None else _to_record(row)

    def add(self, record: Record) -> None:
        """Keep a finished run's record, in place of an older one of the same run."""
        values = {name: json.dumps(value) if name in JSON_COLUMNS else value for name, value in record.items()}
        columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        with self._connect() as database:
            database.execute(f"INSERT OR REPLACE INTO runs ({columns}) VALUES ({marks})", values)

    def records(self, method: str | None = None, benchmark: str | None = None) -> list[Record]:
        """All finished runs, the oldest first."""
        with self._connect() as database:
            rows = database.execute(
                "SELECT * FROM runs WHERE (:m IS NULL OR method = :m) AND (:b IS NULL OR benchmark = :b) "
                "ORDER BY finished_at, rowid",
                {"m": method, "b": benchmark},
            ).fetchall()
        return [_to_record(row) for row in rows]

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            yield database


def _to_record(row: sqlite3.Row) -> Record:
    return {name: json.loads(row[name]) if name in JSON_COLUMNS else row[name] for name in row.keys()}  # noqa: SIM118
