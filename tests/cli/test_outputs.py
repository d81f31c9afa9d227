"""Commands replace no file that cclfp did not write, and none that they read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from conftest import Cli
from stores import record

import cclfp
from cclfp.errors import InputError
from cclfp.runs.store import Store

FOREIGN = b"<!doctype html>written by hand"
# A command that writes, and the files of other programs that are in its way.
COMMANDS = {
    "export": (["runs", "export", "out.jsonl"], ["out.jsonl"]),
    "page": (["report", "--out", "site"], ["site/index.html"]),
    "tables": (["report", "--out", "site"], ["site/tables/accuracy.csv", "site/.cclfp-report"]),
    "picture": (["show", "split-mnist", "--images", "out.png"], ["out.png"]),
}


@pytest.fixture
def place(small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store in CCLFP_HOME."""
    monkeypatch.chdir(tmp_path)
    Store(small_mnist / "runs.sqlite").add(record())
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_foreign_file_is_replaced_only_if_forced(name: str, place: Path, cli: Cli) -> None:
    arguments, in_the_way = COMMANDS[name]
    for file in in_the_way:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(FOREIGN)
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "exists, and cclfp did not write it" in answer.err
    assert all((place / file).read_bytes() == FOREIGN for file in in_the_way)
    assert cli(*arguments, "--force").code == 0
    assert not any(FOREIGN in (place / file).read_bytes() for file in in_the_way)
    again = cli(*arguments)  # now they are ours
    assert again.code == 0, again.err


@pytest.mark.slow
def test_other_files_beside_a_report_stay(place: Path, cli: Cli) -> None:
    others = ["site/uv.lock", "site/.x.tmp", "site/tables/mine.csv", "site/figures/notes.txt"]
    for file in others:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(FOREIGN)
        os.utime(place / file, (0, 0))
    for _ in range(2):
        assert cli("report", "--out", "site").code == 0
    assert all((place / file).read_bytes() == FOREIGN for file in others)


@pytest.mark.slow
def test_a_report_never_replaces_its_store(place: Path, cli: Cli) -> None:
    store = Store(place / "site" / "index.html")
    store.add(record())
    answer = cli("report", "--out", "site", "--store", store.path, "--force")
    assert (answer.code, answer.out) == (2, "")
    assert "is read by this command" in answer.err
    assert Store(store.path).records() == [record()]


PIPE = {
    "store": ["run", "er", "split-mnist", "--store", "pipe.png"],
    "presets": ["tune", "er", "split-mnist", "--write", "pipe.png"],
    "picture": ["show", "split-mnist", "--images", "pipe.png", "--force"],
    "learners": ["run", "er", "split-mnist", "--save", "pipe.png"],
}


@pytest.mark.parametrize("name", PIPE)
def test_a_pipe_is_no_output(name: str, place: Path, cli: Cli) -> None:
    os.mkfifo(place / "pipe.png")
    answer = cli(*PIPE[name])
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
        (place / name).chmod(0o600)
        learner.save(str(place / name))
        assert (place / name).stat().st_mode & 0o777 == 0o600
        assert cclfp.load(name, psi=torch.nn.Flatten()).steps == 1
