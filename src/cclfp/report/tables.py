"""The tables as text: Markdown, CSV, and LaTeX that pastes into a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from itertools import groupby

from cclfp.report.content import Content, Entry, Row, Table, column_title, title_of, variant

PER_LATEX_TABLE = 5  # columns side by side, as in the paper
MARKS = {"above": "↑", "below": "↓"}
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def plus_minus(mean: float, std: float | None) -> str:
    """``89.16 ± 1.14``, or the mean alone."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def signed(value: float) -> str:
    """A difference: ``+0.50``, ``−1.20``, ``0.00``."""
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def head_of(table: Table) -> list[str]:
    """What the columns before the numbers are called."""
    return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(table.name, ["Method"])


def labels_of(table: Table, row: Row) -> list[str]:
    """What stands in them."""
    label = variant(row.label) if table.name == "ablation" else row.label
    return [label] if row.buffer is None else [str(row.buffer), label]


def explanation(table: Table, content: Content) -> str:
    """What the numbers and marks mean, in a sentence or two."""
    own = all(entry.cell.published.std is None for entry in table.entries)
    whose = "of our own standard deviations (the paper gives none)" if own else "published standard deviations"
    count = len(content.seeds)
    return (
        f"Mean ± standard deviation (%) over {count} seed{'s' * (count != 1)}, the paper's number in brackets. "
        f"↑ and ↓: ours lies more than two {whose} above or below. Best of a column in bold"
        + (", Joint aside, which trains on all tasks at once." if table.name == "accuracy" else ".")
    )


def tally(counts: dict[str, int]) -> str:
    """``44 cells: 35 within, 5 above, 4 below, 0 missing``."""
    said = [f"{counts[name]} {name}" for name in counts if counts[name] or name != "unjudged"]
    return f"{sum(counts.values())} numbers: {', '.join(said)}"


def markdown(table: Table, content: Content) -> str:
    head = [*head_of(table), *map(column_title, table.columns)]
    lines = [f"# {table.title}", "", explanation(table, content), "", f"{tally(content.counts(table.entries))}.", ""]
    lines += [_line(head), _line([":--"] * len(head_of(table)) + ["--:"] * len(table.columns))]
    for row in table.rows:
        lines.append(_line([*labels_of(table, row), *(_markdown_cell(e, len(content.seeds)) for e in row.entries)]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_cell(entry: Entry | None, seeds: int) -> str:
    if entry is None:
        return "–"
    ours, paper = "missing", plus_minus(*entry.cell.published)
    if entry.comparison.mean is not None:
        ours = plus_minus(entry.comparison.mean, entry.comparison.std)
        ours = f"**{ours}**" if entry.best else ours
        ours += f" [{entry.comparison.n} of {seeds} seeds]" if entry.comparison.n < seeds else ""
    paper = f"**{paper}**" if entry.best_published else paper
    return f"{ours} ({paper}) {MARKS.get(entry.verdict, '')}".rstrip()


def comma_separated(table: Table, content: Content) -> str:
    """One line a number."""
    text = io.StringIO()
    head = "table,row,method,benchmark,scenario,buffer,mean,std,seeds,published_mean,published_std,difference,verdict"
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head.split(","), "best", "accuracies", "command"])
    for entry in table.entries:
        cell, comparison = entry.cell, entry.comparison
        numbers = [comparison.mean, comparison.std, comparison.n, *cell.published, comparison.difference]
        writer.writerow(
            [
                *(cell.table, cell.row, cell.method, cell.benchmark, cell.scenario, cell.buffer),
                *(f"{value:.4f}" if isinstance(value, float) else value for value in numbers),
                entry.verdict,
                "yes" if entry.best else "no",
                " ".join(
                    f"{r['seed']}:{r['average_accuracy']:.4f}" for r in entry.records if comparison.mean is not None
                ),
                entry.command(content.seeds),
            ]
        )
    return text.getvalue()


def latex(table: Table, content: Content) -> str:
    """A floating table, with ours above the paper's number in every cell."""
    starts = range(0, len(table.columns), PER_LATEX_TABLE)
    parts = ["\n".join(_tabular(table, start, len(content.seeds))) for start in starts]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"  \centering\footnotesize",
        "\n  \\par\\bigskip\n".join(parts),
    ]
    caption = explanation(table, content).replace("the paper's number in brackets", "the paper's number below")
    caption = escape_latex(f"{table.title}. {caption}")
    return "\n".join([*lines, f"  \\caption{{{caption}}}", f"  \\label{{tab:{table.name}}}", r"\end{table*}"]) + "\n"


def _tabular(table: Table, start: int, seeds: int) -> list[str]:
    columns = table.columns[start : start + PER_LATEX_TABLE]
    head = head_of(table)
    lines = [rf"  \begin{{tabular}}{{{'l' * len(head)}{'c' * len(columns)}}}", r"    \toprule"]
    groups = [(benchmark, len(list(group))) for benchmark, group in groupby(columns, lambda column: column[0])]
    titles, rules, at = [""] * len(head), [], len(head) + 1
    for benchmark, wide in groups:
        titles.append(rf"\multicolumn{{{wide}}}{{c}}{{{escape_latex(title_of(benchmark))}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + wide - 1}}}")
        at += wide
    lines += [f"    {' & '.join(titles)} \\\\", f"    {' '.join(rules)}"]
    lines += [f"    {' & '.join([*head, *(scenario for _, scenario in columns)])} \\\\", r"    \midrule"]
    before: Row | None = None
    for row in table.rows:
        entries = row.entries[start : start + PER_LATEX_TABLE]
        if before is not None:
            lines.append(r"    \midrule" if row.buffer != before.buffer else r"    \addlinespace[2pt]")
        labels = [re.sub(r"\bw\b", "$w$", escape_latex(label)) for label in labels_of(table, row)]
        if before is not None and row.buffer is not None and row.buffer == before.buffer:
            labels[0] = ""
        lines.append(f"    {' & '.join([*labels, *(_latex_ours(entry, seeds) for entry in entries)])} \\\\")
        lines.append(f"    {' & '.join([*([''] * len(labels)), *map(_latex_papers, entries)])} \\\\")
        before = row
    return [*lines, r"    \bottomrule", r"  \end{tabular}"]


def _latex_ours(entry: Entry | None, seeds: int) -> str:
    if entry is None:
        return "--"
    c = entry.comparison
    if c.mean is None:
        return r"\textit{missing}"
    count = rf"_{{n={c.n}}}" if c.n < seeds else ""
    mark = {"above": r"\,{\uparrow}", "below": r"\,{\downarrow}"}.get(entry.verdict, "")
    return f"${_latex_number(c.mean, c.std, entry.best)}{count}{mark}$"


def _latex_papers(entry: Entry | None) -> str:
    if entry is None:
        return ""
    return rf"{{\scriptsize $({_latex_number(*entry.cell.published, entry.best_published)})$}}"


def _latex_number(mean: float, std: float | None, bold: bool) -> str:
    text = f"{mean:.2f}" if std is None else rf"{mean:.2f} \pm {std:.2f}"
    return rf"\mathbf{{{text}}}" if bold else text


def escape_latex(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> print(escape_latex("50% of_x, α"))
    50\% of\_x, $\alpha$
    """
    return "".join(LATEX.get(character, character) for character in text)
