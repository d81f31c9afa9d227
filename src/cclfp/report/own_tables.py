"""The tables of one's own runs as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from cclfp.metrics import number, plus_minus
from cclfp.paper.ranking import TEST, show_p
from cclfp.report.own import OwnRow, OwnTable

HEAD = ("method", "average accuracy", "to the best", "p", "forgetting", "seconds per run", "seeds")


def row_cells(row: OwnRow) -> list[str]:
    """A row as texts, in the order of ``HEAD``."""
    return [
        row.label,
        row.seeds.text("average_accuracy"),
        row.difference,
        show_p(row.standing.p),
        plus_minus(**row.seeds.mean_std("forgetting")),
        number(row.seeds.mean_std("seconds")["mean"], 1),
        str(len(row.seeds.runs)),
    ]


def own_markdown(tables: Sequence[OwnTable]) -> str:
    lines = ["# Your runs", "", f"Mean ± standard deviation (%) over seeds. {TEST[0].upper()}{TEST[1:]}."]
    for table in tables:
        lines += ["", f"## {table.title}", "", _line(HEAD), _line([":--"] + ["--:"] * (len(HEAD) - 1))]
        for row in table.rows:
            label, accuracy, *rest = row_cells(row)
            lines.append(_line([label, f"**{accuracy}**" if row.standing.best else accuracy, *rest]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def own_csv(tables: Sequence[OwnTable]) -> str:
    """One line per row of a table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = "table,row,method,benchmark,scenario,buffer,mean,std,seeds,forgetting,seconds,difference,p,standing"
    writer.writerow([*head.split(","), "accuracies", "command", "diverged"])
    for table in tables:
        for row in table.rows:
            c, s = row.configuration, row.standing
            accuracy = row.seeds.mean_std("average_accuracy")
            numbers = [accuracy["mean"], accuracy["std"], len(row.seeds.runs), row.seeds.mean_std("forgetting")["mean"]]
            numbers += [row.seeds.mean_std("seconds")["mean"], s.difference, s.p]
            writer.writerow(
                [
                    *(table.title, row.label, c["method"], c["benchmark"], c["scenario"], c["buffer"]),
                    *(f"{value:.4f}" if isinstance(value, float) else value for value in numbers),
                    s.verdict,
                    " ".join(f"{seed}:{accuracy:.4f}" for seed, accuracy in row.seeds.accuracies.items()),
                    row.command,
                    " ".join(map(str, row.seeds.diverged)),
                ]
            )
    return text.getvalue()
