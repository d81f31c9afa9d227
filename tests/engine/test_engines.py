"""Every fast engine does what the eager one does: same plans, same steps to float tolerance, same accuracies."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from cohorts import CASES, assert_alike, assert_as_alone, batch_norm_psi, replica, trained, without_card
from torch import Tensor, nn

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.engine.cohort import Cohort
from cclfp.engine.groups import MAX_COMPARED, compare_steps, perturb, pick_replicas
from cclfp.engine.replica import Replica
from cclfp.engine.traced import Tracer
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import linear
from cclfp.testing import stackable_psi, toy_stream

KINDS = [(0, 0.02), (1, 0.02), (1, 0.01)]  # seeds and step sizes that differ within a cohort


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    without_card(monkeypatch)


# -- as each replica alone ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_replicas_together_are_as_each_alone(method: str, scenario: str) -> None:
    assert_as_alone([partial(replica, method, scenario, seed, lr=lr) for seed, lr in KINDS], "traced")


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize("psi", [stackable_psi, batch_norm_psi])
@pytest.mark.parametrize("method", METHODS)
def test_the_graph_engine_without_a_card(method: str, psi: Any) -> None:
    """Tensors that stay in place, a counter that finds each step's row."""
    scenario = METHODS[method].scenarios()[0]  # class: masks change with the task
    assert_as_alone([partial(replica, method, scenario, seed, psi=psi) for seed in range(3)], "graph")


def test_a_cohort_of_one_is_as_one_of_many() -> None:
    many = trained([replica("er", "class", seed) for seed in range(20)], "traced")
    assert_alike(trained([replica("er", "class", 7)], "traced")[0], many[7])


def test_each_replica_has_the_inputs_and_tasks_of_its_own_stream() -> None:
    data = toy_stream("task")
    order = [[5, 0], [1, 4], [3, 2]]
    of = torch.tensor([next(t for t, members in enumerate(order) if y in members) for y in range(6)])
    tested = Examples(*(torch.cat(parts) for parts in zip(*data.test, strict=True)))
    other_tasks = dataclasses.replace(
        data,
        classes=order,
        train=data.train._replace(task=of[data.train.y]),
        train_rows=[(of[data.train.y] == task).nonzero().flatten() for task in range(3)],
        test=[tested._replace(task=of[tested.y]).rows(of[tested.y] == task) for task in range(3)],
    )
    other_inputs = dataclasses.replace(data, train=data.train._replace(x=data.train.x.flip(1)))
    streams = (data, other_tasks, other_inputs)
    assert_as_alone([partial(replica, "hal", "task", stream=stream) for stream in streams], "traced")


class Counts(ER):
    """Changes a part of its state in place; another is turned in memory by each step."""

    name = "counts"

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        return {"in place": torch.zeros(()), "turned": torch.zeros(200, 100, dtype=torch.float64)}

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        state["in place"] += 1
        params, buffers, *_ = super().step(params, buffers, state, batch, hyper)
        return params, buffers, {**state, "turned": (state["turned"].contiguous() + 1).contiguous()}


def test_a_step_that_changes_its_state_is_taken_once() -> None:
    (ours,) = trained([replica(Counts, "domain")], "traced")
    assert all((count == ours.steps(2)).all() for count in ours.learner.model[2].values())


# -- what an engine refuses --------------------------------------------------------------------------------------------


def batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(batch_norm_psi(), nn.Dropout())


class Remembers(ER):
    """Keeps in an attribute what belongs into the state."""

    name = "remembers"
    scale = 1.0

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        self.scale = 1 / (1 + context.position)
        return state

    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> tuple[Tensor, Any]:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return self.scale * loss, buffers


class RemembersItsHyper(Remembers):
    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        self.scale = 10 * float(hyper.lr)
        return state


class Grows(ER):
    """Its state gets another structure."""

    name = "grows"

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        params, buffers, *_ = super().step(params, buffers, state, batch, hyper)
        return params, buffers, {"more": torch.zeros(())}


def frozen(seed: int) -> Replica:
    """With a layer that is not trained, drawn from the seed: a step reads it, and it is none of its arguments."""

    def psi() -> nn.Module:
        first = linear(8, 16, generator(seed, "frozen")).requires_grad_(False)
        return nn.Sequential(first, nn.ReLU(), linear(16, 16, generator(0, "free"))).double()

    return replica("er", "class", seed, psi=psi)


er = partial(replica, "er", "class")
REFUSED: list[tuple[Any, ...]] = [  # replicas, the reason, and the engine if it is not the traced one
    ([partial(er, seed, psi=lambda: nn.Sequential(stackable_psi(), nn.Dropout())) for seed in (0, 1)], "random layers"),
    ([partial(er, seed, psi=batch_norm_and_dropout) for seed in (0, 1)], "random layers", "graph"),
    ([partial(replica, "finetune", "class", psi=batch_norm_and_dropout)], "BatchNorm"),
    ([partial(frozen, seed) for seed in (0, 1)], "not in its arguments"),
    ([partial(replica, RemembersItsHyper, "class", lr=lr) for lr in [0.1, 0.05]], "not in its arguments"),
    ([partial(er, stream=toy_stream("class", n)) for n in (30, 31)], "ValueError: their tasks are of different sizes"),
    ([partial(replica, Grows, "class")], "state of another structure"),
]


@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_together_is_trained_eagerly_and_it_is_said(case: Any) -> None:
    make, reason, engine = (*case, "traced")[:3]
    notes: list[str] = []
    assert_as_alone(make, engine, notes)
    (note,) = notes
    assert re.fullmatch(rf"these runs cannot be trained together \(.*{reason}.*\): continuing eagerly", note)


@pytest.mark.parametrize(
    "make",
    [
        [partial(replica, Remembers, "class")],
        [partial(replica, RemembersItsHyper, lr=lr) for lr in [0.1] * 10 + [0.05] * 10],
    ],
)
def test_a_step_that_reads_something_new_from_outside_is_traced_again(make: list[Callable[[], Replica]]) -> None:
    """In another task, and in another group of ten."""
    assert_as_alone(make, "traced")


def test_equal_layers_that_are_frozen_can_be_stacked() -> None:
    trained([frozen(0), frozen(0)], "traced")


FAILED = "these runs cannot be trained together (OutOfMemoryError: out of memory): continuing eagerly"


@pytest.mark.parametrize(
    ("most", "runs", "wanted"),
    [
        (2, 5, ["5 runs at once need too much memory: 2 from here on"]),
        (0, 2, ["2 runs at once need too much memory: 1 from here on", FAILED]),
        (0, 1, [FAILED]),  # half of one is none, which must not mean that they are counted again, and again
    ],
)
def test_too_many_for_the_memory_are_halved(
    most: int, runs: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Tracer.train

    def train(self: Any, group: Any, *arguments: Any) -> bool:
        if len(group.learners) > most:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, group, *arguments)

    monkeypatch.setattr(Tracer, "train", train)
    notes: list[str] = []
    assert_as_alone([partial(replica, "er", "class", seed) for seed in range(runs)], "traced", notes)
    assert notes == wanted


def test_replicas_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the memory has room for at once; a size that does not divide them."""
    monkeypatch.setattr(Cohort, "_count_at_once", lambda *arguments: 2)
    told: list[int] = []
    cohort = Cohort([replica("ccl-fp+", "class", seed) for seed in range(5)], "traced", shortest=2)
    while not cohort.is_done:
        told.clear()
        steps = cohort.replicas[0].steps(cohort.replicas[0].position)
        cohort.advance(told.append)
        assert told == sorted(told)
        assert told[-1] == steps
    for seed, ours in enumerate(cohort.replicas):
        assert_alike(ours, trained([replica("ccl-fp+", "class", seed)])[0])


def test_memory_that_ends_while_learners_take_over_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failed = torch.clone, list[int]()

    def clone(t: Tensor) -> Tensor:
        if not failed and t.shape == (6,) and t.dtype == torch.int64:
            failed.append(1)
            raise torch.OutOfMemoryError("out of memory")
        return original(t)

    monkeypatch.setattr(torch, "clone", clone)
    assert_as_alone([partial(replica, "hal", "class", seed) for seed in range(2)], "traced", [])
    assert failed


def test_an_error_of_who_is_told_is_theirs() -> None:
    told = Mock(side_effect=BrokenPipeError("nobody listens"))
    with pytest.raises(BrokenPipeError, match="nobody listens"):
        Cohort([replica("er", "class")], "traced", pytest.fail, shortest=2).advance(told)


@pytest.mark.usefixtures("no_card")
def test_scores_that_cannot_be_stacked_are_said_and_taken_one_by_one() -> None:
    class Odd(ER):
        name = "odd"

        def scores(self, params: Any, buffers: Any, state: Any, x: Tensor) -> Tensor:
            given = super().scores(params, buffers, state, x)
            return given if float(given.sum()) < torch.inf else -given

    notes: list[str] = []
    (ours,) = trained([replica(Odd, "domain")], "graph", notes=notes)
    (note,) = notes
    assert "cannot be tested together" in note
    assert ours.matrix == trained([replica("er", "domain")])[0].matrix


# -- a step together is compared with the step alone -------------------------------------------------------------------


def test_steps_that_differ_are_found() -> None:
    before, after = [torch.ones(4), torch.zeros(2)], [torch.full((4,), 1.1), torch.ones(2)]
    compare_steps(before, after, [t.clone() for t in after], 0.02)
    compare_steps(before, [torch.full((4,), 1.101), after[1]], after, 0.02)
    with pytest.raises(ValueError, match="a step reads something that is not in its arguments"):
        compare_steps(before, [torch.full((4,), 1.2), after[1]], after, 0.02)
    with pytest.raises(ValueError, match=r"by 1\.0e\+00, together the result differs from that by 1\.0e\+00"):
        compare_steps([torch.tensor([3])], [torch.tensor([5])], [torch.tensor([4])], 0.6)


def test_perturbed_tensors_are_near_and_unequal() -> None:
    near = perturb([torch.ones(3), torch.ones(3), torch.tensor([7])])
    assert all(1 < float(t[0]) < 1.02 for t in near[:2])
    assert not torch.equal(near[0], near[1])
    assert near[2].tolist() == [7]


def test_replicas_of_different_seeds_and_hyperparameters_are_compared() -> None:
    learners = [replica("er", "class", seed, lr=lr).learner for seed in range(12) for lr in (0.1, 0.2)]
    picked = pick_replicas(learners)
    assert len(picked) <= MAX_COMPARED
    assert len({learners[i].seed for i in picked}) >= 8
    assert {learners[i].hyper.lr for i in picked} == {0.1, 0.2}
    assert pick_replicas(learners[:3]) == [0, 1, 2]
