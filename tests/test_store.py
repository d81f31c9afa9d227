"""The store of run records."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cclfp.errors import InputError
from cclfp.store import Record, Store


def record(key: str = "k", accuracy: float = 50.0) -> dict[str, object]:
    return {
        "key": key,
        "method": "er",
        "benchmark": "split-mnist",
        "scenario": "class",
        "buffer": 200,
        "seed": 0,
        "configuration": {"hyperparameters": {"lr": 0.1}},
        "average_accuracy": accuracy,
        "forgetting": None,
        "backward_transfer": None,
        "forward_transfer": None,
        "accuracy_matrix": [[None], [0.1 + 0.2]],
        "seconds": 3.0,
        "train_seconds": 2.0,
        "test_seconds": 1.0,
        "environment": {"engine": "eager"},
        "finished_at": "2026-01-01T00:00:00+00:00",
    }


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "runs.sqlite")
    assert store.find("k") is None
    store.add(record())
    assert Store(store.path).find("k") == record()


def test_an_older_record_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    assert store.add(record(accuracy=50.0)) == record(accuracy=50.0)
    assert store.add(record(accuracy=60.0)) == record(accuracy=50.0)
    assert store.records() == [record(accuracy=50.0)]
    assert store.add(record(accuracy=60.0), replace=True) == record(accuracy=60.0)
    assert store.records() == [record(accuracy=60.0)]
    assert store.add(record("new"), replace=True) == record("new")


def test_filters(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    store.add(record("a"))
    store.add({**record("b"), "method": "joint"})
    assert [r["key"] for r in store.records()] == ["a", "b"]
    assert [r["key"] for r in store.records(method="joint")] == ["b"]
    assert store.records(benchmark="other") == []


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    code = (
        "import sys; sys.path[:0] = sys.argv[3:]; from pathlib import Path; from test_store import record\n"
        "from cclfp.store import Store\n"
        "for i in range(40): Store(Path(sys.argv[1])).add(record(f'{sys.argv[2]}-{i}'))"
    )
    here = str(Path(__file__).parent)
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n), here]) for n in range(6)]
    assert [process.wait() for process in processes] == [0] * 6
    assert len(Store(path).records()) == 240


def test_many_make_one_store_at_once(tmp_path: Path) -> None:
    for attempt in range(20):
        path, together = tmp_path / f"{attempt}.sqlite", threading.Barrier(8)

        def make(path: Path = path, together: threading.Barrier = together) -> list[Record]:
            together.wait()
            return Store(path).records()

        with ThreadPoolExecutor(8) as pool:
            assert [made.result() for made in [pool.submit(make) for _ in range(8)]] == [[]] * 8


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes, long enough to be taken for something else than an empty database " * 20)
    before = path.read_bytes()
    with pytest.raises(InputError, match="notes.txt cannot be used as a store of runs"):
        Store(path)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="cannot be used as a store"):
        Store(path / "below" / "runs.sqlite")


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="is a database of something else"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_is_read_without_writing_to_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    store.add(record())
    with store._connect() as writer:
        writer.execute("BEGIN IMMEDIATE")  # nobody else could write now
        assert len(Store(store.path).records()) == 1
        writer.execute("ROLLBACK")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    with store._connect() as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(InputError, match="store format 9"):
        Store(store.path)


def test_write_ahead_logging(tmp_path: Path) -> None:
    with Store(tmp_path / "runs.sqlite")._connect() as database:
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
