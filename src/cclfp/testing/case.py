"""What the contract is checked on: a toy stream, small networks, and learners and replicas of a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.learner import Learner, make
from cclfp.learner.saving import learner_state
from cclfp.methods import Method
from cclfp.nets import linear
from cclfp.streams import Stream

MEMORY = 150  # more than one task fills, less than all do
TASKS = [[0, 1], [2, 3], [4, 5]]


def toy_stream(scenario: str, per_class: int = 53) -> Stream:
    """Three tasks of two well separated clouds of points each (all six clouds, moved, in the domain scenario)."""
    g = generator(0, "toy stream")
    classes = [list(range(6))] * 3 if scenario == "domain" else TASKS
    centres = 6 * torch.randn(6, 8, generator=g)
    shifts = torch.randn(len(classes), 8, generator=g) if scenario == "domain" else torch.zeros(len(classes), 8)

    def draw(task: int, per_class: int) -> Examples:
        y = torch.tensor(classes[task]).repeat_interleave(per_class)
        x = centres[y] + shifts[task] + torch.randn(len(y), 8, generator=g)
        return Examples(x, y, torch.full_like(y, task))

    parts = [draw(task, per_class) for task in range(len(classes))]
    train = Examples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    return Stream(
        scenario=scenario,
        num_classes=6,
        classes=classes,
        train=train,
        train_rows=list(torch.arange(len(train.y)).split([len(part.y) for part in parts])),
        test=[draw(task, 20) for task in range(len(classes))],
        transform=halve,
    )


def halve(x: Tensor) -> Tensor:
    return x / 2


def toy_psi(*, random: bool = True) -> nn.Module:
    """A small psi with BatchNorm and, if ``random``, dropout: layers that make training hard to repeat exactly."""
    layers = [linear(8, 16, generator(0, "toy psi")), nn.BatchNorm1d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.1)) if random else nn.Sequential(*layers)


def stackable_psi() -> nn.Module:
    """A small psi without BatchNorm or dropout, so that replicas are stacked; float64, so that rounding is small."""
    return nn.Sequential(linear(8, 16, generator(0, "toy psi")), nn.Tanh()).double()


@dataclasses.dataclass(frozen=True)
class Case:
    """A method to check in one scenario."""

    method: type[Method]
    scenario: str
    hyper: dict[str, Any]

    def learner(self, seed: int = 0, psi: nn.Module | None = None) -> Learner:
        return make(
            self.method,
            psi=toy_psi() if psi is None else psi,
            num_classes=6,
            memory=MEMORY,
            seed=seed,
            scenario=self.scenario,
            tasks=self.stream().classes,
            transform=halve,
            **self.hyper,
        )

    def stream(self) -> Stream:
        stream = toy_stream(self.scenario)
        return stream.joint() if self.method.joint else stream

    def replica(self, seed: int = 0, psi: nn.Module | None = None) -> Replica:
        return Replica(self.learner(seed, psi), self.stream())

    def batches(self, seed: int = 0) -> list[list[Examples]]:
        """For each task, the new examples of each step of its plan."""
        replica = self.replica(seed)
        train, plans = replica.stream.train, list(replica.plans())
        return [[train.rows(plan.rows[step, :new]) for step, (new, _) in enumerate(plan.sizes)] for plan in plans]

    def online(self, seed: int = 0, after_step: Callable[[Learner], Learner | None] | None = None) -> Learner:
        """A learner trained with ``observe``; ``after_step`` may look at it, or return another to continue with."""
        learner = self.learner(seed)
        for batches in self.batches(seed):
            for batch in batches:
                learner.observe(*batch)
                if after_step is not None:
                    learner = after_step(learner) or learner
            learner.end_task()
        return learner


def train_replicas(replicas: list[Replica], engine: str = "eager", *, tasks: int | None = None) -> list[str]:
    """Train replicas as ``cclfp run`` does, for some tasks or all; what the engine notes."""
    notes: list[str] = []
    cohort = Cohort(replicas, engine, notes.append, shortest=2)
    while not cohort.is_done and tasks != cohort.replicas[0].position:
        cohort.advance()
    return notes


def same(a: Learner, b: Learner) -> bool:
    """Whether two learners are equal, bit for bit, in all that they know."""
    return equal(learner_state(a), learner_state(b))


def equal(a: Any, b: Any) -> bool:
    """Whether two states, nested dictionaries of tensors and plain values, are equal in all values and dtypes."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    return bool(a == b)
