"""The sentences beside the numbers: what a table shows, how many numbers agree, and what each component adds."""

from __future__ import annotations

from cclfp.metrics import signed
from cclfp.paper import COMPONENTS, Change, Effects, effects
from cclfp.report.content import Content
from cclfp.report.entries import RARE_VERDICTS, Table, TableRow, column_title, variant_name

COMPONENT_NAMES = {
    "w": "feature propagation (w)",
    "α": "contrastive rehearsal (α)",
    "β": "the supervised contrastive loss (β)",
}
UNTUNED = "†"
NOTES = {
    "accuracy": "In complete columns, the best number is bold; Joint, which trains on all tasks at once, does not "
    "count.",
    "buffer": "In complete columns, the best number for each memory size is bold. The hyperparameters are those tuned "
    "with a memory of 200.",
    "ablation": "In complete columns, the best number is bold. All rows use CCL-FP+'s hyperparameters, with 0 for the "
    "components that are left out; no row was tuned separately.",
}


def label_headers(table: Table) -> list[str]:
    """The titles of the columns before the numbers."""
    return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(table.name, ["Method"])


def row_labels(table: Table, row: TableRow) -> list[str]:
    """The contents of these columns."""
    label = variant_name(row.label) if table.name == "ablation" else row.label
    return [label] if row.buffer is None else [str(row.buffer), label]


def explain_table(
    table: Table, content: Content, published: str = "with the paper's number in brackets", marks: str = "↑ and ↓"
) -> str:
    """What the numbers and marks of a table mean, in a few sentences."""
    count = len(content.seeds)
    own = all(entry.cell.published.std is None for entry in table.entries)
    spread = "of our own standard deviations (the paper gives none)" if own else "published standard deviations"
    sentences = [
        f"Mean ± standard deviation (%) over {count} seed{'s' * (count != 1)}, {published}.",
        f"{marks} mark numbers that are more than two {spread} above or below the paper's.",
        NOTES[table.name],
    ]
    if any(entry.untuned for entry in table.entries):
        sentences.append(f"{UNTUNED}: with the method's default hyperparameters, not tuned.")
    if any(entry.comparison.seeds.diverged for entry in table.entries):
        means = "Means include" if content.include_diverged else "Means leave out"
        sentences.append(f"{means} runs that diverged (their weights are not finite); each cell gives their number.")
    return " ".join(sentences)


def describe_components(table: Table) -> list[str]:
    """The effect of each component: an introduction and one sentence per column; nothing if it is not the ablation."""
    if table.name != "ablation":
        return []
    introduction = (
        "The change of the average accuracy (%) when one component is removed from CCL-FP+ (without) and when one "
        "component is added to none (alone); all else is as in CCL-FP+. Mean ± standard deviation over the seeds that "
        "both variants have, with the paper's change in brackets. The component whose removal costs most matters most."
    )
    return [introduction, *(_describe_column(table, i) for i in range(len(table.columns)))]


def _describe_column(table: Table, i: int) -> str:
    entries = {row.label: entry for row in table.rows if (entry := row.entries[i]) is not None}
    ours = effects({label: entry.comparison.seeds.accuracies for label, entry in entries.items()})
    papers = effects({label: {0: entry.cell.published.mean} for label, entry in entries.items()})
    assert papers.most is not None  # the paper has all numbers
    changes = [f"without {c} {_change(ours.without[c])} ({_change(papers.without[c])})" for c in COMPONENTS]
    alone = [f"{c} alone {_change(ours.alone[c])} ({_change(papers.alone[c])})" for c in COMPONENTS]
    if ours.most == papers.most:
        conclusion = f"{COMPONENT_NAMES[ours.most]} matters most, as in the paper"
    else:
        conclusion = f"{_most_important(ours)}; in the paper, {COMPONENT_NAMES[papers.most]} matters most"
    return f"{column_title(table.columns[i])}: {', '.join(changes)}; {', '.join(alone)}; {conclusion}."


def _most_important(ours: Effects) -> str:
    if ours.most is not None:
        return f"{COMPONENT_NAMES[ours.most]} matters most"
    if None in ours.without.values():
        return "it is not known yet which component matters most"
    return "removing a component costs nothing"


def _change(change: Change | None) -> str:
    if change is None:
        return "missing"
    return signed(change.mean) + ("" if change.std is None else f" ± {change.std:.2f}")


def tally(counts: dict[str, int]) -> str:
    """``44 numbers: 35 within, 5 above, 4 below, 0 missing``; rare verdicts only where a number has them."""
    parts = [f"{counts[name]} {name}" for name in counts if counts[name] or name not in RARE_VERDICTS]
    return f"{sum(counts.values())} numbers: {', '.join(parts)}"
