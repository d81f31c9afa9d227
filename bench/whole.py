"""Whole runs, from the prompt to the table: every row is a command in a process of its own, on one core.

Rows that are compared run in turn, and the whole sequence is repeated, so that a ratio has a range.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cclfp.data import dataset_path
from cclfp.runs.store import Store

BENCH = Path(__file__).parent
PEER = BENCH / "peers" / ".venv" / "bin" / "python"
MAMMOTH = BENCH / "peers" / ".venv" / "mammoth"
REPEATS = 3
LINUX = sys.platform == "linux"
STEPS = 6002  # of one seed on Split MNIST


@dataclasses.dataclass(frozen=True)
class Row:
    """A command that is timed. It is timed ``repeats`` times, each time after those before it in the list."""

    who: str  # cclfp, plain, avalanche or mammoth
    method: str = "er"
    seeds: int = 1
    how: str = ""  # of cclfp: the engine; of Avalanche: the form of its data
    repeats: int = REPEATS

    def to_dict(self) -> dict[str, Any]:
        return {"section": "whole", "device": "cpu", **dataclasses.asdict(self)}

    def __str__(self) -> str:
        return " ".join([self.who, self.method, f"{self.seeds} seed{'s' * (self.seeds > 1)}", self.how]).strip()


ROWS = (
    Row("plain", "er", 5),
    Row("plain", "er", 1),
    Row("avalanche", "er", 1, "tensors"),
    Row("avalanche", "er", 1, "images"),
    Row("mammoth", "er", 1),
    Row("mammoth", "er", 5, repeats=1),
    Row("cclfp", "er", 5, "auto"),
    Row("cclfp", "er", 1, "auto"),
    Row("plain", "ccl-fp+", 5),
    Row("cclfp", "ccl-fp+", 5, "auto"),
)


def time_whole_runs(quick: bool, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """The measurements of all rows; ``show`` is called with a line for each run."""
    rows = [row for row in ROWS if not quick or (row.seeds == 1 and row.who in ("plain", "cclfp"))]
    for name, path in (("avalanche", PEER), ("mammoth", MAMMOTH)):
        if not path.exists():
            show(f"without {name.title()}, which is not installed: see bench/peers/README.md")
            rows = [row for row in rows if row.who != name]
    found: dict[Row, list[dict[str, Any]]] = {row: [] for row in rows}
    with tempfile.TemporaryDirectory() as cache:
        for repeat in range(1 if quick else REPEATS):
            for row in rows:
                if repeat < row.repeats:
                    found[row].append(time_run(row, Path(cache)))
                    show(f"{found[row][-1]['whole_seconds']:6.1f} s  {row}")
    return [{"case": row.to_dict(), "runs": runs} for row, runs in found.items()]


def time_run(row: Row, cache: Path) -> dict[str, Any]:
    """Run a row's command and return its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.sqlite"
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        times, text = _time(_command(row, store), environment)
        if row.who != "cclfp":
            about = json.loads(text.splitlines()[-1])
            about["train_rate"] = about.pop("steps_per_second")
        else:
            records = Store(store).records()
            steps = STEPS * len(records)
            about = {"steps": steps, "train_rate": steps / sum(record["train_seconds"] for record in records)}
            about["average_accuracy"] = sum(record["average_accuracy"] or 0 for record in records) / len(records)
    return {**about, **times, "whole_rate": about["steps"] / times["whole_seconds"]}


def _command(row: Row, store: Path) -> list[str]:
    """The command of a row; one of ours keeps its records in ``store``."""
    peers, arrays = BENCH / "peers", str(dataset_path("mnist") / "arrays")
    if row.who == "plain":
        options = ["--method", row.method, "--seeds", str(row.seeds)]
        return [sys.executable, str(peers / "plain_pytorch.py"), arrays, *options]
    if row.who == "avalanche":
        return [str(PEER), "-W", "ignore", str(peers / "avalanche_replay.py"), arrays, "--data", row.how]
    if row.who == "mammoth":
        script = str(peers / "mammoth_replay.py")
        return [str(PEER), "-W", "ignore", script, str(MAMMOTH), arrays, "--seeds", str(row.seeds)]
    options = ["--seeds", str(row.seeds), "--device", "cpu", "--engine", row.how, "--store", str(store)]
    return [sys.executable, "-m", "cclfp", "run", row.method, "split-mnist", *options]


def _time(command: list[str], environment: dict[str, str]) -> tuple[dict[str, float], str]:
    """Seconds and peak memory of a command on one core, and what it printed."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=printed, stderr=errors, preexec_fn=_use_one_core if LINUX else None
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (printed, errors):
            file.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)} failed: {errors.read()}")
        share, peak = (used.ru_utime + used.ru_stime) / seconds, used.ru_maxrss * (1024 if LINUX else 1)
        return {"whole_seconds": seconds, "cpu_share": share, "memory_bytes": peak}, printed.read()


def _use_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
