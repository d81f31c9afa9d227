"""Commands replace no file that cclfp did not write, and none that they read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Cli
from records import record

import cclfp
from cclfp.errors import InputError
from cclfp.runs.store import Store

FOREIGN = b"<!doctype html>written by hand"


@pytest.fixture
def place(small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store in CCLFP_HOME."""
    monkeypatch.chdir(tmp_path)
    Store(small_mnist / "runs.sqlite").add(record())
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "in_the_way"),
    [
        ("report --out site", ["site/index.html"]),
        ("report --out site", ["site/tables/accuracy.csv", "site/.cclfp-report"]),
        ("show split-mnist --images out.png", ["out.png"]),
    ],
)
def test_a_foreign_file_is_replaced_only_if_forced(command: str, in_the_way: list[str], place: Path, cli: Cli) -> None:
    others = ["site/uv.lock", "site/.x.tmp", "site/tables/mine.csv", "site/figures/notes.txt"]
    for file in (*in_the_way, *others):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(FOREIGN)
        os.utime(place / file, (0, 0))
    answer = cli(*command.split())
    assert (answer.code, answer.out) == (2, "")
    assert "exists, and cclfp did not write it" in answer.err
    assert all((place / file).read_bytes() == FOREIGN for file in in_the_way)
    assert cli(*command.split(), "--force").code == 0
    assert not any(FOREIGN in (place / file).read_bytes() for file in in_the_way)
    assert cli(*command.split()).code == 0  # now they are ours
    assert all((place / file).read_bytes() == FOREIGN for file in others)  # and those beside them stay


def test_a_report_never_replaces_its_store(place: Path, cli: Cli) -> None:
    store = place / "site" / "index.html"
    store.parent.mkdir()
    shutil.copy(place / "home" / "runs.sqlite", store)
    answer = cli("report", "--out", "site", "--store", store, "--force")
    assert (answer.code, answer.out) == (2, "")
    assert "is read by this command" in answer.err
    assert Store(store).records() == [record()]


@pytest.mark.parametrize(
    "command",
    [
        "run er split-mnist --store pipe.png",
        "run er split-mnist --save pipe.png",
        "tune er split-mnist --write pipe.png",
        "show split-mnist --images pipe.png --force",
    ],
)
def test_a_pipe_is_no_output(command: str, place: Path, cli: Cli) -> None:
    os.mkfifo(place / "pipe.png")
    answer = cli(*command.split())
    assert (answer.code, answer.out) == (2, "")
    assert "pipe.png" in answer.err
    assert (place / "pipe.png").is_fifo()


def test_a_learner_replaces_only_learners(place: Path) -> None:
    learner = cclfp.make("er", psi=torch.nn.Flatten(), num_classes=2)
    learner.observe(torch.zeros(1, 2), torch.tensor([0]))
    for name, content in (("er.pt", b"PK\3\4archive/data.pkl"), ("notes", b"cclfp learner 2")):
        (place / name).write_bytes(content)
        with pytest.raises(InputError, match="cclfp did not write it: .* force=True"):
            learner.save(name)
        assert (place / name).read_bytes() == content
        learner.save(name, force=True)
        learner.save(str(place / name))
        assert cclfp.load(name, psi=torch.nn.Flatten()).steps == 1
