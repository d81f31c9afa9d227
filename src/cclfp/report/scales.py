"""Axes of values: which range they cover, their ticks, and where a value lies on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from cclfp.report.charts import Chart, ChartPanel, Series

MARGIN = 1.3  # by which factor a logarithmic axis goes beyond the values
# The leading digits of ticks on a logarithmic axis, by the least ratio of its ends
LOG_DIGITS: dict[int, tuple[float, ...]] = {
    20: (1, 2, 5),
    2: (1, 1.5, 2, 3, 4, 5, 7),
    1: (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8),
}


class Scale:
    """Maps values to coordinates from ``start`` to ``end``."""

    def __init__(self, low: float, high: float, ticks: list[float], start: float, end: float, log: bool) -> None:
        self.low, self.high, self.ticks = low, high, ticks
        self.start, self.end, self.log = start, end, log

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        low, high = self._transform(self.low), self._transform(self.high)
        return self.start + (self.end - self.start) * (self._transform(value) - low) / (high - low)

    def _transform(self, value: float) -> float:
        return math.log10(value) if self.log else value


def linear_scale(low: float, high: float, start: float, end: float, count: int = 5) -> Scale:
    ticks = linear_ticks(low, high, count)
    return Scale(ticks[0], ticks[-1], ticks, start, end, log=False)


def log_scale(low: float, high: float, start: float, end: float) -> Scale:
    low, high = low / MARGIN, high * MARGIN
    return Scale(low, high, log_ticks(low, high), start, end, log=True)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from about low to about high, with at most ``count`` steps between the two.

    >>> linear_ticks(0, 100), linear_ticks(97.1, 99.4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [97.0, 97.5, 98.0, 98.5, 99.0, 99.5])
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / count))
    step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (m * unit) <= count + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between low and high, for a logarithmic axis.

    >>> log_ticks(0.3, 30), log_ticks(30, 130), log_ticks(240, 400)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [30.0, 40.0, 50.0, 70.0, 100.0], [250.0, 300.0, 350.0, 400.0])
    """
    digits = next(found for ratio, found in LOG_DIGITS.items() if high / low > ratio)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def scale_of_values(
    chart: Chart, panel: ChartPanel, start: float, end: float, *, spread: bool, count: int = 5, ours: bool = False
) -> Scale:
    """The axis for the lines or dots of a panel, with room for standard deviations if ``spread``.

    With ``ours``, the published numbers do not count.
    """
    panels = chart.panels if chart.same_scale else [panel]
    series = list(chain.from_iterable(one.ours if ours else one.series for one in panels))
    if chart.log:
        return log_scale(*_positive_range(series), start, end)
    return linear_scale(*_percentage_range(series, spread), start, end, count)


def scale_of_bars(panel: ChartPanel, start: float, end: float, count: int = 4) -> Scale:
    """The axis for the bars of a panel, which start at 0."""
    ends = []
    for values in zip(*(series.values for series in panel.series), strict=True):
        known = [value for value in values if value is not None]
        total = sum(value.mean for value in known)
        std = (known[0].std or 0.0) if len(values) == len(known) == 1 else 0.0
        ends += [total - std, total + std]
    low, high = min(0.0, *ends), max(0.0, *ends)
    return linear_scale(low, high if high > low else 1.0, start, end, count)


def _positive_range(several: Sequence[Series]) -> tuple[float, float]:
    known = [value.mean for series in several for value in series.values if value is not None]
    return min(known, default=1.0), max(known, default=10.0)


def _percentage_range(several: Iterable[Series], spread: bool) -> tuple[float, float]:
    known = [value for series in several for value in series.values if value is not None]
    stds = [(value.std or 0.0) if spread else 0.0 for value in known]
    low = min((value.mean - std for value, std in zip(known, stds, strict=True)), default=0.0)
    high = max((value.mean + std for value, std in zip(known, stds, strict=True)), default=100.0)
    low, high = max(low, 0.0), min(high, 100.0)
    return (low, high) if high > low else (low - 1, high + 1)
