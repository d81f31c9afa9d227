"""The methods in examples/ keep the contract and equal plain implementations of their papers."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.methods import Method
from cclfp.nets import linear
from cclfp.schedules import Reservoir
from cclfp.testing import check_method

EXAMPLES = Path(__file__).parents[1] / "examples"
ERACE: type[Method] = runpy.run_path(str(EXAMPLES / "er_ace.py"))["ERACE"]
DERpp: type[Method] = runpy.run_path(str(EXAMPLES / "der_pp.py"))["DERpp"]
CLASSES, MEMORY, REPLAY = 6, 7, 3


@pytest.mark.slow
@pytest.mark.parametrize("method", [ERACE, DERpp])
def test_examples_keep_the_contract(method: type[Method]) -> None:
    check_method(method, lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["er_ace.py:ERACE", "der_pp.py:DERpp"])
def test_examples_run_from_their_files(name: str, small_mnist: Path) -> None:
    (result,) = cclfp.run(f"{EXAMPLES}/{name}", "split-mnist", seeds=1, lr=0.05, store=small_mnist / "runs.sqlite")
    (run,) = result.runs
    assert run["method"] in ("er-ace", "der++")
    accuracy = run["average_accuracy"]
    assert accuracy is not None
    assert accuracy > 30


def test_der_is_short() -> None:
    """What a user writes: the class without its documentation and blank lines."""
    text = (EXAMPLES / "der_pp.py").read_text(encoding="utf-8")
    body = text[text.index("class DERpp") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30


# -- plain implementations ----------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    g = torch.Generator().manual_seed(0)
    return nn.Sequential(linear(4, 5, g), nn.BatchNorm1d(5), nn.Tanh()).double()


def batches() -> list[tuple[Tensor, Tensor, int]]:
    """Three tasks of two classes, with batches of different sizes."""
    g = torch.Generator().manual_seed(1)
    found = []
    for task in range(3):
        for size in (4, 5, 3, 5, 4):
            y = 2 * task + torch.randint(0, 2, (size,), generator=g)
            found.append((torch.randn(size, 4, dtype=torch.float64, generator=g) + y[:, None], y, task))
    return found


class Plain:
    """A network that is trained by a plain loop. Its memory is a list of examples, each with its logits."""

    def __init__(self, learner: cclfp.Learner) -> None:
        assert learner.f is not None
        self.psi, self.f = network(), copy.deepcopy(learner.f)
        self.schedule = Reservoir(MEMORY, seed=0)
        self.memory: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.seen: set[int] = set()

    def step(self, x: Tensor, y: Tensor, lr: float) -> None:
        self.seen |= set(y.tolist())
        drawn = [self.schedule.draw(REPLAY) for _ in range(self.draws)]
        replayed = [self.memory[slot] for slots in drawn for slot in slots]
        inputs = torch.stack([*x, *(example for example, _, _ in replayed)])
        logits = self.classify(self.psi(inputs))
        loss = self.loss(logits, y.tolist(), replayed)
        parameters = [*self.psi.parameters(), *self.f.parameters()]
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                if g is not None:
                    p.sub_(lr * g)
        for i, slot in enumerate(self.schedule.place([0] * len(y))):
            if slot >= 0:
                self.memory[slot] = (x[i], int(y[i]), logits[i].detach())

    draws = 1

    def classify(self, z: Tensor) -> Tensor:
        return self.f(z)  # type: ignore[no-any-return]

    def loss(self, logits: Tensor, y: list[int], replayed: list[tuple[Tensor, int, Tensor]]) -> Tensor:
        raise NotImplementedError


def mean_cross_entropy(logits: list[Tensor], y: list[int], classes: list[set[int]]) -> Tensor:
    """The mean of -log p, where p is the softmax over the given classes only."""
    losses = [
        torch.logsumexp(row[sorted(allowed)], 0) - row[label]
        for row, label, allowed in zip(logits, y, classes, strict=True)
    ]
    return torch.stack(losses).mean()


class PlainERACE(Plain):
    def classify(self, z: Tensor) -> Tensor:
        cosines = [[torch.dot(row, w) / row.norm() / w.norm() for w in self.f.weight] for row in z]
        return 10 * torch.stack([torch.stack(row) for row in cosines])

    def loss(self, logits: Tensor, y: list[int], replayed: list[tuple[Tensor, int, Tensor]]) -> Tensor:
        n = len(y)
        loss = mean_cross_entropy(list(logits[:n]), y, [set(y)] * n)
        if replayed:
            labels = [label for _, label, _ in replayed]
            loss = loss + mean_cross_entropy(list(logits[n:]), labels, [self.seen] * len(labels))
        return loss


class PlainDERpp(Plain):
    draws = 2
    alpha, beta = 0.3, 0.6

    def loss(self, logits: Tensor, y: list[int], replayed: list[tuple[Tensor, int, Tensor]]) -> Tensor:
        n, half = len(y), len(replayed) // 2
        loss = mean_cross_entropy(list(logits[:n]), y, [self.seen] * n)
        if replayed:
            squares = [
                (logits[n + i, c] - replayed[i][2][c]) ** 2 for i in range(half) for c in range(CLASSES)
            ]  # of all classes, seen or not
            labels = [label for _, label, _ in replayed[half:]]
            again = mean_cross_entropy(list(logits[n + half :]), labels, [self.seen] * half)
            loss = loss + self.alpha * torch.stack(squares).mean() + self.beta * again
        return loss


@pytest.mark.parametrize(
    ("method", "reference", "hyper"),
    [(ERACE, PlainERACE, {}), (DERpp, PlainDERpp, {"alpha": 0.3, "beta": 0.6})],
)
def test_steps_are_those_of_a_plain_loop(method: type[Method], reference: type[Plain], hyper: dict[str, Any]) -> None:
    learner = cclfp.make(
        method, psi=network(), num_classes=CLASSES, memory=MEMORY, replay=REPLAY, seed=0, lr=0.05, **hyper
    )
    learner.make_classifier(batches()[0][0])
    plain, last = reference(learner), 0
    for x, y, task in batches():
        if task != last:
            learner.end_task()
            plain.schedule.end_task()
            last = task
        learner.observe(x, y, task)
        plain.step(x, y, 0.05)
        assert learner.f is not None
        for ours, theirs in zip(learner.psi.parameters(), plain.psi.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(learner.f.weight, plain.f.weight, rtol=1e-9, atol=1e-9)
    if method is DERpp:
        stored = torch.stack([plain.memory[slot][2] for slot in range(MEMORY)])
        torch.testing.assert_close(learner.state["logits"], stored, rtol=1e-9, atol=1e-9)
