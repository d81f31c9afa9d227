"""How long the paper's accuracy table takes on a GPU, from the measured times of steps.

.venv/bin/python bench/estimate.py        # from bench/results/*.json; it is a section of RESULTS.md too
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from formatting import format_table
from measured import Measured, read

from cclfp.paper.tables import Cell, cells
from cclfp.runs.costs import steps
from cclfp.streams import BENCHMARKS

SEEDS = 5
STACKED, OTHER = "split-cifar10", "split-tiny-imagenet"  # where steps of ResNet18 are measured: all methods, and some
LABELS = {"mlp": "MNIST, MLP", "resnet18": "CIFAR and Tiny ImageNet, ResNet18"}

Times = dict[tuple[str, str], float]  # milliseconds per step of one run, by method and benchmark


def step_times(stacked: Measured, methods: Measured) -> Times:
    """What was measured: ResNet18 with ten runs in stacked kernels, the MLP with five runs on Split MNIST."""
    found = {}
    for r in [*(r for r in stacked.results if r["case"]["replicas"] == 10), *methods.results]:
        if r["case"]["engine"] == "graph":
            found[r["case"]["method"], r["case"]["benchmark"]] = float(r["step_ms"])
    return found


def step_time(cell: Cell, times: Times) -> float:
    """The time of a step, measured or derived from the same method's on another benchmark with the same network.

    A step on Split CIFAR-100 is taken to last as long as one on Split CIFAR-10, and methods that were not measured on
    Split Tiny ImageNet to be slower there by ER's factor.
    """
    if BENCHMARKS[cell.benchmark].backbone == "mlp":
        return times[cell.method, "split-mnist"]
    if cell.benchmark != OTHER:
        return times[cell.method, STACKED]
    factor = times["er", OTHER] / times["er", STACKED]
    return times.get((cell.method, OTHER), factor * times[cell.method, STACKED])


def minutes(cell: Cell, times: Times) -> float:
    """How long the training of a cell takes, all seeds together."""
    return SEEDS * steps(cell.configuration()) * step_time(cell, times) / 60_000


def show_estimate(sections: Sequence[Measured]) -> list[str]:
    """A section of RESULTS.md for each GPU that has measured all that it needs."""
    parts = []
    for stacked in (one for one in sections if one.name == "stacked"):
        methods = [one for one in sections if one.name == "methods" and one.hardware == stacked.hardware]
        if not methods:
            continue
        times = step_times(stacked, methods[0])
        known = [cell for cell in cells("accuracy") if (cell.method, STACKED) in times]
        rows = []
        for backbone, label in LABELS.items():
            several = [cell for cell in known if BENCHMARKS[cell.benchmark].backbone == backbone]
            rows.append([label, str(len(several)), f"{sum(minutes(cell, times) for cell in several):.1f}"])
        rows.append(["all", str(len(known)), f"{sum(minutes(cell, times) for cell in known):.1f}"])
        parts += [
            f"## The paper's accuracy table on one {stacked.hardware}",
            f"An estimate of the time for the training steps of its cells, {SEEDS} seeds each, by `bench/estimate.py` "
            "from the times of steps above: ResNet18 in bf16 with 10 runs at once, the MLP in tf32 with 5. A step "
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
