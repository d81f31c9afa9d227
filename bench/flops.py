"""Count the floating-point operations of a training step, from which RESULTS.md takes the share of a card's peak.

    .venv/bin/python bench/flops.py        # adds what bench/flops.json does not have; minutes on one core

They are those of plain PyTorch's convolutions and matrix products (``FlopCounterMode``), two per multiply-add, in the
steps of the cases of the section ``stacked``, with fewer and smaller images: the operations grow with their area.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from case import Case, start
from suites import stacked
from torch.utils.flop_counter import FlopCounterMode

from cclfp.core.files import write_atomic
from cclfp.data import get_dataset
from cclfp.learner import Learner
from cclfp.streams import BENCHMARKS

FILE = Path(__file__).parent / "flops.json"
SIDE = 16  # of the images
EXAMPLES = 200  # training images per task: enough to fill the memory in the first task


def count(case: Case) -> float:
    """The operations of one step of one run: the mean over the tasks that the case measures."""
    small = dataclasses.replace(case, engine="eager", device="cpu", precision="", seeds=1, side=SIDE, examples=EXAMPLES)
    cohort, per_task = start(small, "random", lambda text: None), list[float]()
    replica, step, taken = cohort.replicas[0], Learner.step, 0

    def counted(learner: Learner, *arguments: Any) -> Any:
        """Take only the last step of a task: the others of the task have the same operations."""
        nonlocal taken
        taken += 1
        if taken == replica.steps(replica.position):
            with FlopCounterMode(display=False) as counter:
                step(learner, *arguments)
            per_task.append(counter.get_total_flops())
        return learner.model, None

    with mock.patch.object(Learner, "step", counted):
        while not cohort.is_done and replica.position != case.tasks:
            taken = 0
            cohort.advance()
    measured = per_task[-case.measured :]
    side = get_dataset(BENCHMARKS[case.benchmark].dataset).arrays["train_images"].shape[-1]
    return sum(measured) / len(measured) * (side / SIDE) ** 2


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for (case,) in stacked("cpu", quick=False):
        of_benchmark = found.setdefault(case.benchmark, {})
        if case.method not in of_benchmark:
            of_benchmark[case.method] = round(count(case) / 1e9, 1)
            print(f"{of_benchmark[case.method]:9.1f} GFLOP  {case.method} on {case.benchmark}", flush=True)
            text = json.dumps(found, indent=1) + "\n"
            write_atomic(FILE, text.encode())


if __name__ == "__main__":
    main()
