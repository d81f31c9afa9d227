"""Worker processes: each piece is worked on once, and a worker that ends loses only the piece that it has."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cclfp.core.workers import Died, Workers

WORK = """
import os, sys, time

def work(piece, answer):
    print("printed, and no answer")
    if piece == "die":
        os._exit(7)
    for number in range(piece):
        answer((os.environ.get("PLACE"), number))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(WORK)
    return str(tmp_path / "mine.py")


def test_all_answers_come_from_any_worker(file: str) -> None:
    with Workers(file, "work", [{"PLACE": "a"}, {"PLACE": "b"}]) as pool:
        found = list(pool.work([1, 0, 3, 2]))
        processes = [worker.process for worker in pool.workers]
    assert sorted((piece, number) for piece, (_, number) in found) == [(0, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]
    assert {place for _, (place, _) in found} <= {"a", "b"}
    assert all(process.poll() is not None for process in processes)


def test_a_worker_that_ends_loses_its_piece_alone(file: str) -> None:
    with Workers(file, "work", [{}]) as pool:
        found = list(pool.work(["die", 1, "die", 1]))
    died = Died("ended with code 7", has_started=True)
    assert found == [(0, died), (1, (None, 0)), (2, died), (3, (None, 0))]


def test_workers_that_cannot_start_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'log')!r}, 'a').write('x')\nraise SystemExit(3)")
    with Workers(str(tmp_path / "mine.py"), "work", [{}, {}]) as pool:
        found = list(pool.work([1, 1, 1]))
    assert found == [(number, Died("ended with code 3", has_started=False)) for number in range(3)]
    assert (tmp_path / "log").read_text() == "xx"


def test_a_worker_that_cannot_start_is_not_missed_while_others_can(tmp_path: Path, file: str) -> None:
    (tmp_path / "mine.py").write_text("import os\nif os.environ['PLACE'] == 'b': os._exit(1)\n" + WORK)
    with Workers(file, "work", [{"PLACE": "a"}, {"PLACE": "b"}]) as pool:
        assert [answer for _, answer in pool.work([1, 1, 1])] == [("a", 0)] * 3


def test_an_error_ends_all_workers(file: str) -> None:
    pool = Workers(file, "work", [{}, {}])
    with contextlib.suppress(ZeroDivisionError), pool:
        next(pool.work([1, 1]))
        raise ZeroDivisionError
    assert pool.workers
    assert all(worker.process.poll() is not None for worker in pool.workers)
