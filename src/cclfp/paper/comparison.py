"""Our runs of the paper's cells, from a store, and how they compare with what was published."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cclfp import metrics
from cclfp.paper.tables import COMPONENTS, Cell
from cclfp.runs.record import Record
from cclfp.runs.seeds import Seeds
from cclfp.runs.store import Store

WITHIN = 2  # standard deviations
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Average accuracy of ``n`` runs beside the published one; None where there are too few for a number.

    The mean and all that follows from it are of the runs that did not diverge, unless these are included.
    ``verdict`` is "within" two published standard deviations of the published mean (two of our own where the paper
    gives none, as in the ablation), "above" or "below"; None where there are too few numbers to tell.
    """

    cell: Cell
    n: int
    mean: float | None
    std: float | None
    difference: float | None
    verdict: str | None
    seeds: Seeds

    def text(self, between: str = ", ") -> str:
        """Our number, and how many seeds diverged."""
        return self.seeds.text("average_accuracy", between)


def compare(cell: Cell, records: Sequence[Record], include_diverged: bool = False) -> Comparison:
    seeds = Seeds(records, include_diverged)
    ours = seeds.mean_std("average_accuracy")
    mean, std = ours["mean"], ours["std"]
    difference = None if mean is None else mean - cell.published.mean
    spread = std if cell.published.std is None else cell.published.std
    verdict = None
    if difference is not None and spread is not None:
        outside = "above" if difference > 0 else "below"
        verdict = "within" if abs(difference) <= WITHIN * spread + ROUNDING else outside
    return Comparison(cell, len(records), mean, std, difference, verdict, seeds)


def gather(cells: Iterable[Cell], store: Store, seeds: Sequence[int] = range(5)) -> dict[Cell, list[Record]]:
    """The records that the store has of each cell, in the order of the seeds."""
    found = {}
    for cell in cells:
        configuration = cell.configuration()
        stored = (store.find(configuration.key(seed)) for seed in seeds)
        found[cell] = [record for record in stored if record is not None]
    return found


class Change(NamedTuple):
    """Of average accuracy, from one row to another: mean and standard deviation over the seeds that both have."""

    mean: float
    std: float | None


@dataclasses.dataclass(frozen=True)
class Effects:
    """What each component of CCL-FP+ is worth in a column of the ablation; None where a number is missing.

    ``without`` is how the accuracy changes when it alone is taken out of the whole method, ``alone`` when it alone is
    added to none.
    """

    without: dict[str, Change | None]
    alone: dict[str, Change | None]

    @property
    def most(self) -> str | None:
        """The component that is missed most when it alone is taken out; None if one is not known, or none is missed."""
        known = {component: change.mean for component, change in self.without.items() if change is not None}
        if len(known) < len(COMPONENTS) or min(known.values()) >= 0:
            return None
        return min(known, key=lambda component: known[component])


def effects(accuracies: Mapping[str, Mapping[int, float]]) -> Effects:
    """From a column's average accuracies, by row and seed.

    >>> column = {"none": 70.0, "w": 75.0, "α, β": 72.0, "w, β": 79.0, "w, α": 80.5, "w, α, β": 80.0}
    >>> found = effects({row: {0: accuracy, 1: accuracy + 1} for row, accuracy in column.items()})
    >>> found.without["w"], found.most
    (Change(mean=-8.0, std=0.0), 'w')
    >>> found.alone
    {'w': Change(mean=5.0, std=0.0), 'α': None, 'β': None}
    """

    def change(before: str, after: str) -> Change | None:
        a, b = accuracies.get(before, {}), accuracies.get(after, {})
        found = metrics.mean_std([b[seed] - a[seed] for seed in a if seed in b])
        return None if found["mean"] is None else Change(found["mean"], found["std"])

    others = {component: ", ".join(c for c in COMPONENTS if c != component) for component in COMPONENTS}
    return Effects(
        without={component: change(", ".join(COMPONENTS), rest) for component, rest in others.items()},
        alone={component: change("none", component) for component in COMPONENTS},
    )
