"""Run records in SQLite: one file, write-ahead logging, any number of processes; and in files of JSON Lines.

Every row has a checksum and is checked when it is read, so that a damaged one is never taken for a result.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cclfp.core.files import check_output, chosen_by, home, real_file, write_file
from cclfp.errors import InputError, reason_of
from cclfp.metrics import count_of
from cclfp.runs.record import FIELDS, SCHEMA, VERSION, Record, from_line, from_row, to_line, to_row

TIMEOUT = 60  # seconds to wait for other processes
APPLICATION = 0x0CC1_F900  # marks the file as ours
MAGIC = b"SQLite format 3\0"  # how the file of a database begins
JOURNALS = ("-wal", "-shm", "-journal")  # what SQLite appends to the names of its files beside a database
# Code in a database: triggers change other rows than those that are written, and views can be endless.
CODE = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
# The application and version that a file is marked with and its number of tables, all 0 in a new file. They are read in
# one statement, because another process may be writing them.
MARKS = "SELECT * FROM pragma_application_id, pragma_user_version, (SELECT count(*) FROM sqlite_master)"

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


def exists(path: Path) -> bool:
    """Whether the store exists; InputError where the path names something else, such as a folder or another file.

    An empty file is no store yet: a process was killed before it made the table, or is about to make it.
    """
    if str(path) == ":memory:" or str(path).startswith("file:"):
        raise InputError(f"{path}: records are kept in a file, not in memory or by a URI: expected the path of a file")
    file, *journals = files_of(path)
    with _usable(path):
        for journal in journals:
            with contextlib.suppress(FileNotFoundError):  # none, or SQLite has just removed it
                if not stat.S_ISREG(journal.lstat().st_mode):
                    raise OSError(f"{journal} is not a regular file")
        if path.is_symlink() and not file.exists():
            raise InputError(f"{path} is a symbolic link to {file}, which does not exist")
        found = file.exists() and file.stat().st_size > 0
        if found and not is_database(file):  # looked at in this order: one that is being made grows
            raise OSError("file is not a database")
    return found


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn an error about the file of a store into an InputError."""
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # the last: SQLite's message shows what is damaged
        raise InputError(f"{path} cannot be used as a store of runs: {reason_of(error)}{chosen_by(path)}") from error


def files_of(path: Path) -> list[Path]:
    """The file of a store, and those that SQLite keeps beside it. Links are followed, as SQLite does."""
    file = real_file(path).absolute()
    return [file, *(file.with_name(file.name + suffix) for suffix in JOURNALS)]


def is_database(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


class Store:
    """The records in one file, which is created where it does not exist.

    With ``read_only`` no file is left beside it, and it may be on a read-only medium. A bad record raises an
    InputError when it is asked for. A file whose structure is damaged is refused, unless ``damaged`` allows it: to
    look at the rows that remain, and to delete the bad ones.
    """

    def __init__(self, path: Path, *, read_only: bool = False, damaged: bool = False) -> None:
        self.path, self.read_only = path, read_only
        if not exists(path):
            if read_only:
                raise InputError(f"{path}: there is no store of runs; cclfp run makes one, --store FILE names another")
            with _usable(path):
                path.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.log, *_ = files_of(path)
        self.damage = self._read(self._inspect if read_only or damaged else self._create)
        if self.damage and not damaged:
            raise InputError(f"{path} is damaged ({self.damage[0]}): {self.command('check')} says more")

    def command(self, *words: str) -> str:
        """A shell command of ``cclfp runs`` for this store."""
        return shlex.join(["cclfp", "runs", *words, "--store", str(self.path)])

    def _create(self, database: sqlite3.Connection) -> list[str]:
        """Create the table in an empty file; refuse a file of another kind. Returns what ``_inspect`` does."""
        if not any(database.execute(MARKS).fetchone()):
            with _writing(database):
                if not any(database.execute(MARKS).fetchone()):  # no other process was faster
                    database.execute(SCHEMA)
                    database.execute(f"PRAGMA application_id = {APPLICATION}")
                    database.execute(f"PRAGMA user_version = {VERSION}")
        damage, deadline = self._inspect(database), time.monotonic() + TIMEOUT
        while database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:  # this statement alone does not wait for other processes
                if database.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                    raise InputError(f"{self.path}: its file system lacks write-ahead logging: use a store elsewhere")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        return damage

    def _inspect(self, database: sqlite3.Connection) -> list[str]:
        """What is wrong with the structure of the file; InputError where it is no store of this version."""
        application, version, _ = database.execute(MARKS).fetchone()
        if application != APPLICATION:
            raise InputError(f"{self.path} is a database of something else, not a store of runs")
        if version != VERSION:
            other = f"{self.path} was written by another version of cclfp (store format {version}, not {VERSION})"
            what = "write its runs into a file with that one (export), and import the file here"
            raise InputError(f"{other}: {'update cclfp, or name another store' if version > VERSION else what}")
        if code := [str(row[0]) for row in database.execute(CODE)]:
            raise InputError(f"{self.path} has triggers, views or virtual tables, which no cclfp writes: {code[0]!a}")
        damage = [str(row[0]).replace("\n", " ") for row in database.execute("PRAGMA integrity_check(10)")]
        found = {row["name"] for row in database.execute("PRAGMA table_info(runs)")}
        if missing := {*FIELDS, "checksum"} - found:
            raise InputError(f"{self.path} is damaged: its table of runs has no {', '.join(sorted(missing))}")
        return [] if damage == ["ok"] else damage

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, key: str) -> Record | None:
        """The record of a finished run."""
        rows = self._read(lambda database: _rows(database, "WHERE key = ?", key))
        return self._record_of(rows[0]) if rows else None

    def records(self) -> list[Record]:
        """All records, the oldest first."""
        return list(map(self._record_of, self.rows()))

    def rows(self) -> list[StoredRow]:
        """All rows, bad ones included, the oldest first."""
        return self._read(lambda database: _rows(database, "NOT INDEXED ORDER BY finished_at, rowid"))

    def describe_bad(self, rows: Sequence[StoredRow]) -> str:
        """A warning that the bad ones of these rows are left out; empty where all are good."""
        bad = sum(row.record is None for row in rows)
        text = f"warning: {count_of(bad, 'bad record')} in {self.path} left out: {self.command('check')} says more"
        return text if bad else ""

    def _record_of(self, row: StoredRow) -> Record:
        if row.record is None:
            delete = self.command("delete", row.key if row.key.isalnum() else "--bad")
            raise InputError(f"{self.path} has a bad record (key {row.key!a}): {row.reason}. {delete} removes it")
        return row.record

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(self, record: Record, *, replace: bool = False) -> Record:
        """Add a finished run's record and return the record that is kept: an older one of the same run stays.

        With ``replace`` the new one takes its place.
        """
        with self._connect() as database, _writing(database):
            if not replace and (old := _rows(database, "WHERE key = ?", record["key"])):
                return self._record_of(old[0])
            _write(database, record)
        return record

    def merge(self, records: Iterable[tuple[str, Record]]) -> list[str]:
        """Add records, each with the place it comes from, all or none; return the places of those it has already.

        InputError where one differs from the record that the store, or a place before it, has of the same run.
        """
        places: dict[str, str] = {}  # of the records that are added
        duplicates = []
        with self._connect() as database, _writing(database):
            for place, record in records:
                found = _rows(database, "WHERE key = ?", record["key"])
                if not found:
                    _write(database, record)
                    places[record["key"]] = place
                elif (known := self._record_of(found[0])) == record:
                    duplicates.append(place)
                else:
                    differ = ", ".join(name for name in FIELDS if dict(record).get(name) != dict(known).get(name))
                    run = f"{record['method']} on {record['benchmark']} ({record['scenario']}), seed {record['seed']}"
                    where = places.get(record["key"], self.path)
                    text = f"{place}: {run} (key {record['key']}) has another record in {where}, which differs in"
                    raise InputError(f"{text} {differ}: nothing was added; leave out one of the two")
        return duplicates

    def delete(self, rows: Sequence[StoredRow]) -> None:
        """Delete these rows, all or none; the index is rebuilt where it does not match the table."""
        with self._connect() as database, _writing(database):
            if self.damage:
                database.execute("REINDEX")
            for row in rows:
                if _rows(database, "WHERE rowid = ?", row.number) != [row]:
                    raise InputError(f"{self.path} was changed by another process: nothing was deleted, try again")
                database.execute("DELETE FROM runs WHERE rowid = ?", (row.number,))
            (damage,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if damage != "ok":
                text = f"{self.path} is damaged beyond its rows ({damage}), nothing was deleted"
                raise InputError(f"{text}: restore it from a copy, or make a new one with cclfp runs import")

    # -- connections ---------------------------------------------------------------------------------------------------

    def _read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a query function."""
        try:
            with self._connect("mode=rw" if self.read_only else "mode=rwc") as database:
                return ask(database)
        except InputError as error:
            why = getattr(error.__cause__, "sqlite_errorname", "")
            if not self.read_only or not why.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            if self.log.exists() and self.log.stat().st_size:
                text = f"its newest runs are in {self.path.name}-wal: copy both to a folder that can be written"
                raise InputError(f"{error} ({text})") from error
        with self._connect("immutable=1") as database:  # where SQLite cannot make the files that it needs beside it
            return ask(database)

    @contextlib.contextmanager
    def _connect(self, how: str = "mode=rwc") -> Iterator[sqlite3.Connection]:
        where = f"{self.file.as_uri()}?{how}"
        with (
            _usable(self.path),
            contextlib.closing(sqlite3.connect(where, timeout=TIMEOUT, isolation_level=None, uri=True)) as database,
        ):
            database.row_factory = sqlite3.Row
            # Damaged text is escaped, so that it does not fail the whole query.
            database.text_factory = lambda text: text.decode(errors="backslashreplace")
            yield database


@contextlib.contextmanager
def _writing(database: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing: an exception closes the connection, which rolls everything back."""
    database.execute("BEGIN IMMEDIATE")
    yield
    database.execute("COMMIT")


def _write(database: sqlite3.Connection, record: Record) -> None:
    values = to_row(record)
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", values)


def _rows(database: sqlite3.Connection, which: str, *values: Any) -> list[StoredRow]:
    """The rows that the end of a query chooses."""
    found = []
    for row in database.execute(f"SELECT rowid AS number, * FROM runs {which}", values):
        stored = dict(row)
        number = stored.pop("number")
        try:
            found.append(StoredRow(number, stored, from_row(stored), ""))
        except InputError as error:
            found.append(StoredRow(number, stored, None, str(error)))
    return found


# -- records from and to other files, so that runs of one machine join the store of another -----------------------


def export(records: Sequence[Record], path: Path, *, force: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Write the records as JSON, one per line. ``inputs`` are the files that they come from."""
    begins, follows = b'{"key": "', b'", "method": "'  # in a file that this has written
    check_output(path, lambda head: head.startswith(begins) and follows in head, force=force, inputs=inputs)
    write_file(path, b"".join(map(to_line, records)))


def import_runs(paths: Sequence[Path], store: Store | Path) -> tuple[int, list[str]]:
    """Add the records of the files to the store: how many were added, and the places of those refused as duplicates.

    The files are JSON Lines or stores. A duplicate is word for word what the store or another line before it has.
    Nothing is added where a line is no record, or differs from the record that the store or another line has of the
    same run. A store given by its path is made only when the files have been read.
    """
    found = [one for path in paths for one in read_records(path)]
    duplicates = (Store(store) if isinstance(store, Path) else store).merge(found)
    return len(found) - len(duplicates), duplicates


def read_records(path: Path) -> Iterator[tuple[str, Record]]:
    """The records of a file, each with its place: the file and the line, or the key in a store."""
    file, number = real_file(path), 0
    try:
        if is_database(file):
            for record in Store(path, read_only=True).records():
                yield f"{path}, key {record['key'][:8]}", record
            return
        with file.open(encoding="utf-8", newline="\n") as lines:  # no line ends at a U+2028 in a name
            for number, line in enumerate(lines, start=1):
                place = f"{path}, line {number}"
                try:
                    yield place, from_line(line)
                except InputError as error:
                    raise InputError(f"{place}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}") from error
    if not number:
        raise InputError(f"{path} is empty: expected a run record on every line, as cclfp runs export writes them")
