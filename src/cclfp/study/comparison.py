"""Our runs of the paper's cells, from a store, and how they compare with what was published."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cclfp import metrics
from cclfp.store import Record, Store
from cclfp.study.tables import Cell, cells

WITHIN = 2  # standard deviations
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Average accuracy over ``n`` seeds beside the published one; None where there are too few for a number.

    ``verdict`` is "within" two published standard deviations of the published mean (two of our own where the paper
    gives none, as in the ablation), "above" or "below"; None where that cannot be said.
    """

    cell: Cell
    n: int
    mean: float | None
    std: float | None
    difference: float | None
    verdict: str | None


def compare(cell: Cell, records: Sequence[Record]) -> Comparison:
    ours = metrics.mean_std([record["average_accuracy"] for record in records])
    mean, std = ours["mean"], ours["std"]
    difference = None if mean is None else mean - cell.published.mean
    spread = std if cell.published.std is None else cell.published.std
    verdict = None
    if difference is not None and spread is not None:
        outside = "above" if difference > 0 else "below"
        verdict = "within" if abs(difference) <= WITHIN * spread + ROUNDING else outside
    return Comparison(cell, len(records), mean, std, difference, verdict)


def gather(table: str, store: Store, seeds: Sequence[int] = range(5)) -> dict[Cell, list[Record]]:
    """The records in the store of each cell of a table, in the order of the seeds: those that are there."""
    found = {}
    for cell in cells(table):
        configuration = cell.configuration()
        stored = (store.find(configuration.key(seed)) for seed in seeds)
        found[cell] = [record for record in stored if record is not None]
    return found
