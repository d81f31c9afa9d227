"""The paper's figures and their panels. The data behind them were not published, so ours stand alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cclfp.methods import METHODS
from cclfp.paper.tables import Cell, cells
from cclfp.runs.store import Store

TIMING_SEED = 200  # the seed of runs that are made to measure time; neither the tables nor tuning use it
COMPARABLE = ("device_name", "engine", "precision", "threads")  # what times must share to stand side by side


Timing = Mapping[str, Any]  # the record of a run that was made for its time


class FigurePanel(NamedTuple):
    benchmark: str
    scenario: str
    methods: list[str]


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    title: str
    panels: list[FigurePanel]


def figures() -> list[Figure]:
    """Evolution and forgetting are of the methods that see one task after the other, run time of all of them.

    The paper does not say in which scenario it took the time; here it is the first of each benchmark.

    >>> [(figure.name, len(figure.panels)) for figure in figures()]
    [('evolution', 6), ('forgetting', 3), ('runtime', 3)]
    """
    return [
        Figure(
            "evolution",
            "Average accuracy on all tasks seen so far",
            [
                _panel("split-cifar10", "class"),
                _panel("split-cifar10", "task"),
                _panel("split-cifar100", "class"),
                _panel("split-cifar100", "task"),
                _panel("permuted-mnist", "domain"),
                _panel("rotated-mnist", "domain"),
            ],
        ),
        Figure(
            "forgetting",
            "Average forgetting by the end of training",
            [_panel("split-mnist", "class"), _panel("split-cifar10", "task"), _panel("rotated-mnist", "domain")],
        ),
        Figure(
            "runtime",
            "Run time, training and testing",
            [
                _panel("split-cifar10", "class", joint=True),
                _panel("split-tiny-imagenet", "class", joint=True),
                _panel("rotated-mnist", "domain", joint=True),
            ],
        ),
    ]


def _panel(benchmark: str, scenario: str, joint: bool = False) -> FigurePanel:
    methods = [m.name for m in METHODS.values() if scenario in m.scenarios() and (joint or not m.joint)]
    return FigurePanel(benchmark, scenario, methods)


def run_time_cells() -> list[Cell]:
    """The cells of the accuracy table whose time the run-time figure shows, panel by panel."""
    (figure,) = [figure for figure in figures() if figure.name == "runtime"]
    by_place = {(cell.benchmark, cell.scenario, cell.method): cell for cell in cells("accuracy")}
    return [by_place[panel.benchmark, panel.scenario, method] for panel in figure.panels for method in panel.methods]


def gather_timings(cells: Iterable[Cell], store: Store) -> dict[Cell, Timing]:
    """The timing run of each cell, where there is one that was trained alone.

    The seconds of runs that were trained together are shares of the total.
    """
    stored = ((cell, store.find(cell.key(TIMING_SEED))) for cell in cells)
    return {cell: dict(r) for cell, r in stored if r is not None and r["environment"].get("together") == 1}


def largest_comparable_group(timings: Mapping[Cell, Timing]) -> dict[Cell, Timing]:
    """The timings that were made under the same conditions; the largest group where there are several."""
    groups: dict[str, dict[Cell, Timing]] = {}
    for cell, record in timings.items():
        groups.setdefault(describe_conditions(record), {})[cell] = record
    return max(groups.values(), key=len, default={})


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
