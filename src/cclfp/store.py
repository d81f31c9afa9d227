"""Run records in SQLite: one file, write-ahead logging, any number of processes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cclfp.errors import InputError
from cclfp.files import home

VERSION = 1
APPLICATION = 0x0CC1_F900  # marks the file as ours
TIMEOUT = 60  # seconds to wait for other processes
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
    finished_at TEXT NOT NULL,       -- UTC
    diverged INTEGER                 -- after how many tasks the weights were first found not finite; null: never
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
        except OSError as error:
            raise InputError(f"{path} cannot be used as a store of runs: {error}") from error
        with self._connect() as database:
            self._create(database)

    def _create(self, database: sqlite3.Connection) -> None:
        """Make the table where there is none; refuse a file that is something else."""
        database.execute("BEGIN")  # the three marks of one moment: another process may be writing them now
        application, version, tables = _marks(database)
        database.execute("COMMIT")
        if not (application or version or tables):
            database.execute("BEGIN IMMEDIATE")
            if not any(_marks(database)):  # no other process was faster
                database.execute(SCHEMA)
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                database.execute(f"PRAGMA user_version = {VERSION}")
            application, version, tables = _marks(database)
            database.execute("COMMIT")
        if application != APPLICATION:
            raise InputError(f"{self.path} is a database of something else, not a store of runs")
        if version != VERSION:
            raise InputError(f"{self.path} was written by another cclfp (store format {version}, not {VERSION})")
        deadline = time.monotonic() + TIMEOUT
        while database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:  # this one statement does not wait for other processes by itself
                database.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def find(self, key: str) -> Record | None:
        """The record of a finished run."""
        with self._connect() as database:
            return _find(database, key)

    def add(self, record: Record, *, replace: bool = False) -> Record:
        """Keep a finished run's record, and give the one that is kept: an older one of the same run stays.

        With ``replace`` the new one takes its place.
        """
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            old = None if replace else _find(database, record["key"])
            if old is None:
                _write(database, record)
            database.execute("COMMIT")
        return record if old is None else old

    def merge(self, records: Sequence[tuple[str, Record]]) -> list[str]:
        """Add records, each given with the place it is from, and say which places had duplicates.

        A duplicate is word for word a record that is here already, or came before it. A record that differs from one
        of the same run is a conflict, and then none are added.
        """
        places: dict[str, str] = {}
        duplicates, conflicts = [], []
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            for place, record in records:
                old = _find(database, record["key"])
                if old is None:
                    _write(database, record)
                    places[record["key"]] = place
                elif old == record:
                    duplicates.append(place)
                else:
                    where = places.get(record["key"], str(self.path))
                    conflicts.append(f"{place}: {_conflict(record, old, where)}")
            if conflicts:
                others = f" ({len(conflicts) - 1} more lines are in conflict)" if len(conflicts) > 1 else ""
                raise InputError(f"{conflicts[0]}{others}: nothing was added; leave out one of the two")
            database.execute("COMMIT")
        return duplicates

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
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=TIMEOUT, isolation_level=None)) as database:
                database.row_factory = sqlite3.Row
                yield database
        except sqlite3.Error as error:
            raise InputError(f"{self.path} cannot be used as a store of runs: {error}") from error


def _marks(database: sqlite3.Connection) -> tuple[int, int, int]:
    """The application and version a file says it is of, and how many tables it has: all 0 for a new file."""
    marks = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application, version, tables = (database.execute(mark).fetchone()[0] for mark in marks)
    return application, version, tables


def _write(database: sqlite3.Connection, record: Record) -> None:
    values = {name: json.dumps(value) if name in JSON_COLUMNS else value for name, value in record.items()}
    columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    database.execute(f"INSERT OR REPLACE INTO runs ({columns}) VALUES ({marks})", values)


def _find(database: sqlite3.Connection, key: str) -> Record | None:
    row = database.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
    return None if row is None else _to_record(row)


def _conflict(record: Record, old: Record, where: str) -> str:
    """In what a record differs from another of the same run."""
    run = f"{record['method']} on {record['benchmark']} ({record['scenario']}), seed {record['seed']}"
    new, old = _flat(record), _flat(old)
    names = [name for name in {**new, **old} if name not in new or name not in old or new[name] != old[name]]
    texts = {name: [json.dumps(values.get(name), ensure_ascii=False) for values in (new, old)] for name in names}
    said = [f"{name} {a} and {b}" if len(a + b) < 80 else name for name, (a, b) in texts.items()]
    return f"{run} (key {record['key']}) has another record in {where}, which differs in {', '.join(said)}"


def _flat(record: Record) -> Record:
    """With the values of objects beside the others: ``environment.engine``."""
    flat: Record = {}
    for name, value in record.items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _to_record(row: sqlite3.Row) -> Record:
    record = {name: json.loads(row[name]) if name in JSON_COLUMNS else row[name] for name in row.keys()}  # noqa: SIM118
    if record.get("diverged") is None:
        record.pop("diverged", None)
    return record
