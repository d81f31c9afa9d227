"""The sentences beside the numbers: what a table shows, how many numbers agree, and what each component adds."""

from __future__ import annotations

from cclfp.metrics import signed
from cclfp.paper import COMPONENTS, Change, effects
from cclfp.report.content import Content
from cclfp.report.entries import RARE_VERDICTS, Table, TableRow, column_title, variant_name

COMPONENT_NAMES = {
    "w": "feature propagation (w)",
    "α": "contrastive rehearsal (α)",
    "β": "the supervised contrastive loss (β)",
}
UNTUNED = "†"


def label_headers(table: Table) -> list[str]:
    """What the columns before the numbers are called."""
    return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(table.name, ["Method"])


def row_labels(table: Table, row: TableRow) -> list[str]:
    """What stands in them."""
    label = variant_name(row.label) if table.name == "ablation" else row.label
    return [label] if row.buffer is None else [str(row.buffer), label]


def explain_table(
    table: Table, content: Content, papers: str = "the paper's number in brackets", marks: str = "↑ and ↓"
) -> str:
    """What the numbers and marks mean, in a sentence or two."""
    own = all(entry.cell.published.std is None for entry in table.entries)
    whose = "of our own standard deviations (the paper gives none)" if own else "published standard deviations"
    count = len(content.seeds)
    tuned = {
        "buffer": " Hyperparameters are those tuned with a memory of 200.",
        "ablation": " All rows have CCL-FP+'s hyperparameters, and 0 for what is not there; none was tuned by itself.",
    }
    untuned = f" {UNTUNED}: with the method's defaults, not tuned." if any(e.untuned for e in table.entries) else ""
    diverged = ""
    if any(e.comparison.seeds.diverged for e in table.entries):
        means = "Means include" if content.include_diverged else "Means leave out"
        diverged = f" {means} runs that diverged (weights that are not finite); a cell says how many."
    best = {"accuracy": ", Joint aside, which trains on all tasks at once", "buffer": " for each size of the memory"}
    return (
        f"Mean ± standard deviation (%) over {count} seed{'s' * (count != 1)}, {papers}. "
        f"{marks}: ours lies more than two {whose} above or below. "
        f"The best of a column that is whole is in bold{best.get(table.name, '')}.{tuned.get(table.name, '')}{untuned}"
        f"{diverged}"
    )


def describe_components(table: Table) -> list[str]:
    """What each component is worth, a sentence for each column: of the ablation alone, nothing for other tables."""
    if table.name != "ablation":
        return []
    said = [
        "How the average accuracy (%) changes when one component alone is taken out of CCL-FP+, and when it alone is "
        "added to none, all else as CCL-FP+ has it: mean ± standard deviation over the seeds that both have, the "
        "paper's in brackets. The component that is missed most matters most."
    ]
    for i, column in enumerate(table.columns):
        entries = {row.label: entry for row in table.rows if (entry := row.entries[i]) is not None}
        ours = effects({label: e.comparison.seeds.accuracies for label, e in entries.items()})
        papers = effects({label: {0: e.cell.published.mean} for label, e in entries.items()})
        without = [f"without {c} {_change(ours.without[c])} ({_change(papers.without[c])})" for c in COMPONENTS]
        alone = [f"{c} alone {_change(ours.alone[c])} ({_change(papers.alone[c])})" for c in COMPONENTS]
        known = all(change is not None for change in ours.without.values())
        unknown = "none is missed" if known else "what matters most is not known yet"
        most = unknown if ours.most is None else f"{COMPONENT_NAMES[ours.most]} matters most"
        assert papers.most is not None  # the paper has all numbers
        same = "as in the paper" if ours.most == papers.most else f"in the paper {COMPONENT_NAMES[papers.most]}"
        said.append(f"{column_title(column)}: {', '.join(without)}; {', '.join(alone)}; {most}, {same}.")
    return said


def _change(change: Change | None) -> str:
    if change is None:
        return "missing"
    return signed(change.mean) + ("" if change.std is None else f" ± {change.std:.2f}")


def tally(counts: dict[str, int]) -> str:
    """``44 cells: 35 within, 5 above, 4 below, 0 missing``."""
    said = [f"{counts[name]} {name}" for name in counts if counts[name] or name not in RARE_VERDICTS]
    return f"{sum(counts.values())} numbers: {', '.join(said)}"
