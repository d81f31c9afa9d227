"""Worker processes: each piece is worked on once, and a worker that ends loses only the piece that it has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from processes import alive, children

from cclfp.core.workers import Died, work

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
    found = list(work(file, "work", [{"PLACE": "a"}, {"PLACE": "b"}], [1, 0, 3, 2]))
    assert sorted((piece, number) for piece, (_, number) in found) == [(0, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]
    assert {place for _, (place, _) in found} <= {"a", "b"}


def test_a_worker_that_ends_loses_its_piece_alone(file: str) -> None:
    died = Died("ended with code 7")
    found = list(work(file, "work", [{}], ["die", 1, "die", 1]))
    assert found == [(0, died), (1, (None, 0)), (2, died), (3, (None, 0))]


def test_workers_that_cannot_start_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'log')!r}, 'a').write('x')\nraise SystemExit(3)")
    found = list(work(str(tmp_path / "mine.py"), "work", [{}, {}], [1, 1, 1]))
    assert found == [(number, Died("could not start (it ended with code 3)")) for number in range(3)]
    assert (tmp_path / "log").read_text() == "xx"


def test_a_worker_that_cannot_start_is_not_missed_while_others_can(tmp_path: Path, file: str) -> None:
    (tmp_path / "mine.py").write_text("import os\nif os.environ['PLACE'] == 'b': os._exit(1)\n" + WORK)
    answers = work(file, "work", [{"PLACE": "a"}, {"PLACE": "b"}], [1, 1, 1])
    assert [answer for _, answer in answers] == [("a", 0)] * 3


@pytest.mark.parametrize("is_done", [True, False])
def test_all_processes_end_with_the_work(is_done: bool, file: str) -> None:
    with contextlib.closing(work(file, "work", [{}, {}], [1, 1])) as answers:
        assert next(answers)[1] == (None, 0)
        started = children(os.getpid())
        assert len(list(answers) if is_done else []) == is_done
    assert len(started) >= 2
    assert not any(map(alive, started))
