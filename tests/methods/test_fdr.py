"""FDR against the distance of Benjamin, Rolnick & Körding (2019), written out for a tiny network, and its traps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.learner import Learner
from cclfp.methods import METHODS, Batch
from cclfp.methods.base import State, Stepped
from cclfp.methods.fdr import FDR, function_distance
from cclfp.nets.network import Tensors
from cclfp.testing import Case

TASKS = [[0, 1], [2], [3, 4]]
SHARED = [[0, 1, 2, 3, 4]] * 3
Task = list[tuple[Tensor, Tensor]]


def tiny_psi(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()


def halve(x: Tensor) -> Tensor:
    return x / 2


class Spied(FDR):
    """FDR that shows the last batch a step was given."""

    last: Batch

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        Spied.last = batch
        return super().step(params, buffers, state, batch, hyper)


def tiny_learner(scenario: str, seed: int, kind: type[FDR] = Spied, **hyper: Any) -> Learner:
    return cclfp.make(
        kind,
        psi=tiny_psi(seed),
        num_classes=5,
        scenario=scenario,
        tasks=SHARED if scenario == "domain" else TASKS,
        transform=halve,
        memory=8,
        replay=5,
        seed=seed,
        **hyper,
    )


def tiny_tasks(scenario: str, seed: int, steps: int) -> list[Task]:
    """Three tasks of some batches each, the last of them smaller; no two examples are equal."""
    g = torch.Generator().manual_seed(seed)
    tasks = []
    for classes in SHARED if scenario == "domain" else TASKS:
        batches = []
        for size in [4] * steps + [2]:
            y = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=g)]
            batches.append((2 * torch.randn(size, 3, dtype=torch.float64, generator=g) + y[:, None], y))
        tasks.append(batches)
    return tasks


def parameters(learner: Learner) -> list[Tensor]:
    assert learner.f is not None
    return [p.detach().clone() for p in (*learner.psi.parameters(), learner.f.weight, learner.f.bias)]


# -- the method, one example and one class at a time -----------------------------------------------------------------


def choices(scenario: str, own_task: int, current: int) -> list[int]:
    """The classes an example may choose from."""
    if scenario == "task":
        return TASKS[own_task]
    return list(range(5)) if scenario == "domain" else [k for classes in TASKS[: current + 1] for k in classes]


def probabilities(theta: list[Tensor], x: tuple[float, ...], classes: list[int]) -> list[Tensor]:
    W, b, V, c = theta
    logits = V @ torch.tanh(W @ torch.tensor(x, dtype=torch.float64) + b) + c
    total = sum(torch.exp(logits[k]) for k in classes)
    return [torch.exp(logits[k]) / total if k in classes else torch.zeros_like(logits[0]) for k in range(5)]


def follow(scenario: str, seed: int, steps: int, lr: float, alpha: float) -> int:
    """Train learner and reference side by side: the same parameters after every step.

    Which examples a step replays is the learner's draw. Whether one counts, and what its output was, the reference
    knows by the example itself. Returns in how many steps some replayed examples counted and others did not.
    """
    learner = tiny_learner(scenario, seed, lr=lr, alpha=alpha)
    tasks = tiny_tasks(scenario, seed, steps)
    learner.make_classifier(tasks[0][0][0])
    theta = parameters(learner)
    came: dict[tuple[float, ...], int] = {}  # the task each example came in
    stored: dict[tuple[float, ...], list[float]] = {}  # f_old of each example of the tasks that ended
    mixed = 0
    for task, batches in enumerate(tasks):
        for x, y in batches:
            learner.observe(x, y, task)
            theta = [p.requires_grad_() for p in theta]
            loss = torch.zeros((), dtype=torch.float64)
            for raw, label in zip(x, y.tolist(), strict=True):
                p = probabilities(theta, tuple((raw / 2).tolist()), choices(scenario, task, task))
                loss = loss - torch.log(p[label]) / len(y)
            replayed = [tuple(row.tolist()) for row in Spied.last.x[len(y) :]]
            counted = [key for key in replayed if key in stored]
            squares = torch.zeros((), dtype=torch.float64)
            for key in counted:
                p = probabilities(theta, key, choices(scenario, came[key], task))
                squares = squares + sum((a - b) ** 2 for a, b in zip(p, stored[key], strict=True))
            if squares > 0:
                loss = loss + alpha * torch.sqrt(squares / len(counted))
            theta = [(p - lr * g).detach() for p, g in zip(theta, torch.autograd.grad(loss, theta), strict=True)]
            for ours, theirs in zip(parameters(learner), theta, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
            mixed += 0 < len(counted) < len(replayed)
            came |= {tuple((raw / 2).tolist()): task for raw in x}
        learner.end_task()
        for key, own in came.items():
            if own == task:
                stored[key] = [float(p) for p in probabilities(theta, key, choices(scenario, own, task))]
    return mixed


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_equal_to_the_equations(scenario: str) -> None:
    assert follow(scenario, seed=0, steps=6, lr=0.2, alpha=0.7), "no batch had replayed examples of both kinds"


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    scenario=st.sampled_from(["class", "task", "domain"]),
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 3),
    alpha=st.sampled_from([0.0, 0.1, 2.0]),
)
def test_equal_to_the_equations_anywhere(scenario: str, seed: int, steps: int, alpha: float) -> None:
    follow(scenario, seed, steps, 0.1, alpha)


@st.composite
def functions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a function, outputs of another (or of itself), and which examples count: all, some or none."""
    n, classes = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    logits, other = (scale * torch.randn(n, classes, dtype=torch.float64, generator=g) for _ in range(2))
    counts = torch.rand(n, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return logits, (logits if draw(st.booleans()) else other).softmax(-1), counts


@settings(max_examples=100, deadline=None)
@given(functions())
def test_the_distance_is_that_of_loops_with_finite_gradients(given_: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, q, counts = given_
    p = logits.softmax(-1)
    squares = [math.dist(a, b) ** 2 for a, b, c in zip(p.tolist(), q.tolist(), counts.tolist(), strict=True) if c]
    expected = math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0
    assert math.isclose(float(function_distance(p, q, counts)), expected, rel_tol=1e-9, abs_tol=1e-12)
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(function_distance(leaf.softmax(-1), q.to(dtype), counts), leaf)
        assert torch.isfinite(gradient).all()
        assert (gradient[~counts] == 0).all()


def test_the_gradient_is_zero_where_nothing_changed() -> None:
    p = torch.softmax(torch.randn(6, 4), -1).requires_grad_()
    distance = function_distance(p, p.detach(), torch.ones(6, dtype=torch.bool))
    assert distance == 0
    assert (torch.autograd.grad(distance, p)[0] == 0).all()


# -- traps -----------------------------------------------------------------------------------------------------------


def train(learner: Learner, tasks: list[Task], first: int = 0) -> Learner:
    for number, batches in enumerate(tasks):
        for x, y in batches:
            learner.observe(x, y, first + number)
        learner.end_task()
    return learner


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_the_weight_is_used(scenario: str) -> None:
    """With it the network's answers to what it remembers change less."""
    tasks, changes = tiny_tasks(scenario, 6, steps=40), []
    told = 0 if scenario == "task" else None
    for alpha in (0.0, 1.0):
        learner = train(tiny_learner(scenario, 6, alpha=alpha), tasks[:1])
        assert learner.memory is not None
        asked = learner.memory.examples().x.clone()
        before = learner.logits(asked, told).softmax(-1)
        train(learner, tasks[2:], 2)
        changes.append(float((learner.logits(asked, told).softmax(-1) - before).square().mean().sqrt()))
    assert changes[1] < 0.8 * changes[0]


def test_without_weight_it_is_finetune() -> None:
    """The labels of the memory teach nothing."""
    tasks = tiny_tasks("class", 2, steps=5)
    finetune = cclfp.make("finetune", psi=tiny_psi(2), num_classes=5, tasks=TASKS, transform=halve, seed=2)
    ours = train(tiny_learner("class", 2, alpha=0.0), tasks)
    for a, b in zip(parameters(ours), parameters(train(finetune, tasks)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_stored_outputs_are_those_of_predicting(scenario: str) -> None:
    """In eval mode, on inputs transformed as for predicting, at the end of the task an example came in."""
    case = Case(FDR, scenario, {})
    replica = Replica(case.learner(), case.stream())
    before = torch.zeros(150, 6)
    for task in range(3):
        Cohort([replica]).advance()
        learner = replica.learner
        assert learner.memory is not None
        x, _, own = learner.memory.examples()
        expected = learner.logits(x, task=own if scenario == "task" else None).softmax(-1)
        stored, new = learner.state["outputs"], own == task
        assert stored.shape == (150, 6)
        assert new.any()
        torch.testing.assert_close(stored[: len(x)][new], expected[new])
        assert torch.equal(stored[: len(x)][~new], before[: len(x)][~new])
        assert (stored[len(x) :] == 0).all()
        before = stored.clone()


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tiny_tasks("class", 4, steps=3)
    whole = train(tiny_learner("class", 4), tasks)
    monkeypatch.setattr("cclfp.nets.network.CHUNK", 9)  # three examples at a time
    in_parts = train(tiny_learner("class", 4), tasks)
    torch.testing.assert_close(whole.state, in_parts.state)


def test_ending_a_task_leaves_the_state_before_it_alone() -> None:
    """It may be part of a checkpoint that someone holds."""
    tasks = tiny_tasks("class", 4, steps=3)
    learner = train(tiny_learner("class", 4), tasks[:1])
    held = learner.state["outputs"]
    before = held.clone()
    train(learner, tasks[1:], 1)
    assert torch.equal(held, before)


def test_leaking_to_new_classes_is_penalised() -> None:
    """What an old example gives to a class that came later counts, and the stored output has 0 there."""
    learner = train(tiny_learner("class", 0, alpha=1.0), tiny_tasks("class", 0, steps=3)[:1])
    stored = learner.state["outputs"]
    assert (stored[:, 2:] == 0).all()
    torch.testing.assert_close(stored[:, :2].sum(-1), torch.ones(8, dtype=torch.float64))
    mask = learner.mask.after_tasks(torch.tensor([1])).train(torch.tensor([1, 0]))
    learner.begin_task()
    assert learner.memory is not None
    held = learner.memory.examples()
    x = torch.stack([torch.zeros(3, dtype=torch.float64), held.x[0] / 2])
    y, task, slots = torch.tensor([2, held.y[0]]), torch.tensor([1, 0]), torch.tensor([0])
    losses = []
    for from_past_task in (True, False):
        batch = Batch(x, y, task, mask, 1, slots, torch.tensor([from_past_task]))
        losses.append(learner.algorithm.loss(*learner.model, batch, learner.hyper_tensors)[0])
    assert learner.f is not None
    p = learner.f(learner.psi(x[1:])).detach()[0, :3].softmax(-1)
    expected = math.dist(p.tolist(), stored[0, :3].tolist())
    assert expected > 0.01
    assert math.isclose((losses[0] - losses[1]).item(), expected, rel_tol=1e-9)


def test_the_first_task_is_that_of_finetune() -> None:
    """No replayed example counts yet, so they are not even seen by BatchNorm."""
    ours, finetune = Case(FDR, "class", {}).replica(), Case(METHODS["finetune"], "class", {}).replica()
    Cohort([ours]).advance()
    Cohort([finetune]).advance()
    for a, b in zip(ours.learner.psi.state_dict().values(), finetune.learner.psi.state_dict().values(), strict=True):
        assert torch.equal(a, b)


HYPER: dict[str, float] = {"alpha": 0.8}
