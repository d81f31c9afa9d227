"""What the page shows of one's own runs: the details of each row, and confusion matrices as shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cclfp.report.entries import ENVIRONMENT
from cclfp.report.own import OwnRow, OwnTable
from cclfp.report.page_data import SEED_NUMBERS, mean_matrix
from cclfp.runs.configuration import show_value

MOST_CLASSES = 20  # with more, only the best row's confusion matrix is shown


def own_cell_data(tables: Sequence[OwnTable]) -> dict[str, dict[str, Any]]:
    """The details of every row, by the identifier of its cell: the numbers of the table and the row."""
    return {f"own/{i}/{j}": _details(table, row) for i, table in enumerate(tables) for j, row in enumerate(table.rows)}


def _details(table: OwnTable, row: OwnRow) -> dict[str, Any]:
    accuracy, runs = row.seeds.mean_std("average_accuracy"), row.seeds.runs
    return {
        "row": row.label,
        "column": table.title,
        "verdict": row.standing.verdict,
        "says": row.explanation,
        "mean": accuracy["mean"],
        "std": accuracy["std"],
        "difference": row.standing.difference,
        "published": None,
        "matrix": mean_matrix(row.seeds),
        "seeds": [[run["seed"], *map(dict(run).get, SEED_NUMBERS)] for run in runs],
        "counted": list(row.seeds.accuracies),
        "diverged": {run["seed"]: run["diverged"] for run in runs if run.get("diverged") is not None},
        "remark": row.seeds.remark,
        "alone": all(run["environment"].get("together") == 1 for run in runs),
        "command": row.command,
        "hyperparameters": {name: show_value(value) for name, value in row.settings.items()},
        "chosen": "as they were run",
        "environments": [
            {ENVIRONMENT[name]: value for name, value in environment.items() if value is not None}
            for environment in row.environments
        ],
        "finished": max(run["finished_at"] for run in runs),
    }


def shares(counts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Each row of a confusion matrix in percent of its sum.

    >>> shares([[3, 1], [0, 0]])
    [[75.0, 25.0], [0.0, 0.0]]
    """
    return [[100 * count / (sum(row) or 1) for count in row] for row in counts]
