"""How the steps of getting a dataset are shown."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys

import pytest
from rich.console import Console

from cclfp.cli.progress import LiveProgress, PlainProgress
from cclfp.events import DataProgress, Note, Planned


def data(done: int, total: int = 170) -> DataProgress:
    return DataProgress("cifar10: downloading", done, total, "MB")


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 10.0, 19.0, 25.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with PlainProgress() as shown:
        shown.update(Note("cifar10: trying a mirror"))
        for done in (0, 10, 17, 80):  # the second and the last come too soon to say
            shown.update(data(done))
        shown.update(data(1_234, total=0))  # of a size that is not known
    assert capsys.readouterr().err.splitlines() == [
        "cifar10: trying a mirror",
        "cifar10: downloading, 17/170 MB, 10%",
        "cifar10: downloading, 1,234 MB",
    ]


def test_a_live_bar() -> None:
    shown = LiveProgress()
    clock = itertools.count()
    shown.bars.get_time = lambda: float(next(clock))
    screen = io.StringIO()
    shown.bars.live.console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with shown:
        for done in (0, 20, 40):
            shown.update(data(done))
        shown.bars.refresh()
        (bar,) = [line for line in screen.getvalue().splitlines() if "cifar10: downloading" in line][-1:]
        shown.update(data(170))
        assert not shown.bars.tasks  # it is done, and there are no runs
        shown.update(data(7, total=0))
        shown.update(Planned({"a": "er seed 0"}, "runs.sqlite"))
        assert [task.description for task in shown.bars.tasks] == ["cifar10: downloading", "all runs"]
    assert "40/170 MB" in bar
    assert "MB/s" in bar
    assert "all runs" not in bar


def test_help_does_not_import_what_takes_long() -> None:
    code = (
        "import sys; sys.argv = ['cclfp', 'data', 'import', '--help']\n"
        "from cclfp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'PIL', 'pooch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "archive" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_package_needs_no_pillow() -> None:
    code = "import sys; sys.modules['PIL'] = None; import cclfp, cclfp.data; print(len(cclfp.data.DATASETS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
