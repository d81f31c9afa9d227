"""Two versions of a user's file are told apart wherever runs are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Cli
from own import HALF
from training import make_job

import cclfp
from cclfp.paper.study import plan
from cclfp.runs.events import Event, Planned
from cclfp.runs.jobs import name_runs
from cclfp.runs.settings import configurations

VERSION = r"half@[0-9a-f]{8}"


@pytest.fixture
def versions(tmp_path: Path) -> list[str]:
    """Two files with a method of the same name."""
    names = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        file = tmp_path / str(number) / "half.py"
        file.write_text(f"{HALF}\n# version {number}\n")
        names.append(f"{file}:Half")
    return names


def test_runs_are_told_apart_by_version_where_that_is_needed(versions: list[str], tmp_path: Path) -> None:
    jobs = [make_job(c, 0, tmp_path / "runs.sqlite") for c in configurations(["er", *versions], "split-mnist")]
    names = list(name_runs(jobs).values())
    assert names[0] == "er seed 0"
    assert all(re.fullmatch(f"{VERSION} seed 0", name) for name in names[1:])
    assert len(set(names)) == 3
    assert list(name_runs(jobs[:2], ["lr"]).values()) == ["er lr=0.1 seed 0", "half lr=0.1 seed 0"]


@pytest.mark.usefixtures("one_core")
def test_progress_and_plans_show_the_version(versions: list[str], small_mnist: Path, cli: Cli) -> None:
    events: list[Event] = []
    cclfp.run(versions, "split-mnist", seeds=1, epochs=1, engine="eager", on_event=events.append)
    studied = plan("mine", methods=versions, benchmarks=["split-mnist"], seeds=[1])
    shown = [event.labels.values() for event in [*events, studied.planned()] if isinstance(event, Planned)]
    for labels in shown:
        assert len(labels) == len({re.findall(VERSION, label)[0] for label in labels}) == 2
    assert len(shown) == 2
    words = ["study", "mine", "--method", ",".join(versions), "--benchmark", "split-mnist", "--seed=1", "--dry-run"]
    assert len(set(re.findall(rf"│ ({VERSION}) +│", cli(*words).out))) == 2
    assert len({str(part["method_file"]) for part in cli(*words, "--json").json["plan"]}) == 2
    answer = cli("run", ",".join(versions), "split-mnist", "lr=0.1", "augment=off", "half=0.5", "--auto=1", "--seed=0")
    assert len(set(re.findall(rf"^({VERSION}): lr=0.1 ", answer.out, flags=re.MULTILINE))) == 2
