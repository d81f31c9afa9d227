"""Signals, and processes whose parent is gone: a message, the exit code 128 + n, no child and no lock left."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from PIL import Image

from cclfp.core import workers
from cclfp.data import decode

GOES_ON = "stopped: what is finished is stored, and the same command continues from the last checkpoint\n"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and pipes as POSIX has them")


def send(*numbers: signal.Signals) -> Callable[..., Any]:
    """A function that sends this process signals, one after the other."""

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            os.kill(os.getpid(), numbers[0])
        finally:
            for number in numbers[1:]:
                os.kill(os.getpid(), number)

    return call


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("cclfp.runs.run.run", ["run", "er", "split-mnist"]),
        ("cclfp.paper.tuning.tune", ["tune", "er", "split-mnist"]),
        ("cclfp.paper.study.run_jobs", ["study", "accuracy", "--benchmark", "split-mnist", "--method", "er"]),
        ("cclfp.data.fetch", ["data", "fetch", "mnist"]),
    ],
    ids=["run", "tune", "study", "data fetch"],
)
def test_a_signal_is_answered(
    number: signal.Signals, function: str, arguments: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, send(number))
    answer = cli(*arguments)
    assert answer.code == 128 + number
    assert answer.err == ("stopped\n" if arguments[0] == "data" else GOES_ON)


def test_more_signals_while_it_cleans_up_are_dropped(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.runs.run.run", send(signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    answer = cli("run", "er", "split-mnist")
    assert (answer.code, answer.err) == (143, GOES_ON)


def test_a_signal_ends_what_does_not_end_by_itself(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    codes: list[int] = []
    monkeypatch.setattr("cclfp.cli.PATIENCE", -1.0)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr("cclfp.runs.run.run", send(signal.SIGTERM, signal.SIGHUP))
    cli("run", "er", "split-mnist")
    assert codes == [129]


def test_under_nohup_a_hang_up_stays_ignored(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr("cclfp.data.fetch", send(signal.SIGHUP))
        assert cli("data", "fetch", "mnist").code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- with real processes ------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def has_ended(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()  # empty: a zombie
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_sigterm_leaves_no_child_and_no_lock(small_mnist: Path) -> None:
    arguments = ["run", "er", "split-mnist", "epochs=1000", "--seeds", "2", "--engine", "eager"]
    command = [sys.executable, "-m", "cclfp", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    locks = small_mnist / "runs.sqlite.checkpoints"
    assert wait_until(lambda: list(locks.glob("*.lock")), 60)  # a run is under way
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (143, "", GOES_ON)
    assert all(map(has_ended, children))
    assert list(locks.iterdir()) == []


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):  # what it was not sent
                assert pipe is not None
                pipe.close()


def start(processes: list[subprocess.Popen[bytes]], *arguments: str) -> tuple[Any, Any, subprocess.Popen[bytes]]:
    """A worker as the package starts it, with the pipes to it and from it."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-P", *arguments]
    process: subprocess.Popen[bytes] = subprocess.Popen(command, start_new_session=True, env=buffered, **pipes)
    processes.append(process)
    return process.stdin, process.stdout, process


def ends_silently(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    assert wait_until(lambda: process.poll() is not None, 10)
    assert process.stderr.read() == b""


def worker(folder: Path, body: str) -> str:
    """The code of a worker whose work is one statement."""
    (folder / "mine.py").write_text(f"import time\ndef work(piece, answer): {body}\n")
    return workers._command(str(folder / "mine.py"), "work")[-1]


@pytest.mark.parametrize("message", [pickle.dumps([]), pickle.dumps([1])[:-2]], ids=["in a long step", "in a message"])
def test_a_worker_whose_parent_is_gone(message: bytes, started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    stdin, stdout, process = start(started, "-c", worker(tmp_path, "time.sleep(60)"))
    stdin.write(message)
    stdin.flush()
    time.sleep(0.5)
    stdin.close()
    stdout.close()
    ends_silently(process)


def test_a_worker_that_reports_to_nobody(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """The pipe it writes to breaks before it sees that its parent is gone."""
    stdin, stdout, process = start(started, "-c", worker(tmp_path, "answer('note')"))
    stdout.close()
    stdin.write(pickle.dumps([]))
    stdin.flush()
    ends_silently(process)


def test_a_decoder_whose_parent_is_gone(started: list[subprocess.Popen[bytes]]) -> None:
    """In the middle of a chunk that takes it long."""
    image = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(image, "png")
    stdin, stdout, process = start(started, "-c", workers._command(decode.__file__, "decode_chunk")[-1])
    pickle.dump(([image.getvalue()] * 1000, ["PNG"], 20_000_000, (1, 1)), stdin)
    stdin.close()
    stdout.close()
    ends_silently(process)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_worker_whose_pipe_is_held_by_another_process() -> None:
    """It still ends soon after its parent."""
    child = "from cclfp.core.workers import end_with_parent; import time; end_with_parent(); print(1, flush=True)"
    child += "; time.sleep(60)"
    parent = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid)"
    )
    read, write = os.pipe()  # this process has the other end
    try:
        done = subprocess.run([sys.executable, "-c", parent], stdin=read, stdout=subprocess.PIPE, check=True)
        assert wait_until(lambda: has_ended(int(done.stdout)), 10)
    finally:
        os.close(read)
        os.close(write)
