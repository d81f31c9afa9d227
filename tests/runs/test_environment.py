"""What surrounds a command: the terminal's encoding, broken output, CCLFP_HOME, code of a user's own, left-overs."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import Cli
from training import make_job

import cclfp
from cclfp.core import files
from cclfp.errors import InputError, Stopped
from cclfp.methods import get_method
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.runs.events import Event, Failed
from cclfp.runs.settings import configurations
from cclfp.runs.training import train_cohort
from cclfp.testing import check_method

# -- encodings ----------------------------------------------------------------------------------------------------


def run(arguments: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that does not import torch, by a shell."""
    command = f"{sys.executable} -m cclfp {arguments} {redirect}"
    variables = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(command, shell=True, executable="/bin/bash", env=variables, capture_output=True, text=True)


@pytest.mark.slow
def test_help_and_errors_in_an_ascii_locale() -> None:
    done = run("--help", LC_ALL="C", PYTHONUTF8="0")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "+- Commands " + "-" * 67 + "+" in lines
    assert max(map(len, lines)) == 80
    done = run("frobnicate", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.isascii()
    assert "| No such command 'frobnicate'." in done.stderr


# -- broken output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "redirect", "code", "message"),
    [
        ("--help", ">/dev/full", 1, "error: stdout cannot be written to: No space left on device\n"),
        ("--help", ">&-", 1, "error: stdout cannot be written to: Bad file descriptor\n"),
        ("--help", "2>&- >/dev/null", 0, ""),
        ("--help", "| true; exit ${PIPESTATUS[0]}", 141, ""),
        ("frobnicate", "2>/dev/full", 2, ""),
    ],
    ids=["full", "closed", "stderr closed", "nobody reads", "stderr full"],
)
def test_output_that_cannot_be_written(arguments: str, redirect: str, code: int, message: str) -> None:
    done = run(arguments, redirect)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.slow
def test_too_little_memory_for_torch_is_one_line() -> None:
    command = f"ulimit -v 400000; {sys.executable} -m cclfp list methods"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    message = "error: there is not enough memory, on this machine or within the limits of this process\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


# -- CCLFP_HOME ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["~nouser/x", "", " ", "{tmp}/file", "{tmp}/file/x", "{tmp}/nowhere", "/proc/x"])
def test_a_home_that_cannot_be(value: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    value = value.format(tmp=tmp_path)
    monkeypatch.setenv("CCLFP_HOME", value)
    answer = cli("run", "er", "split-mnist")
    assert answer.code == 2
    assert f"CCLFP_HOME={value!r}" in answer.err


@pytest.mark.parametrize(("value", "found"), [("~/cclfp", "cclfp"), ("build/home", "build/home")])
def test_a_home_of_this_user_or_relative_to_the_folder(
    value: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CCLFP_HOME", value)
    assert files.home() == tmp_path / found


# -- code of a user's own -----------------------------------------------------------------------------------------


ODD = "class Odd(BaseException):\n    def __str__(self): raise self\nraise Odd"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; sys.exit(7)", "SystemExit: 7"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        (ODD, "Odd: <exception str() failed>"),
        ("x = = 1", "line 1"),
    ],
)
def test_a_file_that_ends_the_process_is_an_error_that_names_it(code: str, text: str, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    for arguments in (["run", f"{file}:Mine", "split-mnist"], ["run", "er", "split-mnist", "--backbone", f"{file}:f"]):
        answer = cli(*arguments)
        assert answer.code == 2
        assert f"file {file} cannot be run: " in answer.err
        assert text in answer.err


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Stopped(signal.SIGTERM)])
def test_a_signal_while_a_file_is_run_is_not_its_error(
    interrupt: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cclfp, "interrupt", interrupt, raising=False)
    (tmp_path / "mine.py").write_text("import cclfp; raise cclfp.interrupt")
    with pytest.raises((KeyboardInterrupt, Stopped)):
        get_method(f"{tmp_path / 'mine.py'}:Mine")


@pytest.mark.slow
def test_code_that_ends_the_process_later(small_mnist: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    method = "from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'\n    def loss(self, *_): exit(3)"
    file.write_text(f"{method}\ndef make(shape): raise SystemExit(3)")
    with pytest.raises(InputError, match=r"mine.py:make\(\(1, 28, 28\)\) failed: SystemExit: 3"):
        make_psi(parse_backbone(f"{file}:make"), (1, 28, 28), 0)
    (configuration,) = configurations([f"{file}:Mine"], "split-mnist")
    events: list[Event] = []
    jobs = [make_job(configuration, seed, tmp_path / "runs.sqlite") for seed in range(2)]
    train_cohort(jobs, events.append, stores=False)
    failures = [event.error for event in events if isinstance(event, Failed)]
    assert [type(error) for error in failures] == [InputError] * 2
    assert str(failures[0]).startswith("its code called sys.exit (SystemExit(3))")


def test_a_method_without_loss_and_step_is_refused_before_anything_is_trained(cli: Cli, tmp_path: Path) -> None:
    class Mine(cclfp.Method):
        name = "mine"

    class Nameless(Mine):
        name = None  # type: ignore[assignment]

    for use in (lambda: cclfp.make(Mine, psi=torch.nn.Flatten(), num_classes=2), lambda: check_method(Mine)):
        with pytest.raises(InputError, match="Mine defines neither loss nor step, so it cannot be trained"):
            use()
    with pytest.raises(InputError, match="Nameless has the name None: expected letters"):
        get_method(Nameless)
    (tmp_path / "mine.py").write_text("import cclfp\nclass Mine(cclfp.Method):\n    name = 'mine'\n")
    answer = cli("run", f"{tmp_path / 'mine.py'}:Mine", "split-mnist")
    assert answer.code == 2
    assert answer.err.startswith("error: mine.py:Mine defines neither loss nor step")


# -- shortages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("x: can't allocate memory: y"), "there is not enough memory"),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
    ],
)
def test_a_shortage_is_one_message(
    error: Exception, message: str, small_mnist: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.runs.pool.Pool.run", Mock(side_effect=error))
    answer = cli("run", "finetune", "split-mnist", "--seeds", "1")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith(f"error: {message}")
