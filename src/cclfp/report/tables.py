"""The tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from cclfp.metrics import plus_minus
from cclfp.report.components import CHANGES, EXPLANATION, MOST, TITLE, component_worths
from cclfp.report.content import Content
from cclfp.report.entries import Entry, Table, column_title
from cclfp.report.wording import UNTUNED, explain_table, label_headers, row_labels, tally

MARKS = {"above": "↑", "below": "↓"}


def to_markdown(table: Table, content: Content) -> str:
    head = [*label_headers(table), *map(column_title, table.columns)]
    lines = [f"# {table.title}", "", explain_table(table, content), "", f"{tally(content.counts(table.entries))}.", ""]
    lines += [_line(head), _line([":--"] * len(label_headers(table)) + ["--:"] * len(table.columns))]
    for row in table.rows:
        lines.append(_line([*row_labels(table, row), *(_markdown_cell(e, len(content.seeds)) for e in row.entries)]))
    return "\n".join([*lines, *_components(table)]) + "\n"


def _components(table: Table) -> list[str]:
    """What each component is worth, below the ablation."""
    rows = [
        _line([worth.title, *(f"{ours} ({paper})" for ours, paper in (*worth.changes, worth.most))])
        for worth in component_worths(table)
    ]
    head = [_line(["", *CHANGES, MOST]), _line([":--"] + ["--:"] * len(CHANGES) + [":--"])]
    return ["", f"**{TITLE}.** {EXPLANATION}", "", *head, *rows] if rows else []


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_cell(entry: Entry | None, seeds: int) -> str:
    if entry is None:
        return "–"
    remark = entry.comparison.seeds.remark
    ours, paper = remark or "missing", plus_minus(*entry.cell.published)
    if entry.comparison.mean is not None:
        ours = plus_minus(entry.comparison.mean, entry.comparison.std)
        ours = (f"**{ours}**" if entry.best else ours) + UNTUNED * entry.untuned
        ours += f" [{entry.comparison.n} of {seeds} seeds]" if entry.comparison.n < seeds else ""
        ours += f" [{remark}]" if remark else ""
    paper = f"**{paper}**" if entry.best_published else paper
    return f"{ours} ({paper}) {MARKS.get(entry.verdict, '')}".rstrip()


def to_csv(table: Table, content: Content) -> str:
    """One line per number."""
    text = io.StringIO()
    head = "table,row,method,benchmark,scenario,buffer,mean,std,seeds,published_mean,published_std,difference,verdict"
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head.split(","), "best", "accuracies", "chosen", "command", "diverged"])
    for entry in table.entries:
        cell, comparison = entry.cell, entry.comparison
        numbers = [comparison.mean, comparison.std, comparison.n, *cell.published, comparison.difference]
        writer.writerow(
            [
                *(cell.table, cell.row, cell.method, cell.benchmark, cell.scenario, cell.buffer),
                *(f"{value:.4f}" if isinstance(value, float) else value for value in numbers),
                entry.verdict,
                "yes" if entry.best else "no",
                " ".join(f"{seed}:{accuracy:.4f}" for seed, accuracy in comparison.seeds.accuracies.items()),
                entry.chosen,
                entry.command(content.seeds),
                " ".join(map(str, comparison.seeds.diverged)),
            ]
        )
    return text.getvalue()
