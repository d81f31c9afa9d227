"""The tables as LaTeX that can be pasted into a paper."""

from __future__ import annotations

import re
from itertools import groupby

from cclfp.report.content import Content
from cclfp.report.entries import Entry, Table, TableRow, benchmark_title
from cclfp.report.wording import explain_table, label_headers, row_labels

COLUMNS_PER_TABLE = 5  # as in the paper
# Shrinks what is wider than the text, and leaves the rest as it is.
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
REPLACEMENTS = {
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


def to_latex(table: Table, content: Content) -> str:
    """Floating tables that fit a page, with our number above the paper's in every cell."""
    explained = explain_table(table, content, published="with the paper's number below it")
    captions = [f"{table.title}. {explained}", f"{table.title}, continued."]
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for part, start in enumerate(range(0, len(table.columns), COLUMNS_PER_TABLE)):
        lines += [
            r"\begin{table*}[t]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{3.5pt}",
            f"  {FIT}",
            *_tabular(table, start, len(content.seeds)),
            r"  }",
            f"  \\caption{{{escape_latex(captions[min(part, 1)])}}}",
            f"  \\label{{tab:{table.name}{f'-{part + 1}' * (part > 0)}}}",
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def _tabular(table: Table, start: int, seeds: int) -> list[str]:
    columns = table.columns[start : start + COLUMNS_PER_TABLE]
    head = label_headers(table)
    lines = [rf"  \begin{{tabular}}{{{'l' * len(head)}{'c' * len(columns)}}}", r"    \toprule"]
    groups = [(benchmark, len(list(group))) for benchmark, group in groupby(columns, lambda column: column[0])]
    titles, rules, at = [""] * len(head), [], len(head) + 1
    for benchmark, wide in groups:
        titles.append(rf"\multicolumn{{{wide}}}{{c}}{{{escape_latex(benchmark_title(benchmark))}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + wide - 1}}}")
        at += wide
    lines += [f"    {' & '.join(titles)} \\\\", f"    {' '.join(rules)}"]
    lines += [f"    {' & '.join([*head, *(scenario for _, scenario in columns)])} \\\\", r"    \midrule"]
    before: TableRow | None = None
    for row in table.rows:
        entries = row.entries[start : start + COLUMNS_PER_TABLE]
        if before is not None:
            lines.append(r"    \midrule" if row.buffer != before.buffer else r"    \addlinespace[2pt]")
        labels = [re.sub(r"\bw\b", "$w$", escape_latex(label)) for label in row_labels(table, row)]
        if before is not None and row.buffer is not None and row.buffer == before.buffer:
            labels[0] = ""
        lines.append(f"    {' & '.join([*labels, *(_our_number(entry, seeds) for entry in entries)])} \\\\")
        lines.append(f"    {' & '.join([*([''] * len(labels)), *map(_published_number, entries)])} \\\\")
        before = row
    return [*lines, r"    \bottomrule", r"  \end{tabular}%"]


def _our_number(entry: Entry | None, seeds: int) -> str:
    if entry is None:
        return "--"
    c = entry.comparison
    remark = c.seeds.remark
    if c.mean is None:
        return rf"\textit{{{remark or 'missing'}}}"
    count = rf"_{{n={c.n}}}" if c.n < seeds else ""
    mark = {"above": r"\,{\uparrow}", "below": r"\,{\downarrow}"}.get(entry.verdict, "")
    dagger = r"^{\dagger}" * entry.untuned
    number = f"${_number(c.mean, c.std, entry.best)}{dagger}{count}{mark}$"
    return rf"\shortstack{{{number} \\ {{\scriptsize {remark}}}}}" if remark else number


def _published_number(entry: Entry | None) -> str:
    if entry is None:
        return ""
    return rf"{{\scriptsize $({_number(*entry.cell.published, entry.best_published)})$}}"


def _number(mean: float, std: float | None, bold: bool) -> str:
    text = f"{mean:.2f}" if std is None else rf"{mean:.2f} \pm {std:.2f}"
    return rf"\mathbf{{{text}}}" if bold else text


def escape_latex(text: str) -> str:
    r"""Text with its special characters as LaTeX commands.

    >>> print(escape_latex("50% of_x, α"))
    50\% of\_x, $\alpha$
    """
    return "".join(REPLACEMENTS.get(character, character) for character in text)
