"""Each method against the equations of its paper, repeated by hand on a tiny network in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import quadprog
import torch
from by_hand import ALL, Paper, average, follow, naive_herding, points, unit
from torch import Tensor

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.learner import Learner
from cclfp.methods import METHODS, Batch
from cclfp.testing.case import TASKS

Rows = list[tuple[Tensor, int, int]]  # input, label, task
norm = torch.linalg.vector_norm


class CCLFPPlus(Paper):
    """Eqs. 3 to 9."""

    old: list[Tensor] | None = None

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        h, z, n = self.hyper, self.features(theta, batch.x), range(len(batch.y))
        fused, rehearsal, supervised = z, torch.zeros(()), []
        if self.old is not None:
            z_old = self.features(self.old, batch.x, frozen=True).detach()
            near = [[torch.exp(-h["eta"] * norm(z[i] - z_old[j])) for j in n] for i in n]
            mixed = torch.stack([sum(near[i][j] * z_old[j] for j in n) / sum(near[i]) for i in n])  # type: ignore[misc]
            fused = (1 - h["w"]) * z + h["w"] * mixed
            alike = [[torch.exp(-h["tau"] * norm(z[i] - z_old[j])) for j in n] for i in n]
            rehearsal = torch.stack([-torch.log(alike[i][i] / sum(alike[i])) for i in n]).mean()
        for i in n:
            others = {j: torch.exp(-h["tau"] * norm(z[i] - z[j])) for j in n if j != i}
            partners = [k for k in others if batch.y[k] == batch.y[i]]
            if partners:
                terms = [-torch.log(others[k] / sum(others.values())) for k in partners]
                supervised.append(torch.stack(terms).mean())
        loss = self.nll(fused @ theta[-2].T + theta[-1], batch.y, batch.task) + h["alpha"] * rehearsal
        total: Tensor = loss + h["beta"] * sum(supervised, torch.zeros(())) / max(1, len(supervised))
        return total

    def end_task(self, held: Examples | None) -> None:
        super().end_task(held)
        self.old = self.theta


class SI(Paper):
    """Eqs. 3 to 5, with the surrogate's gradient at the end of the step."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.star, self.path, self.importance = self.theta, [0.0] * 4, [torch.zeros_like(t) for t in self.theta]
        self.negative = False  # whether the surrogate has moved a parameter against its gradient

    def step(self, batch: Batch) -> None:
        grads, h = self.gradient(lambda theta: self.loss(theta, batch)), self.hyper
        for k, (t, g) in enumerate(zip(self.theta, grads, strict=True)):
            # theta' minimises g theta' + c Omega (theta' - star)^2 + (theta' - theta)^2 / (2 lr)
            stiff = 2 * h["lr"] * h["c"] * self.importance[k]
            after = (t - h["lr"] * g + stiff * self.star[k]) / (1 + stiff)
            self.path[k] = self.path[k] - g * (after - t)
            self.negative |= bool((g * (after - t) > 0).any())
            self.theta = [*self.theta[:k], after, *self.theta[k + 1 :]]

    def end_task(self, held: Examples | None) -> None:
        super().end_task(held)
        for k, (t, star) in enumerate(zip(self.theta, self.star, strict=True)):
            self.importance[k] = (self.importance[k] + self.path[k] / ((t - star) ** 2 + self.hyper["xi"])).clamp(min=0)
        self.star, self.path = self.theta, [0.0] * 4

    def check(self) -> None:
        assert max(float(t.max()) for t in self.importance) > 0.1
        assert self.negative or self.task < 3, "the hard case was not met"
        for ours, theirs in zip(self.learner.state["importance"].values(), self.importance, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


class LwF(Paper):
    """Eqs. 1 to 4."""

    old: list[Tensor] | None = None

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        total = super().loss(theta, batch)
        for classes in TASKS[: self.task]:
            assert self.old is not None
            given = self.logits(self.old, batch.x, frozen=True), self.logits(theta, batch.x)
            target, now = (self.tempered(logits, classes) for logits in given)
            total = total - self.hyper["lambda_o"] * (target.detach() * torch.log(now)).sum(-1).mean()
        return total

    def tempered(self, logits: Tensor, classes: list[int]) -> Tensor:
        """Eq. 4: y'_i = y_i^(1/T) / sum_j y_j^(1/T), from the probabilities y of the head with these classes."""
        y = logits[:, classes].exp() / logits[:, classes].exp().sum(-1, keepdim=True)
        powers: Tensor = y ** (1 / self.hyper["T"])
        return powers / powers.sum(-1, keepdim=True)

    def end_task(self, held: Examples | None) -> None:
        super().end_task(held)
        self.old = self.theta


class FDR(Paper):
    """The distance to the outputs that each example had at the end of its task."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.came: dict[tuple[float, ...], int] = {}  # the task of each example
        self.stored: dict[tuple[float, ...], Tensor] = {}
        self.mixed = 0

    def outputs(self, theta: list[Tensor], key: tuple[float, ...]) -> Tensor:
        classes = self.allowed(self.came[key])
        powers = self.logits(theta, torch.tensor([key], dtype=torch.float64))[0].exp()
        chosen = torch.stack([powers[c] if c in classes else 0 * powers[c] for c in range(6)])
        return chosen / chosen.sum()

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        n, keys = batch.n_current, [tuple(row) for row in batch.x.tolist()]
        counted = [key for key in keys[n:] if key in self.stored]
        self.mixed += 0 < len(counted) < len(keys[n:])
        loss = self.cross_entropy(theta, batch.x[:n], batch.y[:n], batch.task[:n])
        squares = sum((((self.outputs(theta, k) - self.stored[k]) ** 2).sum() for k in counted), torch.zeros(()))
        self.came |= dict.fromkeys(keys[:n], self.task)
        return loss + self.hyper["alpha"] * torch.sqrt(squares / len(counted)) if squares > 0 else loss

    def end_task(self, held: Examples | None) -> None:
        new = [key for key, own in self.came.items() if own == self.task]
        self.stored |= {key: self.outputs(self.theta, key) for key in new}
        super().end_task(held)

    def check(self) -> None:
        assert self.mixed or self.task < 3, "no batch had replayed examples of both kinds"


class GEM(Paper):
    """Eqs. 8 and 11, with quadprog for the dual programme as in the authors' code."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.memories: list[Rows] = []
        self.came: Rows = []
        self.changed = 0

    def step(self, batch: Batch) -> None:
        n = batch.n_current
        self.came += zip(batch.x[:n], batch.y[:n].tolist(), batch.task[:n].tolist(), strict=True)
        g = self.flat(batch.x[:n], batch.y[:n], batch.task[:n])
        straight = self.projected(g, batch)
        self.changed += not torch.equal(g, straight)
        parts = straight.split([t.numel() for t in self.theta])
        self.theta = [t - self.hyper["lr"] * p.view_as(t) for t, p in zip(self.theta, parts, strict=True)]

    def projected(self, g: Tensor, batch: Batch) -> Tensor:
        if not self.memories:
            return g
        past = []
        for memory in self.memories:
            x, y, task = zip(*memory, strict=True)
            past.append(self.flat(torch.stack(x), torch.tensor(y), torch.tensor(task)))
        return project(g, past, self.hyper["gamma"])

    def flat(self, x: Tensor, y: Tensor, task: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in self.gradient(lambda theta: self.cross_entropy(theta, x, y, task))])

    def end_task(self, held: Examples | None) -> None:
        super().end_task(held)
        self.memories.append(self.came[-(20 // 3) :])  # an even share, of the most recent
        self.came = []

    def check(self) -> None:
        assert self.changed >= 2 or self.task < 3, "too few steps were projected for this to be a test"


def project(g: Tensor, rows: list[Tensor], gamma: float) -> Tensor:
    M = torch.stack(rows).numpy()
    if (M @ g.numpy() >= 0).all():
        return g
    P = M @ M.T
    P = (P + P.T) / 2 + 1e-3 * np.eye(len(M))
    v = quadprog.solve_qp(P, -(M @ g.numpy()), np.eye(len(M)), np.full(len(M), gamma))[0]
    return g + torch.as_tensor(M.T @ v)


class AGEM(GEM):
    """Eq. 11 of A-GEM, with the examples that were replayed."""

    def projected(self, g: Tensor, batch: Batch) -> Tensor:
        n = batch.n_current
        assert len(batch.y) - n == min(4, [0, 10, 13][self.task])
        assert (batch.task[n:] < self.task).all()
        if self.task == 0:
            return g
        reference = self.flat(batch.x[n:], batch.y[n:], batch.task[n:])
        inner = float((g * reference).sum())
        return g if inner >= 0 else g - inner / float((reference * reference).sum()) * reference


class HAL(Paper):
    """One example and one anchor after the other."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.anchors: list[tuple[Tensor, int, int]] = []  # input, class, task
        self.embedding: dict[int, Tensor] = {}

    def step(self, batch: Batch) -> None:
        n, beta = batch.n_current, self.hyper["beta"]
        for c in sorted(set(batch.y[:n].tolist())):
            mean = self.features(self.theta, batch.x[:n][batch.y[:n] == c]).mean(0)
            old = self.embedding.get(c)
            self.embedding[c] = mean if old is None else beta * old + (1 - beta) * mean
            torch.testing.assert_close(self.learner.state["embedding"][c], self.embedding[c], rtol=0, atol=1e-8)
        super().step(batch)

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        loss = super().loss(theta, batch)
        if not self.anchors:
            return loss
        grads = torch.autograd.grad(loss, theta, create_graph=True)
        tentative = [t - self.hyper["lr"] * g for t, g in zip(theta, grads, strict=True)]
        moved: Tensor = torch.zeros(())
        for e, _, own in self.anchors:
            change = self.logits(theta, e) - self.logits(tentative, e)
            moved = moved + torch.stack([change[c] ** 2 for c in self.allowed(own)]).sum()
        total: Tensor = loss + self.hyper["lam"] * moved / len(self.anchors)
        return total

    def end_task(self, held: Examples | None) -> None:
        assert held is not None
        g, h, x = generator(0, "anchors", self.task), self.hyper, held.x / 2
        past, ring = held.task != self.task, x[held.task == self.task]
        theta_m, labels = self.theta, held.y[held.task == self.task].tolist()
        for rows in torch.randperm(int(past.sum()), generator=g).split(10) if past.any() else []:
            chosen = past.nonzero()[:, 0][rows]
            theta_m = self.descended(theta_m, x[chosen], held.y[chosen], held.task[chosen])
        for c, phi in sorted(self.embedding.items()):
            mine = [row for row, label in zip(ring, labels, strict=True) if label == c] or list(ring)
            e = mine[int(torch.rand((), generator=g, dtype=torch.float64) * len(mine))]
            for _ in range(int(h["steps"])):
                e = e.detach().clone().requires_grad_()
                one = (e[None], torch.tensor([c]), torch.tensor([self.task]))
                gain = self.cross_entropy(theta_m, *one) - self.cross_entropy(self.theta, *one)
                gain = gain - h["gamma"] * ((self.features(self.theta, e) - phi) ** 2).sum()
                e = e + h["anchor_lr"] * torch.autograd.grad(gain, e)[0]
                e = torch.minimum(torch.maximum(e, ring.min()), ring.max())
            self.anchors.append((e.detach(), c, self.task))
        self.embedding = {}
        super().end_task(held)

    def check(self) -> None:
        anchors = self.learner.state["anchors"]
        assert list(zip(anchors["y"].tolist(), anchors["task"].tolist(), strict=True)) == [a[1:] for a in self.anchors]
        torch.testing.assert_close(anchors["x"], torch.stack([a[0] for a in self.anchors]), rtol=0, atol=1e-7)


class ICaRL(Paper):
    """Algorithms 1 to 5."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.old: list[Tensor] | None = None
        self.seen: set[int] = set()  # classes of the tasks that have ended
        self.exemplars: dict[int, list[Tensor]] = {}
        self.data: dict[int, list[Tensor]] = {}

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        n, g, total = batch.n_current, torch.sigmoid(self.logits(theta, batch.x)), torch.zeros(())
        assert batch.x[n:].tolist() == [self.memory()[slot].tolist() for slot in batch.slots.tolist()]
        q = None if self.old is None else torch.sigmoid(self.logits(self.old, batch.x, frozen=True))
        for i, (y, own) in enumerate(zip(batch.y.tolist(), batch.task.tolist(), strict=True)):
            for c in {*self.allowed(own), *self.seen}:
                distils = q is not None and c in self.seen and not (c == y and i < n)
                target = q[i, c] if distils and q is not None else float(c == y)
                total = total - target * torch.log(g[i, c]) - (1 - target) * torch.log(1 - g[i, c])
            if i < n:
                self.data.setdefault(y, []).append(batch.x[i])
        return total / len(batch.y)

    def end_task(self, held: Examples | None) -> None:
        self.old, self.seen = self.theta, self.seen | set(self.data)
        self.keep_statistics()  # herding is in eval mode
        m = 9 // len(self.seen)
        for c, new in self.data.items():
            pool = self.exemplars.get(c, []) + new
            self.exemplars[c] = [pool[i] for i in naive_herding([self.phi(x) for x in pool], m)]
        self.exemplars = {c: self.exemplars[c][:m] for c in sorted(self.seen)}
        self.data = {}
        super().end_task(held)

    def phi(self, x: Tensor) -> list[float]:
        return unit(self.features(self.theta, x, frozen=True).tolist())

    def memory(self) -> list[Tensor]:
        return [x for of_class in self.exemplars.values() for x in of_class]

    def check(self) -> None:
        learner, means = self.learner, {c: average([self.phi(x) for x in xs]) for c, xs in self.exemplars.items()}
        assert learner.memory is not None
        assert torch.equal(learner.memory.examples().x / 2, torch.stack(self.memory()))
        for c, mean in means.items():
            torch.testing.assert_close(learner.state["means"][c].tolist(), mean, rtol=0, atol=1e-10)
        x, last = points(ALL[0] * 4, seed=77)[0], self.task - 1
        choices = TASKS[last] if learner.scenario == "task" else sorted(self.seen)
        phi = [self.phi(row / 2) for row in x]
        nearest = [min((math.dist(row, means[c]), c) for c in choices)[1] for row in phi]
        assert learner.predict(x, task=last if learner.scenario == "task" else None).tolist() == nearest


PAPERS: list[tuple[str, type[Paper], dict[str, Any]]] = [
    ("finetune", Paper, {}),
    ("er", Paper, {"memory": 8, "replay": 5}),
    (
        "ccl-fp+",
        CCLFPPlus,
        {"memory": 8, "replay": 5, "w": 0.3, "alpha": 0.7, "beta": 0.4, "eta": 0.5, "tau": 0.8, "norm": True},
    ),
    ("si", SI, {"c": 5.0, "xi": 0.1}),
    ("lwf", LwF, {"lambda_o": 1.5, "T": 2.0, "norm": True}),
    ("fdr", FDR, {"memory": 8, "replay": 5, "alpha": 0.7}),
    ("gem", GEM, {"memory": 20, "gamma": 0.0, "norm": True}),
    ("gem", GEM, {"memory": 20, "gamma": 0.5, "norm": True}),
    ("a-gem", AGEM, {"memory": 20, "reference": 4, "norm": True}),
    ("icarl", ICaRL, {"memory": 9, "replay": 4, "lr": 0.5, "norm": True}),
    ("hal", HAL, {"memory": 39, "replay": 4, "lam": 0.5, "gamma": 0.3, "beta": 0.7, "steps": 5, "anchor_lr": 0.3}),
]


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
@pytest.mark.parametrize(("method", "paper", "options"), PAPERS, ids=[row[0] for row in PAPERS])
def test_equal_to_the_paper(method: str, paper: type[Paper], options: dict[str, Any], scenario: str) -> None:
    if scenario in METHODS[method].scenarios():
        follow(method, paper, scenario, **options)
