"""Stacked replicas of ResNet18: the kernels against float64, and what is built on them against plain PyTorch.

Without a GPU, Triton's interpreter runs each kernel on one small case, and plain PyTorch stands in for the
kernels where the tests are of how they are plugged in.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import plain_kernels
import pytest
import torch
from cohorts import WIDTH, at, gradients, layout_of, networks, off, picture_replica, pictures, trained, without_card
from torch import Tensor, nn
from torch.func import grad, vmap

from cclfp.engine import graph
from cclfp.engine.cohort import Cohort, kernels_for, make_group
from cclfp.engine.evaluate import count_correct, evaluate_alone
from cclfp.engine.groups import TOLERANCE, KernelGroup, ParallelGroup, compare_steps
from cclfp.engine.kernels import Layout, NotStackable, arrange, passes
from cclfp.engine.kernels.stacked_resnet import StackedResNet, on_kernels
from cclfp.engine.plan import StepTables
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import MLP, ResNet18
from cclfp.nets.network import Network, Tensors, psi_mode
from cclfp.testing import train_replicas

HAS_TRITON = importlib.util.find_spec("triton") is not None
TRITON = Path(__file__).parents[2] / "build" / "triton"  # by itself, for its interpreter
IS_HOPPER = HAS_TRITON and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the card, and other tests compare them")
@pytest.mark.skipif(not (HAS_TRITON or TRITON.exists()), reason="needs Triton's interpreter: make triton, 1 GB")
def test_each_kernel_in_the_interpreter() -> None:
    script = Path(__file__).with_name("kernel_cases.py")
    path = os.pathsep.join([*sys.path, str(TRITON)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    answer = subprocess.run([sys.executable, script], env=environment, check=True, capture_output=True, text=True)
    for case, errors in json.loads(answer.stdout.splitlines()[-1]).items():
        assert max(errors.values()) < 1e-5, (case, errors)


# -- which networks and images have kernels ----------------------------------------------------------------------------


@pytest.mark.slow
def test_which_networks_and_images_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(ResNet18())
    assert layout is not None
    assert len(layout.layers) == 20
    assert sorted(layout.filters) == sorted(n for n, p in ResNet18().named_parameters() if p.ndim == 4)
    frozen, calm, other, changed, hooked = (ResNet18() for _ in range(5))
    frozen.stem.weight.requires_grad_(False)
    calm.norm.eval()
    other.norm.momentum = 0.2
    changed.stem = nn.Conv2d(3, 64, 7, padding=3, bias=False)
    hooked.norm.register_forward_hook(lambda module, inputs, output: output)
    others = [ResNet18(width=32), ResNet18(width=192), ResNet18(channels=1), ResNet18().double(), MLP(784)]
    for psi in (*others, frozen, calm, other, changed, hooked):
        assert layout_of(psi) is None
    assert layout_of(ResNet18(), None) is None
    assert not layout.takes(torch.zeros(2, 3, 32, 32))  # on the CPU
    monkeypatch.setattr("cclfp.engine.kernels._has_kernels", lambda device: True)
    assert layout.takes(torch.zeros(2, 3, 32, 32))
    for shape in ((3, 28, 28), (3, 32, 64), (1, 32, 32), (3, 8, 8), (3, 128, 128)):
        assert not layout.takes(torch.zeros(2, *shape))
    assert not layout.takes(torch.zeros(2, 3, 32, 32, dtype=torch.float64))


# -- how they are plugged in, with PyTorch in their place --------------------------------------------------------------

Calls = list[tuple[str, int]]  # the name of what was computed, and the replicas


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The kernels' place taken by PyTorch in float32, on the CPU."""
    calls, layout_of = Calls(), Layout.of

    def counting(name: str, run: Any) -> Any:
        def counted(layout: Layout, first: Tensor, parts: Any, *more: Any) -> Any:
            calls.append((name, len(first)))
            return run(layout, first, parts, *more)

        return counted

    def sgd(p: Tensor, *others: Tensor) -> None:
        calls.append(("update", len(p)))
        plain_sgd(p, *others)

    def in_float32(psi: nn.Module, mode: Any, dtype: torch.dtype | None) -> Layout | None:
        layout = layout_of(psi, mode, torch.bfloat16)
        return None if layout is None else dataclasses.replace(layout, dtype=torch.float32)

    for name in ("training", "gradient", "frozen"):
        monkeypatch.setattr(passes, f"run_{name}", counting(name, getattr(passes, f"run_{name}")))
    plain_sgd = plain_kernels.sgd
    plain_kernels.use(monkeypatch)
    monkeypatch.setattr(plain_kernels, "sgd", sgd)
    monkeypatch.setattr("cclfp.engine.kernels._has_kernels", lambda device: True)
    monkeypatch.setattr("cclfp.engine.kernels.WIDTH", WIDTH["cpu"])
    monkeypatch.setattr(Layout, "of", in_float32)
    return calls


def test_psi_under_vmap_as_one_by_one(in_pytorch: Calls) -> None:
    net, plain, params, buffers = networks(3)
    g = torch.Generator().manual_seed(1)
    x, target = torch.randn(3, 2, 3, 16, 16, generator=g), torch.randn(3, 2, 64, generator=g)
    grads, after, z = vmap(lambda *given: gradients(net, *given))(params, buffers, x, target)
    frozen = vmap(net.frozen_features)(params, buffers, x)
    shared = vmap(net.frozen_features, in_dims=(0, 0, None))(params, buffers, x[1])
    assert in_pytorch == [("training", 3), ("gradient", 3), ("frozen", 3), ("frozen", 3)]
    for r in range(3):
        own = gradients(plain, at(params, r), at(buffers, r), x[r], target[r])
        assert off(z[r], own[2]) < 1e-4
        for ours, theirs in ((at(grads, r), own[0]), (at(after, r), own[1])):
            assert ours.keys() == theirs.keys()
            assert all(off(ours[name], theirs[name]) < 1e-3 for name in theirs)
        assert off(frozen[r], plain.frozen_features(at(params, r), at(buffers, r), x[r])) < 1e-4
        assert off(shared[r], plain.frozen_features(at(params, r), at(buffers, r), x[1])) < 1e-4


def test_what_the_kernels_have_not_got_is_refused(in_pytorch: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _, params, buffers = networks(2)
    x = torch.randn(2, 2, 3, 16, 16)

    def twice(p: Tensors, b: Tensors, x: Tensor) -> Any:
        def once(p: Tensors) -> Any:
            return grad(lambda p: net.features(p, b, x)[0].sum())(p)["psi.stem.weight"].sum()

        return grad(once)(p)

    for function, reason in (
        (lambda p, b, x: grad(lambda x: net.features(p, b, x)[0].sum())(x), "psi's input"),
        (lambda p, b, x: grad(lambda p: net.frozen_features(p, b, x).sum())(p), "eval mode"),
        (twice, "second derivatives"),
    ):
        with pytest.raises(NotStackable, match=reason):
            vmap(function)(params, buffers, x)
    # Their indices have 32 bits: at width 512 twenty replicas have more numbers in a layer's filters.
    filters, pixels = 2 * 64 * 64 * 9, 2 * 2 * 16 * 16 * 8
    monkeypatch.setattr(passes, "LARGEST", filters + 1)
    vmap(net.features)(params, buffers, x)
    for limit, reason in ((filters, "a network this wide"), (pixels, "2 examples of 2 replicas")):
        monkeypatch.setattr(passes, "LARGEST", limit)
        with pytest.raises(NotStackable, match=reason):
            vmap(net.features)(params, buffers, x)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_update_and_its_copies(in_place: bool, in_pytorch: Calls) -> None:
    p = {"filters": torch.randn(2, 8, 4, 3, 3), "bias": torch.randn(2, 8)}
    g = {name: torch.randn_like(t) for name, t in p.items()}
    lr, before = torch.tensor([0.1, 0.2]), {name: t.clone() for name, t in p.items()}
    net, *_ = networks(2)
    net = StackedResNet(net, net._layout, in_place=in_place)
    with arrange.rounded([p["filters"]], [p["filters"].to(torch.bfloat16)]) as copies:
        new = vmap(net.sgd)(p, g, lr)
        kept, old = copies.get(new["filters"]), copies.get(p["filters"])
    for name, t in new.items():
        torch.testing.assert_close(t, before[name] - lr.view(-1, *[1] * (t.ndim - 1)) * g[name])
    for copy, t in ((kept, new["filters"]), (old, p["filters"])):  # whether p is what it was or not
        assert copy is not None
        assert torch.equal(copy, t.to(torch.bfloat16))
    assert torch.equal(p["bias"], before["bias"])
    assert (new["filters"].data_ptr() == p["filters"].data_ptr()) == in_place
    assert torch.equal(p["filters"], before["filters"]) != in_place


class Builds(ER):
    """Builds on a step, and may go on to use the parameters that it was given."""

    name = "builds"

    def step(self, *arguments: Any) -> Any:
        return super().step(*arguments)


@pytest.mark.parametrize(("method", "in_place"), [(ER, True), (Builds, False)])
def test_only_the_last_step_overwrites_parameters(method: type[ER], in_place: bool) -> None:
    plain = method(Network(nn.Flatten(), nn.Linear(3, 2), psi_mode(nn.Flatten())))
    fast = on_kernels(plain, Layout((), (), torch.bfloat16)).net
    assert isinstance(fast, StackedResNet)
    assert fast._in_place == in_place
    assert not isinstance(plain.net, StackedResNet)


# -- cohorts -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("method", "copies"), [("ccl-fp+", 2), ("gem", 1), ("a-gem", 1), ("si", 1)])
def test_each_stacked_step_as_one_by_one(method: str, copies: int, in_pytorch: Calls) -> None:
    """Step by step from the same state: in whole runs of so small a network rounding flips a ReLU, on any engine."""
    stream = pictures("cpu", each=6)
    several = [picture_replica(method, seed, stream) for seed in range(2)]
    for _ in range(2):
        plans, masks = [next(one.plans()) for one in several], [one.begin_task() for one in several]
        group = make_group([one.learner for one in several], masks, stream.train.x)
        assert isinstance(group, KernelGroup)
        tables, state = StepTables(plans, [stream.train] * 2, [0, 0]), group.changing
        for i, (current, _) in enumerate(tables.sizes):
            row, before = tables.row(i), [t.clone() for t in state]
            with torch.no_grad():
                state = group.make_step(tables, i)(state, group.fixed, row)
            for r in range(len(several)):
                own = group.part_of(before, r)
                alone = group.step_alone(r, own, row, current)
                # Where rounding flips a ReLU or GEM's projection amplifies it, 2e-3 were seen.
                compare_steps(own, group.part_of(state, r), alone, 5e-3)
        # Only networks are copied: SI's state has tensors with the parameters' names, which no kernel reads.
        assert len(state) - group._leaves == 20 * (copies if several[0].position else 1)
        group.write_back(state, len(tables.sizes))
        for one, plan in zip(several, plans, strict=True):
            one.end_task(plan)
    wanted = {"training": True, "update": method != "si", "frozen": method == "ccl-fp+"}  # SI's step is not SGD's
    assert {name: (name, 2) in in_pytorch for name in wanted} == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "fails", "reason"),
    [
        ("ccl-fp+", False, None),
        ("hal", False, "NotStackable: a step takes second derivatives of psi"),  # once it has anchors
        ("er", True, "RuntimeError: no such kernel"),
    ],
)
def test_a_cohort_trains_stacked_or_side_by_side(
    method: str, fails: bool, reason: str | None, in_pytorch: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of step is compared with eager ones by the engine."""
    if fails:
        monkeypatch.setattr(passes, "run_training", Mock(side_effect=RuntimeError("no such kernel\nand more")))
    without_card(monkeypatch)
    monkeypatch.setitem(TOLERANCE, "float32", 0.05)  # rounding flips a ReLU on some processors: 0.035 was seen
    settings: dict[str, Any] = {"steps": 2} if method == "hal" else {}
    ours = [picture_replica(method, seed, pictures("cpu", each=6), **settings) for seed in range(2)]
    notes = train_replicas(ours, "graph", tasks=2)
    assert notes == ([] if reason is None else [f"these runs cannot be stacked ({reason}): they train side by side"])
    assert bool(in_pytorch) != fails
    for one in ours:
        assert one.learner.psi.state_dict()["norm.num_batches_tracked"] == one.learner.steps


@pytest.mark.parametrize(("fitting", "at_once"), [(100, 13), (25, 13), (9, 9)])
def test_many_runs_take_turns(fitting: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 train as one network, and turns are of about the same size."""
    notes: list[str] = []
    cohort: Any = SimpleNamespace(replicas=[None] * 25, _pool=SimpleNamespace(is_cuda=True), _note=notes.append)
    cohort._kernels, cohort._group = lambda runs: True, lambda *arguments: (None, None)
    monkeypatch.setattr("cclfp.engine.cohort.count_fitting", lambda *group: fitting)
    assert Cohort._count_at_once(cohort, [], []) == at_once
    assert notes == [f"25 runs train in stacked kernels, in turns of at most {at_once}"]


def test_one_replica_and_other_networks_are_forked(in_pytorch: Calls) -> None:
    stream = pictures("cpu", each=5)
    two = [picture_replica("er", seed, stream) for seed in range(2)]
    masks = [one.begin_task() for one in two]
    learners = [one.learner for one in two]
    assert type(make_group(learners, masks, stream.train.x)) is KernelGroup
    assert type(make_group(learners, masks, stream.train.x, kernels=False)) is ParallelGroup
    assert type(make_group(learners[:1], masks[:1], stream.train.x)) is ParallelGroup
    assert type(make_group(learners, masks, stream.train.x.to(torch.uint8)[..., :12])) is ParallelGroup


def test_replicas_of_several_streams_are_tested_together(in_pytorch: Calls) -> None:
    stream = pictures("cpu", "task", each=5)
    other = dataclasses.replace(stream, test=[test.rows(torch.arange(len(test.y)).flip(0)) for test in stream.test])
    several = [picture_replica("er", 0, stream), picture_replica("er", 1, other), picture_replica("er", 2, stream)]
    for one in several:
        one.begin_task()
    layout = kernels_for([one.learner for one in several], stream.train.x)
    assert layout is not None
    ours = count_correct(several, range(3), on_kernels(several[0].learner.algorithm, layout))
    assert in_pytorch == [("frozen", 3)] * 3
    for one, counts in zip(several, torch.stack(ours).T, strict=True):
        evaluate_alone(one)
        right = [round(one.matrix[0][task] * len(one.stream.test[task].y) / 100) for task in range(3)]  # type: ignore[operator]
        assert counts.tolist() == right


# -- on the card -------------------------------------------------------------------------------------------------------


def on_the_card(test: Any) -> Any:
    """For a test that needs a Hopper card."""
    return pytest.mark.gpu(pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper card and Triton")(test))


@on_the_card
@pytest.mark.parametrize(
    ("R", "N", "side"), [(1, 5, 16), (2, 5, 32), (7, 5, 16), (2, 5, 64), (10, 20, 32), (20, 20, 32)]
)
def test_each_kernel_against_float64(R: int, N: int, side: int) -> None:
    """Many replicas and examples get larger tiles: these are what most runs are made in."""
    import kernel_cases

    from cclfp.engine.kernels.triton_convolution import Conv, _conv_blocks

    case = kernel_cases.Case("cuda", torch.bfloat16, R, N)
    shapes = [Conv(128, 128, 3, 1, side // 2), Conv(256, 512, 3, 2, side // 4), Conv(512, 512, 3, 1, side // 8)]
    if R >= 10:
        assert (128, 128) in {_conv_blocks(conv, conv.K, R, N)[:2] for conv in shapes}
    else:
        shapes += [Conv(32, 64, 1, 1, side), Conv(64, 64, 3, 1, side), Conv(64, 128, 1, 2, side)]
    errors = {str(conv): kernel_cases.check_convolution(case, conv) for conv in [*shapes, Conv(64, 128, 3, 2, side)]}
    errors["norm"], errors["others"] = kernel_cases.check_norm(case, side, 64), kernel_cases.check_others(case, side)
    kernel_cases.check_nan(case)
    for name, those in errors.items():
        assert max(those.values()) < 5e-3, (name, those)


@on_the_card
def test_testing_on_the_card_as_plain_pytorch() -> None:
    """Stacked replicas have as many test examples right as each has by itself, but for those on the fence."""
    stream = pictures("cuda", "task", side=32, each=100)
    several = [picture_replica("er", seed, stream, torch.bfloat16) for seed in range(3)]
    trained(several, "graph", "bf16", notes=[])
    layout = kernels_for([one.learner for one in several], stream.train.x)
    assert layout is not None
    ours = torch.stack(count_correct(several, range(3), on_kernels(several[0].learner.algorithm, layout))).T.tolist()
    for one, counts in zip(several, ours, strict=True):
        for task, count in enumerate(counts):
            test = one.stream.test[task]
            alone = int((one.learner.predict(test.x, task=task) == test.y).sum())
            assert abs(count - alone) <= 0.02 * len(test.y)


@on_the_card
@pytest.mark.parametrize(("R", "side"), [(1, 16), (2, 32), (7, 16), (2, 64)])
def test_psi_on_the_card_as_plain_pytorch(R: int, side: int) -> None:
    net, plain, params, buffers = networks(R, "cuda")
    _, exact, _, _ = networks(1, "cuda", None)
    g = torch.Generator().manual_seed(1)
    x, target = torch.randn(R, 7, 3, side, side, generator=g).cuda(), torch.randn(R, 7, 512, generator=g).cuda()

    def stacked_gradients() -> Any:
        return vmap(lambda *given: gradients(net, *given))(params, buffers, x, target)

    grads, after, z = stacked_gradients()
    frozen = vmap(net.frozen_features)(params, buffers, x)
    for again, first in zip(stacked_gradients()[0].values(), grads.values(), strict=True):
        assert torch.equal(again, first)  # the same bits every time
    for r in range(R):
        own = gradients(exact, at(params, r), at(buffers, r), x[r], target[r])
        rounded = gradients(plain, at(params, r), at(buffers, r), x[r], target[r])  # plain bf16 autocast
        assert off(z[r], own[2]) < 0.03
        assert off(frozen[r], exact.frozen_features(at(params, r), at(buffers, r), x[r])) < 0.03
        for name in own[1]:
            assert off(after[name][r], own[1][name]) < 0.02, name
        for name in own[0]:
            assert off(grads[name][r], own[0][name]) < 1.5 * off(rounded[0][name], own[0][name]) + 0.01, name


@on_the_card
@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_on_the_card(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "SHORTEST", 2)
    stream = dataclasses.replace(pictures("cuda", each=100), scenario=METHODS[method].scenarios()[0])
    more: dict[str, Any] = {"steps": 3, "lam": 0.001} if method == "hal" else {}
    ours, alone = (
        [picture_replica(method, seed, stream, torch.bfloat16, **more) for seed in range(3)] for _ in range(2)
    )
    notes: list[str] = []
    trained(ours, "graph", "bf16", notes)
    assert "3 runs train in stacked kernels" in notes[0]
    assert ["they train side by side" in note for note in notes[1:]] == [True] * (method == "hal")
    trained(alone, "eager", "bf16")
    accuracies = [torch.tensor([one.accuracy for one in those]).mean() for those in (ours, alone)]
    assert abs(accuracies[0] - accuracies[1]) < 25  # of a few steps; each kind of step was compared with eager ones
