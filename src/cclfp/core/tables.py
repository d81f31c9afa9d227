"""Small operations on the tables that schedules are planned with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def pad(rows: Sequence[Sequence[Any]], value: Any) -> np.ndarray:
    """The rows as one table, each padded with ``value`` to the length of the longest."""
    width = max(map(len, rows), default=0)
    table = [[*row, *[value] * (width - len(row))] for row in rows]
    return np.array(table, dtype=type(value)).reshape(len(rows), width)


def consecutive_writes(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of examples of which the second is the next one written to the slot of the first."""
    order = np.argsort(slots, kind="stable")
    first, second = order[:-1], order[1:]
    same = slots[first] == slots[second]
    return first[same], second[same]
