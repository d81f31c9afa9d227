"""Comparisons: the best of a column and who is worse beyond chance, and what the components of CCL-FP+ are worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cclfp import metrics
from cclfp.paper.numbers import COMPONENTS
from cclfp.runs.results import Result, Standing

FEWEST = 5  # common seeds for a claim about a difference
TEST = (
    "p: two-sided paired t-test against the best, over the seeds that both have, with Holm's correction for the number "
    f"of comparisons; no claim with fewer than {FEWEST} such seeds"
)


def rank_results(results: Sequence[Result]) -> list[Result]:
    """The results of one column with their standings. Upper bounds are not compared, nor is a result without others."""
    column = [{} if result.is_joint else result.accuracies for result in results]
    means = {i: sum(row.values()) / len(row) for i, row in enumerate(column) if row}
    if len(means) < 2:
        return list(results)
    best = max(means, key=means.__getitem__)
    differences = [[row[seed] - column[best][seed] for seed in row if seed in column[best]] for row in column]
    tested = [i for i, several in enumerate(differences) if i != best and len(several) >= FEWEST]
    corrected = metrics.holm([metrics.paired_t_test(differences[i]) for i in tested])
    p = dict(zip(tested, corrected, strict=True))
    standings = [Standing(best=i == best) for i in range(len(column))]
    for i, several in enumerate(differences):
        if i != best and several:
            mean, std = metrics.mean_std(several).values()
            standings[i] = Standing(False, mean, std, len(several), p.get(i))
    return [dataclasses.replace(result, standing=s) for result, s in zip(results, standings, strict=True)]


def show_difference(s: Standing) -> str:
    """The difference from the best in words."""
    return "best" if s.best else metrics.signed(s.difference, s.std)


def show_p(p: float | None) -> str:
    """
    >>> show_p(0.0321), show_p(0.0000321), show_p(None)
    ('0.032', '< 0.001', '–')
    """
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def component_worths(accuracies: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
    """What each component of CCL-FP+ is worth in a column of the ablation, from average accuracies by row and seed.

    ``without`` is how the accuracy changes when it alone is taken out of the whole method, ``alone`` when it alone is
    added to none, over the seeds that both rows have. The one that is missed most matters most.

    >>> column = {"none": 70.0, "w": 75.0, "α, β": 72.0, "w, β": 79.0, "w, α": 79.5, "w, α, β": 80.0}
    >>> found = component_worths({row: {0: accuracy, 1: accuracy + 1} for row, accuracy in column.items()})
    >>> found["without w"], found["w alone"], found["α alone"], found["matters most"]
    ('−8.00 ± 0.00', '+5.00 ± 0.00', 'missing', 'w')
    """

    rows = {f"without {c}": (", ".join(COMPONENTS), ", ".join(o for o in COMPONENTS if o != c)) for c in COMPONENTS}
    rows |= {f"{c} alone": ("none", c) for c in COMPONENTS}
    shown, costs = {}, {}
    for name, (before, after) in rows.items():
        a, b = accuracies.get(before, {}), accuracies.get(after, {})
        mean, std = metrics.mean_std([b[seed] - a[seed] for seed in a if seed in b]).values()
        shown[name] = "missing" if mean is None else metrics.signed(mean, std)
        if mean is not None and before != "none":
            costs[name.removeprefix("without ")] = mean
    if len(costs) < len(COMPONENTS):
        most = "not known yet"
    else:
        most = min(costs, key=costs.__getitem__) if min(costs.values()) < 0 else "none: no removal costs anything"
    return shown | {"matters most": most}
