"""Long streams: memory use stays constant, and only classes that were seen are predicted."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

import cclfp
from cclfp.nets import MLP
from torture.campaign import Case, Fault, Kind, Verdict

METHODS = ("er", "ccl-fp+", "icarl", "a-gem", "si", "fdr", "lwf")
STEPS, QUICK_STEPS = 10_000, 400
TASKS, PER_TASK, INPUTS = 10, 2, 8
GROWTH = 24 << 20  # bytes that a process may grow after the first tenth of its steps, because of the allocator


def run(case: Case) -> Verdict:
    """Train a method on ten tasks, step by step."""
    method = case.random.choice(METHODS)
    steps = QUICK_STEPS if case.quick else STEPS
    case.tries[f"{steps:,} steps"] += 1
    g = torch.Generator().manual_seed(case.random.randrange(2**31))
    centres = 4 * torch.randn(TASKS * PER_TASK, INPUTS, generator=g)
    learner = cclfp.make(
        method, psi=MLP(INPUTS, (16,)), num_classes=TASKS * PER_TASK, memory=50, seed=case.number, lr=0.02
    )
    early = 0
    for step in range(steps):
        task = step * TASKS // steps
        y = PER_TASK * task + torch.randint(0, PER_TASK, (10,), generator=g)
        learner.observe(centres[y] + torch.randn(10, INPUTS, generator=g), y)
        if step % 97 == 0:
            _check_predictions(learner.predict(4 * torch.randn(200, INPUTS, generator=g)), PER_TASK * (task + 1))
        if (step + 1) * TASKS % steps == 0:
            learner.end_task()
        if step == steps // TASKS + 1:
            early = _resident()
    if (grown := _resident() - early) > GROWTH:
        raise Fault(Verdict.LEFT_BEHIND, f"{method}: {grown >> 20} MiB more memory after {steps:,} steps")
    return Verdict.SURVIVED


def _check_predictions(predicted: torch.Tensor, seen: int) -> None:
    if not 0 <= int(predicted.min()) <= int(predicted.max()) < seen:
        raise Fault(Verdict.WRONG, f"a class of {sorted(set(predicted.tolist()))} was predicted, {seen} were seen")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


KINDS = [Kind("streams", "long streams", run, share=1, minimum=3, quick=1, limit=400)]
