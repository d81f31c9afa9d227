"""The runs of one configuration, one per seed, as means and standard deviations that take divergence into account."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cclfp import metrics
from cclfp.runs.code import is_other_code, made_by
from cclfp.runs.record import Record


@dataclasses.dataclass(frozen=True)
class Seeds:
    """The runs of one configuration. Those that diverged are not counted, unless ``include_diverged``.

    >>> runs = [{"seed": 0, "average_accuracy": 80.0}, {"seed": 1, "average_accuracy": 9.8, "diverged": 2}]
    >>> Seeds(runs).mean_std("average_accuracy"), Seeds(runs).text("average_accuracy")
    ({'mean': 80.0, 'std': None}, '80.00, 1 of 2 seeds diverged')
    """

    runs: Sequence[Record]
    include_diverged: bool = False

    @property
    def counted(self) -> list[Record]:
        """The runs that the means are over."""
        return [run for run in self.runs if self.include_diverged or run.get("diverged") is None]

    @property
    def diverged(self) -> list[int]:
        """The seeds whose weights were not finite after a task."""
        return [run["seed"] for run in self.runs if run.get("diverged") is not None]

    @property
    def other_code(self) -> dict[int, str]:
        """The seeds whose runs were made by other code than this, with its version."""
        return {run["seed"]: made_by(run) for run in self.runs if is_other_code(run)}

    @property
    def remark(self) -> str:
        """``2 of 5 seeds diverged``, and whether they are included; empty where none did."""
        remark = metrics.of_seeds_diverged(len(self.diverged), len(self.runs))
        return f"{remark}, included" if remark and self.include_diverged else remark

    @property
    def accuracies(self) -> dict[int, float]:
        """The average accuracy of each seed that is counted."""
        found = ((run["seed"], run["average_accuracy"]) for run in self.counted)
        return {seed: accuracy for seed, accuracy in found if accuracy is not None}

    def mean_std(self, measure: str) -> dict[str, float | None]:
        """Mean and standard deviation over the seeds that are counted."""
        return metrics.mean_std([run[measure] for run in self.counted])  # type: ignore[literal-required]

    def text(self, measure: str, between: str = ", ") -> str:
        """``79.47 ± 1.49``, followed by how many seeds diverged; only the latter if there is no mean."""
        summary = self.mean_std(measure)
        parts = [] if summary["mean"] is None and self.remark else [metrics.plus_minus(**summary)]
        return between.join(parts + [self.remark] * bool(self.remark))
