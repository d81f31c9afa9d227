"""The report: what it says of the runs in a store, and the files it writes."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cclfp import metrics
from cclfp.store import JSON_COLUMNS, Record, Store
from cclfp.streams import get_benchmark
from cclfp.study import TABLES, Cell, cells

ENVIRONMENT = {
    "engine": "eager",
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


def made_up_record(cell: Cell, seed: int, environment: dict[str, Any] | None = None) -> Record:
    """A run that never was: accuracies scattered around the published one, forgetting on the way."""
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
    matrix[-1] = [accuracy + end - sum(last) / tasks for accuracy in last]
    slow = {"hal": 5.0, "gem": 4.0, "ccl-fp+": 2.0, "ccl-fp": 1.7}.get(cell.method, 1.0)
    train, test = slow * (10 + rng.random()), 1 + rng.random()
    return {
        "key": configuration.key(seed),
        "method": configuration.method,
        "benchmark": configuration.benchmark,
        "scenario": configuration.scenario,
        "buffer": configuration.buffer,
        "seed": seed,
        "configuration": configuration.to_dict(),
        "average_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
        "backward_transfer": None,
        "forward_transfer": None,
        "accuracy_matrix": matrix,
        "seconds": train + test,
        "train_seconds": train,
        "test_seconds": test,
        "environment": ENVIRONMENT if environment is None else environment,
        "finished_at": "2026-01-02T03:04:05+00:00",
    }


def add_all(store: Store, records: Iterable[Record]) -> None:
    """As ``store.add`` does, in one transaction: many at once."""
    rows = [{k: json.dumps(v) if k in JSON_COLUMNS else v for k, v in record.items()} for record in records]
    marks = ", ".join(f":{name}" for name in rows[0])
    with contextlib.closing(sqlite3.connect(store.path)) as database, database:
        database.executemany(f"INSERT OR REPLACE INTO runs ({', '.join(rows[0])}) VALUES ({marks})", rows)


def full_store(path: Path, seeds: Sequence[int] = range(5)) -> Store:
    """A store with made-up runs of every cell."""
    store = Store(path)
    add_all(store, [made_up_record(cell, seed) for table in TABLES for cell in cells(table) for seed in seeds])
    return store
