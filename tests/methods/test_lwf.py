"""LwF against the equations of Li & Hoiem (2016), written out for a tiny network, and its traps."""

from __future__ import annotations

import copy
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
from cclfp.errors import InputError
from cclfp.learner import Learner
from cclfp.methods import METHODS, Batch
from cclfp.methods.lwf import LwF, distillation
from cclfp.testing import Case, toy_psi

TASKS = [[0, 3], [2], [1, 4, 5]]
Task = list[tuple[Tensor, Tensor]]


def tiny_psi(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()


class Push:
    """An augmentation without randomness: the n-th example of a batch is moved by n / 10."""

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.arange(n)

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        return x + table[:, None] / 10


def normalise(x: Tensor) -> Tensor:
    return (x - 1) / 2


def tiny_learner(scenario: str, seed: int, *, declared: bool = True, **hyper: Any) -> Learner:
    return cclfp.make(
        LwF,
        psi=tiny_psi(seed),
        num_classes=6,
        scenario=scenario,
        tasks=TASKS if declared else None,
        transform=normalise,
        augment=Push(),
        seed=seed,
        **hyper,
    )


def tiny_tasks(seed: int, steps: int) -> list[Task]:
    """Three tasks of some batches each, the last of them smaller; every batch but that has all classes of its task."""
    g = torch.Generator().manual_seed(seed)
    tasks = []
    for classes in TASKS:
        batches = []
        for size in [4] * steps + [2]:
            y = torch.tensor((classes * 4)[:size])
            batches.append((2 * torch.randn(size, 3, dtype=torch.float64, generator=g) + y[:, None], y))
        tasks.append(batches)
    return tasks


def parameters(learner: Learner) -> list[Tensor]:
    assert learner.f is not None
    return [p.detach().clone() for p in (*learner.psi.parameters(), learner.f.weight, learner.f.bias)]


# -- the equations, one example and one class at a time --------------------------------------------------------------


def logits_of(theta: list[Tensor], x: Tensor) -> Tensor:
    W, b, V, c = theta
    return V @ torch.tanh(W @ x + b) + c


def probabilities(logits: Tensor, classes: list[int], T: float) -> dict[int, Tensor]:
    """Eq. 4: y'_i = y_i^(1/T) / sum_j y_j^(1/T), from the probabilities y of the head with these classes."""
    total = sum(torch.exp(logits[k]) for k in classes)
    y = {k: torch.exp(logits[k]) / total for k in classes}
    powers = sum(y[k] ** (1 / T) for k in classes)
    return {k: y[k] ** (1 / T) / powers for k in classes}


def reference_loss(
    theta: list[Tensor],
    old: list[Tensor] | None,
    x: Tensor,
    y: Tensor,
    seen: list[int],
    past: int,
    lambda_o: float,
    T: float,
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for n, (raw, label) in enumerate(zip(x, y.tolist(), strict=True)):
        given = (raw + n / 10 - 1) / 2  # augmented, then normalised
        logits = logits_of(theta, given)
        total = total - torch.log(probabilities(logits, seen, 1.0)[label])  # eq. 1
        for classes in TASKS[:past]:  # eqs. 2 and 3, summed over the old tasks
            assert old is not None
            target = probabilities(logits_of(old, given), classes, T)
            now = probabilities(logits, classes, T)
            for k in classes:
                total = total - lambda_o * target[k].detach() * torch.log(now[k])
    return total / len(y)


def follow(
    scenario: str, seed: int, steps: int, lr: float, lambda_o: float, T: float, *, declared: bool = True
) -> None:
    """Train learner and reference side by side: the same parameters after every step."""
    learner = tiny_learner(scenario, seed, declared=declared, lr=lr, lambda_o=lambda_o, T=T)
    tasks = tiny_tasks(seed, steps)
    learner.make_classifier(tasks[0][0][0])
    theta, old = parameters(learner), None
    for task, batches in enumerate(tasks):
        seen = TASKS[task] if scenario == "task" else [k for classes in TASKS[: task + 1] for k in classes]
        for x, y in batches:
            learner.observe(x, y, task)
            theta = [p.requires_grad_() for p in theta]
            loss = reference_loss(theta, old, x, y, seen, task, lambda_o, T)
            theta = [(p - lr * g).detach() for p, g in zip(theta, torch.autograd.grad(loss, theta), strict=True)]
            for ours, theirs in zip(parameters(learner), theta, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
        learner.end_task()
        old = theta


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("scenario", ["class", "task"])
def test_equal_to_the_equations(scenario: str, declared: bool) -> None:
    follow(scenario, seed=0, steps=4, lr=0.2, lambda_o=1.5, T=2.0, declared=declared)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    scenario=st.sampled_from(["class", "task"]),
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 2),
    lambda_o=st.sampled_from([0.0, 0.3, 4.0]),
    T=st.sampled_from([0.5, 1.0, 2.0, 10.0]),
)
def test_equal_to_the_equations_anywhere(scenario: str, seed: int, steps: int, lambda_o: float, T: float) -> None:
    follow(scenario, seed, steps, 0.1, lambda_o, T)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the new and of the old model, far apart or equal, and masks, some of them empty."""
    n, classes, tasks = draw(st.integers(1, 12)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    new, old = (scale * torch.randn(n, classes, dtype=torch.float64, generator=g) for _ in range(2))
    masks = torch.rand(tasks, classes, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return new, new.clone() if draw(st.booleans()) else old, masks


def brute_distillation(new: list[list[float]], old: list[list[float]], masks: list[list[bool]], T: float) -> float:
    total = 0.0
    for a, b in zip(new, old, strict=True):
        for mask in masks:
            head = [k for k, inside in enumerate(mask) if inside]
            if head:
                top_a, top_b = max(a[k] / T for k in head), max(b[k] / T for k in head)
                log_sum = top_a + math.log(math.fsum(math.exp(a[k] / T - top_a) for k in head))
                normaliser = math.fsum(math.exp(b[k] / T - top_b) for k in head)
                total += math.fsum(math.exp(b[k] / T - top_b) / normaliser * (log_sum - a[k] / T) for k in head)
    return total / len(new)


@settings(max_examples=100, deadline=None)
@given(answers(), st.sampled_from([0.5, 1.0, 2.0]))
def test_distillation_is_that_of_loops_with_finite_gradients(given_: tuple[Tensor, Tensor, Tensor], T: float) -> None:
    new, old, masks = given_
    expected = brute_distillation(new.tolist(), old.tolist(), masks.tolist(), T)
    assert math.isclose(float(distillation(new, old, masks, T)), expected, rel_tol=1e-9, abs_tol=1e-9)
    for dtype in (torch.float32, torch.float64):
        leaf = new.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(distillation(leaf, old.to(dtype), masks, T), leaf)
        assert torch.isfinite(gradient).all()
        assert (gradient[:, ~masks.any(0)] == 0).all(), "a class of no past task was taught"


# -- traps -----------------------------------------------------------------------------------------------------------


def test_the_domain_scenario_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="lwf is not defined in the domain scenario: all tasks share their classes"):
        cclfp.make(LwF, psi=nn.Flatten(), num_classes=2, scenario="domain")


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_without_weight_it_is_finetune(scenario: str) -> None:
    ours, finetune = Case(LwF, scenario, {"lambda_o": 0.0}).online(), Case(METHODS["finetune"], scenario, {}).online()
    assert all(map(torch.equal, parameters(ours), parameters(finetune)))


def test_the_old_model_is_in_eval_mode_and_the_new_one_in_training() -> None:
    """Built from what users see: the old model's answers are ``logits`` at the end of the task."""
    case = Case(LwF, "task", {"lambda_o": 0.7, "T": 3.0})
    stream = case.stream()
    replica = Replica(case.learner(psi=toy_psi(random=False)), stream)
    Cohort([replica]).advance()
    learner = replica.learner
    raw = stream.train.rows(stream.train_rows[1][:10])
    old = learner.logits(raw.x, task=0)[:, :2]
    mask = learner.mask.after_tasks(torch.tensor([1])).train(raw.task)
    learner.begin_task()
    z = copy.deepcopy(learner.psi).train()(raw.x / 2)
    assert learner.f is not None
    logits = learner.f(z)
    head = torch.softmax(old / 3, -1) * torch.log_softmax(logits[:, :2] / 3, -1)
    expected = nn.functional.cross_entropy(logits[:, 2:4], raw.y - 2) - 0.7 * head.sum(-1).mean()
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(raw.x / 2, raw.y, raw.task, mask, 10, none, none.bool())
    loss, _ = learner.algorithm.loss(*learner.model, batch, learner.hyper_tensors)
    torch.testing.assert_close(loss, expected)


def test_the_old_model_stays_as_it_was_while_the_new_one_is_trained() -> None:
    """BatchNorm's statistics included, of both."""
    replica = Case(LwF, "class", {}).replica()
    Cohort([replica]).advance()
    learner, stream = replica.learner, replica.stream
    before = copy.deepcopy({name: learner.state[name] for name in ("old", "buffers_old")})
    for name, now in (("old", learner.params), ("buffers_old", learner.buffers)):
        assert all(torch.equal(t, now[key]) for key, t in before[name].items())
    raw = stream.train.rows(stream.train_rows[1][:10])
    learner.observe(raw.x, raw.y, 1)
    for name, now in (("old", learner.params), ("buffers_old", learner.buffers)):
        assert all(torch.equal(t, learner.state[name][key]) for key, t in before[name].items())
        assert not any(torch.equal(t, now[key]) for key, t in before[name].items())


def test_beginning_a_task_trains_nothing() -> None:
    """No warm-up of the new head: the network is the same after ``begin_task``, and steps are counted by batches."""
    learner, tasks = tiny_learner("task", 0), tiny_tasks(0, steps=3)
    for x, y in tasks[0]:
        learner.observe(x, y, 0)
    learner.end_task()
    before = parameters(learner)
    learner.mask.after_tasks(torch.tensor([1]))
    learner.begin_task()
    assert all(map(torch.equal, before, parameters(learner)))


def test_old_answers_are_kept() -> None:
    """With a large weight the old head answers the new task's inputs as before, and without it does not."""
    changes = []
    for lambda_o in (0.0, 5.0):
        learner, tasks = tiny_learner("task", 3, lambda_o=lambda_o), tiny_tasks(3, steps=40)
        for x, y in tasks[0]:
            learner.observe(x, y, 0)
        learner.end_task()
        asked = torch.cat([x for x, _ in tasks[2]])
        before = learner.logits(asked, task=0)[:, [0, 3]].softmax(-1)
        for x, y in tasks[2]:
            learner.observe(x, y, 2)
        changes.append(float((learner.logits(asked, task=0)[:, [0, 3]].softmax(-1) - before).abs().mean()))
    assert changes[1] < 0.7 * changes[0]


HYPER: dict[str, float] = {"lambda_o": 0.8, "T": 2.0}
