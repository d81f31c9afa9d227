"""GEM against the paper's equations in float64, with quadprog for the dual programme as in the authors' code."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.errors import DivergenceError
from cclfp.learner import Learner
from cclfp.methods import gem
from cclfp.methods.gem import GEM, project

SCENARIOS = ("class", "task", "domain")
TASKS = [[0, 1], [2, 3], [4, 5]]
Examples = list[tuple[Tensor, int, int]]  # input, label, task


def small_psi() -> nn.Module:
    """With BatchNorm, in float64."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).double()


def learner_of(scenario: str, **given: float) -> Learner:
    domain = [list(range(6))] * 3
    return cclfp.make(
        GEM,
        psi=small_psi(),
        num_classes=6,
        memory=20,
        scenario=scenario,
        tasks=domain if scenario == "domain" else TASKS,
        transform=lambda x: 2 * x,
        lr=0.3,
        **given,  # type: ignore[arg-type]
    )


def batches_of(scenario: str, steps: int = 4, tasks: int = 3) -> list[list[tuple[Tensor, Tensor]]]:
    """For each task its batches, the last one smaller. Between tasks the inputs say otherwise about the label."""
    g = torch.Generator().manual_seed(7)
    stream = []
    for task in range(tasks):
        batches = []
        for step in range(steps):
            n = 3 if step == steps - 1 else 5
            y = torch.randint(0, 6, (n,), generator=g) if scenario == "domain" else torch.arange(n) % 2 + 2 * task
            batches.append((torch.randn(n, 3, dtype=torch.float64, generator=g) + (-1) ** y[:, None], y))
        stream.append(batches)
    return stream


# -- the paper, on plain tensors ------------------------------------------------------------------------------------


def loss_of(w: dict[str, Tensor], examples: Examples, seen: list[int], scenario: str) -> Tensor:
    """Cross-entropy over the classes each example may choose from, BatchNorm with the statistics of these examples."""
    x = 2 * torch.stack([example[0] for example in examples])
    h = x @ w["0.weight"].T + w["0.bias"]
    h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]
    logits = torch.tanh(h) @ w["f.weight"].T + w["f.bias"]
    total = torch.zeros((), dtype=torch.float64)
    for row, (_, label, task) in zip(logits, examples, strict=True):
        allowed = {"class": seen, "task": TASKS[task], "domain": list(range(6))}[scenario]
        total = total + torch.logsumexp(row[allowed], 0) - row[label]
    return total / len(examples)


def gradient_of(w: dict[str, Tensor], examples: Examples, seen: list[int], scenario: str) -> Tensor:
    leaves = {name: t.clone().requires_grad_() for name, t in w.items()}
    loss = loss_of(leaves, examples, seen, scenario)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])


def projected(g: Tensor, rows: list[Tensor], gamma: float) -> Tensor:
    M = torch.stack(rows).numpy()
    if (M @ g.numpy() >= 0).all():
        return g
    P = M @ M.T
    P = (P + P.T) / 2 + 1e-3 * np.eye(len(M))
    v = quadprog.solve_qp(P, -(M @ g.numpy()), np.eye(len(M)), np.full(len(M), gamma))[0]
    return g + torch.as_tensor(M.T @ v)


def weights(learner: Learner) -> dict[str, Tensor]:
    psi = {name: p.detach().clone() for name, p in learner.psi.named_parameters()}
    assert learner.f is not None
    return psi | {"f.weight": learner.f.weight.detach().clone(), "f.bias": learner.f.bias.detach().clone()}


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_equal_to_the_paper(scenario: str, gamma: float) -> None:
    learner = learner_of(scenario, gamma=gamma)
    stream = batches_of(scenario)
    learner.make_classifier(stream[0][0][0])
    w = weights(learner)
    mean, var = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    memories: list[Examples] = []
    seen: list[int] = []
    changed = 0
    for task, batches in enumerate(stream):
        seen += TASKS[task]
        came: Examples = []
        for x, y in batches:
            new: Examples = [(a, int(b), task) for a, b in zip(x, y, strict=True)]
            h = 2 * x @ w["0.weight"].T + w["0.bias"]
            mean, var = 0.9 * mean + 0.1 * h.mean(0), 0.9 * var + 0.1 * h.var(0)
            g = gradient_of(w, new, seen, scenario)
            if task:
                straight = g
                g = projected(g, [gradient_of(w, past, seen, scenario) for past in memories], gamma)
                changed += not torch.equal(straight, g)
            parts = g.split([t.numel() for t in w.values()])
            w = {name: t - 0.3 * part.view_as(t) for (name, t), part in zip(w.items(), parts, strict=True)}
            learner.observe(x, y, task)
            for name, t in weights(learner).items():
                torch.testing.assert_close(t, w[name], rtol=0, atol=1e-8)
            torch.testing.assert_close(learner.psi[1].running_mean, mean, rtol=0, atol=1e-8)  # type: ignore[index]
            torch.testing.assert_close(learner.psi[1].running_var, var, rtol=0, atol=1e-8)  # type: ignore[index]
            came += new
        learner.end_task()
        memories.append(came[-(20 // 3) :])  # an even share, of the most recent
    assert changed >= 3, "too few steps were projected for this to be a test"


# -- the projection -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 19), st.sampled_from(["random", "repeated", "opposite", "zero"]), st.integers(0, 2**32))
def test_the_projected_gradient_agrees_with_the_past(n: int, kind: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(n + 1, 30, dtype=torch.float64, generator=g)
    if kind == "repeated":
        rows[1:] = rows[1:][torch.randint(0, (n + 1) // 2, (n,), generator=g)]
    if kind == "opposite":
        rows[-1] = -rows[1]
    if kind == "zero":
        rows[torch.rand(n + 1, generator=g) < 0.3] = 0
    for gamma in (0.0, 0.5):
        x = project(rows, torch.tensor(gamma))
        expected = projected(rows[0], list(rows[1:]), gamma)
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
        if (rows[1:] @ rows[0] >= 0).all():
            assert torch.equal(x, rows[0])
        elif gamma == 0:  # but for the 1e-3 on the diagonal
            assert (rows[1:] @ x >= -0.02 * rows.norm(dim=1).max()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_agrees_is_left_as_it_is(dtype: torch.dtype) -> None:
    rows = torch.randn(6, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rows[1:] *= torch.sign(rows[1:] @ rows[0])[:, None]
    assert torch.equal(project(rows, torch.tensor(0.5)), rows[0])
    rows[3] = 0  # a product of 0 is no disagreement
    assert torch.equal(project(rows, torch.tensor(0.5)), rows[0])
    rows[4] = -rows[4]
    assert not torch.equal(project(rows, torch.tensor(0.5)), rows[0])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 19), st.floats(-6, 6), st.integers(0, 2**32))
@example(5, 6.0, 226)  # 13,000 times as long without the rounding on the diagonal
def test_float32_gradients_of_any_size(n: int, exponent: float, seed: int) -> None:
    """Also where the products' rounding is more than the 1e-3 on the diagonal: nearly opposite, large gradients."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(n + 1, 200, generator=g)
    half = n // 2
    rows[1 + half : 1 + 2 * half] = -rows[1 : 1 + half] + 1e-6 * rows[1 + half : 1 + 2 * half]
    rows = rows * 10**exponent
    x = project(rows, torch.tensor(0.0)).double()
    assert torch.isfinite(x).all()
    assert x.norm() <= 1.01 * rows[0].double().norm()  # a projection onto a cone


# -- the memory -----------------------------------------------------------------------------------------------------


def observe_task(learner: Learner, task: int, n: int, width: int = 8, end: bool = True) -> None:
    g = torch.Generator().manual_seed(task)
    for part in range(0, n, 10):
        size = min(10, n - part)
        learner.observe(torch.randn(size, width, generator=g), torch.randint(0, 4, (size,), generator=g), task)
    if end:
        learner.end_task()


@pytest.mark.parametrize("num_tasks", [20, None])
def test_twenty_tasks(num_tasks: int | None) -> None:
    """Where another implementation crashes: 20 tasks, 10 examples of each."""
    psi = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    learner = cclfp.make(GEM, psi=psi, num_classes=4, scenario="domain", memory=200, num_tasks=num_tasks, lr=0.1)
    for task in range(20):
        observe_task(learner, task, 40, end=False)
        past = learner.state.get("past", {})
        assert list(past) == [str(t) for t in range(task)]
        share = 200 // (num_tasks or task + 1)
        assert all(len(one["y"]) == min(share, 40) for one in past.values())
        learner.end_task()
        assert learner.state == {}
    assert all(torch.isfinite(p).all() for p in psi.parameters())


def test_a_training_that_diverges_does_not_crash() -> None:
    psi = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    learner = cclfp.make(GEM, psi=psi, num_classes=4, scenario="domain", memory=60, lr=1e9)
    observe_task(learner, 0, 20)
    with pytest.raises(DivergenceError):  # and not an error of the solver
        observe_task(learner, 1, 20)
    assert all(torch.isfinite(p).all() for p in psi.parameters())


def test_past_shares_that_shrink_are_within_the_memory() -> None:
    """Without ``num_tasks`` the memory is full of the past when a task begins; what is used of it is what stays."""
    learner = cclfp.make(GEM, psi=nn.Flatten(), num_classes=4, scenario="domain", memory=20)
    for task in range(6):
        observe_task(learner, task, 50, end=False)
        assert learner.memory is not None
        held = learner.memory.examples()
        past = learner.state.get("past", {})
        assert sum(len(one["y"]) for one in past.values()) <= 20 - 20 // (task + 1)
        for name, one in past.items():
            of_task = held.x[held.task == int(name)]
            assert all(any(torch.equal(x, kept) for kept in of_task) for x in one["x"])
        learner.end_task()


def test_classes_seen_within_a_task_count_for_the_past_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the classes are not declared, those of a task are not known when it begins."""
    seen: list[Tensor] = []

    def spy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        seen.append(mask.clone())
        return cclfp.losses.cross_entropy(logits, y, mask)

    monkeypatch.setattr(gem, "cross_entropy", spy)
    learner = cclfp.make(GEM, psi=nn.Flatten(), num_classes=4, memory=8)
    x = torch.randn(2, 3)
    learner.observe(x, torch.tensor([0, 1]))
    learner.end_task()
    for label in (2, 3):
        seen.clear()
        learner.observe(x, torch.tensor([label, label]))
        assert [mask[0].tolist() for mask in seen] == 2 * [[True, True, True, label == 3]]


@pytest.mark.parametrize("share", [1, 2])
def test_one_example_of_a_past_task_is_normalised_as_in_testing(share: int) -> None:
    """It has no statistics of its own: BatchNorm in training mode refuses it. Two have."""
    learner = cclfp.make(GEM, psi=small_psi(), num_classes=6, memory=3 * share, tasks=TASKS, lr=0.3)
    (first, *_), (second, *_), _ = batches_of("class")
    learner.observe(*first, 0)
    learner.end_task()
    assert learner.f is not None
    net = copy.deepcopy(nn.Sequential(learner.psi, learner.f))

    def gradient_by(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(net(x)[:, :4], y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])

    past = gradient_by(copy.deepcopy(net).train(share > 1), first[0][-share:], first[1][-share:])
    g = gradient_by(net, *second)
    assert past @ g < 0, "the step is not projected, so this is no test"
    learner.observe(*second, 1)
    expected = torch.cat([p.flatten() for p in net.parameters()]) - 0.3 * projected(g, [past], 0.5)
    torch.testing.assert_close(torch.cat([p.flatten() for p in weights(learner).values()]), expected.detach())
    for ours, theirs in zip(learner.psi.buffers(), net.buffers(), strict=True):  # as after the current batch alone
        torch.testing.assert_close(ours, theirs)


def test_the_memory_pass_uses_prepared_examples() -> None:
    learner = learner_of("class")
    for task, batches in enumerate(batches_of("class")[:2]):
        for x, y in batches:
            learner.observe(x, y, task)
        if task == 0:
            learner.end_task()
    kept = torch.cat([x for x, _ in batches_of("class")[0]])[-6:]
    torch.testing.assert_close(learner.state["past"]["0"]["x"], 2 * kept)


# -- saving -------------------------------------------------------------------------------------------------------
