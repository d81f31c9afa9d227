"""The sentences beside the numbers: what a table shows, and how many numbers agree."""

from __future__ import annotations

from cclfp.report.content import Content
from cclfp.report.entries import RARE_VERDICTS, Table, TableRow, variant_name

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


def tally(counts: dict[str, int]) -> str:
    """``44 numbers: 35 within, 5 above, 4 below, 0 missing``; rare verdicts only where a number has them."""
    parts = [f"{counts[name]} {name}" for name in counts if counts[name] or name not in RARE_VERDICTS]
    return f"{sum(counts.values())} numbers: {', '.join(parts)}"
