"""The paper's evaluation as data: the numbers it published."""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import NamedTuple


class Published(NamedTuple):
    """An average accuracy of the paper, in percent."""

    mean: float
    std: float | None


@functools.cache
def _numbers() -> dict[tuple[str, str, str, int], Published]:
    with resources.files(__package__).joinpath("published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] in ("accuracy", "buffer")]
    return {
        (row["method"], row["benchmark"], row["scenario"], int(row["buffer"])): Published(
            float(row["mean"]), float(row["std"])
        )
        for row in rows
    }


def published(method: str, benchmark: str, scenario: str, buffer: int | None) -> Published | None:
    """What the paper reports for a method on a benchmark; None where it reports nothing.

    Methods without a memory (``buffer=None``) stand in its tables beside those with 200 examples.

    >>> published("ccl-fp+", "split-mnist", "class", 200)
    Published(mean=89.16, std=1.14)
    """
    return _numbers().get((method, benchmark, scenario, 200 if buffer is None else buffer))
