"""What is particular to HAL; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import ALL, points, stream_of, tiny, train
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import cclfp
from cclfp.core.randomness import generator
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.learner.saving import learner_state
from cclfp.methods.hal import HAL, _start
from cclfp.testing import Case, toy_psi
from cclfp.testing.case import train_replicas

CASE = Case(HAL, "class", {"lam": 0.2, "steps": 20})


@pytest.mark.parametrize("scenario", HAL.scenarios())
def test_anchors_are_kept_on_the_classes_they_may_be_predicted_as(scenario: str) -> None:
    learner = train(tiny("hal", scenario, memory=39, steps=2, tasks=None), stream_of()[:1])
    learner.observe(*stream_of()[1][0], 1)
    allowed = {"class": [0, 1, 2, 3], "task": [0, 1], "domain": list(range(6))}[scenario]
    assert [row.nonzero()[:, 0].tolist() for row in learner.state["anchors"]["mask"]] == [allowed] * 2


def test_a_class_the_ring_has_lost_gets_an_anchor_too() -> None:
    learner = tiny("hal", "domain", memory=6, tasks=ALL, steps=2)  # two slots a task
    for start in range(3):
        learner.observe(*points([2 * start, 2 * start + 1] * 2, seed=start), 0)
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


def test_anchors_are_learned_in_what_psi_takes() -> None:
    learner = tiny("hal", memory=39, transform=_thousandth, steps=0)
    x, y = points([0, 1] * 5, seed=0)
    learner.observe((1000 * x).round().int(), y, task=0)
    learner.end_task()
    e = learner.state["anchors"]["x"]
    assert e.dtype == torch.float64
    assert {tuple(row) for row in e.tolist()} <= {tuple(row) for row in _thousandth((1000 * x).round().int()).tolist()}


def _thousandth(x: Tensor) -> Tensor:
    return x.double() / 1000


def test_whole_numbers_as_psis_inputs_are_refused() -> None:
    psi = nn.Sequential(nn.Embedding(5, 4), nn.Flatten())
    learner = cclfp.make(HAL, psi=psi, num_classes=2)
    with pytest.raises(InputError, match=r"must be floating-point, not torch\.int64"):
        learner.observe(torch.randint(0, 5, (4, 3)), torch.tensor([0, 1, 0, 1]))
    assert learner.steps == 0


def test_a_class_and_a_task_may_come_back() -> None:
    learner = tiny("hal", tasks=None, memory=39, steps=2)
    for position, (task, classes) in enumerate([(0, [0, 1]), (1, [1, 2]), (0, [0, 1]), (0, [0])]):
        x, y = points([classes[i % len(classes)] for i in range(6)], seed=position)
        learner.observe(x, y, task=task)
        learner.end_task()
    anchors = learner.state["anchors"]
    assert anchors["y"].tolist() == [0, 1, 1, 2, 0, 1, 0]
    assert anchors["task"].tolist() == [0, 0, 1, 1, 0, 0, 0]
    assert all(torch.isfinite(t).all() for t in tree_leaves(learner_state(learner)) if isinstance(t, Tensor))


def test_running_statistics_do_not_matter_in_training() -> None:
    """Anchors and the fine-tuning's minibatches have their own. In eval mode the fine-tuning of ResNet18 diverges."""

    def after_two_tasks(factor: float) -> dict[str, Any]:
        replica = Replica(CASE.learner(psi=toy_psi(random=False)), CASE.stream())
        train_replicas([replica], tasks=1)
        learner = replica.learner
        changed = {name: b * factor if "running" in name else b for name, b in learner.model[1].items()}
        assert any("running_var" in name for name in changed)
        learner.update((learner.model[0], changed, learner.state), steps=0)
        train_replicas([replica], tasks=2)
        assert len(learner.state["anchors"]["y"]) == 4
        return {**learner.model[0], **learner.state["anchors"]}

    usual, other = after_two_tasks(1.0), after_two_tasks(1e-3)
    assert all(torch.equal(usual[name], other[name]) for name in usual)


def test_dropout_does_not_move_anchors() -> None:
    """With other masks in f_theta(e) than in f_theta~(e) the anchors' term would be noise."""
    learner = CASE.learner(psi=toy_psi())
    x, y, task = CASE.batches()[0][0]
    learner.observe(x, y, task)
    x = x / 2
    assert isinstance(learner.algorithm, HAL)
    assert any(isinstance(module, nn.Dropout) for module in learner.psi.modules())
    scores = [learner.algorithm._logits(learner.model[0], learner.model[1], x) for _ in range(2)]
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
