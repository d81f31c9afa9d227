"""The learner as users meet it: any psi, any batch, clear refusals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.errors import InputError
from cclfp.methods import METHODS, Method
from cclfp.methods.er import ER
from cclfp.testing import same, toy_psi


def psi() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU())


def learner(method: str | type[Method] = "ccl-fp+", **arguments: Any) -> cclfp.Learner:
    return cclfp.make(method, **{"psi": psi(), "num_classes": 6, "memory": 12, **arguments})


def batch(n: int = 5, high: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g), torch.randint(high, (n,), generator=g)


# -- learning -----------------------------------------------------------------------------------------------------


def test_observe_returns_the_loss() -> None:
    """The cross-entropy before the step, on the batch and the examples that are replayed with it."""
    ours = learner("er", replay=1000)
    x, y = batch()
    first = ours.observe(x, y)
    assert type(first) is float
    z = ours.logits(x)
    expected = nn.functional.cross_entropy(torch.cat([z, z]), torch.cat([y, y]))  # the memory holds the batch
    assert ours.observe(x, y) == pytest.approx(float(expected))
    assert first > float(expected)


@pytest.mark.parametrize("fourth", [(), ({"norm": torch.ones(3)},)])
def test_a_step_may_return_no_loss(fourth: tuple[Any, ...]) -> None:
    class Unreported(ER):
        name = "unreported"

        def step(self, *arguments: Any) -> Any:
            return *super().step(*arguments)[:3], *fourth

    ours, theirs = learner(ER), learner(Unreported)
    for _ in range(3):
        assert ours.observe(*batch()) is not None
        assert theirs.observe(*batch()) is None
    assert torch.equal(ours.logits(batch()[0]), theirs.logits(batch()[0]))


def test_a_state_keeps_what_the_method_did_not_clone() -> None:
    class Uncloned(ER):
        name = "uncloned"

        def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
            return {**state, "began": dict(params), "counted": list(buffers.values())}

        def step(self, params: Any, *arguments: Any) -> Any:
            new, buffers, state, losses = super().step(params, *arguments)  # type: ignore[misc]
            before = {name: p.detach()[:] for name, p in params.items()}
            return new, buffers, {**state, "before": before, "twice": before["f.bias"]}, losses

        def end_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
            return {**state, "ended": params}

    ours, seen = learner(Uncloned, psi=nn.Sequential(psi(), nn.BatchNorm1d(8))), [list[Any]()]
    for _ in range(3):
        ours.observe(*batch())
        seen.append(copy.deepcopy([*ours.model[:2]]))
    ours.end_task()
    ours.observe(*batch())
    (second, _), (third, buffers) = seen[2:]
    for name, values in third.items():
        assert torch.equal(ours.state["before"][name], values)
        assert torch.equal(ours.state["ended"][name], values)
        assert torch.equal(ours.state["began"][name], values)
        assert not torch.equal(second[name], values)
    assert all(map(torch.equal, ours.state["counted"], buffers.values()))
    assert ours.state["twice"].data_ptr() != ours.state["before"]["f.bias"].data_ptr()


@pytest.mark.parametrize(("name", "returned"), [("begin_task", None), ("end_task", None), ("end_task", [1])])
def test_a_task_begins_and_ends_with_a_dict(name: str, returned: Any) -> None:
    ours = learner(type("Own", (ER,), {"name": "own", name: lambda self, *arguments: returned}))

    def learn_a_task() -> None:
        ours.observe(*batch())
        ours.end_task()

    with pytest.raises(InputError, match=f"{name} of own returned (None|list), expected a dict"):
        learn_a_task()


def test_frozen_parameters_stay_and_the_mode_is_not_touched() -> None:
    module = toy_psi().eval()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    before = copy.deepcopy(module.state_dict())
    ours = cclfp.make("ccl-fp", psi=module, num_classes=6)
    for _ in range(3):
        ours.observe(torch.randn(6, 8), torch.arange(6), task=0)
    ours.end_task()
    ours.observe(torch.randn(6, 8), torch.arange(6), task=1)
    after = module.state_dict()
    assert not module.training
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"0.bias", "1.weight", "1.bias"}  # given in eval mode: BatchNorm's statistics stay too


def test_tied_weights_are_trained_as_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.second(torch.relu(self.first(x))))

    module = Tied()
    expected = copy.deepcopy(module)
    ours = cclfp.make("finetune", psi=module, num_classes=6, tasks=[[*range(6)]])
    x, y = batch()
    ours.make_classifier(x)  # makes f
    f = copy.deepcopy(ours.f)
    assert f is not None
    loss = nn.functional.cross_entropy(f(expected(x)), y)
    loss.backward()
    ours.observe(x, y)
    wanted = expected.first.weight.detach() - 0.1 * expected.first.weight.grad  # type: ignore[operator]
    torch.testing.assert_close(module.first.weight.detach(), wanted)
    assert module.second is module.first


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_any_size(method: str) -> None:
    ours = learner(method)
    for task, n in enumerate((1, 7, 1, 64)):
        ours.observe(*batch(n, high=6), task=task)
        ours.end_task()
    assert ours.steps == 4
    assert ours.predict(torch.randn(0, 4)).shape == (0,)


def test_inputs_may_be_arrays_and_of_any_precision() -> None:
    ours, twin = learner(), learner()
    for seed in (0, 1):
        x, y = batch(seed=seed)
        ours.observe(x.double().numpy() if seed else x.numpy(), y.numpy())
        twin.observe(x, y)
    assert same(ours, twin)
    assert learner(num_classes=np.int64(6), memory=np.int32(5), lr=np.float32(0.5)).hyper.lr == 0.5


def test_without_tasks_the_mask_is_what_was_observed() -> None:
    ours = learner()
    x = torch.randn(300, 4)
    ours.observe(x[:4], torch.tensor([1, 1, 3, 3]), task=0)
    assert set(ours.predict(x).tolist()) <= {1, 3}
    assert torch.isinf(ours.logits(x)).sum(0).tolist() == [300, 0, 300, 0, 300, 300]
    ours.end_task()
    ours.observe(x[:2], torch.tensor([5, 0]), task=4)
    assert set(ours.predict(x).tolist()) <= {0, 1, 3, 5}
    assert set(ours.predict(x, task=4).tolist()) <= {0, 5}
    assert set(ours.predict(x, task=torch.tensor([0, 4] * 150)).tolist()) <= {0, 1, 3, 5}


def test_transform_sees_raw_examples_and_predict_its_own() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x.float() / 255 + torch.randn(x.shape)

    def run(**other: Any) -> cclfp.Learner:
        ours = learner("fdr", transform=noisy, **other)
        for i in range(4):
            g = torch.Generator().manual_seed(i)
            ours.observe(torch.randint(0, 256, (5, 4), dtype=torch.uint8, generator=g), torch.tensor([0, 1, 0, 1, 1]))
        ours.end_task()  # when FDR stores outputs
        return ours

    first = run()
    assert first.memory is not None
    assert first.memory.examples().x.dtype == torch.uint8
    torch.rand(7)  # random transforms draw from the seed, not from the global generator
    x, before = torch.randint(0, 256, (3, 4), dtype=torch.uint8), torch.get_rng_state()
    assert torch.equal(first.logits(x), first.logits(x))
    assert torch.equal(before, torch.get_rng_state())
    assert same(first, run())  # predicting changes nothing
    own = run(predict_transform=lambda x: x.float() / 255)
    torch.testing.assert_close(own.features(x), own.psi(x / 255).detach())  # without noise


# -- refusals: a ValueError that says what was wrong, and the learner is left as it was ---------------------------

GOOD = torch.zeros(3, 4)
LABELS = torch.tensor([0, 1, 0])

BAD_BATCHES: list[tuple[str, dict[str, Any], tuple[Any, ...], str]] = [
    ("fewer labels", {}, (GOOD, LABELS[:2], 0), r"y has the shape \(2,\): expected a label for each of the 3 examples"),
    ("labels in columns", {}, (GOOD, LABELS[:, None], 0), r"\(3, 1\)"),
    ("label too large", {}, (GOOD, torch.tensor([0, 6, 1]), 0), "label 6 is out of range.*0 to 5"),
    ("negative label", {}, (GOOD, torch.tensor([0, -1, 1]), 0), "label -1 is out of range"),
    ("float labels", {}, (GOOD, LABELS.float(), 0), "y must be whole numbers; its values are of type torch.float32"),
    ("labels as text", {}, (GOOD, ["a", "b", "a"], 0), "^y must be whole numbers; its values are of type str$"),
    ("labels of two lengths", {}, (GOOD, [[0], [1, 0]], 0), "^y must be whole numbers, not list: expected sequence of"),
    ("NaN", {}, (torch.tensor([[0.0] * 4, [torch.nan] * 4]), LABELS[:2], 0), "NaN or infinite.*example 1"),
    ("infinite", {}, (torch.full((3, 4), torch.inf), LABELS, 0), "NaN or infinite.*example 0"),
    ("empty", {}, (GOOD[:0], LABELS[:0], 0), "empty"),
    ("a number", {}, (torch.tensor(1.0), torch.tensor(1), 0), "a batch of examples, not a single number"),
    ("integers after floats", {}, (GOOD.long(), LABELS, 0), "torch.float32 like the first batch, not torch.int64"),
    ("sparse", {}, (GOOD.to_sparse(), LABELS, 0), "dense tensor"),
    ("infinite in float32", {}, (torch.full((3, 4), 1e300, dtype=torch.float64), LABELS, 0), "NaN or infinite"),
    ("other width", {}, (torch.zeros(3, 5), LABELS, 0), r"shape \(4,\) of the first batch, not \(5,\)"),
    ("text", {}, ("abc", LABELS, 0), "x must be a tensor"),
    ("no task", {"scenario": "task"}, (GOOD, LABELS, None), "task scenario needs the task"),
    ("negative task", {}, (GOOD, LABELS, -1), "task -1 is out of range: tasks are 0 to 9,999"),
    ("a date as task", {}, (GOOD, LABELS, 20261115), "task 20261115 is out of range.*0 to 9,999"),
    ("fractional task", {}, (GOOD, LABELS, 0.5), "task must be whole numbers; its values are of type torch.float32"),
    (
        "too many tasks",
        {},
        (GOOD, LABELS, torch.zeros(2, dtype=torch.int64)),
        r"shape \(2,\): expected one task or a task for each of the 3",
    ),
    ("undeclared task", {"tasks": [[0, 1], [2, 3]]}, (GOOD, LABELS, 2), "task 2 is out of range: tasks are 0 to 1"),
    ("another task's label", {"tasks": [[0, 1], [2, 3]]}, (GOOD, LABELS + 1, 0), "label 2 is not among.*task 0"),
]


@pytest.mark.parametrize(("arguments", "bad", "message"), [c[1:] for c in BAD_BATCHES], ids=[c[0] for c in BAD_BATCHES])
def test_refuses(arguments: dict[str, Any], bad: tuple[Any, ...], message: str) -> None:
    ours, twin = learner(**arguments), learner(**arguments)
    for one in (ours, twin):
        one.observe(*batch(), task=0)
        one.end_task()
    with pytest.raises(ValueError, match=message):
        ours.observe(*bad)
    assert same(ours, twin)
    for one in (ours, twin):
        one.observe(*batch(seed=1), task=0)
    assert same(ours, twin)


@pytest.mark.parametrize(
    ("arguments", "x", "message"),
    [
        ({}, torch.zeros(3, 9), r"psi does not take x of shape \(3, 9\)"),
        ({}, GOOD.byte(), "psi does not take"),
        (
            {"psi": nn.Unflatten(1, (2, 2))},
            GOOD,
            r"of shape \(3, features\), not a .*float32 tensor of shape \(3, 2, 2\)",
        ),
        ({"psi": nn.RNN(4, 2)}, GOOD, "not tuple"),
        (
            {"transform": lambda x: None},
            GOOD,
            r"must give a tensor of as many examples as it takes \(3\), not NoneType",
        ),
        ({"transform": lambda x: x[:2]}, GOOD, r"not a tensor of shape \(2, 4\)"),
        ({"transform": lambda x: x / 0}, GOOD, "weights that are not finite .* check the inputs"),
    ],
)
def test_refuses_a_first_batch(arguments: dict[str, Any], x: Tensor, message: str) -> None:
    ours, twin = learner(**arguments), learner(**arguments)
    with pytest.raises(ValueError, match=message):
        ours.observe(x, LABELS)
    assert same(ours, twin)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "ccl-pf+"}, r"unknown method 'ccl-pf\+'. Did you mean 'ccl-fp\+'"),
        ({"gamma": 1}, r"unknown hyperparameter of ccl-fp\+ 'gamma'. .*Known: lr, w, alpha"),
        ({"w": 1.5}, r"w=1.5: expected a number in \[0, 1\]"),
        ({"lr": 0}, r"lr=0: expected a number in \(0, inf\)"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"beta": "big"}, "beta='big'"),
        ({"memory": 0}, "memory=0: expected a whole number, 1 or more"),
        ({"replay": 0}, "replay=0"),
        ({"method": "finetune", "memory": "x"}, "memory='x': expected a whole number, 0 or more"),
        ({"method": "finetune", "replay": -5}, "replay=-5: expected a whole number, 0 or more"),
        ({"method": "gem", "replay": -5}, "replay=-5: expected a whole number, 0 or more"),
        ({"method": type("MyER", (ER,), {})}, "MyER has the name 'er' of a method that ships with cclfp"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"seed": -1}, "seed=-1"),
        ({"scenario": "clas"}, "unknown scenario 'clas'. Did you mean 'class'"),
        ({"tasks": [[0, 1], [6]]}, r"tasks\[1\] declares \[6\]: expected classes from 0 to 5"),
        ({"tasks": [[0, 1], []]}, r"tasks\[1\] declares \[\]: expected classes"),
        ({"transform": 3}, "transform must be a function"),
        ({"psi": torch.relu}, "psi must be a torch.nn.Module"),
        ({"device": "gpu"}, "device 'gpu' cannot be used: expected cpu, or cuda"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
        ({"device": 3.5}, "device 3.5 cannot be used"),
        ({"tasks": 3}, "tasks=3: expected the classes of each task"),
        ({"tasks": [[0.5]]}, "expected the classes of each task"),
        ({"method": int}, "is not a method"),
        ({"psi": nn.DataParallel(nn.Flatten())}, "psi is a DataParallel: pass the plain module"),
        ({"psi": nn.LazyLinear(3)}, "lazy layers that have seen no input"),
        ({"memory": 2.5}, "memory=2.5"),
        ({"classes": "cat"}, "expected the names of the classes"),
        ({"classes": ["cat", 3]}, "expected the names of the classes"),
        ({"classes": 3}, "expected the names of the classes"),
        ({"classes": ["cat\n"]}, "expected the names of the classes"),
        ({"classes": ["a", "b", "a"]}, "names of the classes, all different"),
        ({"classes": [*"abcdefg"]}, "7 names of classes, but there are 6 classes"),
    ],
)
def test_make_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(**{"method": "ccl-fp+", **arguments})


def test_predicting_takes_large_inputs_in_parts() -> None:
    """So that many large images fit into a graphics card's memory."""
    seen: list[int] = []

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.numel())
            return x.flatten(1)[:, :2]

    ours = cclfp.make("er", psi=Counts(), num_classes=2, scenario="domain")
    x = torch.zeros(300, 3, 64, 64)
    ours.observe(x[:4], torch.tensor([0, 1, 0, 1]))
    assert len(ours.predict(x)) == 300
    assert max(seen) <= 800_000


def test_refuses_to_predict_or_to_end() -> None:
    ours, ended = learner(), learner(tasks=[[0, 1]])
    for task in (0, 5):
        ours.observe(*batch(), task=task)
    ended.observe(*batch())
    ended.end_task()
    for call, message in (
        (lambda: learner().predict(GOOD), "no class has been seen yet"),
        (lambda: learner(scenario="task").predict(GOOD), "say which"),
        (lambda: learner(scenario="domain").predict(GOOD), "nothing has been observed yet"),
        (lambda: learner().end_task(), "there is no task to end"),
        (lambda: ended.observe(*batch()), "all 1 declared tasks have ended: say which"),
        (lambda: ours.predict(GOOD, task=3), "no class of task 3 has been seen yet"),
        (lambda: ours.predict(GOOD, task=9), "no class of task 9 has been seen yet"),
        (lambda: ours.predict(torch.zeros(3, 7)), "shape"),
        (lambda: ours.predict(torch.full((3, 4), torch.nan)), "NaN or infinite values"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
