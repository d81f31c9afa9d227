"""The learner as users meet it: any psi, any batch, clear refusals, files that cannot hurt."""

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.errors import InputError
from cclfp.learner.saving import FORMAT, learner_state, load_learner_state
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.testing import same, toy_psi
from cclfp.testing.case import equal


def psi(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU())


def learner(method: str = "ccl-fp+", **arguments: Any) -> cclfp.Learner:
    return cclfp.make(method, **{"psi": psi(), "num_classes": 6, "memory": 12, **arguments})


def batch(n: int = 5, low: int = 0, high: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g), torch.randint(low, high, (n,), generator=g)


# -- learning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_method_is_known_before_the_first_batch(method: str) -> None:
    ours = learner(method)
    for _ in range(2):
        assert ours.method is METHODS[method]
        assert ours.method.name == method
        assert ours.hyper.lr == 0.1
        ours.observe(*batch(), task=0)


def test_a_learner_is_made_again_from_its_method() -> None:
    class Own(ER):
        name = "own"

    ours = cclfp.make(Own, psi=psi(), num_classes=6)
    assert ours.method is Own
    assert cclfp.make(ours.method, psi=psi(), num_classes=6).method.name == "own"


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


class Unreported(ER):
    """Returns three values, as methods did before losses were returned."""

    name = "unreported"

    def step(self, *arguments: Any) -> Any:
        return super().step(*arguments)[:3]


def test_a_step_may_return_no_loss() -> None:
    ours, theirs = (cclfp.make(method, psi=psi(), num_classes=6) for method in (ER, Unreported))
    for _ in range(3):
        assert ours.observe(*batch()) is not None
        assert theirs.observe(*batch()) is None
    assert torch.equal(ours.logits(batch()[0]), theirs.logits(batch()[0]))


@pytest.mark.parametrize(
    ("fourth", "finding"),
    [
        (({"loss": torch.ones(2)},), r"a step of strange returned a tensor of shape \(2,\) as the loss"),
        (({"loss": 1.0},), "a step of strange returned float as the loss, expected a 0-d tensor"),
        ((torch.ones(()),), "a step of strange returned a Tensor as its last value, expected a dict"),
        (({}, {}), "a step of strange returned 5 values"),
    ],
)
def test_what_is_no_loss_is_refused(fourth: tuple[Any, ...], finding: str) -> None:
    class Strange(ER):
        name = "strange"

        def step(self, *arguments: Any) -> Any:
            return *super().step(*arguments)[:3], *fourth

    ours = cclfp.make(Strange, psi=psi(), num_classes=6)
    before = copy.deepcopy(learner_state(ours))
    with pytest.raises(InputError, match=finding):
        ours.observe(*batch())
    assert equal(before, learner_state(ours))


def test_a_step_may_report_other_values() -> None:
    class Talkative(ER):
        name = "talkative"

        def step(self, *arguments: Any) -> Any:
            return *super().step(*arguments)[:3], {"norm": torch.ones(3)}

    assert cclfp.make(Talkative, psi=psi(), num_classes=6).observe(*batch()) is None


def test_psi_is_trained_in_place() -> None:
    module = psi()
    weight = module[0].weight  # type: ignore[index]
    before = weight.detach().clone()
    cclfp.make("er", psi=module, num_classes=6).observe(*batch())
    assert module[0].weight is weight  # type: ignore[index]
    assert not torch.equal(weight, before)


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


def test_a_psi_without_parameters() -> None:
    ours = cclfp.make("ccl-fp+", psi=nn.Flatten(), num_classes=3, lr=0.5)
    x, y = torch.eye(3), torch.arange(3)
    for _ in range(2):
        for _ in range(50):
            ours.observe(x, y)
        ours.end_task()
    assert ours.predict(x).tolist() == [0, 1, 2]


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_any_size(method: str) -> None:
    ours = learner(method)
    for task, n in enumerate((1, 7, 1, 64)):
        ours.observe(*batch(n, high=6), task=task)
        ours.end_task()
    assert ours.steps == 4
    assert ours.predict(torch.randn(0, 4)).shape == (0,)


def test_numpy_and_float64_inputs() -> None:
    ours = learner()
    ours.observe(np.random.default_rng(0).normal(size=(5, 4)), np.array([0, 1, 0, 1, 0]))
    assert ours.predict(np.zeros((2, 4))).shape == (2,)


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


def test_declared_classes_count_from_a_tasks_first_batch_on() -> None:
    ours = learner(tasks=[[0, 1], [2, 3], [4, 5]])
    ours.observe(torch.randn(2, 4), torch.tensor([0, 0]))
    assert torch.isinf(ours.logits(torch.randn(1, 4)))[0].tolist() == [False, False, True, True, True, True]


def test_task_scenario_trains_each_tasks_classes_alone() -> None:
    ours = learner("finetune", scenario="task", tasks=[[0, 1], [2, 3], [4, 5]])
    ours.make_classifier(batch()[0])  # makes f
    assert ours.f is not None
    before = ours.f.weight.detach().clone()
    ours.observe(*batch(), task=0)
    changed = (ours.f.weight.detach() != before).any(1)
    assert changed.tolist() == [True, True, False, False, False, False]


def test_replay_is_what_the_memory_held_before_the_batch() -> None:
    seen: list[list[float]] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x[:, 0].tolist())
        return x

    ours = cclfp.make(
        "er", psi=nn.Identity(), num_classes=2, memory=4, replay=3, transform=spy, predict_transform=torch.clone
    )
    for start in range(0, 40, 5):
        x = torch.arange(start, start + 5.0)[:, None]
        ours.observe(x / 100, torch.zeros(5, dtype=torch.int64))
    assert ours.memory is not None
    held_before: set[float] = set()
    for step, values in enumerate(seen):
        assert values[:5] == (torch.arange(5.0 * step, 5 * step + 5) / 100).tolist()
        replayed = values[5:]
        assert len(replayed) == len(set(replayed)) == (3 if step else 0)
        assert set(replayed) <= held_before
        held_before |= set(values[:5])


def test_transform_sees_raw_examples_and_predict_its_own() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x.float() / 255 + torch.randn(x.shape)

    def run() -> cclfp.Learner:
        ours = learner("er", transform=noisy, predict_transform=lambda x: x.float() / 255)
        for i in range(4):
            g = torch.Generator().manual_seed(i)
            ours.observe(torch.randint(0, 256, (5, 4), dtype=torch.uint8, generator=g), torch.tensor([0, 1, 0, 1, 1]))
        return ours

    first = run()
    assert first.memory is not None
    assert first.memory.examples().x.dtype == torch.uint8
    torch.rand(7)  # random transforms draw from the seed, not from the global generator
    assert same(first, run())
    x = torch.randint(0, 256, (3, 4), dtype=torch.uint8)
    assert torch.equal(first.logits(x), first.logits(x))


# -- refusals: a ValueError that says what was wrong, and the learner is left as it was ---------------------------

GOOD = torch.zeros(3, 4)
LABELS = torch.tensor([0, 1, 0])

BAD_BATCHES: list[tuple[str, dict[str, Any], tuple[Any, ...], str]] = [
    ("fewer labels", {}, (GOOD, LABELS[:2], 0), r"one label for each of the 3 examples.*\(2,\)"),
    ("labels in columns", {}, (GOOD, LABELS[:, None], 0), r"\(3, 1\)"),
    ("label too large", {}, (GOOD, torch.tensor([0, 6, 1]), 0), "label 6 is out of range.*0 to 5"),
    ("negative label", {}, (GOOD, torch.tensor([0, -1, 1]), 0), "label -1 is out of range"),
    ("float labels", {}, (GOOD, LABELS.float(), 0), "whole numbers.*float32"),
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
    ("negative task", {}, (GOOD, LABELS, -1), "task -1 is out of range: tasks are counted from 0"),
    ("a date as task", {}, (GOOD, LABELS, 20261115), "task 20261115 is out of range.*0 to 9,999"),
    ("fractional task", {}, (GOOD, LABELS, 0.5), "one whole number"),
    ("too many tasks", {}, (GOOD, LABELS, torch.zeros(2, dtype=torch.int64)), "one for each of the 3"),
    ("undeclared task", {"tasks": [[0, 1], [2, 3]]}, (GOOD, LABELS, 2), "task 2 is not one of the 2 declared"),
    ("another task's label", {"tasks": [[0, 1], [2, 3]]}, (GOOD, LABELS + 1, 0), "label 2 is not among.*task 0"),
]


@pytest.mark.parametrize(("arguments", "bad", "message"), [c[1:] for c in BAD_BATCHES], ids=[c[0] for c in BAD_BATCHES])
@pytest.mark.parametrize("method", ["er", "ccl-fp+"])
def test_refuses(method: str, arguments: dict[str, Any], bad: tuple[Any, ...], message: str) -> None:
    ours, twin = learner(method, **arguments), learner(method, **arguments)
    for one in (ours, twin):
        one.observe(*batch(), task=0)
        one.end_task()
    with pytest.raises(ValueError, match=message):
        ours.observe(*bad)
    assert same(ours, twin)
    for one in (ours, twin):
        one.observe(*batch(seed=1), task=0)
    assert same(ours, twin)


def test_a_first_batch_that_psi_cannot_take() -> None:
    ours, twin = learner(), learner()
    with pytest.raises(ValueError, match=r"psi does not take x of shape \(3, 9\)"):
        ours.observe(torch.zeros(3, 9), LABELS)
    with pytest.raises(ValueError, match="psi does not take"):
        ours.observe(torch.zeros(3, 4, dtype=torch.uint8), LABELS)
    assert same(ours, twin)
    ours.observe(*batch())
    assert ours.steps == 1


def test_a_step_that_fails_leaves_no_trace() -> None:
    class Moody(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and x.sum() > 1e6:
                raise RuntimeError("no")
            return super().forward(x)

    torch.manual_seed(0)
    module = Moody(4, 8)
    ours = cclfp.make("ccl-fp+", psi=module, num_classes=6, memory=3)
    with pytest.raises(RuntimeError, match="no"):
        ours.observe(torch.full((3, 4), 1e7), LABELS)
    assert ours.f is None
    ours.observe(*batch())
    before = copy.deepcopy(learner_state(ours))
    with pytest.raises(RuntimeError, match="no"):
        ours.observe(torch.full((3, 4), 1e7), LABELS, task=1)
    after = learner_state(ours)
    assert equal(before, after)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Unflatten(1, (2, 2)), r"of shape \(5, features\), not a torch.float32 tensor of shape \(5, 2, 2\)"),
        (nn.RNN(4, 2), "not tuple"),
    ],
)
def test_a_psi_that_gives_no_features(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cclfp.make("er", psi=module, num_classes=6).observe(*batch())


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
        ({"num_classes": 0}, "num_classes=0"),
        ({"seed": -1}, "seed=-1"),
        ({"scenario": "clas"}, "unknown scenario 'clas'. Did you mean 'class'"),
        ({"tasks": [[0, 1], [6]]}, r"tasks\[1\] declares class 6, out of range"),
        ({"tasks": [[0, 1], []]}, r"tasks\[1\] declares no class"),
        ({"transform": 3}, "transform must be a function"),
        ({"psi": torch.relu}, "psi must be a torch.nn.Module"),
        ({"device": "gpu"}, "device 'gpu' is unknown"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"device": 3.5}, "device 3.5 is unknown"),
        ({"tasks": 3}, "tasks=3: expected the classes of each task"),
        ({"tasks": [[0.5]]}, "expected the classes of each task"),
        ({"method": int}, "is not a method"),
        ({"psi": nn.DataParallel(nn.Flatten())}, "psi is a DataParallel: pass the plain module"),
        ({"psi": nn.LazyLinear(3)}, "lazy layers that have seen no input"),
        ({"memory": 2.5}, "memory=2.5"),
    ],
)
def test_make_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(**{"method": "ccl-fp+", **arguments})


def test_numpy_numbers_are_numbers() -> None:
    ours = learner(num_classes=np.int64(6), memory=np.int32(5), lr=np.float32(0.5), tasks=np.array([[0, 1], [2, 3]]))
    assert (ours.num_classes, ours.hyper.lr) == (6, 0.5)


def test_float64_after_float32_is_made_alike() -> None:
    ours, twin = learner("er"), learner("er")
    for one, dtype in ((ours, torch.float64), (twin, torch.float32)):
        one.observe(*batch(), task=0)
        x, y = batch(seed=1)
        one.observe(x.to(dtype), y, task=0)
    assert same(ours, twin)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda x: None, r"transform must give a tensor of as many examples as it takes \(5\), not NoneType"),
        (lambda x: x[:2], r"not a tensor of shape \(2, 4\)"),
        (lambda x: x / 0, "NaN or infinite values once it is transformed"),
    ],
)
def test_a_transform_that_spoils_the_batch(transform: Any, message: str) -> None:
    ours, twin = learner(transform=transform), learner(transform=transform)
    with pytest.raises(ValueError, match=message):
        ours.observe(*batch())
    assert same(ours, twin)


def test_only_observing_changes_a_learner() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape)

    ours, twin = learner(scenario="domain", transform=noisy), learner(scenario="domain", transform=noisy)
    before = torch.get_rng_state()
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.logits(x), ours.logits(x))
    assert torch.equal(before, torch.get_rng_state())
    assert same(ours, twin)


def test_predicting_takes_large_inputs_in_parts_before_and_after_training() -> None:
    """So that many large images fit into a graphics card's memory."""
    seen: list[int] = []

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.numel())
            return x.flatten(1)[:, :2]

    ours = cclfp.make("er", psi=Counts(), num_classes=2, scenario="domain")
    x = torch.zeros(300, 3, 64, 64)
    assert len(ours.predict(x)) == 300
    ours.observe(x[:4], torch.tensor([0, 1, 0, 1]))
    assert len(ours.predict(x)) == 300
    assert max(seen) <= 800_000


def test_a_random_transform_at_a_tasks_end_draws_from_the_seed() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    def trained() -> cclfp.Learner:
        ours = learner("fdr", transform=noisy)
        ours.observe(*batch(), task=0)
        ours.end_task()
        return ours

    before = torch.get_rng_state()
    first = trained()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert same(first, trained())


def test_nothing_to_predict_or_to_end_yet() -> None:
    with pytest.raises(ValueError, match="no class has been seen yet"):
        learner().predict(GOOD)
    with pytest.raises(ValueError, match="say which"):
        learner(scenario="task").predict(GOOD)
    with pytest.raises(ValueError, match="there is no task to end"):
        learner().end_task()
    ours = learner()
    ours.observe(*batch(), task=0)
    with pytest.raises(ValueError, match="no class of task 3 has been seen yet"):
        ours.predict(GOOD, task=3)
    ours.observe(*batch(), task=5)
    with pytest.raises(ValueError, match="no class of task 3 has been seen yet"):
        ours.predict(GOOD, task=3)
    with pytest.raises(ValueError, match="shape"):
        ours.predict(torch.zeros(3, 7))
    with pytest.raises(ValueError, match="NaN or infinite values"):
        ours.predict(torch.full((3, 4), torch.nan))


# -- files --------------------------------------------------------------------------------------------------------


def trained(**arguments: Any) -> cclfp.Learner:
    ours = learner(**arguments)
    for task in range(2):
        for i in range(3):
            ours.observe(*batch(low=2 * task, high=2 * task + 2, seed=i), task=task)
        if task == 0:
            ours.end_task()
    return ours


def test_load_restores_what_is_frozen_and_every_buffer(tmp_path: Path) -> None:
    class Centred(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4), persistent=False)
            self.backbone = nn.Linear(4, 3)  # a user's name for a user's module

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean.add_(x.mean(0))
            return self.backbone(x - self.mean)  # type: ignore[no-any-return]

    module = Centred()
    module.backbone.bias.requires_grad_(False)
    ours = cclfp.make("er", psi=module, num_classes=6)
    ours.observe(*batch())
    ours.save(tmp_path / "learner.ckpt")
    loaded = cclfp.load(tmp_path / "learner.ckpt", psi=Centred().eval())
    for one in (ours, loaded):
        one.observe(*batch(seed=1))
    assert same(ours, loaded)
    assert torch.equal(ours.logits(batch()[0]), loaded.logits(batch()[0]))


def test_psi_counts_as_it_was_given(tmp_path: Path) -> None:
    """What a user does to psi's mode and flags later, by hand, changes nothing."""

    def start() -> cclfp.Learner:
        module = toy_psi()
        module[0].weight.requires_grad_(False)  # type: ignore[index]
        one = cclfp.make("er", psi=module, num_classes=6)
        one.observe(torch.arange(48.0).reshape(6, 8), torch.arange(6))
        return one

    left, touched = start(), start()
    touched.psi.eval()
    touched.psi[0].weight.requires_grad_(True)  # type: ignore[index]
    touched.to("cpu")
    touched.save(tmp_path / "learner.ckpt")
    loaded = cclfp.load(tmp_path / "learner.ckpt", psi=toy_psi().eval())
    for one in (left, touched, loaded):
        one.observe(torch.arange(48.0).reshape(6, 8) / 7, torch.arange(6))
    assert same(left, touched)
    assert same(left, loaded)


def test_a_state_can_be_gone_back_to_twice() -> None:
    ours, other = trained(), trained()
    saved = copy.deepcopy(learner_state(ours))
    for _ in range(2):
        load_learner_state(other, saved)
        assert same(ours, other)
        other.observe(*batch(seed=4), task=1)


def test_saving_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "learner.ckpt"
    trained().save(path)
    before = path.read_bytes()

    def broken(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        trained().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("pack", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))])
def test_loading_executes_nothing(pack: Any, tmp_path: Path) -> None:
    path, proof = tmp_path / "learner.ckpt", tmp_path / "executed"
    pack({"format": FORMAT, "psi": Bomb(proof)}, path)
    with pytest.raises(ValueError, match="cannot be read as a cclfp learner"):
        cclfp.load(path, psi=psi())
    assert not proof.exists()


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: pickle.dumps({"format": FORMAT}, 2)[:-5] + b))
def test_rubbish_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.ckpt"
        path.write_bytes(content)
        with warnings.catch_warnings(action="ignore"), pytest.raises(ValueError, match=r"learner\.ckpt"):
            cclfp.load(path, psi=psi())


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "learner.ckpt"
    with pytest.raises(ValueError, match="there is no file"):
        cclfp.load(path)
    trained(transform=torch.clone).save(path)
    with pytest.raises(ValueError, match="psi of your own"):
        cclfp.load(path)
    with pytest.raises(ValueError, match="transform of your own"):
        cclfp.load(path, psi=psi())
    trained(transform=torch.clone, predict_transform=torch.abs).save(tmp_path / "two.ckpt")
    with pytest.raises(ValueError, match="predict_transform of your own"):
        cclfp.load(tmp_path / "two.ckpt", psi=psi(), transform=torch.clone)
    with pytest.raises(
        ValueError,
        match=r"not the one that was saved: 0.weight was torch.float32 \(8, 4\) and is now torch.float32 \(9, 4\)",
    ):
        cclfp.load(path, psi=psi(width=9), transform=torch.clone)
    with pytest.raises(ValueError, match="is a learner of ccl-fp\\+, not of er"):
        cclfp.load(path, psi=psi(), transform=torch.clone, method=METHODS["er"])
    torch.save({"format": FORMAT}, path)
    with pytest.raises(ValueError, match="not a whole learner: it lacks method, hyper,"):
        cclfp.load(path)
    trained().save(path)
    with pytest.raises(ValueError, match=r"0.weight was torch.float32 \(8, 4\) and is now torch.float64 \(8, 4\)"):
        cclfp.load(path, psi=psi().double())
    whole = torch.load(path, weights_only=True)
    for name, spoilt in (("psi", None), ("memory", None), ("state", 3), ("f", {"weight": torch.zeros(3)})):
        torch.save({**whole, name: spoilt}, path)
        with pytest.raises(ValueError, match="is damaged"):
            cclfp.load(path, psi=psi())
    torch.save({"a": 1}, path)
    with pytest.raises(ValueError, match="is not a 'cclfp learner 2' file"):
        cclfp.load(path)


def test_own_backbones_and_transforms_come_back_by_themselves(tmp_path: Path) -> None:
    from cclfp.nets import MLP
    from cclfp.transforms import Scale

    ours = cclfp.make("er", psi=MLP(4, [5]), num_classes=2, transform=Scale())
    ours.observe(torch.randint(0, 256, (6, 4), dtype=torch.uint8), torch.tensor([0, 1] * 3))
    ours.save(tmp_path / "learner.ckpt")
    assert same(ours, cclfp.load(tmp_path / "learner.ckpt"))
