"""Whole commands, from the prompt to the table, each in a process of its own and with a store of its own.

Commands that are compared run one after the other, and their sequence is repeated, so that other load on the machine
slows all of them equally.
"""

from __future__ import annotations

import compileall
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measured import Result

from cclfp.data import dataset_path
from cclfp.runs.store import Store

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "bench" / "peers"
PEER_PYTHON = PEERS / ".venv" / "bin" / "python"
MAMMOTH = PEERS / ".venv" / "mammoth"
SEEDS = 5
STEPS = 6002  # of one run on Split MNIST
RATES = ",".join(f"{0.05 + 0.005 * i:g}" for i in range(20))
# What is trained: the arguments of cclfp run. The seeds of the grid make it 100 runs.
JOBS = {
    "er": "er split-mnist",
    "ccl-fp+": "ccl-fp+ split-mnist",
    "gem": "gem split-mnist",
    "icarl": "icarl split-mnist",
    "hal": "hal split-mnist",
    "si": "si split-mnist",
    "er_ace": f"{ROOT / 'examples' / 'er_ace.py'}:ERACE split-mnist",
    "grid": f"er split-mnist lr={RATES}",
}
QUICK = ("er", "er_ace")
SCRIPTS = {
    "plain": "plain_pytorch.py",
    "capymoa": "capymoa_replay.py",
    "avalanche": "avalanche_replay.py",
    "mammoth": "mammoth_replay.py",
}
TORCH = "import torch"


@dataclasses.dataclass(frozen=True)
class Row:
    """A command that is timed."""

    method: str  # of JOBS
    who: str  # default, eager; before: an earlier version; one of SCRIPTS; or TORCH alone, which nobody can do without
    cores: int = 1
    seeds: int = SEEDS

    def to_dict(self) -> dict[str, Any]:
        return {"section": "first-run", "device": "cpu", **dataclasses.asdict(self)}

    def __str__(self) -> str:
        return f"{self.method}, {self.who}, {self.cores} core{'s' * (self.cores > 1)}"


def rows_of(method: str, quick: bool, before: Path | None) -> list[Row]:
    """The commands that are compared. The others are processes with one thread: they are timed on one core."""
    ours = ["default", *(["eager"] * (method != "grid")), *(["before"] * (before is not None))]
    peers = {"er": [*SCRIPTS, TORCH], "ccl-fp+": ["plain"]}.get(method, [])
    rows = [Row(method, who) for who in (*ours, *peers)]
    if quick:
        return [dataclasses.replace(row, seeds=1) for row in rows]
    return [*rows, *(Row(method, who, cores=2) for who in ours)]


def time_first_runs(quick: bool, repeats: int, methods: Sequence[str], before: Path | None) -> Iterator[list[Result]]:
    """The measurements of the commands of each job. ``before`` is a checkout of an earlier version."""
    missing = [("mammoth", MAMMOTH), *((who, PEER_PYTHON) for who in ("capymoa", "avalanche", "mammoth"))]
    absent = {who for who, path in missing if not path.exists()}
    if absent:
        print(f"  without {', '.join(sorted(absent))}: see bench/peers/README.md", flush=True)
    for tree in (ROOT, before):  # which whoever installs a package does for its users
        if tree is not None:
            compileall.compile_dir(tree / "src", quiet=2)
    for method in JOBS:
        if method not in (methods or (QUICK if quick else JOBS)):
            continue
        found: dict[Row, list[Result]] = {r: [] for r in rows_of(method, quick, before) if r.who not in absent}
        for _ in range(1 if quick else repeats):
            for row, runs in found.items():
                runs.append(time_row(row, before))
                again = f", again {runs[-1]['again_seconds']:.2f} s" if row.who == "default" else ""
                print(f"  {runs[-1]['seconds']:6.2f} s  {row}{again}", flush=True)
        yield [
            {"case": row.to_dict(), "runs": runs, "commit": _commit(before) if row.who == "before" else None}
            for row, runs in found.items()
        ]


def time_row(row: Row, before: Path | None) -> dict[str, Any]:
    """Run a command and return its measurements; the default command runs once more with all of its runs stored."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.sqlite"
        environment = dict(os.environ)
        if row.who in ("default", "eager", "before"):
            tree = before if row.who == "before" and before is not None else ROOT
            environment["PYTHONPATH"] = str(tree / "src")
        if row.who == "before":  # nothing that an earlier run has left there
            environment["XDG_CACHE_HOME"] = folder
        command = command_of(row, store)
        measured, text = _time(command, row.cores, environment)
        if row.who == "default":
            measured["again_seconds"] = _time(command, row.cores, environment)[0]["seconds"]
        if row.who in SCRIPTS:
            measured |= json.loads(text.splitlines()[-1])
        elif row.who != TORCH:
            measured |= _read(store)
    return measured


def command_of(row: Row, store: Path) -> list[str]:
    """The command of a row; one of ours keeps its records in ``store``."""
    if row.who == TORCH:
        return [sys.executable, "-c", TORCH]
    seeds = ["--seeds", str(row.seeds)]
    if row.who in SCRIPTS:
        python = sys.executable if row.who == "plain" else str(PEER_PYTHON)
        more = {"plain": ["--method", row.method], "mammoth": [str(MAMMOTH)]}.get(row.who, [])
        arrays = str(dataset_path("mnist") / "arrays")
        return [python, "-W", "ignore", str(PEERS / SCRIPTS[row.who]), arrays, *more, *seeds]
    engine = "auto" if row.who == "default" or row.method == "grid" else "eager"
    options = ["--device", "cpu", "--engine", engine, "--store", str(store)]
    return [sys.executable, "-m", "cclfp", "run", *JOBS[row.method].split(), *seeds, *options]


def _read(store: Path) -> dict[str, Any]:
    """What the records of a command say."""
    records = Store(store).records()
    seconds = sum(record["train_seconds"] for record in records)
    return {
        "steps": STEPS * len(records),
        "steps_per_second": STEPS * len(records) / seconds,
        "average_accuracy": statistics.mean(record["average_accuracy"] or 0.0 for record in records),
        "engines": sorted({record["environment"]["engine"] for record in records}),
    }


def _time(command: list[str], cores: int, environment: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Seconds and peak memory of a command on so many cores, and what it printed."""
    some = sorted(os.sched_getaffinity(0))[:cores]
    if len(some) < cores:
        raise SystemExit(f"{cores} cores are needed: leave out --suite first-run, or choose another machine")
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=printed, stderr=errors, preexec_fn=lambda: os.sched_setaffinity(0, some)
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (printed, errors):
            file.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)} failed: {errors.read()}")
        share = (used.ru_utime + used.ru_stime) / seconds / cores
        return {"seconds": seconds, "cpu_share": share, "memory_bytes": used.ru_maxrss * 1024}, printed.read()


def _commit(tree: Path | None) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
