"""The numbers that the paper published, and what its tables and figures show: the cells, each a result without runs."""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from cclfp.errors import unknown
from cclfp.methods import METHODS
from cclfp.metrics import count_of
from cclfp.runs.configuration import Configuration
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.results import DEFAULTS, Published, Result
from cclfp.runs.settings import find_preset, make_one

TABLES = {
    "accuracy": "Average accuracy by the end of training",
    "buffer": "Average accuracy with memories of several sizes",
    "ablation": "Average accuracy with and without each component of CCL-FP+",
}
# The methods as the paper's rows call them.
LABELS = {name: name.upper() for name in METHODS}
LABELS |= {"joint": "Joint", "finetune": "Finetune", "lwf": "LwF", "er": "ER-Res.", "icarl": "iCaRL"}
# The ablation's components, as its rows name them: propagation w, L_cl α, L_scl β. All rows are CCL-FP+ with its preset
# and the weights of the missing components at 0, so that nothing else differs. With none of them it is ER, without β it
# is CCL-FP; for these the paper prints the numbers it has for the methods.
COMPONENTS = {"w": "w", "α": "alpha", "β": "beta"}
FIGURES = {
    "evolution": "Average accuracy on all tasks seen so far",
    "forgetting": "Average forgetting by the end of training",
    "runtime": "Run time, training and testing",
}
# The panels of each figure. The paper does not say in which scenario it took the time: the first of each benchmark.
PANELS = {
    "evolution": [(f"split-{name}", scenario) for name in ("cifar10", "cifar100") for scenario in ("class", "task")]
    + [("permuted-mnist", "domain"), ("rotated-mnist", "domain")],
    "forgetting": [("split-mnist", "class"), ("split-cifar10", "task"), ("rotated-mnist", "domain")],
    "runtime": [("split-cifar10", "class"), ("split-tiny-imagenet", "class"), ("rotated-mnist", "domain")],
}
TIMING_SEED = 200  # the seed of runs that are made to measure time; neither the tables nor tuning use it

Line = dict[str, str]  # a line of published.csv: a number and its place in a table


@functools.cache
def _lines(table: str) -> list[Line]:
    """The lines of a table: its rows, from the left to the right, in the paper's order."""
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    with resources.files(__package__).joinpath("published.csv").open(encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if line["table"] == table]


def _number(line: Line) -> Published:
    return Published(float(line["mean"]), float(line["std"]) if line["std"] else None)


def cells(table: str) -> list[Result]:
    """The cells of a table that have a number, row by row in the paper's order; the buffer table is sorted by size.

    Each has the configuration of our runs: the method's preset, in the ablation with the missing components at 0.

    >>> len(cells("accuracy")), len(cells("buffer")), len(cells("ablation"))
    (116, 60, 40)
    """
    found = []
    for line in _lines(table):
        label = LABELS[line["method"]]
        if table == "ablation":
            label = ", ".join(component for component, name in COMPONENTS.items() if line[name] == "1") or "none"
        without = {name: 0.0 for name in COMPONENTS.values() if line[name] == "0"}
        problem = Problem(line["benchmark"], scenario=line["scenario"], memory=int(line["buffer"]))
        c = make_one(line["method"], problem, without)
        found.append(Result(c, [], label, _number(line), origin(c), table=table))
    return found


def origin(c: Configuration) -> str:
    """Where a method's settings come from, if nobody tuned them or set them."""
    return DEFAULTS if find_preset(c.method, c.benchmark, c.scenario) is None else "preset"


def missing_components(cell: Result) -> dict[str, float]:
    """The settings by which a row of the ablation differs from CCL-FP+'s preset; none in other tables."""
    names = COMPONENTS.values() if cell.table == "ablation" else ()
    return {name: 0.0 for name in names if cell.configuration.hyperparameters[name] == 0}


def published(method: str, benchmark: str, scenario: str, buffer: int | None) -> Published | None:
    """What the paper reports for a method on a benchmark; None where it reports nothing.

    Methods without a memory (``buffer=None``) stand in its tables beside those with 200 examples.

    >>> published("ccl-fp+", "split-mnist", "class", 200)
    Published(mean=89.16, std=1.14)
    """
    place = {"method": method, "benchmark": benchmark, "scenario": scenario}
    place["buffer"] = str(200 if buffer is None else buffer)
    lines = [*_lines("accuracy"), *_lines("buffer")]
    return next((_number(line) for line in lines if place.items() <= line.items()), None)


def published_for(configuration: Configuration) -> Published | None:
    """What the paper reports for a configuration; None if it reports nothing, or if the protocol is not the paper's."""
    c = configuration
    return published(c.method, c.benchmark, c.scenario, c.buffer) if c.is_papers_protocol else None


# Run times ------------------------------------------------------------------------------------------------------------


def run_time_cells() -> list[Result]:
    """The cells of the accuracy table whose time the run-time figure shows, panel by panel."""
    accuracy = cells("accuracy")
    return [cell for place in PANELS["runtime"] for cell in accuracy if cell.column == place]


def gather_timings(cells: Sequence[Result], find: Callable[[str], Record | None]) -> list[Result]:
    """The cells with the run that was made for its time. A run that trained with others does not count."""
    timed = [cell.find_runs(find, [TIMING_SEED]) for cell in cells]
    return [
        dataclasses.replace(r, runs=[run for run in r.runs if run["environment"].get("together") == 1]) for r in timed
    ]


def comparable(timed: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Per benchmark the conditions under which most runs were timed, and the results, without runs timed otherwise."""
    found = []
    for _, several in itertools.groupby(timed, lambda result: result.column):
        results = list(several)
        made = [describe_conditions(run["environment"]) for result in results for run in result.runs]
        most = max(dict.fromkeys(made), key=made.count, default="")
        alike = [[run for run in r.runs if describe_conditions(run["environment"]) == most] for r in results]
        found.append((most, [dataclasses.replace(r, runs=runs) for r, runs in zip(results, alike, strict=True)]))
    return found


def describe_conditions(environment: Mapping[str, Any]) -> str:
    """What a run's time depends on: ``A processor, eager engine, float32, 1 thread``."""
    device, engine, precision = (environment.get(name) for name in ("device_name", "engine", "precision"))
    threads = "unknown threads" if environment.get("threads") is None else count_of(environment["threads"], "thread")
    return f"{device or 'unknown device'}, {engine or 'unknown'} engine, {precision or 'unknown precision'}, {threads}"
