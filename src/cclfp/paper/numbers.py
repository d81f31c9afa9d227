"""The numbers that the paper published, and what its tables and figures show: the cells, each a result without runs."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from cclfp.errors import unknown
from cclfp.methods import METHODS
from cclfp.runs.configuration import Configuration
from cclfp.runs.problem import MEMORY, Problem
from cclfp.runs.results import DEFAULTS, Published, Result
from cclfp.runs.settings import find_preset, make_one
from cclfp.runs.store import Store

TABLES = {
    "accuracy": "Average accuracy by the end of training",
    "buffer": "Average accuracy with memories of several sizes",
    "ablation": "Average accuracy with and without each component of CCL-FP+",
}
# The methods as the paper's rows call them.
LABELS = {
    "joint": "Joint",
    "finetune": "Finetune",
    "si": "SI",
    "lwf": "LwF",
    "er": "ER-Res.",
    "gem": "GEM",
    "a-gem": "A-GEM",
    "icarl": "iCaRL",
    "fdr": "FDR",
    "hal": "HAL",
    "ccl-fp": "CCL-FP",
    "ccl-fp+": "CCL-FP+",
}
# The ablation's components, as its rows name them: propagation w, L_cl α, L_scl β. All rows are CCL-FP+ with its preset
# and the weights of the missing components at 0, so that nothing else differs. With none of them it is ER, without β it
# is CCL-FP; for these the paper prints the numbers it has for the methods.
COMPONENTS = {"w": "w", "α": "alpha", "β": "beta"}
VARIANTS = ("none", "w", "α", "β", "w, α", "w, β", "α, β", "w, α, β")
COLUMNS = {
    "accuracy": [
        ("split-mnist", "class"),
        ("split-mnist", "task"),
        ("split-cifar10", "class"),
        ("split-cifar10", "task"),
        ("permuted-mnist", "domain"),
        ("split-cifar100", "class"),
        ("split-cifar100", "task"),
        ("split-tiny-imagenet", "class"),
        ("split-tiny-imagenet", "task"),
        ("rotated-mnist", "domain"),
    ],
    "buffer": [
        ("split-cifar10", "class"),
        ("split-cifar10", "task"),
        ("split-cifar100", "class"),
        ("split-cifar100", "task"),
        ("rotated-mnist", "domain"),
    ],
    "ablation": [
        ("split-mnist", "class"),
        ("split-mnist", "task"),
        ("split-cifar10", "class"),
        ("split-cifar10", "task"),
        ("rotated-mnist", "domain"),
    ],
}
FIGURES = {
    "evolution": "Average accuracy on all tasks seen so far",
    "forgetting": "Average forgetting by the end of training",
    "runtime": "Run time, training and testing",
}
# The panels of each figure. The paper does not say in which scenario it took the time: the first of each benchmark.
PANELS = {
    "evolution": [
        ("split-cifar10", "class"),
        ("split-cifar10", "task"),
        ("split-cifar100", "class"),
        ("split-cifar100", "task"),
        ("permuted-mnist", "domain"),
        ("rotated-mnist", "domain"),
    ],
    "forgetting": [("split-mnist", "class"), ("split-cifar10", "task"), ("rotated-mnist", "domain")],
    "runtime": [("split-cifar10", "class"), ("split-tiny-imagenet", "class"), ("rotated-mnist", "domain")],
}
TIMING_SEED = 200  # the seed of runs that are made to measure time; neither the tables nor tuning use it
COMPARABLE = ("device_name", "engine", "precision", "threads")  # what times must share to stand side by side

Timing = Mapping[str, Any]  # the record of a run that was made for its time


class _Line(NamedTuple):
    """A line of published.csv: a number and its place in a table."""

    table: str
    row: str
    benchmark: str
    scenario: str
    method: str
    buffer: int | None
    settings: dict[str, float]
    number: Published


@functools.cache
def _lines() -> dict[str, list[_Line]]:
    """The numbers of each table, row by row in the paper's order; its buffer table goes by size first."""
    with resources.files(__package__).joinpath("published.csv").open(encoding="utf-8") as file:
        found = [_line(values) for values in csv.DictReader(file)]
    by_table: dict[str, list[_Line]] = {table: [] for table in TABLES}
    for line in found:
        by_table[line.table].append(line)
    for table, several in by_table.items():
        labels = list(VARIANTS) if table == "ablation" else list(LABELS.values())
        places = COLUMNS[table]
        several.sort(
            key=lambda line: (
                line.buffer or 0 if line.table == "buffer" else 0,
                labels.index(line.row),
                places.index((line.benchmark, line.scenario)),
            )
        )
    return by_table


def _line(values: dict[str, str]) -> _Line:
    method, label, settings = values["method"], LABELS[values["method"]], dict[str, float]()
    if values["table"] == "ablation":
        label = ", ".join(component for component, name in COMPONENTS.items() if values[name] == "1") or "none"
        method, settings = "ccl-fp+", {name: 0.0 for name in COMPONENTS.values() if values[name] != "1"}
    buffer = int(values["buffer"]) if METHODS[method].schedule is not None else None
    number = Published(float(values["mean"]), float(values["std"]) if values["std"] else None)
    return _Line(values["table"], label, values["benchmark"], values["scenario"], method, buffer, settings, number)


def cells(table: str) -> list[Result]:
    """The cells of a table that have a number, row by row in the paper's order; its buffer table goes by size first.

    Each has the configuration of our runs: the method's preset, in the ablation with the missing components at 0.

    >>> len(cells("accuracy")), len(cells("buffer")), len(cells("ablation"))
    (116, 60, 40)
    """
    _check(table)
    return [_cell(line) for line in _lines()[table]]


def _cell(line: _Line) -> Result:
    memory = MEMORY if line.buffer is None else line.buffer
    problem = Problem(line.benchmark, scenario=line.scenario, memory=memory)
    is_tuned = find_preset(line.method, line.benchmark, line.scenario) is not None
    configuration = make_one(line.method, problem, line.settings)
    return Result(configuration, [], line.row, line.number, "preset" if is_tuned else DEFAULTS, table=line.table)


def missing_components(cell: Result) -> dict[str, float]:
    """The settings by which a row of the ablation differs from CCL-FP+'s preset; none in other tables."""
    if cell.table != "ablation":
        return {}
    return {name: 0.0 for component, name in COMPONENTS.items() if component not in cell.label.split(", ")}


def columns(table: str) -> list[tuple[str, str]]:
    """The benchmark and scenario of each column, in the paper's order."""
    _check(table)
    return list(COLUMNS[table])


def rows(table: str) -> list[str]:
    """The labels of the rows, in the paper's order; the buffer table has them once for each size.

    >>> rows("buffer")
    ['ER-Res.', 'HAL', 'CCL-FP+']
    """
    _check(table)
    return list(dict.fromkeys(line.row for line in _lines()[table]))


def _check(table: str) -> None:
    if table not in TABLES:
        raise unknown("table", table, TABLES)


@functools.cache
def _numbers() -> dict[tuple[str, str, str, int], Published]:
    lines = [*_lines()["accuracy"], *_lines()["buffer"]]
    return {(line.method, line.benchmark, line.scenario, line.buffer or 200): line.number for line in lines}


def published(method: str, benchmark: str, scenario: str, buffer: int | None) -> Published | None:
    """What the paper reports for a method on a benchmark; None where it reports nothing.

    Methods without a memory (``buffer=None``) stand in its tables beside those with 200 examples.

    >>> published("ccl-fp+", "split-mnist", "class", 200)
    Published(mean=89.16, std=1.14)
    """
    return _numbers().get((method, benchmark, scenario, 200 if buffer is None else buffer))


def published_for(configuration: Configuration) -> Published | None:
    """What the paper reports for a configuration; None where it reports nothing, or follows another protocol."""
    c = configuration
    return published(c.method, c.benchmark, c.scenario, c.buffer) if c.is_papers_protocol else None


# Run times ------------------------------------------------------------------------------------------------------------


def run_time_cells() -> list[Result]:
    """The cells of the accuracy table whose time the run-time figure shows, panel by panel."""
    accuracy = cells("accuracy")
    return [cell for place in PANELS["runtime"] for cell in accuracy if cell.column == place]


def gather_timings(cells: Sequence[Result], store: Store) -> list[Timing | None]:
    """The timing run of each cell, where there is one that was trained alone.

    The seconds of runs that were trained together are shares of the total.
    """
    stored = [store.find(cell.key(TIMING_SEED)) for cell in cells]
    return [dict(r) if r is not None and r["environment"].get("together") == 1 else None for r in stored]


def largest_comparable_group(timings: Sequence[Timing | None]) -> list[Timing | None]:
    """The timings that were made under the same conditions, the others None; the largest group of several."""
    made = [None if timing is None else describe_conditions(timing) for timing in timings]
    known = [conditions for conditions in made if conditions is not None]
    most = max(dict.fromkeys(known), key=known.count, default=None)
    return [timing if conditions == most else None for timing, conditions in zip(timings, made, strict=True)]


def describe_conditions(record: Timing) -> str:
    """What a run's time depends on: ``A processor, eager engine, float32, 1 thread``."""
    device, engine, precision, threads = (record["environment"].get(name) for name in COMPARABLE)
    return ", ".join(
        [
            device or "unknown device",
            f"{engine or 'unknown'} engine",
            precision or "unknown precision",
            "unknown threads" if threads is None else f"{threads} thread{'s' * (threads != 1)}",
        ]
    )
