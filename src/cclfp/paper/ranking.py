"""Which method is the best of a column of one's own, and which of the others are worse beyond chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cclfp import metrics

FEWEST = 5  # common seeds for a claim about a difference
LEVEL = 0.05
TEST = (
    "p: two-sided paired t-test against the best, over the seeds that both have, with Holm's correction for the number "
    f"of comparisons; no claim with fewer than {FEWEST} such seeds"
)


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a row stands in its column.

    ``difference`` is the mean difference from the best over ``common`` seeds and ``std`` its standard deviation; ``p``
    is None for the best itself and where there are too few seeds.
    """

    best: bool = False
    difference: float | None = None
    std: float | None = None
    common: int = 0
    p: float | None = None

    @property
    def verdict(self) -> str:
        """``"best"``, ``"worse"``, ``"similar"`` (no difference beyond chance), or ``"unknown"``."""
        if self.best:
            return "best"
        return "unknown" if self.p is None else "worse" if self.p < LEVEL else "similar"


def rank(column: Sequence[Mapping[int, float]], candidates: Sequence[bool] | None = None) -> list[Standing]:
    """The standing of each row of a column, whose rows are accuracies by seed.

    Rows that are no ``candidates``, such as an upper bound, are never the best and not compared. A column with one
    candidate has no best.

    >>> ours, theirs = {s: 90.0 + s for s in range(5)}, {s: 80.0 + s * s / 4 for s in range(5)}
    >>> [standing.verdict for standing in rank([theirs, ours, {0: 89.0}])]
    ['worse', 'best', 'unknown']
    """
    allowed = [bool(row) for row in column] if candidates is None else list(candidates)
    means = [sum(row.values()) / len(row) if row and fine else None for row, fine in zip(column, allowed, strict=True)]
    known = [mean for mean in means if mean is not None]
    if len(known) < 2:
        return [Standing() for _ in column]
    best = means.index(max(known))
    found = [Standing(best=i == best) if mean is not None else Standing() for i, mean in enumerate(means)]
    pairs: dict[int, list[float]] = {}
    for i, row in enumerate(column):
        differences = [row[seed] - column[best][seed] for seed in row if seed in column[best]]
        if i == best or means[i] is None or not differences:
            continue
        summary = metrics.mean_std(differences)
        found[i] = Standing(False, summary["mean"], summary["std"], len(differences))
        if len(differences) >= FEWEST:
            pairs[i] = differences
    corrected = metrics.holm([metrics.paired_t_test(differences) for differences in pairs.values()])
    for i, p in zip(pairs, corrected, strict=True):
        found[i] = dataclasses.replace(found[i], p=p)
    return found


def show_p(p: float | None) -> str:
    """
    >>> show_p(0.0321), show_p(0.0000321), show_p(None)
    ('0.032', '< 0.001', '–')
    """
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
