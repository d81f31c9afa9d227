"""Signals, and processes whose parent is gone: a message, the exit code 128 + n, no child and no lock left."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from processes import alive, children, wait_until

from cclfp.core import workers

GOES_ON = "stopped: what is finished is stored, and the same command continues from the last checkpoint\n"


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
    ("body", "message"),
    [
        ("time.sleep(60)", b"\0\0\0\x10pickle"),  # in a message
        ("answer('note')", b"\0\0\0\x05" + pickle.dumps([], 2)),  # it reports to nobody
    ],
)
def test_a_worker_whose_parent_is_gone_ends_silently(body: str, message: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import time\ndef work(piece, answer): {body}\n")
    ours, theirs = multiprocessing.Pipe()
    command, pipes = workers._command(str(tmp_path / "mine.py"), "work"), {"stdin": theirs, "stderr": subprocess.PIPE}
    process: Any = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
    theirs.close()
    with process:
        os.write(ours.fileno(), message)
        assert ours.recv() == (True, None)
        ours.close()
        ended = wait_until(lambda: process.poll() is not None, 10)
        process.kill()
        assert (ended, process.stderr.read()) == (True, b"")


def test_a_worker_in_a_long_step_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os, time\ndef work(piece, answer): answer(os.getpid()); time.sleep(60)")
    code = (
        "import sys, cclfp.core.workers as w; [print(a, flush=True) for _, a in w.work(sys.argv[1], 'work', [{}], [0])]"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "mine.py")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    assert wait_until(lambda: not alive(worker), 10)
