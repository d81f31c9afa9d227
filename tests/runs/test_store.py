"""The store of run records."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import flipped, listing, record, seal, with_accuracy, write

from cclfp.errors import InputError
from cclfp.runs import store as store_module
from cclfp.runs.record import Record
from cclfp.runs.store import Store, exists


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store, diverged = Store(tmp_path / "deep" / "runs.sqlite"), record(1) | {"diverged": 2}
    assert store.find(record()["key"]) is None
    store.add(record())
    store.add(diverged)
    assert Store(store.path).records() == [record(), diverged]
    assert Store(store.path).find(record()["key"]) == record()
    assert list(Store(store.path).records()[0]) == list(record())  # an exported line stays the same
    with store._connect() as database:
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        database.execute("BEGIN IMMEDIATE")  # nobody else could write now
        assert len(Store(store.path).records()) == 2


def test_an_older_record_stays_unless_it_is_to_be_replaced(store: Store) -> None:
    old, new = record(), with_accuracy(record(), 60.0)
    assert store.add(old) == old
    assert store.add(new) == old
    assert store.records() == [old]
    assert store.add(new, replace=True) == new
    assert store.records() == [new]
    write(store.path, "UPDATE runs SET configuration = '{'")
    assert store.add(old, replace=True) == old  # in the place of a bad one too
    assert store.records() == [old]


@pytest.mark.slow
def test_many_processes_write_at_once(store: Store) -> None:
    store.add(record(1000))
    code = (
        "import sys; sys.path[:0] = sys.argv[3:]; from pathlib import Path; from records import record\n"
        "from cclfp.runs.store import Store\n"
        "for i in range(40): Store(Path(sys.argv[1])).add(record(40 * int(sys.argv[2]) + i))"
    )
    here = [str(Path(__file__).parents[i]) for i in range(2)]
    processes = [subprocess.Popen([sys.executable, "-c", code, str(store.path), str(n), *here]) for n in range(3)]
    while any(process.poll() is None for process in processes):  # what is read meanwhile is whole, too
        for seen in Store(store.path, read_only=True).records():
            assert seen == record(seen["seed"])
        time.sleep(0.1)
    assert [process.wait() for process in processes] == [0] * 3
    assert len(store.records()) == 121


def test_many_make_one_store_at_once(tmp_path: Path) -> None:
    for attempt in range(20):
        path, together = tmp_path / f"{attempt}.sqlite", threading.Barrier(8)

        def make(path: Path = path, together: threading.Barrier = together) -> list[Record]:
            together.wait()
            return Store(path).records()

        with ThreadPoolExecutor(8) as pool:
            assert [made.result() for made in [pool.submit(make) for _ in range(8)]] == [[]] * 8


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
CODE = r"has triggers, views or virtual tables, .*: 'code"
# What somebody does to a store with one record, or to a database without a table, and what is said of it.
CHANGES = {
    "PRAGMA application_id = 7": "is a database of something else",
    "PRAGMA user_version = 9": r"written by another version of cclfp \(store format 9, not 3\): update cclfp",
    "PRAGMA user_version = 2": r"written by another version of cclfp \(store format 2, not 3\): write its runs into",
    "ALTER TABLE runs DROP COLUMN seconds": "is damaged: its table of runs has no seconds",
    # A trigger deleted the record of a run that reported success; another one never ended, whatever the signal.
    "CREATE TRIGGER code AFTER INSERT ON runs BEGIN DELETE FROM runs; END": CODE,
    f"CREATE TRIGGER code BEFORE INSERT ON runs BEGIN {ENDLESS}; END": CODE,
    f"CREATE VIEW code AS {ENDLESS}": CODE,
    "CREATE VIRTUAL TABLE code USING fts5(x)": CODE,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_database_that_is_no_store_is_left_alone(change: str, store: Store) -> None:
    store.add(record())
    write(store.path, change)
    before = store.path.read_bytes()
    for read_only, damaged in ((False, False), (True, False), (False, True)):
        with pytest.raises(InputError, match=CHANGES[change]):
            Store(store.path, read_only=read_only, damaged=damaged)
    assert store.path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is a folder: expected the path of a file"),
        (".", "is a folder: expected the path of a file"),
        (":memory:", "records are kept in a file, not in memory"),
        ("file:x?mode=memory", "records are kept in a file, not in memory"),
        ("/dev/zero", "is a device, a pipe or a socket"),
        ("pipe", "is a device, a pipe or a socket"),
        ("loop", "is a symbolic link that leads back to itself"),
        ("dangling", "is a symbolic link to .*nowhere, which does not exist"),
        ("byte", "cannot be used as a store of runs: file is not a database"),
        ("log", "log-wal is not a regular file"),
    ],
)
def test_only_a_regular_file_is_a_store(
    name: str, message: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("log-wal")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    Path("byte").write_text("x" * 2000)
    for read_only in (True, False):
        with pytest.raises(InputError, match=message):
            Store(Path(name), read_only=read_only)
    for command in (
        ["runs"],
        ["runs", "check"],
        ["runs", "delete", "--bad", "--yes"],
        ["report", "--out", "out"],
        ["run", "er", "split-mnist"],
    ):
        answer = cli(*command, "--store", name)
        assert (answer.code, answer.out) == (2, "")
        assert re.search(message, answer.err)
    assert Path("byte").read_text() == "x" * 2000
    assert not Path("nowhere").exists()
    with pytest.raises(InputError, match="cannot be used as a store of runs"):
        Store(Path("byte/below"))


def test_a_store_behind_a_link(tmp_path: Path) -> None:
    """SQLite keeps its log beside the file, not beside the link."""
    (tmp_path / "link.sqlite").symlink_to("runs.sqlite")
    leave_log(tmp_path / "runs.sqlite", index=True)
    assert Store(tmp_path / "link.sqlite", read_only=True).records() == [record(0), record(1)]
    Store(tmp_path / "link.sqlite").add(record(2))
    assert len(Store(tmp_path / "runs.sqlite").records()) == 3


class NoSharedMemory(sqlite3.Connection):
    """As on a network file system: SQLite answers that it stays with another kind of log."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("= WAL", "= DELETE"), *arguments)


def test_a_file_system_without_write_ahead_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = functools.partial(sqlite3.connect, factory=NoSharedMemory)
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(InputError, match="its file system lacks write-ahead logging"):
        Store(tmp_path / "runs.sqlite")


# What may be in a row: a value of another type, JSON that is none, a configuration that cannot be, a number that lies.
BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("configuration = '{'", "not JSON"),
    "nested": ("configuration = '" + "[" * 100_000 + "'", "not JSON"),
    "blob": ("accuracy_matrix = x'ff00'", "not JSON: "),
    "lr": ("""configuration = '{"lr": "x"}'""", "its configuration was written by another cclfp: "),
    "accuracy": ("average_accuracy = 99.0", "average_accuracy is 99.0: expected 51.8"),
    "text": ("seconds = '<b>'", 'seconds is "<b>": expected 3.0'),
    "no text": ("method = x'ff'", "method is "),
    "no key": ("key = 'mine'", 'key is "mine": expected'),
    "diverged later": ("diverged = 4", "diverged is 4: expected after how many of the 3 tasks"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_named_and_never_used(what: str, store: Store) -> None:
    (change, reason), others = BAD[what], [record(1), record(2)]
    for one in (record(0), *others):
        store.add(one)
    write(store.path, f"UPDATE runs SET {change} WHERE seed = 0")
    seal(store.path)
    key = "mine" if what == "no key" else record(0)["key"]
    with pytest.raises(InputError, match=f"bad record .*cclfp runs delete {key} --store .* removes it"):
        store.find(key)
    with pytest.raises(InputError, match="bad record"):
        store.records()
    if what != "no key":
        with pytest.raises(InputError, match="bad record"):
            store.add(record(0))  # not over it
        with pytest.raises(InputError, match="bad record"):
            store.merge([("here", record(0))])
    rows = Store(store.path, read_only=True).rows()
    (bad,) = [row for row in rows if row.record is None]
    assert [row.record for row in rows if row is not bad] == others
    assert reason in bad.reason
    store.delete([bad])
    assert store.records() == others
    assert store.find(record(0)["key"]) is None


def test_nothing_is_deleted_from_a_store_that_is_damaged_beyond_its_rows(store: Store) -> None:
    store.add(record(0))
    content = bytearray(store.path.read_bytes())
    content[36:40] = (7).to_bytes(4, "big")  # the header counts free pages that are not there
    store.path.write_bytes(content)
    with pytest.raises(InputError, match=r"(?s)damaged beyond its rows \(.*\), nothing was deleted"):
        store.delete(store.rows())
    assert len(store.rows()) == 1


def test_delete_looks_again_before_it_deletes(store: Store) -> None:
    store.add(record(0))
    rows = store.rows()
    store.add(with_accuracy(record(0), 10.0), replace=True)
    with pytest.raises(InputError, match="was changed by another process: nothing was deleted"):
        store.delete(rows)
    assert len(store.records()) == 1


def test_a_flipped_bit_gives_the_right_answer_or_an_error(tmp_path: Path) -> None:
    """Forty of them, in all parts of the file."""
    whole, records = tmp_path / "whole.sqlite", [record(seed) for seed in range(6)]
    for one in records:
        Store(whole).add(one)
    size, rng = whole.stat().st_size, random.Random("flips")
    places = [*range(8), 18, 19, 23, 28, 47, 59, 60, 71, 100, 103, 104, *(rng.randrange(size) for _ in range(21))]
    right, refused = 0, 0
    for place in places:
        path = tmp_path / "flipped.sqlite"
        shutil.copy(whole, path)
        flipped(path, place, rng.randrange(8))
        for read_only in (True, False):
            try:
                store = Store(path, read_only=read_only)
                rows = store.rows()
                assert len(rows) == 6
                assert all(row.record is None or row.record in records for row in rows)
                assert [store.find(one["key"]) for one in records] == store.records() == records
                right += 1
            except InputError:
                refused += 1
        path.unlink()
    assert right > 0
    assert refused > 0


@pytest.mark.parametrize("broken", [b"r\xeens", b"r\xffns", b"rums", b"\x00uns"])
def test_a_damaged_schema_is_refused(broken: bytes, store: Store) -> None:
    """SQLite shows the name in its message, which is no text then."""
    store.add(record())
    content = store.path.read_bytes()
    assert content.count(b"tablerunsruns") == 1
    store.path.write_bytes(content.replace(b"tablerunsruns", b"table" + broken + b"runs"))
    for read_only in (True, False):
        with pytest.raises(InputError, match=r"runs.sqlite (cannot be used as a store of runs|is damaged)"):
            Store(store.path, read_only=read_only).records()


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no store of runs"):
        Store(tmp_path / "deep" / "runs.sqlite", read_only=True)
    assert listing(tmp_path) == {}
    (tmp_path / "empty.sqlite").touch()  # by a process that was killed just then
    assert not exists(tmp_path / "empty.sqlite")
    assert Store(tmp_path / "empty.sqlite").records() == []
    store = Store(tmp_path / "runs.sqlite")
    store.add(record())
    before = listing(tmp_path)
    assert Store(store.path, read_only=True).records() == [record()]
    assert listing(tmp_path) == before


def leave_log(path: Path, index: bool) -> None:
    """As a process leaves it that is killed: the newest run is in the write-ahead log."""
    store = Store(path)
    store.add(record(0))
    with store._connect() as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")
        store_module._write(database, record(1))
        for name in [path.name, f"{path.name}-wal", *([f"{path.name}-shm"] if index else [])]:
            shutil.copy(path.with_name(name), path.with_name(f"copy-{name}"))
    path.unlink()
    for file in path.parent.glob("copy-*"):
        file.rename(file.with_name(file.name.removeprefix("copy-")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        exits.callback(os.seteuid, 0)
        here = Path(folder)
        here.chmod(0o755)
        paths = [here / name / "runs.sqlite" for name in ("clean", "log", "log-alone")]
        for path in paths:
            path.parent.mkdir()
        Store(paths[0]).add(record(0))
        leave_log(paths[1], index=True)
        leave_log(paths[2], index=False)
        os.seteuid(65534)
        assert [r["seed"] for r in Store(paths[0], read_only=True).records()] == [0]
        assert [r["seed"] for r in Store(paths[1], read_only=True).records()] == [0, 1]
        with pytest.raises(InputError, match="its newest runs are in runs.sqlite-wal: copy both to a folder that can"):
            Store(paths[2], read_only=True)
        with pytest.raises(InputError, match="cannot be used as a store of runs"):
            Store(paths[0])
        os.seteuid(0)
        paths[0].parent.chmod(0)
        os.seteuid(65534)
        with pytest.raises(InputError, match="cannot be used as a store of runs: .*Permission denied"):
            exists(paths[0])


@pytest.mark.slow
def test_a_medium_that_cannot_be_written(tmp_path: Path, cli: Cli) -> None:
    medium = tmp_path / "medium"
    medium.mkdir()
    if shutil.which("mount") is None or subprocess.run(["mount", "-t", "tmpfs", "x", medium], stderr=-3).returncode:
        pytest.skip("mount is refused here")
    try:
        Store(medium / "runs.sqlite").add(record(0))
        (medium / "log").mkdir()
        leave_log(medium / "log" / "runs.sqlite", index=True)
        subprocess.run(["mount", "-o", "remount,ro", medium], check=True)
        for name, seeds in (("runs.sqlite", [0]), ("log/runs.sqlite", [0, 1])):
            assert [r["seed"] for r in Store(medium / name, read_only=True).records()] == seeds
            for command in ("runs", "runs check", f"runs export {tmp_path}/out.jsonl", f"report --out {tmp_path}"):
                assert cli(*command.split(), "--store", medium / name).code == 0, (command, name)
            assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == len(seeds)
    finally:
        subprocess.run(["umount", medium], check=True)
