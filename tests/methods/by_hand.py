"""A tiny network in float64, and what repeats a method's paper on it: one example and one class at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import cclfp
from cclfp.core.memory import Examples
from cclfp.learner import Learner
from cclfp.methods import Batch, Method, get_method
from cclfp.testing.case import TASKS, halve

ALL = [list(range(6))] * 3
Stream = list[list[tuple[Tensor, Tensor]]]  # for each task its batches
Rows = list[list[float]]


def tiny(method: str | type[Method], scenario: str = "class", *, norm: bool = False, **options: Any) -> Learner:
    """A learner of a tiny network, with BatchNorm or without."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()]
    psi = nn.Sequential(*(layers if norm else layers[::2])).double()
    usual: dict[str, Any] = {"tasks": ALL if scenario == "domain" else TASKS, "transform": halve, "lr": 0.2}
    return cclfp.make(method, psi=psi, num_classes=6, scenario=scenario, **{**usual, **options})


def points(y: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Examples of these classes."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    labels = torch.tensor(y)
    return centres[labels] + 0.7 * torch.randn(len(y), 3, dtype=torch.float64, generator=g), labels


def stream_of(scenario: str = "class", steps: int = 4) -> Stream:
    """Three tasks of some batches each, the last of them smaller; no two examples are equal."""
    stream = []
    for task, classes in enumerate(ALL if scenario == "domain" else TASKS):
        sizes = [5] * (steps - 1) + [3]
        labels = [[classes[(i + step) % len(classes)] for i in range(n)] for step, n in enumerate(sizes)]
        stream.append([points(y, seed=10 * task + step) for step, y in enumerate(labels)])
    return stream


def train(learner: Learner, stream: Stream, first: int = 0) -> Learner:
    """The learner after these tasks."""
    for number, batches in enumerate(stream):
        for x, y in batches:
            learner.observe(x, y, first + number)
        learner.end_task()
    return learner


def parameters(learner: Learner) -> list[Tensor]:
    assert learner.f is not None
    return [p.detach().clone() for p in (*learner.psi.parameters(), learner.f.weight, learner.f.bias)]


def spied(method: str | type[Method]) -> tuple[type[Method], list[Batch]]:
    """A method, and the batches that its steps get."""
    batches: list[Batch] = []
    base = get_method(method)

    def step(self: Method, params: Any, buffers: Any, state: Any, batch: Batch, hyper: Any) -> Any:
        batches.append(batch)
        return base.step(self, params, buffers, state, batch, hyper)

    return type(base.__name__, (base,), {"name": "spied", "step": step}), batches


class Paper:
    """A method by hand. The base is experience replay: the cross-entropy on the new and the replayed examples."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.theta, self.hyper = learner, parameters(learner), vars(learner.hyper)
        self.task = 0
        self.statistics: list[Tensor] = []  # BatchNorm's mean and variance at the end of the last task, if there is one

    def step(self, batch: Batch) -> None:
        self.descend(lambda theta: self.loss(theta, batch))

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        return self.cross_entropy(theta, batch.x, batch.y, batch.task)

    def end_task(self, held: Examples | None) -> None:
        """``held`` is what the memory holds before."""
        self.task += 1
        self.keep_statistics()

    def keep_statistics(self) -> None:
        self.statistics = [b.clone() for b in self.learner.psi.buffers()][:2]

    def check(self) -> None:
        """Compare the states at a task's end."""

    def allowed(self, own: int) -> list[int]:
        """The classes that an example of a task may be predicted as."""
        seen = [c for classes in TASKS[: self.task + 1] for c in classes]
        return {"class": seen, "task": TASKS[own], "domain": ALL[0]}[self.learner.scenario]

    def features(self, theta: list[Tensor], x: Tensor, *, frozen: bool = False) -> Tensor:
        """BatchNorm, where there is one, has the statistics of x or, frozen, those at the end of the last task."""
        h = x @ theta[0].T + theta[1]
        if len(theta) == 6:
            mean, variance = self.statistics if frozen else (h.mean(0), h.var(0, correction=0))
            h = (h - mean) / (variance + 1e-5).sqrt() * theta[2] + theta[3]
        return torch.tanh(h)

    def logits(self, theta: list[Tensor], x: Tensor, *, frozen: bool = False) -> Tensor:
        return self.features(theta, x, frozen=frozen) @ theta[-2].T + theta[-1]

    def cross_entropy(self, theta: list[Tensor], x: Tensor, y: Tensor, task: Tensor) -> Tensor:
        return self.nll(self.logits(theta, x), y, task)

    def nll(self, logits: Tensor, y: Tensor, task: Tensor) -> Tensor:
        terms = []
        for row, label, own in zip(logits, y.tolist(), task.tolist(), strict=True):
            terms.append(torch.log(sum((row[c].exp() for c in self.allowed(own)), torch.zeros(()))) - row[label])
        return torch.stack(terms).mean()

    def gradient(self, loss: Callable[[list[Tensor]], Tensor], theta: list[Tensor] | None = None) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in (self.theta if theta is None else theta)]
        return list(torch.autograd.grad(loss(leaves), leaves))

    def descended(self, theta: list[Tensor], x: Tensor, y: Tensor, task: Tensor) -> list[Tensor]:
        """Parameters after a step of SGD on examples."""
        grads = self.gradient(lambda p: self.cross_entropy(p, x, y, task), theta)
        return [t - self.hyper["lr"] * g for t, g in zip(theta, grads, strict=True)]

    def descend(self, loss: Callable[[list[Tensor]], Tensor]) -> None:
        self.theta = [t - self.hyper["lr"] * g for t, g in zip(self.theta, self.gradient(loss), strict=True)]


def follow(method: str | type[Method], kind: type[Paper], scenario: str, **options: Any) -> None:
    """Train a learner and its paper side by side: equal parameters after every step."""
    spy, batches = spied(method)
    learner, stream = tiny(spy, scenario, **options), stream_of(scenario)
    learner.make_classifier(stream[0][0][0])
    paper = kind(learner)
    for task, of_task in enumerate(stream):
        for x, y in of_task:
            learner.observe(x, y, task)
            paper.step(batches[-1])
            for ours, theirs in zip(parameters(learner), paper.theta, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
        held = None if learner.memory is None else learner.memory.examples()
        learner.end_task()
        paper.end_task(held)
        paper.check()


# -- herding, as loops over plain numbers ----------------------------------------------------------


def unit(v: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(a * a for a in v))
    return [a / length for a in v] if length else v


def average(vectors: Rows) -> list[float]:
    """Normalised, as all averages are in the paper."""
    return unit([math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)])


def naive_herding(phi: Rows, m: int) -> list[int]:
    """Algorithm 4."""
    mu, chosen = average(phi), list[int]()
    while len(chosen) < min(m, len(phi)):
        best, nearest = -1, math.inf
        for i in range(len(phi)):
            if i not in chosen:
                distance = math.dist(mu, average([*(phi[j] for j in chosen), phi[i]]))
                if distance < nearest - 1e-12:  # the first of equals
                    best, nearest = i, distance
        chosen.append(best)
    return chosen
