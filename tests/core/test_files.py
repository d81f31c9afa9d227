"""What is written and removed: completely or not at all, and never what another program wrote."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from filelock import FileLock
from records import record

import cclfp
from cclfp.core import files
from cclfp.core.files import check_output, real_file, remove_file, remove_stale, write_atomic
from cclfp.errors import InputError, shortage
from cclfp.runs.checkpoints import remove_left_overs
from cclfp.runs.store import Store

KEY = "0123456789abcdef" * 4  # of a run


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def put(folder: Path, *names: str, days: float = 0) -> None:
    """Files that were last written some days ago."""
    for name in names:
        (folder / name).write_text(name)
        os.utime(folder / name, (time.time() - days * files.DAY,) * 2)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# -- removing -----------------------------------------------------------------------------------------------------


def test_temporary_files_of_killed_processes_are_removed_by_the_next_write(tmp_path: Path) -> None:
    here, there = files._host_id(), "00000000"
    stale, old = f".a[1].md.{dead()}-{here}0a1b2c3d.tmp", f".a[1].md.{dead()}-{there}0a1b2c3d.tmp"
    fresh, alive = old.replace("0a1b", "ffff"), f".a[1].md.{os.getpid()}-{here}0a1b2c3d.tmp"
    other = f".b.md.{dead()}-{here}0a1b2c3d.tmp"
    foreign = [".a[1].md.tmp", ".a[1].md.backup.tmp", ".a[1].md.123-0a1b2c3d.tmp", f".a[1].md.x{stale[9:]}"]
    put(tmp_path, stale, fresh)
    put(tmp_path, old, alive, other, *foreign, days=2)
    write_atomic(tmp_path / "a[1].md", b"new")
    assert names(tmp_path) == {"a[1].md", fresh, alive, other, *foreign}


def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the table
        put(tmp_path, f".a.{zombie.pid}-{files._host_id()}0a1b2c3d.tmp")
        remove_stale(tmp_path, "a")
        assert names(tmp_path) == set()


def test_a_killed_write_leaves_what_the_next_one_knows(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, cclfp.core.files\n"
        "os.fsync = lambda file: os.kill(os.getpid(), 9)\n"
        "cclfp.core.files.write_atomic(pathlib.Path(sys.argv[1]), b'new')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "index.html")])
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    write_atomic(tmp_path / "index.html", b"new")
    assert names(tmp_path) == {"index.html"}


def test_folders_and_links_are_removed_only_where_that_is_said(tmp_path: Path) -> None:
    ours = f".a.{dead()}-{files._host_id()}0a1b2c3d.tmp"
    link = ours.replace("0a1b", "0000")
    (tmp_path / ours).mkdir()
    (tmp_path / link).symlink_to(tmp_path)
    put(tmp_path / ours, "precious")
    remove_stale(tmp_path, "a")
    remove_stale(tmp_path / "nowhere", "a")
    assert names(tmp_path) == {ours, link}
    remove_stale(tmp_path, "a", folders=True)
    assert names(tmp_path) == {link}


def test_only_regular_files_are_removed(tmp_path: Path) -> None:
    put(tmp_path, "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "nothing", "file"):
        remove_file(tmp_path / name)
    assert names(tmp_path) == {"link", "folder", "pipe"}


FOREIGN = ("uv.lock", "poetry.lock", "cluster.lock", ".x.tmp", f".a.ckpt.{2**22 + 1}-000000000a1b2c3d.tmp", "a.ckpt")


def test_a_folder_of_checkpoints_may_be_any_folder(tmp_path: Path) -> None:
    ours = [f"{KEY}.lock", "cclfp-cluster.lock", f".{KEY}.ckpt.{dead()}-{files._host_id()}0a1b2c3d.tmp"]
    held, stored, checkpoint = f"{KEY[::-1]}.lock", f"{KEY[::-1]}.ckpt", f"{KEY}.ckpt"
    put(tmp_path, held, stored, *ours)
    put(tmp_path, checkpoint, *FOREIGN, days=9)
    with FileLock(tmp_path / held):
        remove_left_overs(tmp_path, stored=[KEY[::-1]])
        assert names(tmp_path) == {held, stored, checkpoint, *FOREIGN}
    remove_left_overs(tmp_path, stored=[KEY[::-1]])
    assert names(tmp_path) == {checkpoint, *FOREIGN}
    assert all((tmp_path / name).read_text() == name for name in FOREIGN)


def test_a_lock_whose_file_was_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes removing them safe: who locks a file that its holder has removed meanwhile starts over."""
    path, real, removed = tmp_path / "a.lock", fcntl.flock, list[int]()

    def flock(file: Any, operation: int) -> None:
        if not removed:
            removed.append(path.stat().st_ino)
            path.unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with FileLock(path):
        assert removed
        with pytest.raises(BlockingIOError), path.open() as file:
            real(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the name is that of the file which is locked


# -- writing ------------------------------------------------------------------------------------------------------


def write(path: Path) -> None:
    write_atomic(path, b"new")


def test_what_is_replaced_keeps_its_mode_and_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "secret")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "secret")
    modes: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copymode", lambda old, new: modes.append(new.stat().st_mode))
        write(tmp_path / "link")
    assert (tmp_path / "secret").read_bytes() == b"new"
    assert names(tmp_path) == {"secret", "link", "second"}
    modes.append((tmp_path / "secret").stat().st_mode)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600, 0o600]
    (tmp_path / "secret").chmod(0o664)
    write(tmp_path / "secret")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o664
    (tmp_path / "to nothing").symlink_to("target")
    write(tmp_path / "to nothing")
    assert (tmp_path / "target").read_bytes() == b"new"
    assert (tmp_path / "to nothing").is_symlink()


NO_FILES = {
    "": "is a folder",
    ".": "is a folder",
    "folder": "is a folder",
    "/dev/full": "is a device, a pipe or a socket",
    "pipe": "is a device, a pipe or a socket",
    "socket": "is a device, a pipe or a socket",
    "loop": "is a symbolic link that leads back to itself",
    "nul\0l": "cannot be the path of a file",
}


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
    before = names(tmp_path)
    learner = cclfp.make("er", psi=torch.nn.Flatten(), num_classes=2)
    for name, message in NO_FILES.items():
        for use in (real_file, write, learner.save, lambda path: check_output(path, lambda head: True, force=True)):
            with pytest.raises(InputError, match=message):
                use(Path(name))
    assert names(tmp_path) == before


def test_a_file_of_another_program_is_replaced_only_if_forced(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def is_ours(head: bytes) -> bool:
        return head.startswith(b"ours")

    for content in (None, b"", b"ours, 1"):
        if content is not None:
            path.write_bytes(content)
        check_output(path, is_ours)
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="file exists, and cclfp did not write it: .* replace it with --force"):
        check_output(path, is_ours)
    check_output(path, is_ours, force=True)


def test_input_and_output_are_never_the_same_file(tmp_path: Path) -> None:
    put(tmp_path, "in")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    (tmp_path / "x").mkdir()
    for written in ("in", "link", "hard", "x/../in"):
        with pytest.raises(InputError, match="is read by this command"):
            check_output(tmp_path / written, lambda head: True, force=True, inputs=[tmp_path / "no", tmp_path / "in"])


@pytest.mark.parametrize("number", range(8))
def test_a_lack_of_memory_is_seen_behind_the_error_that_follows_it(number: int) -> None:
    """torch.save closes its file, which is then too short, and raises that."""

    class Full(io.BytesIO):
        writes = 0

        def write(self, content: Any) -> int:
            self.writes += 1
            if self.writes > number:
                raise MemoryError
            return super().write(content)

    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.save({"weights": torch.zeros(3), "more": torch.zeros(5)}, Full())
    assert "not enough memory" in str(shortage(caught.value))


# -- outputs of commands ------------------------------------------------------------------------------------------

HAND_WRITTEN = b"<!doctype html>written by hand"


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
        (place / file).write_bytes(HAND_WRITTEN)
        os.utime(place / file, (0, 0))
    answer = cli(*command.split())
    assert (answer.code, answer.out) == (2, "")
    assert "exists, and cclfp did not write it" in answer.err
    assert all((place / file).read_bytes() == HAND_WRITTEN for file in in_the_way)
    assert cli(*command.split(), "--force").code == 0
    assert not any(HAND_WRITTEN in (place / file).read_bytes() for file in in_the_way)
    assert cli(*command.split()).code == 0  # now they are ours
    assert all((place / file).read_bytes() == HAND_WRITTEN for file in others)  # and those beside them stay


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
