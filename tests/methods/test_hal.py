"""HAL against its paper's equations, on a network of its own in float64."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import cclfp
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.learner import Learner
from cclfp.learner.saving import learner_state
from cclfp.methods import Batch
from cclfp.methods.hal import HAL, _start
from cclfp.testing import Case, toy_psi

HYPER = {"lr": 0.2, "lam": 0.5, "gamma": 0.3, "beta": 0.7, "steps": 5, "anchor_lr": 0.3}
SPLIT, ALL = [[0, 1], [2, 3], [4, 5]], [list(range(6))] * 3
CASES = [Case(HAL, scenario, {"lam": 0.2, "steps": 20}) for scenario in HAL.scenarios()]


# -- the paper's equations ----------------------------------------------------------------------------------------


def features(p: list[Tensor], x: Tensor) -> Tensor:
    return torch.tanh(p[0] @ x + p[1])


def logits(p: list[Tensor], x: Tensor) -> Tensor:
    return p[2] @ features(p, x) + p[3]


def loss_of_one(p: list[Tensor], x: Tensor, y: int, allowed: list[int]) -> Tensor:
    out = logits(p, x)
    return torch.log(sum((torch.exp(out[c]) for c in allowed), torch.zeros(()))) - out[y]


def loss_of(p: list[Tensor], xs: Tensor, ys: list[int], allowed: list[list[int]]) -> Tensor:
    terms = [loss_of_one(p, x, y, a) for x, y, a in zip(xs, ys, allowed, strict=True)]
    return torch.stack(terms).mean()


def leaves(p: list[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in p]


class Paper:
    """HAL, one example and one anchor after the other."""

    def __init__(self, psi: nn.Module, f: nn.Linear, hyper: dict[str, float]) -> None:
        self.p = [t.detach().clone() for t in (*psi.parameters(), f.weight, f.bias)]
        self.h = hyper
        self.anchors: list[tuple[Tensor, int, int]] = []  # input, class, task
        self.embedding: dict[int, Tensor] = {}

    def objective(self, p: list[Tensor], xs: Tensor, ys: list[int], allowed: list[list[int]], may: Any) -> Tensor:
        loss = loss_of(p, xs, ys, allowed)
        if not self.anchors:
            return loss
        grads = torch.autograd.grad(loss, p, create_graph=True)
        tentative = [t - self.h["lr"] * g for t, g in zip(p, grads, strict=True)]
        moved = torch.zeros(())
        for e, _, task in self.anchors:
            now, then = logits(p, e), logits(tentative, e)
            for c in may(task):
                moved = moved + (now[c] - then[c]) ** 2
        return loss + self.h["lam"] * moved / len(self.anchors)

    def step(self, xs: Tensor, ys: list[int], allowed: list[list[int]], may: Any, n: int) -> None:
        for c in sorted(set(ys[:n])):
            mean = torch.stack([features(self.p, x) for x, y in zip(xs[:n], ys[:n], strict=True) if y == c]).mean(0)
            beta = self.h["beta"] if c in self.embedding else 0.0
            self.embedding[c] = beta * self.embedding.get(c, mean) + (1 - beta) * mean
        p = leaves(self.p)
        grads = torch.autograd.grad(self.objective(p, xs, ys, allowed, may), p)
        self.p = [t - self.h["lr"] * g for t, g in zip(self.p, grads, strict=True)]

    def end_task(self, memory: Examples, task: int, may: Any, g: torch.Generator) -> None:
        past = [(x, y, t) for x, y, t in zip(*memory, strict=True) if t != task]
        ring = [(x, int(y)) for x, y, t in zip(*memory, strict=True) if t == task]
        theta_m = self.p
        order = torch.randperm(len(past), generator=g).tolist()
        for minibatch in cut(order, 10):
            p = leaves(theta_m)
            xs, ys, ts = zip(*(past[i] for i in minibatch), strict=True)
            loss = loss_of(p, torch.stack(xs), list(map(int, ys)), [may(int(t)) for t in ts])
            theta_m = [a - self.h["lr"] * b for a, b in zip(theta_m, torch.autograd.grad(loss, p), strict=True)]
        values = torch.stack([x for x, _ in ring])
        for c, phi in sorted(self.embedding.items()):
            mine = [x for x, y in ring if y == c] or [x for x, _ in ring]
            e = mine[int(torch.rand((), generator=g, dtype=torch.float64) * len(mine))]
            for _ in range(int(self.h["steps"])):
                e = e.detach().clone().requires_grad_()
                gain = loss_of_one(theta_m, e, c, may(task)) - loss_of_one(self.p, e, c, may(task))
                gain = gain - self.h["gamma"] * ((features(self.p, e) - phi) ** 2).sum()
                e = (e + self.h["anchor_lr"] * torch.autograd.grad(gain, e)[0]).detach()
                e = torch.minimum(torch.maximum(e, values.min()), values.max())
            self.anchors.append((e.detach(), c, task))
        self.embedding = {}


def cut(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


class Spy(HAL):
    """Remembers the minibatches."""

    seen: list[Batch] = []  # noqa: RUF012

    def step(self, params: Any, buffers: Any, state: Any, batch: Batch, hyper: Any) -> Any:
        self.seen.append(batch)
        return super().step(params, buffers, state, batch, hyper)


def tiny(**options: Any) -> Learner:
    torch.manual_seed(0)
    psi = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    options = {"num_classes": 6, "memory": 39, "replay": 4, "tasks": SPLIT, **HYPER, **options}
    return cclfp.make(options.pop("method", HAL), psi=psi, **options)


def points(y: list[int], seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    labels = torch.tensor(y)
    return centres[labels] + 0.5 * torch.randn(len(y), 3, dtype=torch.float64, generator=g), labels


def train(learner: Learner, task: int, classes: list[int], steps: int = 4) -> None:
    for step in range(steps):
        x, y = points([classes[(i + step) % len(classes)] for i in range(5)], seed=10 * task + step)
        learner.observe(x, y, task=task)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", HAL.scenarios())
def test_equal_to_the_paper_by_hand(scenario: str) -> None:
    tasks = ALL if scenario == "domain" else SPLIT
    learner = tiny(scenario=scenario, method=Spy, tasks=tasks, seed=3)
    assert learner.memory is not None
    paper: Paper | None = None
    for t, classes in enumerate(tasks):
        seen = sorted({c for past in tasks[: t + 1] for c in past})

        def may(task: int, seen: list[int] = seen) -> list[int]:
            return tasks[task] if scenario == "task" else seen

        for step in range(4):
            x, y = points([classes[(i + step) % len(classes)] for i in range(5)], seed=10 * t + step)
            if paper is None:
                learner.make_classifier(x)
                assert learner.f is not None
                paper = Paper(learner.psi, learner.f, HYPER)
            learner.observe(x, y, task=t)
            batch = Spy.seen[-1]
            paper.step(batch.x, batch.y.tolist(), [may(i) for i in batch.task.tolist()], may, 5)
            for ours, theirs in zip(learner.params.values(), paper.p, strict=True):
                torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-10)
            for c, phi in paper.embedding.items():
                torch.testing.assert_close(learner.state["embedding"][c], phi, rtol=0, atol=1e-10)
        held = learner.memory.examples()
        learner.end_task()
        assert paper is not None
        paper.end_task(held, t, may, generator(3, "anchors", t))
        anchors = learner.state["anchors"]
        assert anchors["y"].tolist() == [c for _, c, _ in paper.anchors]
        assert anchors["task"].tolist() == [task for _, _, task in paper.anchors]
        torch.testing.assert_close(anchors["x"], torch.stack([e for e, _, _ in paper.anchors]), rtol=0, atol=1e-10)
        start = {tuple(row) for row in held.x.tolist()}
        assert not start & {tuple(row) for row in anchors["x"].tolist()}, "the ascent moved every anchor"
    assert sum(held.task != 2) > 20  # so the last fine-tuning had several minibatches


def second_task(**options: Any) -> tuple[Learner, tuple[Any, ...]]:
    """A learner in its second task, and the arguments of a step."""
    learner = tiny(**options)
    train(learner, 0, SPLIT[0])
    learner.end_task()
    train(learner, 1, SPLIT[1], steps=1)
    x, y = points([2, 3, 2, 3, 0, 1], seed=5)
    task = y // 2
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(x, y, task, learner.mask.train(task), 4, none, none.bool())
    return learner, (*learner.model, batch, learner.hyper_tensors)


def change_at_anchors(learner: Learner, params: Any, batch: Batch) -> Tensor:
    """What a plain SGD step from params on the batch would change in the anchors' logits."""
    p = {name: t.detach().clone().requires_grad_() for name, t in params.items()}
    out = nn.functional.linear(learner.algorithm.net.frozen_features(p, {}, batch.x), p["f.weight"], p["f.bias"])
    loss = nn.functional.cross_entropy(out[:, :4], batch.y)
    grads = dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))
    tentative = {name: t - 0.2 * grads[name] for name, t in p.items()}
    e = learner.state["anchors"]["x"]
    moved = learner.algorithm.scores(p, {}, {}, e) - learner.algorithm.scores(tentative, {}, {}, e)
    return moved[:, :4].square().sum(-1).mean().detach()


def test_the_gradient_is_the_objectives_by_finite_differences() -> None:
    learner, arguments = second_task()
    params, _, _, batch, _ = arguments
    after, *_ = learner.algorithm.step(*arguments)

    def objective(p: dict[str, Tensor]) -> float:
        out = learner.algorithm.scores(p, {}, {}, batch.x).detach()
        loss = nn.functional.cross_entropy(out[:, :4], batch.y)
        return float(loss + 0.5 * change_at_anchors(learner, p, batch))

    for name, index in (("f.weight", (0, 1)), ("f.bias", (2,)), ("psi.0.weight", (1, 2)), ("psi.0.bias", (3,))):
        values = []
        for sign in (1, -1):
            moved = {key: t.detach().clone() for key, t in params.items()}
            moved[name][index] += sign * 1e-5
            values.append(objective(moved))
        numeric = (values[0] - values[1]) / 2e-5
        taken = float(params[name].detach()[index] - after[name][index]) / 0.2
        assert taken == pytest.approx(numeric, abs=1e-7)


def test_anchoring_lowers_what_the_next_update_changes_at_the_anchors() -> None:
    learner, arguments = second_task()
    params, buffers, state, batch, hyper = arguments
    changes = []
    for lam in (0.0, 0.5):
        numbers = dataclasses.replace(hyper, lam=torch.tensor(lam, dtype=torch.float64))
        after, *_ = learner.algorithm.step(params, buffers, state, batch, numbers)
        changes.append(change_at_anchors(learner, after, batch))
    assert changes[1] < changes[0]


def test_without_weight_it_is_experience_replay() -> None:
    learner, arguments = second_task(lam=0.0)
    params, _, state, batch, _ = arguments
    assert len(state["anchors"]["y"]) == 2
    p = {name: t.detach().clone().requires_grad_() for name, t in params.items()}
    out = learner.algorithm.scores(p, {}, {}, batch.x)
    loss = nn.functional.cross_entropy(out[:, :4], batch.y)
    after, *_ = learner.algorithm.step(*arguments)
    for (name, t), g in zip(p.items(), torch.autograd.grad(loss, list(p.values())), strict=True):
        torch.testing.assert_close(after[name], t.detach() - 0.2 * g, rtol=0, atol=1e-12)


# -- anchors ------------------------------------------------------------------------------------------------------


def test_one_anchor_a_class_and_task_and_none_new_within_a_task() -> None:
    learner = tiny()
    for t, classes in enumerate(SPLIT):
        train(learner, t, classes)
        assert ("anchors" in learner.state) == (t > 0)
        if t > 0:
            assert learner.state["anchors"]["y"].tolist() == list(range(2 * t))
        learner.end_task()
    anchors = learner.state["anchors"]
    assert anchors["y"].tolist() == list(range(6))
    assert anchors["task"].tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("scenario", HAL.scenarios())
def test_anchors_are_kept_on_the_classes_they_may_be_predicted_as(scenario: str) -> None:
    learner = tiny(scenario=scenario)
    train(learner, 0, SPLIT[0])
    learner.end_task()
    train(learner, 1, SPLIT[1], steps=1)
    allowed = {"class": [0, 1, 2, 3], "task": [0, 1], "domain": list(range(6))}[scenario]
    assert [row.nonzero()[:, 0].tolist() for row in learner.state["anchors"]["mask"]] == [allowed] * 2


def test_in_the_first_task_only_the_mean_embedding_is_at_work() -> None:
    learner = tiny(gamma=0.0, memory=60)
    train(learner, 0, SPLIT[0])
    assert learner.memory is not None
    held = {tuple(row): y for row, y in zip(*(t.tolist() for t in learner.memory.examples()[:2]), strict=True)}
    learner.end_task()
    anchors = learner.state["anchors"]
    for e, y in zip(anchors["x"].tolist(), anchors["y"].tolist(), strict=True):
        assert held[tuple(e)] == y, "an example of the class, as there is nothing to move it"

    far, near = (tiny(gamma=gamma, steps=400) for gamma in (0.0, 1.0))
    away = []
    for learner in (far, near):
        train(learner, 0, SPLIT[0])
        learner.end_task()
        state = learner.state
        away.append((learner.psi(state["anchors"]["x"]) - state["embedding"][:2]).norm().detach())
    assert away[1] < 0.5 * away[0]


def test_anchors_maximise_the_hindsight_objective() -> None:
    """The more steps, the more is forgotten at them by a model fine-tuned on the earlier tasks."""
    gains = []
    for steps in (0, 30):
        learner = tiny(steps=steps, gamma=0.0, anchor_lr=0.05)
        train(learner, 0, SPLIT[0])
        learner.end_task()
        before = copy.deepcopy(learner.state["anchors"])
        train(learner, 1, SPLIT[1])
        assert learner.memory is not None
        held = learner.memory.examples()
        learner.end_task()
        p = [t.detach().clone() for t in learner.params.values()]
        theta_m, past = p, held.rows(held.task == 0)
        for rows in torch.randperm(len(past.y), generator=generator(0, "anchors", 1)).split(10):
            q = leaves(theta_m)
            loss = loss_of(q, past.x[rows], past.y[rows].tolist(), [[0, 1, 2, 3]] * len(rows))
            theta_m = [a - 0.2 * b for a, b in zip(theta_m, torch.autograd.grad(loss, q), strict=True)]
        anchors = learner.state["anchors"]
        assert torch.equal(anchors["x"][:2], before["x"]), "earlier anchors stay as they are"
        gain = torch.zeros(())
        for e, y in zip(anchors["x"][2:], anchors["y"][2:].tolist(), strict=True):
            gain = gain + loss_of_one(theta_m, e, y, [0, 1, 2, 3]) - loss_of_one(p, e, y, [0, 1, 2, 3])
        gains.append(gain)
        if steps == 0:
            assert {tuple(row) for row in anchors["x"].tolist()} <= {tuple(row) for row in held.x.tolist()}
    assert gains[1] > gains[0]


@pytest.mark.parametrize("count", [4, 10, 20, 23])
def test_the_fine_tuning_takes_every_example_once(count: int) -> None:
    learner = tiny()
    train(learner, 0, SPLIT[0])
    x, y = points([0, 1] * count, seed=3)
    past = Examples(x[:count], y[:count], torch.zeros(count, dtype=torch.int64))
    params, buffers, _ = learner.model
    given = (past, params, buffers, learner.hyper_tensors, learner.task_context(), generator(0, "order"))
    ours = learner.algorithm._fine_tuned(*given)  # type: ignore[attr-defined]
    theta = [p.detach().clone() for p in params.values()]
    for rows in torch.randperm(count, generator=generator(0, "order")).split(10):
        q = leaves(theta)
        loss = loss_of(q, past.x[rows], past.y[rows].tolist(), [[0, 1]] * len(rows))
        theta = [a - 0.2 * b for a, b in zip(theta, torch.autograd.grad(loss, q), strict=True)]
    for a, b in zip(ours.values(), theta, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_class_the_ring_has_lost_gets_an_anchor_too() -> None:
    learner = tiny(memory=6, scenario="domain", tasks=ALL)  # two slots a task
    train(learner, 0, list(range(6)))
    assert learner.memory is not None
    assert len(learner.memory) == 2
    learner.end_task()
    assert learner.state["anchors"]["y"].tolist() == list(range(6))


def test_an_ascent_starts_in_the_class_else_in_the_task_else_anywhere() -> None:
    y, task = torch.tensor([0, 1, 0, 1, 2, 1]), torch.tensor([0, 0, 1, 1, 1, 0])

    def starts(label: int, of: int) -> set[int]:
        return {_start(y, task, label, of, generator(seed, "anchors")) for seed in range(60)}

    assert starts(1, 0) == {1, 5}
    assert starts(2, 0) == {0, 1, 5}
    assert starts(0, 2) == set(range(6))


def test_anchors_stay_within_the_range_of_the_data() -> None:
    learner = tiny(anchor_lr=1e6)
    for t in (0, 1):
        train(learner, t, SPLIT[t])
        assert learner.memory is not None
        held = learner.memory.examples()
        ring = held.x[held.task == t]
        learner.end_task()
        e = learner.state["anchors"]["x"][-2:]
        assert torch.isfinite(e).all()
        assert e.min() >= ring.min()
        assert e.max() <= ring.max()


def test_anchors_are_learned_in_what_psi_takes() -> None:
    learner = tiny(transform=_thousandth, steps=0)
    x, y = points([0, 1] * 5, seed=0)
    learner.observe((1000 * x).round().int(), y, task=0)
    learner.end_task()
    e = learner.state["anchors"]["x"]
    assert e.dtype == torch.float64
    assert {tuple(row) for row in e.tolist()} <= {tuple(row) for row in _thousandth((1000 * x).round().int()).tolist()}


def test_raw_examples_are_prepared_in_every_pass() -> None:
    raw, prepared = tiny(transform=_thousandth), tiny()
    for t, classes in enumerate(SPLIT):
        for step in range(3):
            x, y = points([classes[i % 2] for i in range(5)], seed=10 * t + step)
            x = (1000 * x).round().int()
            raw.observe(x, y, task=t)
            prepared.observe(_thousandth(x), y, task=t)
        raw.end_task()
        prepared.end_task()
    assert torch.equal(raw.state["anchors"]["x"], prepared.state["anchors"]["x"])


def _thousandth(x: Tensor) -> Tensor:
    return x.double() / 1000


def test_whole_numbers_as_psis_inputs_are_refused() -> None:
    psi = nn.Sequential(nn.Embedding(5, 4), nn.Flatten())
    learner = cclfp.make(HAL, psi=psi, num_classes=2)
    with pytest.raises(InputError, match=r"must be floating-point, not torch\.int64"):
        learner.observe(torch.randint(0, 5, (4, 3)), torch.tensor([0, 1, 0, 1]))
    assert learner.steps == 0


def test_a_class_and_a_task_may_come_back() -> None:
    learner = tiny(tasks=None)
    for position, (task, classes) in enumerate([(0, [0, 1]), (1, [1, 2]), (0, [0, 1]), (0, [0])]):
        x, y = points([classes[i % len(classes)] for i in range(6)], seed=position)
        learner.observe(x, y, task=task)
        learner.end_task()
    anchors = learner.state["anchors"]
    assert anchors["y"].tolist() == [0, 1, 1, 2, 0, 1, 0]
    assert anchors["task"].tolist() == [0, 0, 1, 1, 0, 0, 0]
    assert all(torch.isfinite(t).all() for t in tree_leaves(learner_state(learner)) if isinstance(t, Tensor))


def test_anchors_and_fine_tuning_leave_batchnorm_alone() -> None:
    """The statistics are those of the minibatch alone, with anchors as without."""
    case = CASES[0]
    replica = Replica(case.learner(psi=toy_psi(random=False)), case.stream())
    Cohort([replica]).advance()
    learner = replica.learner
    x, y, task = case.batches()[1][0]
    learner.observe(x, y, task)
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(x / 2, y, task, learner.mask.train(task), len(y), none, none.bool())
    params, buffers, _ = learner.model
    assert len(learner.state["anchors"]["y"]) == 2
    _, after, *_ = learner.algorithm.step(params, buffers, learner.state, batch, learner.hyper_tensors)
    _, expected = learner.algorithm.net.features(params, buffers, batch.x)
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in after)
    before = {name: b.clone() for name, b in buffers.items()}
    learner.end_task()
    assert all(torch.equal(before[name], b) for name, b in learner.buffers.items())


def test_running_statistics_do_not_matter_in_training() -> None:
    """Anchors and the fine-tuning's minibatches have their own. In eval mode the fine-tuning of ResNet18 diverges."""
    case = CASES[0]

    def after_two_tasks(factor: float) -> dict[str, Any]:
        replica = Replica(case.learner(psi=toy_psi(random=False)), case.stream())
        Cohort([replica]).advance()
        learner = replica.learner
        changed = {name: b * factor if "running" in name else b for name, b in learner.buffers.items()}
        assert any("running_var" in name for name in changed)
        learner.update(learner.params, changed, learner.state, 0)
        Cohort([replica]).advance()
        assert len(learner.state["anchors"]["y"]) == 4
        return {**learner.params, **learner.state["anchors"]}

    usual, other = after_two_tasks(1.0), after_two_tasks(1e-3)
    assert all(torch.equal(usual[name], other[name]) for name in usual)


def test_dropout_does_not_move_anchors() -> None:
    """With other masks in f_theta(e) than in f_theta~(e) the anchors' term would be noise."""
    learner = CASES[0].learner(psi=toy_psi())
    x, y, task = CASES[0].batches()[0][0]
    learner.observe(x, y, task)
    x = x / 2
    assert isinstance(learner.algorithm, HAL)
    assert any(isinstance(module, nn.Dropout) for module in learner.psi.modules())
    scores = [learner.algorithm._scores(learner.params, learner.buffers, x) for _ in range(2)]
    assert torch.equal(*scores)


def test_a_single_anchor_is_enough_for_batchnorm() -> None:
    """In train mode it would have no variance, like the last of eleven examples in the fine-tuning's second batch."""
    learner = cclfp.make(HAL, psi=toy_psi(random=False), num_classes=6, memory=33, num_tasks=3, steps=2)
    for t in range(3):
        g = torch.Generator().manual_seed(t)
        for _ in range(3):
            learner.observe(torch.randn(5, 8, generator=g), torch.full((5,), t), task=t)
        learner.end_task()
    assert learner.state["anchors"]["y"].tolist() == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_mean_embeddings_are_decayed_from_batch_to_batch(batches: list[list[int]], beta: float) -> None:
    learner = tiny(tasks=None, beta=beta)
    expected: dict[int, Tensor] = {}
    for number, labels in enumerate(batches):
        x, y = points(labels, seed=number)
        z = learner.psi(x).detach()
        for c in sorted(set(labels)):
            mean = z[y == c].mean(0)
            expected[c] = beta * expected[c] + (1 - beta) * mean if c in expected else mean
        learner.observe(x, y)
    for c in range(6):
        phi = expected.get(c, torch.zeros(4, dtype=torch.float64))
        torch.testing.assert_close(learner.state["embedding"][c], phi, rtol=0, atol=1e-12)
    assert (learner.state["task"] >= 0).nonzero()[:, 0].tolist() == sorted(expected)


# -- the rest of the contract -------------------------------------------------------------------------------------
