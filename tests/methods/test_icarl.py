"""What is particular to iCaRL; tests/methods/test_papers.py compares it with its algorithms."""

from __future__ import annotations

import math
from typing import Any

import torch
from by_hand import Rows, average, naive_herding, points, unit
from by_hand import tiny as tiny_learner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import cclfp
from cclfp.engine.replica import Replica
from cclfp.learner import Learner
from cclfp.learner.saving import learner_state
from cclfp.methods.icarl import ICaRL, herd
from cclfp.testing import toy_stream
from cclfp.testing.case import TASKS, train_replicas


def tiny(scenario: str = "class", **options: Any) -> Learner:
    return tiny_learner("icarl", scenario, **{"memory": 9, "replay": 4, "lr": 0.5, "transform": None, **options})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 14), st.booleans(), st.integers(0, 2**32))
def test_herding_equals_a_naive_search(n: int, width: int, m: int, repeat: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, width, dtype=torch.float64, generator=g)
    if repeat:
        z[-1], z[0] = z[0], 0
    phi = [unit(row) for row in z.tolist()]
    chosen = herd(torch.tensor(phi, dtype=torch.float64), m)
    assert len(chosen) == len(set(chosen)) == min(m, n)
    # Equal but for ties, which rounding may break either way: compare the distances of the averages to the mean.
    for k in range(1, len(chosen) + 1):
        before = [phi[j] for j in chosen[: k - 1]]
        distances = [math.dist(average(phi), average([*before, phi[i]])) for i in range(n) if i not in chosen[: k - 1]]
        mine = math.dist(average(phi), average([*before, phi[chosen[k - 1]]]))
        assert mine <= min(distances) + 1e-7
    if n > 2 and width > 2 and not repeat:
        assert chosen == naive_herding(phi, m)


# -- the loss -----------------------------------------------------------------------------------------------------


def test_extreme_logits_give_finite_gradients() -> None:
    learner = tiny(lr=1e-6)
    x, y = points([0, 1, 0, 1], seed=0)
    learner.observe(1e6 * x, y, task=0)
    learner.psi[0].weight.data.mul_(1e6)  # type: ignore[index]
    assert learner.f is not None
    learner.f.weight.data.mul_(1e8)
    learner.end_task()
    learner.observe(1e6 * points([2, 3, 2], seed=1)[0], torch.tensor([2, 3, 2]), task=1)
    assert all(torch.isfinite(t).all() for t in tree_leaves(learner_state(learner)) if isinstance(t, Tensor))


# -- exemplars ----------------------------------------------------------------------------------------------------


def test_only_exemplars_are_kept_of_a_past_task() -> None:
    learner = tiny()
    x, y = points([0, 1] * 10, seed=0)
    for start in range(0, 20, 5):
        learner.observe(x[start : start + 5], y[start : start + 5], task=0)
    assert learner.memory is not None
    assert len(learner.memory) == 0
    assert torch.equal(learner.memory.current().x, x)
    learner.end_task()
    assert len(learner.memory.current().y) == 0
    assert learner.memory.examples().y.tolist() == [0] * 4 + [1] * 4
    tensors = [t for t in tree_leaves(learner_state(learner)) if isinstance(t, Tensor) and t.dtype == x.dtype]
    assert sum(len(t) for t in tensors if t.shape[1:] == (3,) and t.shape != (4, 3)) == 8  # (4, 3): the first layer's


def test_an_example_is_picked_once_in_several_epochs() -> None:
    stream = toy_stream("class", per_class=12)
    memories = []
    for epochs in (1, 3):
        learner = cclfp.make(ICaRL, psi=nn.Identity(), num_classes=6, memory=30, tasks=stream.classes)
        replica = Replica(learner, stream, epochs=epochs)
        train_replicas([replica], tasks=2)
        assert learner.memory is not None
        held = learner.memory.examples()
        assert held.y.tolist() == [c for c in range(4) for _ in range(7)]
        assert len(held.x.unique(dim=0)) == 28
        memories.append({tuple(row) for row in held.x.tolist()})
    assert memories[0] == memories[1]  # a psi that learns nothing, so herding picks the same


def test_a_class_that_comes_back_is_taught_by_its_labels() -> None:
    """Its new examples lie where the old model says no; distilled alone it would never learn them."""
    learner = cclfp.make(ICaRL, psi=nn.Linear(1, 1, bias=False).double(), num_classes=2, memory=4, lr=0.1)
    with torch.no_grad():
        learner.psi.weight.fill_(1.0)  # type: ignore[operator]
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    for _ in range(50):
        learner.observe(x, torch.tensor([0, 1]), task=0)
    learner.end_task()
    assert learner.f is not None
    before = learner.f(learner.psi(x[:1])).detach()[0, 1]
    for _ in range(20):
        learner.observe(x[:1], torch.tensor([1]), task=1)
    assert learner.f(learner.psi(x[:1])).detach()[0, 1] > before + 1


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(1, 14),
    tasks=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=8), min_size=1, max_size=5),
    scenario=st.sampled_from(["class", "task"]),
    seed=st.integers(0, 99),
)
def test_any_stream_keeps_the_first_exemplars_of_all_classes(
    size: int, tasks: list[list[int]], scenario: str, seed: int
) -> None:
    """Classes that return or come alone, memories smaller than the classes: shares stay equal, orders stay."""
    learner = tiny(tasks=None, memory=size, scenario=scenario)
    assert learner.memory is not None
    before: dict[int, Rows] = {}
    seen: set[int] = set()
    for t, labels in enumerate(tasks):
        learner.observe(*points(labels, seed + t), task=t)
        learner.end_task()
        seen |= set(labels)
        held = learner.memory.examples()
        now = {c: held.x[held.y == c].tolist() for c in sorted(seen)}
        assert held.y.tolist() == [c for c in sorted(seen) for _ in now[c]]
        for c in seen:
            assert len(now[c]) <= size // len(seen)
            if c not in labels:
                assert now[c] == before[c][: len(now[c])]
                assert len(now[c]) == min(len(before[c]), size // len(seen))
        before = now
        scores = learner.logits(points([0, 1, 2], seed)[0], task=t)
        allowed = sorted(set(labels))
        assert torch.isfinite(scores[:, allowed]).all()
        assert (scores[:, allowed] >= -2).all(), "every class seen has a mean"


def test_with_less_memory_than_classes_the_means_stay() -> None:
    learner = tiny(memory=3)
    for t, classes in enumerate(TASKS):
        labels = [classes[i % len(classes)] for i in range(6)]
        x, y = points(labels, seed=t)
        learner.observe(x, y, task=t)
        learner.end_task()
        assert learner.memory is not None
        assert len(learner.memory) == [2, 0, 0][t]
        phi = nn.functional.normalize(learner.psi(x).detach())
        if t > 0:
            for c in classes:
                mean = nn.functional.normalize(phi[y == c].mean(0), dim=0)
                torch.testing.assert_close(learner.state["means"][c], mean)
    assert (learner.logits(points([0, 1], 0)[0]) >= -2).all()


# -- predicting ---------------------------------------------------------------------------------------------------


def test_a_class_without_a_mean_comes_last() -> None:
    learner = tiny(scenario="task")
    x = points([0, 1, 2, 3], seed=0)[0]
    learner.make_classifier(x)
    untrained = learner.logits(x, task=1)
    assert (untrained[:, 2:4] < -2).all()
    learner.observe(*points([0, 0, 0], seed=0), task=0)  # class 1 is allowed, but no example of it came
    assert (learner.predict(x, task=0) == 0).all()
    assert (learner.logits(x, task=0)[:, 1] < -2).all()
    assert len(set(learner.logits(x, task=1)[:, 2].tolist())) == 4, "what the network thinks decides between those"


def test_before_its_herding_a_class_has_the_mean_of_all_its_examples_so_far() -> None:
    learner = cclfp.make(ICaRL, psi=nn.Flatten(), num_classes=3, memory=6)
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0], [0.0, 2.0]])  # of lengths that do not count
    for part in (x[:2], x[2:]):
        learner.observe(part, torch.tensor([0, 1]))
    means = torch.tensor([[1.6, 0.8], [0.0, 2.0]])
    far = torch.cdist(nn.functional.normalize(x), nn.functional.normalize(means))
    torch.testing.assert_close(learner.logits(x)[:, :2], -far)


def test_replayed_examples_are_not_in_the_running_mean() -> None:
    learner = tiny(tasks=None)
    learner.observe(*points([0, 1] * 3, 0), task=0)
    learner.end_task()
    learner.observe(*points([2, 2, 3], 1), task=1)
    assert learner.state["counts"].tolist() == [3, 3, 2, 1, 0, 0]
