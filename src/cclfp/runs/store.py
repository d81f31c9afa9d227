"""Run records in SQLite: one file, write-ahead logging, any number of processes.

Every row has a checksum and is checked when it is read, so that a damaged one is never taken for a result.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cclfp.core.files import chosen_by, home, real_file
from cclfp.errors import InputError
from cclfp.runs.record import COLUMNS, SCHEMA, VERSION, Record, difference, from_row, to_row

TIMEOUT = 60  # seconds to wait for other processes
APPLICATION = 0x0CC1_F900  # marks the file as ours
MAGIC = b"SQLite format 3\0"  # how the file of a database begins
JOURNALS = ("-wal", "-shm", "-journal")  # what SQLite appends to the names of its files beside a database
READS = 3  # attempts to read a file that other processes are changing, before its write-ahead log is used
# Code in a database: triggers change other rows than those that are written, and views can be endless.
CODE = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"

T = TypeVar("T")


class StoredRow(NamedTuple):
    """A row of the table and the record in it. A bad row has no record, but a reason."""

    number: int  # SQLite's rowid
    values: dict[str, Any]  # as stored
    record: Record | None
    reason: str

    @property
    def key(self) -> str:
        return str(self.values.get("key"))


def default_store() -> Path:
    return home() / "runs.sqlite"


def checkpoints_of(path: Path) -> Path:
    """The folder beside a store that keeps the checkpoints of unfinished runs."""
    return path.with_name(path.name + ".checkpoints")


def exists(path: Path) -> bool:
    """Whether the store exists; InputError where a path is that of something else, such as a folder or another file."""
    if str(path) == ":memory:" or str(path).startswith("file:"):
        raise InputError(f"{path}: records are kept in a file, not in memory or by a URI: expected the path of a file")
    file = real_file(path)
    try:
        for beside in files_of(path)[1:]:
            if beside.exists() and not stat.S_ISREG(beside.lstat().st_mode):
                raise InputError(f"{path} cannot be used as a store of runs: {beside} is not a regular file")
        found = file.exists()
        if found and file.stat().st_size and not is_database(file):  # in this order: one that is being made grows
            raise InputError(f"{path} cannot be used as a store of runs: file is not a database")
    except OSError as error:
        raise InputError(f"{path} cannot be used as a store of runs: {error}") from error
    if path.is_symlink() and not found:
        raise InputError(f"{path} is a symbolic link to {file}, which does not exist")
    return found


def files_of(path: Path) -> list[Path]:
    """The file of a store, and those that SQLite keeps beside it. Links are followed, as SQLite does."""
    file = real_file(path).absolute()
    return [file, *(file.with_name(file.name + suffix) for suffix in JOURNALS)]


def is_database(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


class Store:
    """The records in one file, which is created where it does not exist.

    With ``read_only`` nothing is created or changed, so the file may be on a read-only medium. A bad record raises an
    InputError when it is asked for, or is passed to ``on_bad`` and left out. A file whose structure is damaged is
    refused, unless ``damaged`` allows it: to look at what is left, and to delete what is bad.

    >>> import tempfile
    >>> Store(Path(tempfile.mkdtemp()) / "runs.sqlite").records()
    []
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        on_bad: Callable[[StoredRow], object] | None = None,
        damaged: bool = False,
    ) -> None:
        self.path, self.read_only, self.on_bad = path, read_only, on_bad
        if not exists(path):
            if read_only:
                raise InputError(f"{path}: there is no store of runs")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{path} cannot be used as a store of runs: {error}{chosen_by(path)}") from error
        self.checkpoints = checkpoints_of(path)
        self.file, *self.journals = files_of(path)
        found = self._read(self._inspect if read_only or damaged else self._create)
        self.is_empty, self.damage = found is None, found or []
        if self.damage and not damaged:
            raise InputError(f"{path} is damaged ({self.damage[0]}): {self.command('check')} says more")

    def command(self, *words: str) -> str:
        """A shell command of ``cclfp runs`` for this store."""
        return shlex.join(["cclfp", "runs", *words, "--store", str(self.path)])

    def _create(self, database: sqlite3.Connection) -> list[str] | None:
        """Create the table where it does not exist; refuse a file of another kind. Returns what ``_inspect`` does."""
        found = self._inspect(database)
        if found is None:
            database.execute("BEGIN IMMEDIATE")
            if not any(_marks(database)):  # no other process was faster
                database.execute(SCHEMA)
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute("COMMIT")
            found = self._inspect(database)
        deadline = time.monotonic() + TIMEOUT
        while database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:  # this statement alone does not wait for other processes
                (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                if mode != "wal":
                    raise InputError(f"{self.path}: its file system lacks write-ahead logging: use a store elsewhere")
        return found

    def _inspect(self, database: sqlite3.Connection) -> list[str] | None:
        """What is wrong with the structure of the file; None for an empty file."""
        database.execute("BEGIN")  # read all marks at once: another process may be writing them
        application, version, _ = marks = _marks(database)
        if not any(marks):
            database.execute("COMMIT")
            return None
        if application != APPLICATION:
            raise InputError(f"{self.path} is a database of something else, not a store of runs")
        if version > VERSION:
            text = f"{self.path} was written by a newer cclfp (store format {version}, not {VERSION})"
            raise InputError(f"{text}: update cclfp, or name another store")
        if version < 1:
            raise InputError(f"{self.path} has the store format {version}, which no cclfp writes: it is damaged")
        if version < VERSION:
            text = f"{self.path} was written by an earlier cclfp (store format {version}, not {VERSION})"
            raise InputError(f"{text}: write its runs into a file with that one (export), and import the file here")
        if code := [str(row[0]) for row in database.execute(CODE)]:
            raise InputError(f"{self.path} has triggers, views or virtual tables, which no cclfp writes: {code[0]!a}")
        damage = [str(row[0]).replace("\n", " ") for row in database.execute("PRAGMA integrity_check(10)")]
        found = {row["name"] for row in database.execute("PRAGMA table_info(runs)")}
        if missing := {*COLUMNS, "checksum"} - found:
            raise InputError(f"{self.path} is damaged: its table of runs has no {', '.join(sorted(missing))}")
        database.execute("COMMIT")
        return [] if damage == ["ok"] else damage

    def find(self, key: str) -> Record | None:
        """The record of a finished run."""
        row = self._read(lambda database: self._row(database, key))
        return None if row is None else self._good(row)

    def add(self, record: Record, *, replace: bool = False) -> Record:
        """Add a finished run's record and return the record that is kept: an older one of the same run stays.

        With ``replace`` the new one takes its place.
        """
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            old = None if replace else self._row(database, record["key"])
            if old is None:
                _write(database, record)
            database.execute("COMMIT")
        return record if old is None else self._demand(old)

    def merge(self, records: Sequence[tuple[str, Record]]) -> list[str]:
        """Add records, each with the place it comes from, and return the places of duplicates.

        A duplicate equals a stored record in every field. A record that differs from a stored one of the same run is a
        conflict, and then nothing is added. Every run occurs once in ``records``.
        """
        duplicates, conflicts = [], []
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            for place, record in records:
                row = self._row(database, record["key"])
                if row is None:
                    _write(database, record)
                elif (old := self._demand(row)) == record:
                    duplicates.append(place)
                else:
                    conflicts.append(f"{place}: {difference(record, old, str(self.path))}")
            if conflicts:
                raise refuse_conflicts(conflicts)
            database.execute("COMMIT")
        return duplicates

    def records(self, method: str | None = None, benchmark: str | None = None) -> list[Record]:
        """All records, the oldest first."""
        records = [record for row in self.rows() if (record := self._good(row)) is not None]
        return [r for r in records if method in (None, r["method"]) and benchmark in (None, r["benchmark"])]

    def rows(self) -> list[StoredRow]:
        """All rows, bad ones included, the oldest first."""
        if self.is_empty:
            return []
        query = "SELECT rowid AS number, * FROM runs NOT INDEXED ORDER BY finished_at, rowid"
        return [_to_row(row) for row in self._read(lambda database: database.execute(query).fetchall())]

    def delete(self, rows: Sequence[StoredRow]) -> None:
        """Delete these rows, all or none; the index is rebuilt where it does not match the table."""
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            if self.damage:
                database.execute("REINDEX")
            for row in rows:
                found = database.execute(
                    "SELECT rowid AS number, * FROM runs WHERE rowid = ?", (row.number,)
                ).fetchone()
                if found is None or _to_row(found) != row:
                    raise InputError(f"{self.path} was changed by another process: nothing was deleted, try again")
                database.execute("DELETE FROM runs WHERE rowid = ?", (row.number,))
            (damage,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if damage != "ok":
                text = f"{self.path} is damaged beyond its rows ({damage}), nothing was deleted"
                raise InputError(f"{text}: restore it from a copy, or make a new one with cclfp runs import")
            database.execute("COMMIT")

    def _good(self, row: StoredRow) -> Record | None:
        """The row's record; a bad row is passed to ``on_bad``, if that is set."""
        if row.record is None and self.on_bad is not None:
            self.on_bad(row)
            return None
        return self._demand(row)

    def _demand(self, row: StoredRow) -> Record:
        if row.record is None:
            delete = self.command("delete", row.key if row.key.isalnum() else "--bad")
            raise InputError(f"{self.path} has a bad record (key {row.key!a}): {row.reason}. {delete} removes it")
        return row.record

    def _row(self, database: sqlite3.Connection, key: str) -> StoredRow | None:
        if self.is_empty:
            return None
        row = database.execute("SELECT rowid AS number, * FROM runs WHERE key = ?", (key,)).fetchone()
        return None if row is None else _to_row(row)

    def _read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a query function.

        A read-only store is opened as an immutable file, for which SQLite needs no other file beside it, and queried
        again if the file was changed in the meantime. Where there is a write-ahead log, SQLite must read it too.
        """
        if not self.read_only:
            with self._connect() as database:
                return ask(database)
        for _ in range(READS):
            before = self._state()
            if before is None:
                break
            try:
                with self._connect("mode=ro&immutable=1") as database:
                    answer = ask(database)
            except InputError:
                if self._state() == before:
                    raise
            else:
                if self._state() == before:
                    return answer
        with self._connect("mode=ro") as database:
            return ask(database)

    def _state(self) -> tuple[int, ...] | None:
        """What tells whether the file has changed; None where there is a write-ahead log."""
        log = self.journals[0]
        try:
            if log.exists() and log.stat().st_size:
                return None
            now = self.file.stat()
        except FileNotFoundError:
            if self.file.exists():  # the log was removed just now
                return ()
            raise InputError(f"{self.path}: there is no store of runs") from None
        except OSError as error:
            raise InputError(f"{self.path} cannot be used as a store of runs: {error}") from error
        return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns

    @contextlib.contextmanager
    def _connect(self, how: str | None = None) -> Iterator[sqlite3.Connection]:
        where = self.file if how is None else f"{self.file.as_uri()}?{how}"
        try:
            opened = sqlite3.connect(where, timeout=TIMEOUT, isolation_level=None, uri=how is not None)
            with contextlib.closing(opened) as database:
                database.row_factory = sqlite3.Row
                database.text_factory = _decode
                yield database
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite's message shows what is damaged
            text = f"{self.path} cannot be used as a store of runs: {error}{chosen_by(self.path)}"
            if how == "mode=ro" and getattr(error, "sqlite_errorname", None) == "SQLITE_CANTOPEN":
                text += f" (its newest runs are in {self.path.name}-wal: copy both to a folder that can be written)"
            raise InputError(text) from error


def _marks(database: sqlite3.Connection) -> tuple[int, int, int]:
    """The application and version marked in a file, and how many tables it has: all 0 for a new file."""
    marks = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application, version, tables = (database.execute(mark).fetchone()[0] for mark in marks)
    return application, version, tables


def _decode(text: bytes) -> str:
    """A text of the database. Damaged text is escaped, so that it does not fail the whole query."""
    return text.decode(errors="backslashreplace")


def _write(database: sqlite3.Connection, record: Record) -> None:
    values = to_row(record)
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", values)


def _to_row(row: sqlite3.Row) -> StoredRow:
    values = dict(row)
    number = values.pop("number")
    try:
        return StoredRow(number, values, from_row(values), "")
    except InputError as error:
        return StoredRow(number, values, None, str(error))


def refuse_conflicts(conflicts: Sequence[str]) -> InputError:
    """The error for records that differ from others of the same run."""
    others = f" ({len(conflicts) - 1} more lines are in conflict)" if len(conflicts) > 1 else ""
    return InputError(f"{conflicts[0]}{others}: nothing was added; leave out one of the two")
