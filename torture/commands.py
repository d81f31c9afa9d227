"""Runs commands of cclfp as processes, and checks what they print and leave behind."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cclfp.cli
from cclfp.core import files
from cclfp.learner.saving import learner_state, load
from cclfp.runs.store import Store
from torture.campaign import Fault, Verdict, descendants, kill_all
from torture.material import CANARIES

TRACEBACK = "Traceback (most recent call last)"
RESULT = ("key", "average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "accuracy_matrix")
# Audit events of operations on files.
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect")
FATAL = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # signals that may end a process if sent
TIMEOUT = 100.0  # seconds per command
JOURNALS = (".sqlite-wal", ".sqlite-shm")  # SQLite removes these itself


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: minus the signal that ended it
    text: str  # stdout and stderr

    @property
    def last(self) -> str:
        return f"code {self.code}: ...{self.text[-1500:]}"


class Command:
    """``cclfp`` with these arguments, in a fork of this process, which starts quickly because torch is imported.

    It runs in the folder ``place``, with ``place/home`` as CCLFP_HOME. ``before`` is called in the new process first.
    """

    def __init__(
        self, arguments: str, place: Path, *, cores: int = 1, before: Callable[[], object] | None = None
    ) -> None:
        self.arguments, self.place = arguments, place
        self.output = place.with_name(f"{place.name}-output-{time.monotonic_ns()}")
        self.ended: Ended | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_command(cores, before)

    def _become_command(self, cores: int, before: Callable[[], object] | None) -> None:
        code = 1
        try:
            os.setsid()
            os.chdir(self.place)
            os.environ["CCLFP_HOME"] = str(self.place / "home")
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
            output = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", encoding="utf-8") for fd in (1, 2))
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["cclfp", *shlex.split(self.arguments)]
            if before is not None:
                before()
            cclfp.cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # noqa: BLE001  as in the interpreter
            traceback.print_exc()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                text = self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""
                self.ended = Ended(os.waitstatus_to_exitcode(status), text)
        return self.ended is not None

    def kill(self) -> None:
        kill_all([self.pid])

    def wait(self, seconds: float = TIMEOUT) -> Ended:
        """Wait for the command; Fault if it hangs, or ends with a traceback or an unexpected exit code."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            if time.monotonic() > deadline:
                kill_all([*descendants(self.pid), self.pid])
                raise Fault(Verdict.HANG, f"cclfp {self.arguments} ran for {seconds:.0f} s")
            time.sleep(0.005)
        assert self.ended is not None
        return check(self.ended)


def check(ended: Ended) -> Ended:
    """Raise Fault if there is a traceback or an unexpected exit code."""
    is_proper = ended.code in (0, 2) or -ended.code in FATAL or ended.code > 128
    if TRACEBACK in ended.text or not (is_proper or (ended.code == 1 and "error:" in ended.text)):
        raise Fault(Verdict.TRACEBACK, ended.last)
    return ended


def run_real(
    arguments: str,
    place: Path,
    environment: Mapping[str, str | bytes | None],
    **more: Any,
) -> Ended:
    """Run ``cclfp`` in a new interpreter, as a user does, to test its start and its end too."""
    values: dict[str, Any] = {**os.environ, "CCLFP_HOME": str(place / "home"), **environment}
    command = [sys.executable, "-m", "cclfp", *shlex.split(arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
    with subprocess.Popen(
        command, cwd=place, env={name: value for name, value in values.items() if value is not None}, **options
    ) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            kill_all([*descendants(process.pid), process.pid])
            raise Fault(Verdict.HANG, f"cclfp {arguments} ran for {TIMEOUT:.0f} s") from None
    return check(Ended(process.returncode, ((out or b"") + (err or b"")).decode(errors="replace")))


def no_temporaries(place: Path) -> None:
    """Raise Fault if a command that was not killed has left temporary files."""
    ours = (".lock", ".cclfp-report", *CANARIES)
    names = [path.relative_to(place).as_posix() for path in place.rglob(".*") if path.name not in ours]
    if names:
        raise Fault(Verdict.LEFT_BEHIND, f"{names}, though the command was not killed")


def wait_for_orphans(seconds: float = 20.0) -> None:
    """Wait until the children of a killed process have ended by themselves; Fault if they do not."""
    deadline = time.monotonic() + seconds
    while orphans := descendants(os.getpid()):
        if time.monotonic() > deadline:
            kill_all(orphans)
            raise Fault(Verdict.LEFT_BEHIND, f"{len(orphans)} processes still run {seconds:.0f} s after the command")
        time.sleep(0.01)


# -- hooks inside a command --------------------------------------------------------------------------------


def at_operation(place: Path, number: int, then: Callable[[str], object]) -> None:
    """Call ``then`` with the kind of the n-th operation of this process on files below ``place``, just before it."""
    count = 0

    def look(event: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            then(event)

    _watch(place, look)


def count_operations(place: Path, counted: Path) -> None:
    """Append one byte to the file ``counted`` for each operation of this process on files below ``place``."""
    handle = os.open(counted, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    _watch(place, lambda event: os.write(handle, b"."))


def _watch(place: Path, then: Callable[[str], object]) -> None:
    """Call ``then`` before every operation of this process on files below ``place``.

    Python announces most of them. Besides these, every fsync counts and every write of a whole file. What SQLite does
    inside of a connection does not.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and arguments and _is_below(arguments[0], place):
            try:
                then(event)
            except OSError as error:
                if event.startswith("sqlite3"):  # which has errors of its own
                    raise sqlite3.OperationalError("unable to open database file") from error
                raise

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            then("write")
            return super().write(data)

    def fsync(fd: Any) -> None:
        if _is_below(Path(f"/proc/self/fd/{fd}").readlink(), place):
            then("fsync")
        real(fd)

    def opened(name: Path, mode: str, opener: Any = None) -> Any:
        file = File(name, mode.replace("b", ""), opener=opener)
        return io.BufferedWriter(file) if _is_below(name, place) else file

    real = os.fsync
    os.fsync = fsync
    vars(files)["open"] = opened
    sys.addaudithook(hook)


def _is_below(path: Any, place: Path) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  a Path would be slow here
    return f"{name}/".startswith(f"{place}/")


def kill_itself(delay: float) -> None:
    """Kill this process now, or after a delay."""
    if delay <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


# -- the results of a command --------------------------------------------------------------------------------------


def contents(place: Path) -> dict[str, Any]:
    """Every file below a folder, with its content: the numbers of a store, a checksum for all other files."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        name = path.relative_to(place).as_posix()
        if name.endswith(JOURNALS):
            continue
        if name.endswith(".sqlite"):
            found[name] = results(path)
        elif name.startswith("learners/") and name.endswith(".ckpt"):
            found[name] = digest(learner_state(load(path)))
        elif name.endswith(".pdf"):  # the order of its parts varies
            found[name] = path.read_bytes()[:5] == b"%PDF-" and b"%%EOF" in path.read_bytes()[-10:]
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def results(store: Path) -> dict[str, Any]:
    """For each run key, the numbers of the run."""
    records: list[Any] = list(Store(store).records()) if store.exists() else []
    return {record["key"]: {name: record[name] for name in RESULT} for record in records}


def digest(value: Any) -> str:
    """A checksum over nested values and tensors."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
            sha.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=repr):
                add(key)
                add(value[key])
        elif isinstance(value, list | tuple):
            sha.update(f"{len(value)}".encode())
            for part in value:
                add(part)
        else:
            sha.update(f"{type(value).__name__}{value!r}".encode())

    add(value)
    return sha.hexdigest()


def compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise Fault unless the files are those of an undisturbed command: nothing lost, different or left behind."""
    if missing := sorted(expected.keys() - found.keys()):
        raise Fault(Verdict.LOST, f"missing: {missing}")
    if more := sorted(found.keys() - expected.keys()):
        raise Fault(Verdict.LEFT_BEHIND, f"{more}")
    for name, wanted in expected.items():
        if isinstance(wanted, dict):
            compare_runs(name, wanted, found[name])
        elif found[name] != wanted:
            raise Fault(Verdict.WRONG, f"{name} differs")


def compare_runs(name: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise Fault unless a store has exactly the wanted runs, with the same numbers."""
    if missing := wanted.keys() - found.keys():
        raise Fault(Verdict.LOST, f"{name} has no run {', '.join(sorted(missing))}")
    for key, run in found.items():
        if key not in wanted:
            raise Fault(Verdict.WRONG, f"{name} has the run {key}, which was not requested")
        if run != wanted[key]:
            raise Fault(Verdict.WRONG, f"{name}: {json.dumps(run)}, not {json.dumps(wanted[key])}")
