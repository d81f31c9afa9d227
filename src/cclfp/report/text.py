"""Tables as Markdown, CSV, and LaTeX that can be pasted into a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from cclfp.metrics import number, plus_minus
from cclfp.paper.compare import TEST, show_difference, show_p
from cclfp.report.tables import (
    UNTUNED,
    WORTH_EXPLANATION,
    WORTH_HEAD,
    WORTH_TITLE,
    Table,
    column_title,
    component_worths,
    describe_choice,
    is_untuned,
    tally,
    verdict_of,
)
from cclfp.runs.results import Result, benchmark_title

MARKS = {"above": "↑", "below": "↓"}

# Markdown -------------------------------------------------------------------------------------------------------------

# The columns of one's own tables: the title and the text of a result.
OWN_COLUMNS: dict[str, Callable[[Result], str]] = {
    "method": lambda r: r.label,
    "average accuracy": lambda r: r.text(),
    "to the best": lambda r: show_difference(r.standing),
    "p": lambda r: show_p(r.standing.p),
    "forgetting": lambda r: plus_minus(**r.mean_std("forgetting")),
    "seconds per run": lambda r: number(r.mean_std("seconds")["mean"], 1),
    "seeds": lambda r: str(len(r.runs)),
}


def to_markdown(table: Table) -> str:
    """A table of the paper, with our number and the paper's in each cell."""
    head = [*table.heads, *map(column_title, table.columns)]
    lines = [f"# {table.title}", "", table.explain(), "", f"{tally(table.results)}.", ""]
    lines += [_line(head), _line([":--"] * len(table.heads) + ["--:"] * len(table.columns))]
    lines += [
        _line([*table.labels(row), *(_markdown_cell(one, len(table.seeds)) for one in row)]) for row in table.rows
    ]
    return "\n".join([*lines, *_components(table)]) + "\n"


def _components(table: Table) -> list[str]:
    """What each component is worth, below the ablation."""
    rows = [
        _line([worth.title, *(f"{ours} ({paper})" for ours, paper in (*worth.changes, worth.most))])
        for worth in component_worths(table)
    ]
    head = [_line(["", *WORTH_HEAD]), _line([":--"] + ["--:"] * (len(WORTH_HEAD) - 1) + [":--"])]
    return ["", f"**{WORTH_TITLE}.** {WORTH_EXPLANATION}", "", *head, *rows] if rows else []


def _markdown_cell(result: Result | None, seeds: int) -> str:
    if result is None or result.published is None:
        return "–"
    remark = result.remark
    ours, paper = remark or "missing", plus_minus(*result.published)
    if result.mean is not None:
        ours = plus_minus(result.mean, result.std)
        ours = (f"**{ours}**" if result.standing.best else ours) + UNTUNED * is_untuned(result)
        ours += f" [{len(result.runs)} of {seeds} seeds]" if len(result.runs) < seeds else ""
        ours += f" [{remark}]" if remark else ""
    paper = f"**{paper}**" if result.standing.best_published else paper
    return f"{ours} ({paper}) {MARKS.get(verdict_of(result), '')}".rstrip()


def own_markdown(tables: Sequence[Table]) -> str:
    """The tables of one's own, with what is known of each row."""
    lines = ["# Your runs", "", f"Mean ± standard deviation (%) over seeds. {TEST[0].upper()}{TEST[1:]}."]
    for table in tables:
        lines += ["", f"## {table.title}", "", _line([*OWN_COLUMNS]), _line([":--"] + ["--:"] * (len(OWN_COLUMNS) - 1))]
        for result in table.results:
            label, accuracy, *rest = (text(result) for text in OWN_COLUMNS.values())
            lines.append(_line([label, f"**{accuracy}**" if result.standing.best else accuracy, *rest]))
        lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# CSV ------------------------------------------------------------------------------------------------------------------

Field = Callable[[Table, Result], Any]  # of a line: the value of a result
PLACE: dict[str, Field] = {
    "table": lambda t, r: r.table or t.title,
    "row": lambda t, r: r.label,
    "method": lambda t, r: r.configuration.method,
    "benchmark": lambda t, r: r.configuration.benchmark,
    "scenario": lambda t, r: r.configuration.scenario,
    "buffer": lambda t, r: r.configuration.buffer,
    "mean": lambda t, r: r.mean,
    "std": lambda t, r: r.std,
    "seeds": lambda t, r: len(r.runs),
}
ACCURACIES: dict[str, Field] = {"accuracies": lambda t, r: " ".join(f"{s}:{a:.4f}" for s, a in r.accuracies.items())}
COMMAND: dict[str, Field] = {"command": lambda t, r: r.command(t.seeds)}
DIVERGED: dict[str, Field] = {"diverged": lambda t, r: " ".join(map(str, r.diverged))}
FIELDS: dict[str, Field] = {
    **PLACE,
    "published_mean": lambda t, r: r.published and r.published.mean,
    "published_std": lambda t, r: r.published and r.published.std,
    "difference": lambda t, r: r.difference,
    "verdict": lambda t, r: verdict_of(r),
    "best": lambda t, r: "yes" if r.standing.best else "no",
    **ACCURACIES,
    "chosen": lambda t, r: describe_choice(r),
    **COMMAND,
    **DIVERGED,
}
OWN_FIELDS: dict[str, Field] = {
    **PLACE,
    "forgetting": lambda t, r: r.mean_std("forgetting")["mean"],
    "seconds": lambda t, r: r.mean_std("seconds")["mean"],
    "difference": lambda t, r: r.standing.difference,
    "p": lambda t, r: r.standing.p,
    "standing": lambda t, r: r.standing.verdict,
    **ACCURACIES,
    **COMMAND,
    **DIVERGED,
}


def to_csv(tables: Sequence[Table], fields: dict[str, Field]) -> str:
    """One line per number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    for table in tables:
        for result in table.results:
            values = [value(table, result) for value in fields.values()]
            writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


# LaTeX ----------------------------------------------------------------------------------------------------------------

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
    UNTUNED: r"$\dagger$",
}


def to_latex(table: Table) -> str:
    """Floating tables that fit a page, with our number above the paper's in every cell."""
    explained = table.explain(published="with the paper's number below it")
    captions = [f"{table.title}. {explained}", f"{table.title}, continued."]
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for part, start in enumerate(range(0, len(table.columns), COLUMNS_PER_TABLE)):
        lines += [
            r"\begin{table*}[t]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{3.5pt}",
            f"  {FIT}",
            *_tabular(table, start),
            r"  }",
            f"  \\caption{{{escape_latex(captions[min(part, 1)])}}}",
            f"  \\label{{tab:{table.name}{f'-{part + 1}' * (part > 0)}}}",
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def _tabular(table: Table, start: int) -> list[str]:
    columns, head = table.columns[start : start + COLUMNS_PER_TABLE], table.heads
    lines = [rf"  \begin{{tabular}}{{{'l' * len(head)}{'c' * len(columns)}}}", r"    \toprule"]
    titles, rules, at = [""] * len(head), [], len(head) + 1
    for benchmark, group in groupby(columns, lambda column: column[0]):
        wide = len(list(group))
        titles.append(rf"\multicolumn{{{wide}}}{{c}}{{{escape_latex(benchmark_title(benchmark))}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + wide - 1}}}")
        at += wide
    lines += [f"    {' & '.join(titles)} \\\\", f"    {' '.join(rules)}"]
    lines += [f"    {' & '.join([*head, *(scenario for _, scenario in columns)])} \\\\", r"    \midrule"]
    before: int | None = None
    for i, row in enumerate(table.rows):
        memory, results = table.memory_of(row), row[start : start + COLUMNS_PER_TABLE]
        if i:
            lines.append(r"    \addlinespace[2pt]" if memory == before else r"    \midrule")
        labels = [re.sub(r"\bw\b", "$w$", escape_latex(label)) for label in table.labels(row)]
        if i and memory is not None and memory == before:
            labels[0] = ""
        lines.append(f"    {' & '.join([*labels, *(_our_number(one, len(table.seeds)) for one in results)])} \\\\")
        lines.append(f"    {' & '.join([*([''] * len(labels)), *map(_published_number, results)])} \\\\")
        before = memory
    return [*lines, r"    \bottomrule", r"  \end{tabular}%"]


def _our_number(result: Result | None, seeds: int) -> str:
    if result is None:
        return "--"
    remark = result.remark
    if result.mean is None:
        return rf"\textit{{{remark or 'missing'}}}"
    count = rf"_{{n={len(result.runs)}}}" if len(result.runs) < seeds else ""
    mark = {"above": r"\,{\uparrow}", "below": r"\,{\downarrow}"}.get(verdict_of(result), "")
    dagger = r"^{\dagger}" * is_untuned(result)
    shown = f"${_number(result.mean, result.std, result.standing.best)}{dagger}{count}{mark}$"
    return rf"\shortstack{{{shown} \\ {{\scriptsize {remark}}}}}" if remark else shown


def _published_number(result: Result | None) -> str:
    if result is None or result.published is None:
        return ""
    return rf"{{\scriptsize $({_number(*result.published, result.standing.best_published)})$}}"


def _number(mean: float, std: float | None, bold: bool) -> str:
    text = f"{mean:.2f}" if std is None else rf"{mean:.2f} \pm {std:.2f}"
    return rf"\mathbf{{{text}}}" if bold else text


def escape_latex(text: str) -> str:
    r"""Text with its special characters as LaTeX commands.

    >>> print(escape_latex("50% of_x, α"))
    50\% of\_x, $\alpha$
    """
    return "".join(REPLACEMENTS.get(character, character) for character in text)
