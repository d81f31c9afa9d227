"""Metrics of an accuracy matrix: average accuracy, forgetting and transfer.

A matrix has T + 1 rows and T columns: ``matrix[t][i]`` is the accuracy (in percent) on task i (counted from 0) after
t tasks, so row 0 is the untrained network and the last row the end of the stream. ``None`` stands for an accuracy that
was not measured. A metric that is undefined is ``None``, never NaN or 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def number(value: float | None, digits: int = 2) -> str:
    """A number as text, with a typographic minus sign; a dash for ``None``.

    >>> number(89.163), number(-1.5, digits=1), number(-0.001), number(None)
    ('89.16', '−1.5', '0.00', '–')
    """
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # no -0.00


def plus_minus(mean: float | None, std: float | None) -> str:
    """``89.16 ± 1.14``, or the mean alone where there is no standard deviation."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def signed(value: float | None, std: float | None = None) -> str:
    """A difference as text: ``+0.50``, ``−1.20 ± 0.30``, ``0.00``; a dash for ``None``."""
    text = number(value) if value is None or not round(value, 2) else f"{value:+.2f}".replace("-", "−")
    return text if std is None else f"{text} ± {number(std)}"


def count_of(number: int, what: str) -> str:
    """A number of things as text.

    >>> count_of(1, "run"), count_of(1200, "run"), count_of(2, "class")
    ('1 run', '1,200 runs', '2 classes')
    """
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


def of_seeds_diverged(diverged: int, of: int) -> str:
    """``2 of 5 seeds diverged``, or an empty string if none did."""
    return f"{diverged} of {count_of(of, 'seed')} diverged" if diverged else ""


def average_accuracy(matrix: Matrix) -> float | None:
    """Mean over all tasks of the final accuracy.

    >>> average_accuracy([[None, None], [90.0, None], [70.0, 80.0]])
    75.0
    """
    return _mean(matrix[-1])


def forgetting(matrix: Matrix) -> float | None:
    """Mean over all tasks but the last of the drop in accuracy.

    The drop is the best accuracy between the end of the task and the start of the last task, minus the final accuracy.

    >>> forgetting([[None, None], [90.0, None], [70.0, 80.0]])
    20.0
    """
    drops = []
    for task in range(len(matrix) - 2):
        scores = _all_known([row[task] for row in matrix[task + 1 :]])  # task i is learned in row i + 1
        drops.append(max(scores[:-1]) - scores[-1] if scores else None)
    return _mean(drops)


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean over all tasks but the last of the final accuracy minus the accuracy right after learning the task.

    >>> backward_transfer([[None, None], [90.0, None], [70.0, 80.0]])
    -20.0
    """
    return _mean([_minus(matrix[-1][task], matrix[task + 1][task]) for task in range(len(matrix) - 2)])


def forward_transfer(matrix: Matrix) -> float | None:
    """Mean over all tasks but the first of the accuracy just before learning the task minus the untrained network's.

    >>> forward_transfer([[50.0, 40.0], [90.0, 55.0], [70.0, 80.0]])
    15.0
    """
    return _mean([_minus(matrix[task][task], matrix[0][task]) for task in range(1, len(matrix) - 1)])


def mean_std(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation (n - 1) over seeds; None where a value is missing or there are too few.

    >>> mean_std([2.0, 4.0, 6.0]), mean_std([1.0]), mean_std([1.0, None])
    ({'mean': 4.0, 'std': 2.0}, {'mean': 1.0, 'std': None}, {'mean': None, 'std': None})
    >>> mean_std([])
    {'mean': None, 'std': None}
    """
    known = _all_known(values)
    if not known:
        return {"mean": None, "std": None}
    return {"mean": statistics.fmean(known), "std": statistics.stdev(known) if len(known) > 1 else None}


def paired_t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of Student's paired t-test: how likely such a mean difference is by chance alone.

    It needs two differences or more, and takes them for samples of a normal distribution.

    >>> round(paired_t_test([1.0, 2.0, 3.0, 4.0, 5.0]), 4), paired_t_test([0.0, 0.0]), paired_t_test([1.0, 1.0])
    (0.0132, 1.0, 0.0)
    """
    n, mean, std = len(differences), statistics.fmean(differences), statistics.stdev(differences)
    if std == 0:
        return 1.0 if mean == 0 else 0.0
    freedom = n - 1
    angle = math.atan(abs(mean) / std * math.sqrt(n / freedom))
    # Abramowitz & Stegun 26.7.3 and 26.7.4: the probability of a smaller t, for a whole number of degrees of freedom
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    smaller = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return min(1.0, max(0.0, 1 - smaller))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for how many there are (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def _all_known(values: Sequence[float | None]) -> list[float]:
    """The values; none where one of them is None."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _mean(values: Sequence[float | None]) -> float | None:
    known = _all_known(values)
    return statistics.fmean(known) if known else None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
