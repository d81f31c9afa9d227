"""A user's file: how often it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cclfp.core.userfiles import refer, resolve
from cclfp.errors import InputError
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import into_cohorts, make_jobs
from cclfp.runs.settings import configurations

METHOD = """
from __future__ import annotations
import dataclasses
from pathlib import Path
from cclfp.methods.er import ER

with Path({log!r}).open("a") as log:
    log.write("run ")

@dataclasses.dataclass  # which looks for its module
class Options:
    width: int = 3

class Mine(ER):
    name = "mine"
    reference = "{reference}"
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def write(folder: Path, log: Path, reference: str = "me") -> str:
    (folder / "mine.py").write_text(METHOD.format(log=str(log), reference=reference))
    return f"{folder / 'mine.py'}:Mine"


def test_a_file_is_run_once_per_process_and_content(tmp_path: Path, log: Path) -> None:
    method = write(tmp_path, log)
    chosen = configurations([method], "split-mnist", settings={"lr": [0.1, 0.2]})
    jobs = make_jobs(chosen, range(50), Execution("cpu", store=tmp_path / "runs.sqlite"))
    assert sum(map(len, into_cohorts(jobs, 1, "cpu"))) == 100
    assert len({job.configuration.kind for job in jobs}) == 1
    assert log.read_text().split() == ["run"]


def test_new_content_is_run_and_the_old_is_refused(tmp_path: Path, log: Path) -> None:
    old = refer("method", write(tmp_path, log))
    first = resolve("method", old)
    new = refer("method", write(tmp_path, log, "someone else"))
    second = resolve("method", new)
    assert (first.reference, second.reference) == ("me", "someone else")
    assert log.read_text().split() == ["run", "run"]
    with pytest.raises(InputError, match=r"mine\.py has changed since this run was requested"):
        resolve("method", old)
    write(tmp_path, log)
    assert resolve("method", old) is first
    assert log.read_text().split() == ["run", "run"]


def test_a_file_that_fails_is_run_again(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"with open({str(log)!r}, 'a') as log:\n    log.write('run ')\nraise OSError('not yet')")
    reference = refer("method", f"{path}:Mine")
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be run: OSError: not yet"):
            resolve("method", reference)
    assert log.read_text().split() == ["run", "run"]
