"""The paper's three tables: their cells, each with the published number and the configuration that gives ours."""

from __future__ import annotations

import csv
import dataclasses
import functools
from importlib import resources
from typing import NamedTuple

from cclfp.errors import unknown
from cclfp.methods import METHODS
from cclfp.runs.configuration import Configuration
from cclfp.runs.problem import MEMORY, Problem
from cclfp.runs.settings import find_preset, make_one

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


class Published(NamedTuple):
    """An average accuracy of the paper, in percent."""

    mean: float
    std: float | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table and the configuration of our runs: the method's preset, changed by ``settings``.

    ``row`` is the row's label in the paper; in the ablation, which has check marks, the components that are checked
    (see ``VARIANTS``). ``buffer`` is None for a method without a memory.
    """

    table: str
    row: str
    benchmark: str
    scenario: str
    method: str
    buffer: int | None
    settings: tuple[tuple[str, float], ...]
    published: Published

    def configuration(self) -> Configuration:
        memory = MEMORY if self.buffer is None else self.buffer
        return make_one(
            self.method, Problem(self.benchmark, scenario=self.scenario, memory=memory), dict(self.settings)
        )

    def key(self, seed: int) -> str:
        """The key of the cell's run with this seed."""
        return self.configuration().key(seed)

    @property
    def has_preset(self) -> bool:
        """Whether its hyperparameters were chosen for the benchmark and scenario; else they are the defaults."""
        return find_preset(self.method, self.benchmark, self.scenario) is not None

    @property
    def chosen(self) -> str:
        """Where its hyperparameters come from."""
        return "preset" if self.has_preset else "defaults"


@functools.cache
def _cells() -> dict[str, list[Cell]]:
    with resources.files(__package__).joinpath("published.csv").open(encoding="utf-8") as file:
        found = [_cell(row) for row in csv.DictReader(file)]
    by_table: dict[str, list[Cell]] = {table: [] for table in TABLES}
    for cell in found:
        by_table[cell.table].append(cell)
    for table, several in by_table.items():
        labels = VARIANTS if table == "ablation" else tuple(LABELS.values())
        several.sort(
            key=lambda c: (
                c.buffer or 0 if c.table == "buffer" else 0,
                labels.index(c.row),
                COLUMNS[c.table].index((c.benchmark, c.scenario)),
            )
        )
    return by_table


def _cell(row: dict[str, str]) -> Cell:
    method, label, settings = row["method"], LABELS[row["method"]], dict[str, float]()
    if row["table"] == "ablation":
        label = ", ".join(component for component, name in COMPONENTS.items() if row[name] == "1") or "none"
        method, settings = "ccl-fp+", {name: 0.0 for name in COMPONENTS.values() if row[name] != "1"}
    return Cell(
        table=row["table"],
        row=label,
        benchmark=row["benchmark"],
        scenario=row["scenario"],
        method=method,
        buffer=int(row["buffer"]) if METHODS[method].schedule is not None else None,
        settings=tuple(settings.items()),
        published=Published(float(row["mean"]), float(row["std"]) if row["std"] else None),
    )


def cells(table: str) -> list[Cell]:
    """The cells of a table that have a number, row by row in the paper's order; its buffer table goes by size first.

    >>> len(cells("accuracy")), len(cells("buffer")), len(cells("ablation"))
    (116, 60, 40)
    """
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    return list(_cells()[table])


def columns(table: str) -> list[tuple[str, str]]:
    """The benchmark and scenario of each column, in the paper's order."""
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    return list(COLUMNS[table])


def rows(table: str) -> list[str]:
    """The labels of the rows, in the paper's order; the buffer table has them once for each size.

    >>> rows("buffer")
    ['ER-Res.', 'HAL', 'CCL-FP+']
    """
    return list(dict.fromkeys(cell.row for cell in cells(table)))


@functools.cache
def _numbers() -> dict[tuple[str, str, str, int], Published]:
    return {
        (cell.method, cell.benchmark, cell.scenario, cell.buffer or 200): cell.published
        for table in ("accuracy", "buffer")
        for cell in cells(table)
    }


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
