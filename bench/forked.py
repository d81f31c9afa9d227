"""The accuracy of runs that train in stacked kernels beside that of the same runs forked, on real images."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from case import Case, start

KERNELS = "cclfp.engine.kernels._has_kernels"


def compare_accuracies(quick: bool) -> Iterator[list[dict[str, Any]]]:
    """ER and CCL-FP+ on the whole of Split CIFAR-10, class and task, 5 seeds: stacked, then forked."""
    for scenario in ("class",) if quick else ("class", "task"):
        for method in ("er",) if quick else ("er", "ccl-fp+"):
            case = Case("forked", method, "split-cifar10", "graph", "cuda", "bf16", scenario, seeds=5)
            yield [_train(case, how) for how in ("stacked", "forked")]


def _train(case: Case, how: str) -> dict[str, Any]:
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        if how == "forked":
            stack.enter_context(mock.patch(KERNELS, return_value=False))
        began = time.perf_counter()
        cohort = start(case, "real", notes.append)
        while not cohort.is_done:
            cohort.advance()
    if how == "stacked" and not any("stacked kernels" in note for note in notes):
        raise SystemExit(f"{case}: not trained in stacked kernels, which need a Hopper card")
    accuracies = [replica.accuracy for replica in cohort.replicas]
    print(f"  {case}, {how}: {', '.join(f'{each:.2f}' for each in accuracies)}", flush=True)
    seconds = time.perf_counter() - began
    return {"case": {**case.to_dict(), "how": how}, "accuracies": accuracies, "seconds": seconds, "notes": notes}
