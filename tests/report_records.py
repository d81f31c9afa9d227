"""Made-up runs of the paper's cells, for tests of the report."""

from __future__ import annotations

import contextlib
import csv
import io
import random
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from records import made_up

from cclfp.paper import TABLES, TIMING_SEED, Cell, cells, run_time_cells
from cclfp.runs.record import Record, to_row
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark

ENVIRONMENT = {
    "engine": "eager",
    "together": 1,
    "precision": "float32",
    "threads": 1,
    "device": "cpu",
    "cclfp": "0.1.0",
    "torch": "2.13.0",
    "source": "0123456789abcdef",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "device_name": "A made-up processor for tests",
    "platform": "Linux-test",
}


def made_up_record(cell: Cell, seed: int, environment: dict[str, Any] | None = None) -> Any:
    """A made-up run: its accuracies scatter around the published one, and it forgets."""
    configuration, benchmark = cell.configuration(), get_benchmark(cell.benchmark)
    rng = random.Random(f"{cell.method} {cell.benchmark} {cell.scenario} {cell.buffer} {cell.settings} {seed}")
    tasks, end = benchmark.num_tasks or 0, rng.gauss(cell.published.mean, cell.published.std or 0.5)
    start = min(99.0, end + 25)
    matrix: list[list[float | None]] = [[None] * tasks for _ in range(tasks + 1)]
    for t in range(1, tasks + 1):
        for task in range(t):
            drop = (start - end) * (t - task - 1) / max(1, tasks - 1)
            matrix[t][task] = max(0.0, min(100.0, start - drop - (start - end) * 0.5 * t / tasks + rng.gauss(0, 0.4)))
    if cell.method == "joint":
        matrix[1:-1] = [[None] * tasks for _ in range(tasks - 1)]
    last = [accuracy or 0.0 for accuracy in matrix[-1]]
    matrix[-1] = [max(0.0, min(100.0, accuracy + end - sum(last) / tasks)) for accuracy in last]
    slow = {"hal": 5.0, "gem": 4.0, "ccl-fp+": 2.0, "ccl-fp": 1.7}.get(cell.method, 1.0)
    train, test = slow * (10 + rng.random()), 1 + rng.random()
    made = made_up(configuration, seed, matrix, train, test, **(ENVIRONMENT if environment is None else environment))
    return made | {"finished_at": "2026-01-02T03:04:05+00:00"}


def add_all(store: Store, records: Iterable[Record]) -> None:
    """Add many records in one transaction, which is faster than ``store.add``."""
    rows = [to_row(record) for record in records]
    marks = ", ".join(f":{name}" for name in rows[0])
    with contextlib.closing(sqlite3.connect(store.path)) as database, database:
        database.executemany(f"INSERT OR REPLACE INTO runs ({', '.join(rows[0])}) VALUES ({marks})", rows)


def full_store(path: Path, seeds: Sequence[int] = range(5)) -> Store:
    """A store with made-up runs of every cell and of every bar of the run-time figure."""
    store = Store(path)
    records = [made_up_record(cell, seed) for table in TABLES for cell in cells(table) for seed in seeds]
    records += [made_up_record(cell, TIMING_SEED) for cell in run_time_cells()]
    add_all(
        store, {record["key"]: record for record in reversed(records)}.values()
    )  # cells that tables share occur once
    return store


def cell_of(table: str, row: str, benchmark: str, scenario: str, buffer: int | None = 200) -> Cell:
    wanted = (row, benchmark, scenario, buffer)
    (cell,) = [c for c in cells(table) if (c.row, c.benchmark, c.scenario, c.buffer) == wanted]
    return cell


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
