"""Made-up runs of the paper's cells, for tests of the report."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from own import write_images, write_method
from records import made_up, matrix_of

from cclfp.data import import_images
from cclfp.paper import TABLES, TIMING_SEED, cells, run_time_cells
from cclfp.paper.numbers import missing_components
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations
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
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "device_name": "A made-up processor for tests",
    "platform": "Linux-test",
}


def made_up_record(cell: Result, seed: int, environment: dict[str, Any] | None = None) -> Any:
    """A made-up run: its accuracies scatter around the published one, and it forgets."""
    assert cell.published is not None
    c, settings = cell.configuration, tuple(missing_components(cell).items())
    rng = random.Random(f"{c.method} {c.benchmark} {c.scenario} {c.buffer} {settings} {seed}")
    tasks, end = get_benchmark(c.benchmark).num_tasks or 0, rng.gauss(cell.published.mean, cell.published.std or 0.5)
    matrix = matrix_of([min(100.0, rng.gauss(end, 0.4)) for _ in range(tasks)], "class")
    if c.method == "joint":
        matrix[1:-1] = [[None] * tasks for _ in range(tasks - 1)]
    made = made_up(c, seed, matrix, 10 + rng.random(), 1 + rng.random(), **(environment or ENVIRONMENT))
    return made | {"finished_at": "2026-01-02T03:04:05+00:00"}


def add_all(store: Store, records: Iterable[Record]) -> None:
    """Add many records in one transaction, which is faster than ``store.add``."""
    store.merge((f"run {record['key']}", record) for record in records)


def make_full_store(path: Path, seeds: Sequence[int] = range(5)) -> Store:
    """A store with made-up runs of every cell and of every bar of the run-time figure."""
    store = Store(path)
    records = [made_up_record(cell, seed) for table in TABLES for cell in cells(table) for seed in seeds]
    records += [made_up_record(cell, TIMING_SEED) for cell in run_time_cells()]
    add_all(store, {record["key"]: record for record in reversed(records)}.values())  # tables share some
    return store


def cell_of(table: str, row: str, benchmark: str, scenario: str, buffer: int | None = 200) -> Result:
    wanted = (row, benchmark, scenario, buffer)
    (cell,) = [c for c in cells(table) if (c.label, *c.column, c.configuration.buffer) == wanted]
    return cell


def record_of(cell: Result, seed: int, accuracy: float, made: dict[str, Any] = ENVIRONMENT, **changes: Any) -> Any:
    """A run with this accuracy on every task at the end, of the cell's configuration with these changes."""
    c = dataclasses.replace(cell.configuration, **changes)
    last = [accuracy] * (get_benchmark(c.benchmark).num_tasks or 0)
    return made_up(c, seed, matrix_of(last, c.scenario), **made)


def diverged_record(cell: Result, seed: int) -> Any:
    """A run whose weights were not finite after the second task."""
    return record_of(cell, seed, 9.8) | {"diverged": 2}


def uneven_store(full: Store, path: Path) -> Store:
    """All cells, but of Split MNIST, class, GEM is missing, HAL has three seeds, and others diverged.

    Seeds 1 and 3 of ER did, all of FDR, and seed 0 of two rows of the ablation.
    """
    shutil.copy(full.path, path)
    store = Store(path)
    bad = {("accuracy", "ER-Res."): (1, 3), ("accuracy", "FDR"): range(5), ("ablation", "w, α"): (0,)}
    for (table, row), seeds in {**bad, ("ablation", "w"): (0,)}.items():
        for seed in seeds:
            store.add(diverged_record(cell_of(table, row, "split-mnist", "class"), seed), replace=True)
    gem, hal = (cell_of("accuracy", row, "split-mnist", "class") for row in ("GEM", "HAL"))
    gone = {*map(gem.key, range(5)), hal.key(1), hal.key(4)}
    store.delete([row for row in store.rows() if row.key in gone])
    return store


def add_own(store: Store, method: str, benchmark: str, seeds: int = 5, level: float = 70.0, **options: Any) -> None:
    """Made-up runs of one's own, whose accuracies differ a little between seeds."""
    for c in configurations([method], benchmark, **options):
        for seed in range(seeds):
            accuracies = [level + seed + 0.1 * (len(c.method) * seed % 3)] * len(c.tasks or range(5))
            record = made_up(c, seed, matrix_of(accuracies, c.scenario), **ENVIRONMENT)
            if c.benchmark.startswith("pets"):
                record["confusion"] = [[8 + seed if i == j else 1 for j in range(4)] for i in range(4)]
            store.add(json.loads(json.dumps(record)))


def own_store(folder: Path) -> Store:
    """ER of the paper's table beside a user's method, with two memories, and both on own images."""
    store = Store(folder / "own.sqlite")
    pets, half = import_images(write_images(folder / "pets.npz")), write_method(folder / "half.py")
    add_own(store, "er", "split-mnist", level=70)
    add_own(store, half, "split-mnist", level=75)
    add_own(store, half, "split-mnist", level=77, memory=500)
    for method, level in (("er", 60.0), (half, 61.0)):
        add_own(store, method, pets, level=level, tasks=2, backbone="mlp")
    add_own(store, "er", pets, seeds=3, tasks=2, backbone="mlp", validation=True)
    return store


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
