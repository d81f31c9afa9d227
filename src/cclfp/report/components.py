"""What each component of CCL-FP+ is worth: the changes between rows of the ablation, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cclfp.metrics import signed
from cclfp.paper import COMPONENTS, Change, Effects, effects
from cclfp.report.entries import Table, column_title

TITLE = "What each component is worth"
EXPLANATION = (
    "The change of the average accuracy (%) when one component is removed from CCL-FP+ (without) and when one is added "
    "to none (alone); all else is as in CCL-FP+. Mean ± standard deviation over the seeds that both variants have, "
    "with the paper's in brackets. The component whose removal costs most matters most."
)
CHANGES = (*(f"without {component}" for component in COMPONENTS), *(f"{component} alone" for component in COMPONENTS))
MOST = "matters most"


@dataclasses.dataclass(frozen=True)
class Worth:
    """What the components are worth in one column of the ablation, in our runs and in the paper."""

    title: str
    ours: Effects
    paper: Effects

    @property
    def changes(self) -> Iterator[tuple[str, str]]:
        """Ours and the paper's, in the order of ``CHANGES``."""
        for ours, paper in ((self.ours.without, self.paper.without), (self.ours.alone, self.paper.alone)):
            yield from ((_show(ours[component]), _show(paper[component])) for component in COMPONENTS)

    @property
    def most(self) -> tuple[str, str]:
        """The component that matters most, in our runs and in the paper."""
        return _most(self.ours), _most(self.paper)


def component_worths(table: Table) -> list[Worth]:
    """One row per column of the ablation; none for other tables."""
    return [_worth(table, i) for i in range(len(table.columns))] if table.name == "ablation" else []


def _worth(table: Table, i: int) -> Worth:
    entries = {row.label: entry for row in table.rows if (entry := row.entries[i]) is not None}
    ours = effects({label: entry.comparison.seeds.accuracies for label, entry in entries.items()})
    paper = effects({label: {0: entry.cell.published.mean} for label, entry in entries.items()})
    return Worth(column_title(table.columns[i]), ours, paper)


def _show(change: Change | None) -> str:
    if change is None:
        return "missing"
    return signed(change.mean) + ("" if change.std is None else f" ± {change.std:.2f}")


def _most(found: Effects) -> str:
    if found.most is not None:
        return found.most
    return "not known yet" if None in found.without.values() else "none: no removal costs anything"
