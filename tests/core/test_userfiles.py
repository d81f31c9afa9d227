"""A user's file: how often it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cclfp.core.userfiles import refer, resolve
from cclfp.errors import InputError
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import into_cohorts, make_jobs
from cclfp.runs.settings import configurations

LOG = "with open({log!r}, 'a') as log: log.write('run ')\n"
METHOD = """
from __future__ import annotations
import dataclasses
from cclfp.methods.er import ER

@dataclasses.dataclass  # which looks for its module
class Options:
    width: int = 3

class Mine(ER):
    name, reference = "mine", "{reference}"
"""


def write(folder: Path, code: str = METHOD, reference: str = "me") -> str:
    """A file that writes down when it is run."""
    (folder / "mine.py").write_text(code.format(reference=reference) + LOG.format(log=str(folder / "log")))
    return f"{folder / 'mine.py'}:Mine"


def count(folder: Path) -> int:
    return len((folder / "log").read_text().split())


def test_a_file_is_run_once_per_process_and_content(tmp_path: Path) -> None:
    chosen = configurations([write(tmp_path)], "split-mnist", settings={"lr": [0.1, 0.2]})
    jobs = make_jobs(chosen, range(50), Execution("cpu", store=tmp_path / "runs.sqlite"))
    assert sum(map(len, into_cohorts(jobs, 1, "cpu"))) == 100
    assert len({job.configuration.kind for job in jobs}) == 1
    assert count(tmp_path) == 1


def test_new_content_is_run_and_the_old_is_refused(tmp_path: Path) -> None:
    first = resolve("method", old := refer("method", write(tmp_path)))
    second = resolve("method", refer("method", write(tmp_path, reference="someone else")))
    assert (first.reference, second.reference, count(tmp_path)) == ("me", "someone else", 2)
    with pytest.raises(InputError, match=r"mine\.py has changed since this run was requested"):
        resolve("method", old)
    write(tmp_path)
    assert resolve("method", old) is first
    assert count(tmp_path) == 2


def test_a_file_that_fails_is_run_again(tmp_path: Path) -> None:
    reference = refer("method", write(tmp_path, ""))
    (tmp_path / "log").mkdir()
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be run: IsADirectoryError"):
            resolve("method", reference)
    (tmp_path / "log").rmdir()
    with pytest.raises(InputError, match="has no function or class 'Mine'"):
        resolve("method", reference)
    assert count(tmp_path) == 1
