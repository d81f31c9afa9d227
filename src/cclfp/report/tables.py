"""The tables as text: Markdown, CSV, and LaTeX that pastes into a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from itertools import groupby

from cclfp.metrics import plus_minus, signed
from cclfp.paper import COMPONENTS, Change, effects
from cclfp.report.content import UNCOMMON, Content, Entry, Row, Table, column_title, title_of, variant

PER_LATEX_TABLE = 5  # columns side by side, as in the paper
NAMES = {
    "w": "feature propagation (w)",
    "α": "contrastive rehearsal (α)",
    "β": "the supervised contrastive loss (β)",
}
MARKS = {"above": "↑", "below": "↓"}
UNTUNED = "†"
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
    "†": r"$\dagger$",
}


def head_of(table: Table) -> list[str]:
    """What the columns before the numbers are called."""
    return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(table.name, ["Method"])


def labels_of(table: Table, row: Row) -> list[str]:
    """What stands in them."""
    label = variant(row.label) if table.name == "ablation" else row.label
    return [label] if row.buffer is None else [str(row.buffer), label]


def explanation(
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


def worth(table: Table) -> list[str]:
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
        most = unknown if ours.most is None else f"{NAMES[ours.most]} matters most"
        assert papers.most is not None  # the paper has all numbers
        same = "as in the paper" if ours.most == papers.most else f"in the paper {NAMES[papers.most]}"
        said.append(f"{column_title(column)}: {', '.join(without)}; {', '.join(alone)}; {most}, {same}.")
    return said


def _change(change: Change | None) -> str:
    if change is None:
        return "missing"
    return signed(change.mean) + ("" if change.std is None else f" ± {change.std:.2f}")


def tally(counts: dict[str, int]) -> str:
    """``44 cells: 35 within, 5 above, 4 below, 0 missing``."""
    said = [f"{counts[name]} {name}" for name in counts if counts[name] or name not in UNCOMMON]
    return f"{sum(counts.values())} numbers: {', '.join(said)}"


def markdown(table: Table, content: Content) -> str:
    head = [*head_of(table), *map(column_title, table.columns)]
    lines = [f"# {table.title}", "", explanation(table, content), "", f"{tally(content.counts(table.entries))}.", ""]
    lines += [_line(head), _line([":--"] * len(head_of(table)) + ["--:"] * len(table.columns))]
    for row in table.rows:
        lines.append(_line([*labels_of(table, row), *(_markdown_cell(e, len(content.seeds)) for e in row.entries)]))
    if said := worth(table):
        lines += ["", said[0], "", *(f"- {sentence}" for sentence in said[1:])]
    return "\n".join(lines) + "\n"


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


def comma_separated(table: Table, content: Content) -> str:
    """One line a number."""
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
    explained = explanation(table, content, papers="the paper's number below")
    caption = escape_latex(f"{table.title}. {explained}")
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
    remark = c.seeds.remark
    if c.mean is None:
        return rf"\textit{{{remark or 'missing'}}}"
    count = rf"_{{n={c.n}}}" if c.n < seeds else ""
    mark = {"above": r"\,{\uparrow}", "below": r"\,{\downarrow}"}.get(entry.verdict, "")
    dagger = r"^{\dagger}" * entry.untuned
    number = f"${_latex_number(c.mean, c.std, entry.best)}{dagger}{count}{mark}$"
    return rf"\shortstack{{{number} \\ {{\scriptsize {remark}}}}}" if remark else number


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
