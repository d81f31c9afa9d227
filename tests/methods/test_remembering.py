"""Values beside the examples in the memory: those of the right example, in every engine, saved and loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cclfp
from cclfp.errors import InputError
from cclfp.methods.base import Batch
from cclfp.methods.er import ER
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring
from cclfp.testing import Case, stackable_psi, toy_psi, train_replicas


class Remembering(ER):
    """Remembers its inputs, and the sum of each."""

    name = "remembering"
    draws = 2

    @classmethod
    def remembers(cls, num_classes: int) -> dict[str, tuple[int, ...]]:
        return {"inputs": (8,), "sum": ()}

    def loss(self, params: Any, buffers: Any, state: Any, batch: Batch, hyper: Any) -> Any:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        new = batch.split(batch.x, draws=2)[0]
        return loss, buffers, {"inputs": new, "sum": new.sum(-1)}


class Forgetful(Remembering):
    """Makes a new state at the end of each task, without what is stored."""

    name = "forgetful"

    def end_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        return {"count": torch.tensor(context.position)}


def assert_right(learner: cclfp.Learner) -> None:
    """What is stored in each slot belongs to the example in that slot."""
    memory, state = learner.memory, learner.state
    assert memory is not None
    held = len(memory)
    assert held > 100
    inputs = (memory.examples().x / 2).to(state["inputs"].dtype)  # as the transform of the toy stream makes them
    assert torch.equal(state["inputs"][:held], inputs)
    torch.testing.assert_close(state["sum"][:held], inputs.sum(-1))
    assert not state["inputs"][held:].any()


@pytest.mark.parametrize("schedule", [Reservoir, Ring, PastRing])
@pytest.mark.parametrize("base", [Remembering, Forgetful])
def test_values_are_those_of_the_example_in_the_slot(schedule: Any, base: type[ER]) -> None:
    case = Case(type("Own", (base,), {"schedule": schedule}), "class", {})
    assert_right(case.online())
    for engine in ("eager", "traced"):
        replicas = [case.replica(seed, stackable_psi()) for seed in (0, 1)]
        assert train_replicas(replicas, engine) == []  # no note says that another engine was used
        for replica in replicas:
            assert_right(replica.learner)


def test_draws_are_independent_and_each_without_replacement() -> None:
    drawn: list[list[list[int]]] = []

    class Watching(ER):
        name = "watching"
        draws = 3

        def loss(self, params: Any, buffers: Any, state: Any, batch: Batch, hyper: Any) -> Any:
            drawn.append([slots.tolist() for slots in batch.slots.chunk(3)])
            assert len(batch.y) == batch.n_current + 3 * len(drawn[-1][0])
            return super().loss(params, buffers, state, batch, hyper)

    Case(Watching, "class", {}).online()
    full = [draws for draws in drawn if len(draws[0]) == 10]
    assert len(full) > 20
    assert all(len(set(slots)) == 10 for draws in full for slots in draws)
    assert sum(draws[0] != draws[1] != draws[2] for draws in full) > 20


@pytest.mark.parametrize("schedule", [None, Exemplars])
def test_a_method_without_stored_examples_cannot_remember(schedule: Any) -> None:
    method = type("Own", (Remembering,), {"schedule": schedule, "keeps_task": schedule is not None})
    with pytest.raises(InputError, match="remembers inputs, sum, but no example is stored at its step"):
        Case(method, "class", {}).online()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda x: {"logits": x}, r"own has values of 'logits' of shape \(14, 8\) for 10 current examples"),
        (lambda x: {"inputs": x}, r"own has values of 'inputs' of shape .*declares \{'inputs': \(8,\), 'sum': \(\)\}"),
    ],
)
def test_values_of_another_name_or_shape_are_refused(values: Any, message: str) -> None:
    class Wrong(Remembering):
        name = "own"

        def loss(self, *arguments: Any) -> Any:
            loss, buffers, right = super().loss(*arguments)
            batch = arguments[3]
            return loss, buffers, values(batch.x) if len(batch.slots) else right

    learner = cclfp.make(Wrong, psi=toy_psi(), num_classes=6, replay=2)
    learner.observe(torch.randn(10, 8), torch.arange(10) % 2)
    with pytest.raises(InputError, match=message):
        learner.observe(torch.randn(10, 8), torch.arange(10) % 2)
