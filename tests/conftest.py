"""What many tests use. The conftest.py above gives each of them a CCLFP_HOME of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torture.material import write_little_dataset

from cclfp.cli import ANSWERED

if TYPE_CHECKING:
    from cclfp.report import Content
    from cclfp.runs.store import Store

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir(), "cclfp-tests-compiler")))
# One thread, as the engine uses; the tensors here are small. Processes that tests start would otherwise take all cores
# each, and wait for one another when tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# Ray, which reads this when it is imported, listens on the loopback interface alone, and reports nothing to its makers.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # or it writes a token into the user's home


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Every test finds Python's own signal handlers.

    A command leaves others behind, as a process does that ends. nohup, and a shell's ``&``, make a process ignore some.
    """
    usual = {number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL for number in ANSWERED}
    handlers = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with made-up runs of every number of the paper."""
    from report_records import make_full_store

    return make_full_store(tmp_path_factory.mktemp("full") / "runs.sqlite")


@pytest.fixture(scope="session")
def full_content(full_store: Store) -> Content:
    """What a report shows of them."""
    from cclfp.report import collect

    return collect(full_store, range(5))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    from cclfp.runs.store import Store

    return Store(tmp_path / "runs.sqlite")


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """A store with runs of one's own."""
    from report_records import own_store

    return own_store(tmp_path)


@pytest.fixture
def small_mnist(own_home: None, tmp_path: Path) -> Path:
    """A CCLFP_HOME with a little dataset in MNIST's place, quick to train on."""
    write_little_dataset(tmp_path / "home", "mnist", 10, (1, 28, 28), train=1500, test=200)
    return tmp_path / "home"


@pytest.fixture
def small_data(small_mnist: Path) -> Path:
    """A CCLFP_HOME with little datasets in the place of all."""
    from cclfp.data import DATASETS

    for name, dataset in DATASETS.items():
        if name != "mnist":
            shape, classes = dataset.arrays["train_images"].shape[1:], dataset.num_classes
            write_little_dataset(small_mnist, name, classes, shape, train=max(100, 2 * classes), test=max(50, classes))
    return small_mnist


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs are trained in this process, one cohort after the other: starting others takes longer than training."""
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 1)


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the tables on stdout, with their headers."""
        lines = [line for line in self.out.splitlines() if line.startswith("│")]
        return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in lines]


Cli = Callable[..., Answer]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command, called in this process."""

    def call(*arguments: str | Path) -> Answer:
        from cclfp.cli import main

        monkeypatch.setattr(sys, "argv", ["cclfp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Answer(int(stop.value.code or 0), out, err)

    return call
