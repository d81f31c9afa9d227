"""Replicas of toy learners, and how those that trained together are compared with those that trained alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cclfp
from cclfp.core.randomness import generator
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS, Method
from cclfp.nets import linear
from cclfp.streams import Stream
from cclfp.testing import stackable_psi, toy_stream

CASES = [(m, s) for m, method in METHODS.items() for s in method.scenarios()]


def batch_norm_psi(seed: int = 0) -> nn.Module:
    """Replicas with it go side by side. In float64, so that rounding cannot hide what is not the same."""
    g = generator(seed, "psi")
    return nn.Sequential(linear(8, 16, g), nn.BatchNorm1d(16), nn.ReLU(), linear(16, 8, g)).double()


def relu_psi() -> nn.Module:
    """Can be stacked, and becomes infinite where a step is too large."""
    return nn.Sequential(linear(8, 16, generator(0, "psi")), nn.ReLU())


def replica(
    method: str | type[Method],
    scenario: str | None = None,
    seed: int = 0,
    *,
    psi: Callable[[], nn.Module] = stackable_psi,
    stream: Stream | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Replica:
    """A new replica on a toy stream, in the method's last scenario; its psi can be stacked."""
    kind = METHODS[method] if isinstance(method, str) else method
    scenario = scenario or kind.scenarios()[-1]
    stream = stream or toy_stream(scenario)
    stream = stream if device == "cpu" else stream.to(torch.device(device))
    stream = stream.joint() if kind.joint else stream
    learner = cclfp.make(
        kind,
        psi=psi(),
        num_classes=6,
        scenario=scenario,
        tasks=stream.classes,
        transform=stream.transform,
        seed=seed,
        device=device,
        **{"memory": 30, "lr": 0.02, **settings},
    )
    return Replica(learner, stream)


def trained(
    replicas: list[Replica], engine: str = "eager", precision: str = "float32", notes: list[str] | None = None
) -> list[Replica]:
    """The replicas after all of their tasks; without a list for its notes the engine must have none."""
    said: list[str] = []
    cohort = Cohort(replicas, engine, (said if notes is None else notes).append, precision)
    while not cohort.is_done:
        cohort.advance()
    assert said == []
    return replicas


def assert_alike(ours: Replica, theirs: Replica, tolerance: float = 1e-8) -> None:
    """Both have the same weights, states and accuracies."""
    # Where a task of FDR begins, its outputs are those it has stored. Rounding then decides where the gradient of their
    # distance points, and on some processors differs between one and many replicas.
    is_fdr = ours.learner.method.name == "fdr"
    tolerance = max(tolerance, 0.05) if is_fdr else tolerance
    for a, b in zip(ours.learner.model, theirs.learner.model, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert is_fdr or ours.matrix == theirs.matrix
    assert ours.learner.steps == theirs.learner.steps
