"""How long the paper's accuracy table takes on a GPU, from the measured times of steps.

.venv/bin/python bench/estimate.py        # from bench/results/*.json; it is a section of RESULTS.md too
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from formatting import format_table
from measured import Measured, read

from cclfp.paper.numbers import cells
from cclfp.runs.jobs import steps
from cclfp.runs.results import Result
from cclfp.streams import BENCHMARKS

SEEDS = 5
STACKED, OTHER = "split-cifar10", "split-tiny-imagenet"  # where steps of ResNet18 are measured: all methods, and some
MEASURED_RUNS = {"mlp": 5, "resnet18": 10}  # that train together in the measured steps
LABELS = {"mlp": "MNIST, MLP", "resnet18": "CIFAR and Tiny ImageNet, ResNet18"}

Times = dict[tuple[str, str], float]  # milliseconds per step of one run, by method and benchmark


@dataclasses.dataclass(frozen=True)
class StepModel:
    """The time of a step of any number of runs.

    A step of k runs takes (fixed + k) / (fixed + n) of the time of a step of n: few runs leave a GPU idle.
    """

    times: Times
    fixed: dict[str, float]  # by backbone: the time of a step without runs, in those of one run

    def milliseconds(self, cell: Result, runs: int) -> float:
        """The time of a step in which all of these runs are trained."""
        backbone = BENCHMARKS[cell.configuration.benchmark].backbone
        measured, fixed = MEASURED_RUNS[backbone], self.fixed[backbone]
        return measured * step_time(cell, self.times) * (fixed + runs) / (fixed + measured)


def fixed_part(section: Measured, benchmark: str, few: int, many: int) -> float:
    """The time of a step of ER that does not depend on the number of runs, in those of one run."""
    found = [section.find(method="er", benchmark=benchmark, replicas=count) for count in (few, many)]
    if found[0] is None or found[1] is None:
        raise SystemExit(f"{section.name} has no steps of er on {benchmark} with {few} and {many} runs")
    first, second = few * found[0]["step_ms"], many * found[1]["step_ms"]
    return max(0.0, float(first * (many - few) / (second - first) - few))


def step_times(stacked: Measured, methods: Measured) -> Times:
    """What was measured: ResNet18 with ten runs in stacked kernels, the MLP with five runs on Split MNIST."""
    found = {}
    usual = [r for r in stacked.results if r["case"]["replicas"] == MEASURED_RUNS["resnet18"]]
    for r in [*usual, *methods.results]:
        if r["case"]["engine"] == "graph":
            found[r["case"]["method"], r["case"]["benchmark"]] = float(r["step_ms"])
    return found


def step_time(cell: Result, times: Times) -> float:
    """The time of a step, measured or derived from the same method's on another benchmark with the same network.

    A step on Split CIFAR-100 is taken to last as long as one on Split CIFAR-10, and methods that were not measured on
    Split Tiny ImageNet to be slower there by ER's factor.
    """
    if BENCHMARKS[cell.configuration.benchmark].backbone == "mlp":
        return times[cell.configuration.method, "split-mnist"]
    if cell.configuration.benchmark != OTHER:
        return times[cell.configuration.method, STACKED]
    factor = times["er", OTHER] / times["er", STACKED]
    return times.get((cell.configuration.method, OTHER), factor * times[cell.configuration.method, STACKED])


def minutes(cell: Result, model: StepModel) -> float:
    """How long the training of a cell takes, all seeds together."""
    return steps(cell.configuration) * model.milliseconds(cell, SEEDS) / 60_000


def show_estimate(sections: Sequence[Measured]) -> list[str]:
    """A section of RESULTS.md for each GPU that has measured all that it needs."""
    parts = []
    for stacked in (one for one in sections if one.name == "stacked"):
        methods = [one for one in sections if one.name == "methods" and one.hardware == stacked.hardware]
        if not methods:
            continue
        fixed = {"mlp": 0.0, "resnet18": fixed_part(stacked, STACKED, SEEDS, MEASURED_RUNS["resnet18"])}
        model = StepModel(step_times(stacked, methods[0]), fixed)  # the MLP was measured with as many runs as seeds
        known = [cell for cell in cells("accuracy") if (cell.configuration.method, STACKED) in model.times]
        rows = []
        for backbone, label in LABELS.items():
            several = [cell for cell in known if BENCHMARKS[cell.configuration.benchmark].backbone == backbone]
            rows.append([label, str(len(several)), f"{sum(minutes(cell, model) for cell in several):.1f}"])
        rows.append(["all", str(len(known)), f"{sum(minutes(cell, model) for cell in known):.1f}"])
        parts += [
            f"## The paper's accuracy table on one {stacked.hardware}",
            f"An estimate of the time for the training steps of its cells, {SEEDS} seeds each, by `bench/estimate.py` "
            "from the times of steps above: ResNet18 in bf16, the MLP in tf32. The seeds of a cell train together. The "
            "times of ResNet18 are those of 10 runs at once; 5 are taken to need "
            f"{100 * (fixed['resnet18'] + SEEDS) / (fixed['resnet18'] + 10):.0f} % of their time, as with ER. A step "
            "on Split CIFAR-100 is taken to last as long as one on Split CIFAR-10, and methods that were not measured "
            "on Split Tiny ImageNet to be slower there by ER's factor. The steps of HAL, GEM and A-GEM grow from task "
            "to task, so those of HAL on Split CIFAR-100 and of HAL and GEM on Split Tiny ImageNet, where the third "
            "and fourth task were measured, are underestimated. Tests, the ends of tasks and start-up come on top.",
            format_table(["", "cells", "minutes"], rows),
        ]
    return parts


def main() -> None:
    from render import ORDER

    files = sorted((Path(__file__).parent / "results").glob("*.json"))
    print("\n\n".join(show_estimate(read(files, ORDER))))


if __name__ == "__main__":
    main()
