"""Signals, and processes whose parent is gone: a message, the exit code 128 + n, no child and no lock left."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from processes import alive, children, wait_until

from cclfp.core import workers

GOES_ON = "stopped: what is finished is stored, and the same command continues from the last checkpoint\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def send(*numbers: signal.Signals) -> Callable[..., Any]:
    """A function that sends this process signals, one after the other."""

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            os.kill(os.getpid(), numbers[0])
        finally:
            for number in numbers[1:]:
                os.kill(os.getpid(), number)

    return call


@pytest.mark.parametrize(
    ("number", "function", "command"),
    [
        (signal.SIGINT, "cclfp.runs.run.run", "run er split-mnist"),
        (signal.SIGTERM, "cclfp.paper.tuning.tune", "tune er split-mnist"),
        (signal.SIGHUP, "cclfp.paper.study.run_jobs", "study accuracy --benchmark split-mnist --method er"),
        (signal.SIGTERM, "cclfp.data.fetch", "data fetch mnist"),
    ],
)
def test_a_signal_is_answered(
    number: signal.Signals, function: str, command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, send(number, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))  # more are dropped
    answer = cli(*command.split())
    assert answer.code == 128 + number
    assert answer.err == ("stopped\n" if command.startswith("data") else GOES_ON)


def test_a_signal_ends_what_does_not_end_by_itself(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    codes: list[int] = []
    monkeypatch.setattr("cclfp.cli.PATIENCE", -1.0)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr("cclfp.runs.run.run", send(signal.SIGTERM, signal.SIGHUP))
    cli("run", "er", "split-mnist")
    assert codes == [129]


def test_under_nohup_a_hang_up_stays_ignored(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr("cclfp.data.fetch", send(signal.SIGHUP))
    assert cli("data", "fetch", "mnist").code == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


# With real processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_leaves_no_child_and_no_lock(small_mnist: Path) -> None:
    arguments = ["run", "er", "split-mnist", "epochs=1000", "--seeds", "2", "--engine", "eager"]
    command = [sys.executable, "-m", "cclfp", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    locks = small_mnist / "runs.sqlite.checkpoints"
    assert wait_until(lambda: list(locks.glob("*.lock")), 60)  # a run is under way
    started = children(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (143, "", GOES_ON)
    assert not any(map(alive, started))
    assert list(locks.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "message", "first"),
    [
        ("time.sleep(60)", pickle.dumps([]), "stdin"),  # in a long step
        ("time.sleep(60)", pickle.dumps([1])[:-2], "stdin"),  # in a message
        ("answer('note')", pickle.dumps([]), "stdout"),  # it reports to nobody
    ],
)
def test_a_worker_whose_parent_is_gone_ends_silently(body: str, message: bytes, first: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import time\ndef work(piece, answer): {body}\n")
    command = [sys.executable, "-P", "-c", workers._command(str(tmp_path / "mine.py"), "work")[-1]]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process: Any = subprocess.Popen(command, start_new_session=True, **pipes)
    with process:
        if first == "stdout":
            process.stdout.close()
        process.stdin.write(message)
        process.stdin.flush()
        if first == "stdin":
            time.sleep(0.5)
            process.stdin.close()
        ended = wait_until(lambda: process.poll() is not None, 10)
        process.kill()
        assert (ended, process.stderr.read()) == (True, b"")


def test_a_worker_whose_pipe_is_held_by_another_process() -> None:
    """It still ends soon after its parent."""
    imports = "import time; from cclfp.core.workers import end_with_parent"
    child = f"{imports}; end_with_parent(); print(1, flush=True); time.sleep(60)"
    parent = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid)"
    )
    read, write = os.pipe()  # this process has the other end
    with contextlib.closing(os.fdopen(read)) as stdin, contextlib.closing(os.fdopen(write, "w")):
        done = subprocess.run([sys.executable, "-c", parent], stdin=stdin, stdout=subprocess.PIPE, check=True)
        assert wait_until(lambda: not alive(int(done.stdout)), 10)
