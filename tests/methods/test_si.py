"""SI against the equations of Zenke et al. (2017), written out for a tiny network, and its traps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.engine.cohort import Cohort
from cclfp.learner import Learner
from cclfp.methods.si import SI
from cclfp.testing import Case

TASKS = [[0, 1], [2], [3, 4]]
SHARED = [[0, 1, 2, 3, 4]] * 3
Task = list[tuple[Tensor, Tensor]]


def tiny_psi(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()


def tiny_learner(scenario: str, seed: int, **hyper: float) -> Learner:
    tasks = SHARED if scenario == "domain" else TASKS
    return cclfp.make(
        SI,
        psi=tiny_psi(seed),
        num_classes=5,
        scenario=scenario,
        tasks=tasks,
        transform=halve,
        seed=seed,
        **hyper,  # type: ignore[arg-type]
    )


def halve(x: Tensor) -> Tensor:
    return x / 2


def tiny_tasks(scenario: str, seed: int, steps: int) -> list[Task]:
    """Three tasks of some batches each, the last of them smaller."""
    g = torch.Generator().manual_seed(seed)
    tasks = []
    for classes in SHARED if scenario == "domain" else TASKS:
        batches = []
        for size in [4] * steps + [2]:
            y = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=g)]
            batches.append((2 * torch.randn(size, 3, dtype=torch.float64, generator=g) + y[:, None], y))
        tasks.append(batches)
    return tasks


def allowed(scenario: str, task: int) -> list[int]:
    """The classes an example of the current task may choose from."""
    if scenario == "task":
        return TASKS[task]
    return list(range(5)) if scenario == "domain" else [c for classes in TASKS[: task + 1] for c in classes]


def parameters(learner: Learner) -> list[Tensor]:
    assert learner.f is not None
    return [p.detach().clone() for p in (*learner.psi.parameters(), learner.f.weight, learner.f.bias)]


def reference_loss(theta: list[Tensor], x: Tensor, y: Tensor, classes: list[int]) -> Tensor:
    W, b, V, c = theta
    total = torch.zeros((), dtype=torch.float64)
    for xi, yi in zip(x / 2, y.tolist(), strict=True):
        z = torch.tanh(W @ xi + b)
        logits = {k: V[k] @ z + c[k] for k in classes}
        total = total + torch.stack(list(logits.values())).exp().sum().log() - logits[yi]
    return total / len(y)


class Reference:
    """Eqs. 3 to 5, one number at a time."""

    def __init__(self, theta: list[Tensor], lr: float, c: float, xi: float) -> None:
        self.shapes = [p.shape for p in theta]
        self.theta = [v for p in theta for v in p.flatten().tolist()]
        self.lr, self.c, self.xi = lr, c, xi
        self.Omega = [0.0] * len(self.theta)
        self.begin()

    def begin(self) -> None:
        self.star = list(self.theta)
        self.omega = [0.0] * len(self.theta)

    def tensors(self) -> list[Tensor]:
        flat = torch.tensor(self.theta, dtype=torch.float64)
        parts = flat.split([shape.numel() for shape in self.shapes])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def step(self, x: Tensor, y: Tensor, classes: list[int]) -> None:
        theta = [p.requires_grad_() for p in self.tensors()]
        gradients = torch.autograd.grad(reference_loss(theta, x, y, classes), theta)
        flat = [v for g in gradients for v in g.flatten().tolist()]
        for k, g in enumerate(flat):
            # theta' minimises g theta' + c Omega (theta' - star)^2 + (theta' - theta)^2 / (2 lr)
            stiff = 2 * self.lr * self.c * self.Omega[k]
            after = (self.theta[k] - self.lr * g + stiff * self.star[k]) / (1 + stiff)
            self.omega[k] += -g * (after - self.theta[k])
            self.theta[k] = after

    def end(self) -> None:
        for k, omega in enumerate(self.omega):
            total = self.Omega[k] + omega / ((self.theta[k] - self.star[k]) ** 2 + self.xi)
            self.Omega[k] = max(0.0, total)


def follow(scenario: str, seed: int, steps: int, lr: float, c: float, xi: float) -> Reference:
    """Train learner and reference side by side: the same parameters after every step, the same importances."""
    learner = tiny_learner(scenario, seed, lr=lr, c=c, xi=xi)
    tasks = tiny_tasks(scenario, seed, steps)
    learner.make_classifier(tasks[0][0][0])
    reference = Reference(parameters(learner), lr, c, xi)
    for task, batches in enumerate(tasks):
        reference.begin()
        for x, y in batches:
            learner.observe(x, y, task)
            reference.step(x, y, allowed(scenario, task))
            for ours, theirs in zip(parameters(learner), reference.tensors(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
        learner.end_task()
        reference.end()
        importance = torch.cat([t.flatten() for t in learner.state["importance"].values()])
        expected = torch.tensor(reference.Omega, dtype=torch.float64)
        torch.testing.assert_close(importance, expected, rtol=1e-7, atol=1e-8)
        assert (importance >= 0).all()
    return reference


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_equal_to_the_equations(scenario: str) -> None:
    reference = follow(scenario, seed=0, steps=5, lr=0.2, c=0.5, xi=0.1)
    assert max(reference.Omega) > 0.1


def far_from_home(lr: float, c: float) -> tuple[Learner, Tensor, Tensor]:
    """A learner at the start of the second task, with theta* elsewhere and importances of all sizes; and a batch."""
    learner = tiny_learner("domain", 8, lr=lr, c=c)
    first, second, _ = tiny_tasks("domain", 8, steps=2)
    for x, y in first:
        learner.observe(x, y, 0)
    learner.end_task()
    learner.begin_task()
    g = torch.Generator().manual_seed(0)
    for name, p in learner.params.items():
        learner.state["importance"][name] = torch.rand(p.shape, dtype=torch.float64, generator=g)
        learner.state["start"][name] = p.detach() + torch.randn(p.shape, dtype=torch.float64, generator=g)
    return learner, *second[0]


def test_a_surrogate_that_pulls_against_the_gradient() -> None:
    """omega is the task's gradient times the whole step's change, of either sign."""
    learner, x, y = far_from_home(lr=0.1, c=2.0)
    theta = [p.requires_grad_() for p in parameters(learner)]
    gradients = torch.autograd.grad(reference_loss(theta, x, y, allowed("domain", 1)), theta)
    learner.observe(x, y, 1)
    path = list(learner.state["path"].values())
    for ours, g, before, after in zip(path, gradients, theta, parameters(learner), strict=True):
        torch.testing.assert_close(ours, -g * (after - before.detach()), rtol=1e-8, atol=1e-12)
    flat = torch.cat([t.flatten() for t in path])
    assert (flat > 0).any()
    assert (flat < 0).any(), "no omega was negative: the hard case was not met"


def test_an_importance_that_would_be_negative_is_zero() -> None:
    learner = tiny_learner("class", 0, xi=0.5)
    for x, y in tiny_tasks("class", 0, steps=1)[0]:
        learner.observe(x, y, 0)
    params, buffers, _ = learner.model
    start = {name: p.detach() - 1 for name, p in params.items()}

    def importance_after(path: float) -> list[Tensor]:
        full = {
            name: {k: torch.full_like(p, v) for k, p in params.items()}
            for name, v in (("path", path), ("importance", 2.0))
        }
        state = learner.algorithm.end_task(
            params, buffers, {**full, "start": start}, learner.hyper_tensors, learner.task_context()
        )
        return list(state["importance"].values())

    for path, expected in ((3.0, 4.0), (-1.5, 1.0), (-3.0, 0.0), (-9.0, 0.0)):  # 2 + path / (1 + 0.5)
        for t in importance_after(path):
            torch.testing.assert_close(t, torch.full_like(t, expected))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    scenario=st.sampled_from(["class", "task", "domain"]),
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 3),
    lr=st.sampled_from([0.03, 0.2]),
    c=st.sampled_from([0.0, 0.1, 1.0]),
    xi=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_equal_to_the_equations_anywhere(scenario: str, seed: int, steps: int, lr: float, c: float, xi: float) -> None:
    follow(scenario, seed, steps, lr, c, xi)


def test_any_strength_is_stable() -> None:
    """The stronger, the nearer to a network whose important parameters stand still; never NaN."""
    tasks = tiny_tasks("domain", 7, steps=10)
    for c in (1e2, 1e4, 1e8):
        learner = tiny_learner("domain", 7, lr=0.3, c=c, xi=0.001)
        for task, batches in enumerate(tasks):
            for x, y in batches:
                learner.observe(x, y, task)
            if task == 0:
                ended = parameters(learner)
            learner.end_task()
        assert all(torch.isfinite(p).all() for p in parameters(learner))
    for now, then in zip(parameters(learner), ended, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=1e-3)


def test_a_weak_surrogate_is_that_of_sgd() -> None:
    """To first order in lr the step is SGD on L + c sum Omega (theta - theta*)^2."""
    learner, x, y = far_from_home(lr=1e-6, c=0.7)
    state = learner.state
    theta = [p.requires_grad_() for p in parameters(learner)]
    loss = reference_loss(theta, x, y, allowed("domain", 1))
    for p, Omega, star in zip(theta, state["importance"].values(), state["start"].values(), strict=True):
        loss = loss + 0.7 * (Omega * (p - star) ** 2).sum()
    before, expected = parameters(learner), torch.autograd.grad(loss, theta)
    learner.observe(x, y, 1)
    for b, a, g in zip(before, parameters(learner), expected, strict=True):
        torch.testing.assert_close((b - a) / 1e-6, g, rtol=1e-4, atol=1e-6)


def test_without_strength_it_is_finetune() -> None:
    ours, finetune = (
        Case(SI, "class", {"c": 0.0}).online(),
        Case(cclfp.methods.METHODS["finetune"], "class", {}).online(),
    )
    assert all(map(torch.equal, parameters(ours), parameters(finetune)))


def test_the_first_task_is_that_of_finetune() -> None:
    """BatchNorm's statistics included."""
    cases = Case(SI, "class", {"c": 5.0}), Case(cclfp.methods.METHODS["finetune"], "class", {})
    ours, finetune = (case.replica() for case in cases)
    Cohort([ours]).advance()
    Cohort([finetune]).advance()
    assert all(map(torch.equal, parameters(ours.learner), parameters(finetune.learner)))
    assert all(map(torch.equal, ours.learner.psi.buffers(), finetune.learner.psi.buffers()))
    Cohort([ours]).advance()
    Cohort([finetune]).advance()
    assert not all(map(torch.equal, parameters(ours.learner), parameters(finetune.learner)))


def test_what_matters_is_held() -> None:
    """The stronger the surrogate, the less the important parameters move in the next task, of those that would."""
    moved = []
    for c in (0.0, 1.0):
        learner = tiny_learner("domain", 3, lr=0.1, c=c, xi=0.1)
        first, second, _ = tiny_tasks("domain", 3, steps=30)
        for x, y in first:
            learner.observe(x, y, 0)
        learner.end_task()
        before = parameters(learner)
        Omega = [t.clone() for t in learner.state["importance"].values()]
        for x, y in second:
            learner.observe(x, y, 1)
        after = parameters(learner)
        moved.append(sum(float((w * (a - b) ** 2).sum()) for w, a, b in zip(Omega, after, before, strict=True)))
    assert moved[1] < 0.5 * moved[0]


HYPER: dict[str, float] = {"c": 0.5, "xi": 0.05}
