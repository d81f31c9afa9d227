"""Tables as Markdown, CSV, and LaTeX that can be pasted into a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from cclfp.metrics import number, plus_minus
from cclfp.paper.compare import TEST, show_difference, show_p
from cclfp.report import tables
from cclfp.report.tables import OWN, UNTUNED, Table, column_title, is_untuned, verdict_of
from cclfp.runs.results import Result, benchmark_title

MARKS = {"above": "↑", "below": "↓"}

# Markdown -------------------------------------------------------------------------------------------------------------

OWN_COLUMNS = ("method", "average accuracy", "to the best", "p", "forgetting", "seconds per run", "seeds")


def own_texts(result: Result) -> list[str]:
    """A row of one's own, in the order of ``OWN_COLUMNS``."""
    forgetting, seconds = plus_minus(**result.mean_std("forgetting")), number(result.mean_std("seconds")["mean"], 1)
    comparison = [show_difference(result.standing), show_p(result.standing.p)]
    return [result.label, result.text(), *comparison, forgetting, seconds, str(len(result.runs))]


def own_markdown(several: Sequence[Table]) -> str:
    """The tables of one's own, with what is known of each row."""
    lines = ["# Your runs", "", f"Mean ± standard deviation (%) over seeds. {TEST[0].upper()}{TEST[1:]}."]
    for table in several:
        rows = []
        for result in table.results:
            label, accuracy, *rest = own_texts(result)
            rows.append([label, f"**{accuracy}**" if result.standing.best else accuracy, *rest])
        lines += ["", f"## {table.title}", "", *_markdown_table("lrrrrrr", OWN_COLUMNS, rows)]
        lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def to_markdown(table: Table) -> str:
    """A table of the paper, with our number and the paper's in each cell, and what each component is worth."""
    head = [*table.heads, *map(column_title, table.columns)]
    rows = [[*table.labels(row), *(_markdown_cell(one, len(table.seeds)) for one in row)] for row in table.rows]
    lines = [f"# {table.title}", "", table.explain(), "", f"{tables.tally(table.results)}.", ""]
    lines += _markdown_table("l" * len(table.heads) + "r" * len(table.columns), head, rows)
    if worths := tables.component_worths(table):
        rows = [[title, *(f"{ours} ({paper})" for ours, paper in changes)] for title, changes in worths]
        lines += [
            "",
            f"**{tables.WORTH_TITLE}.** {tables.WORTH_EXPLANATION}",
            "",
            *_markdown_table("lrrrrrrl", ["", *tables.WORTH_HEAD], rows),
        ]
    return "\n".join(lines) + "\n"


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


def _markdown_table(align: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, whose columns are aligned to the left or right (``"lr"``)."""
    marks = [{"l": ":--", "r": "--:"}[letter] for letter in align]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, marks, *rows)]


# CSV ------------------------------------------------------------------------------------------------------------------


def to_csv(several: Sequence[Table]) -> str:
    """One line per number."""
    lines = [_fields(table, result) for table in several for result in table.results]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    for line in lines:
        writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in line.values()])
    return text.getvalue()


def _fields(table: Table, result: Result) -> dict[str, Any]:
    """The values of a line by column, which are others for the paper's tables than for one's own."""
    c, standing, is_papers = result.configuration, result.standing, table.name != OWN
    line = {
        "table": table.name if is_papers else table.title,
        "row": result.label,
        "method": c.method,
        "benchmark": c.benchmark,
        "scenario": c.scenario,
        "buffer": c.buffer,
        "mean": result.mean,
        "std": result.std,
        "seeds": len(result.runs),
    }
    if is_papers:
        line |= {
            "published_mean": result.published and result.published.mean,
            "published_std": result.published and result.published.std,
            "difference": result.difference,
            "verdict": verdict_of(result),
            "best": "yes" if standing.best else "no",
        }
    else:
        line |= {
            "forgetting": result.mean_std("forgetting")["mean"],
            "seconds": result.mean_std("seconds")["mean"],
            "difference": standing.difference,
            "p": standing.p,
            "standing": standing.verdict,
        }
    line["accuracies"] = " ".join(f"{seed}:{accuracy:.4f}" for seed, accuracy in result.accuracies.items())
    if is_papers:
        line["chosen"] = tables.describe_choice(result)
    return line | {"command": result.command(table.seeds), "diverged": " ".join(map(str, result.diverged))}


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
    captions = [f"{table.title}. {explained}", *[f"{table.title}, continued."] * len(table.columns)]
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for part, start in enumerate(range(0, len(table.columns), COLUMNS_PER_TABLE)):
        lines += [
            r"\begin{table*}[t]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{3.5pt}",
            f"  {FIT}",
            *_tabular(table, slice(start, start + COLUMNS_PER_TABLE)),
            r"  }",
            f"  \\caption{{{escape_latex(captions[part])}}}",
            f"  \\label{{tab:{table.name}{f'-{part + 1}' * (part > 0)}}}",
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def _tabular(table: Table, part: slice) -> list[str]:
    columns, head = table.columns[part], table.heads
    titles, rules, at = [""] * len(head), [], len(head) + 1
    for benchmark, wide in table.benchmarks(part):
        titles.append(rf"\multicolumn{{{wide}}}{{c}}{{{escape_latex(benchmark_title(benchmark))}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + wide - 1}}}")
        at += wide
    lines = [
        rf"  \begin{{tabular}}{{{'l' * len(head)}{'c' * len(columns)}}}",
        r"    \toprule",
        _latex_line(titles),
        f"    {' '.join(rules)}",
        _latex_line([*head, *(scenario for _, scenario in columns)]),
    ]
    memory = ""
    for i, row in enumerate(table.rows):
        *memories, label = [re.sub(r"\bw\b", "$w$", escape_latex(label)) for label in table.labels(row)]
        same = i > 0 and memories in ([], [memory])
        lines.append(r"    \addlinespace[2pt]" if same else r"    \midrule")
        labels = [*([""] * len(memories) if same else memories), label]
        lines.append(_latex_line([*labels, *(_our_number(one, len(table.seeds)) for one in row[part])]))
        lines.append(_latex_line([*([""] * len(labels)), *map(_published_number, row[part])]))
        memory = "".join(memories)
    return [*lines, r"    \bottomrule", r"  \end{tabular}%"]


def _latex_line(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


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
