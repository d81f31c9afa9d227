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

import plain_kernels
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import cclfp
from cclfp.core.memory import Examples
from cclfp.engine import compiled, graph
from cclfp.engine.cohort import Cohort, kernels_for, make_group
from cclfp.engine.evaluate import count_correct, evaluate_alone
from cclfp.engine.groups import ParallelGroup, compare_steps, flat_step, make_batch, prepare_batches
from cclfp.engine.kernels import Layout, NotStackable, arrange, passes
from cclfp.engine.kernels.group import KernelGroup
from cclfp.engine.kernels.stacked_resnet import StackedResNet, on_kernels
from cclfp.engine.plan import StepTables
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import MLP, ResNet18
from cclfp.nets.network import Network, Tensors, psi_mode
from cclfp.streams import Stream
from cclfp.transforms import Normalise

WIDTH = {"cpu": 8, "cuda": 64}  # of the networks
HAS_TRITON = importlib.util.find_spec("triton") is not None
TRITON = Path(__file__).parents[2] / "build" / "triton"  # by itself, for its interpreter
on_the_card = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (HAS_TRITON and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)),
        reason="needs a Hopper card and Triton",
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(not (HAS_TRITON or TRITON.exists()), reason="needs Triton's interpreter: make triton, 1 GB")
def test_each_kernel_in_the_interpreter() -> None:
    script = Path(__file__).with_name("kernel_cases.py")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(TRITON)]),
    }
    answer = subprocess.run([sys.executable, script], env=environment, check=True, capture_output=True, text=True)
    for case, errors in json.loads(answer.stdout.splitlines()[-1]).items():
        for what, error in errors.items():
            assert error < 1e-5, (case, what)


# -- which networks have kernels -------------------------------------------------------------------------------------


def layout_of(psi: nn.Module, dtype: torch.dtype | None = torch.bfloat16) -> Layout | None:
    return Layout.of(psi, psi_mode(psi), dtype)


@pytest.mark.slow
def test_which_networks_have_kernels() -> None:
    layout = layout_of(ResNet18())
    assert layout is not None
    assert len(layout.layers) == 20
    assert sorted(layout.filters) == sorted(n for n, p in ResNet18().named_parameters() if p.ndim == 4)
    frozen, calm, other = ResNet18(), ResNet18(), ResNet18()
    frozen.stem.weight.requires_grad_(False)
    calm.norm.eval()
    other.norm.momentum = 0.2
    for psi in (
        ResNet18(width=32),
        ResNet18(width=192),
        ResNet18(channels=1),
        ResNet18().double(),
        frozen,
        calm,
        other,
    ):
        assert layout_of(psi) is None
    assert layout_of(MLP(784)) is None
    assert layout_of(ResNet18(), None) is None


def test_a_network_that_was_changed_has_none() -> None:
    other, hooked = ResNet18(), ResNet18()
    other.stem = nn.Conv2d(3, 64, 7, padding=3, bias=False)
    hooked.norm.register_forward_hook(lambda module, inputs, output: output)
    assert layout_of(other) is None
    assert layout_of(hooked) is None


def test_a_step_that_another_builds_on_leaves_its_arguments() -> None:
    """A subclass may go on to use the parameters that it was given."""

    class Builds(ER):
        name = "builds"

        def step(self, *arguments: Any) -> Any:
            return super().step(*arguments)

    layout = layout_of(ResNet18())
    assert layout is not None
    for method, in_place in ((ER, True), (Builds, False)):
        plain = method(Network(nn.Flatten(), nn.Linear(3, 2), psi_mode(nn.Flatten())))
        fast = on_kernels(plain, layout)
        assert isinstance(fast.net, StackedResNet)
        assert fast.net._in_place == in_place
        assert not isinstance(plain.net, StackedResNet)


def test_which_images_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(ResNet18())
    assert layout is not None
    assert not layout.takes(torch.zeros(2, 3, 32, 32))  # on the CPU
    monkeypatch.setattr("cclfp.engine.kernels._has_kernels", lambda device: True)
    assert layout.takes(torch.zeros(2, 3, 32, 32))
    for shape in ((3, 28, 28), (3, 32, 64), (1, 32, 32), (3, 8, 8), (3, 128, 128)):
        assert not layout.takes(torch.zeros(2, *shape))
    assert not layout.takes(torch.zeros(2, 3, 32, 32, dtype=torch.float64))


# -- how they are plugged in, with PyTorch in their place ------------------------------------------------------------


class Counted:
    """Counts the replicas of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def counting(self, name: str, run: Any) -> Any:
        def counted(*arguments: Any, **more: Any) -> Any:
            first = next(argument for argument in arguments if isinstance(argument, Tensor))
            self.calls.append((name, len(first)))
            return run(*arguments, **more)

        return counted


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The kernels' place taken by PyTorch in float32, on the CPU."""
    those, layout_of = Counted(), Layout.of
    for name in ("training", "gradient", "frozen"):
        monkeypatch.setattr(passes, f"run_{name}", those.counting(name, getattr(passes, f"run_{name}")))
    plain_kernels.use(monkeypatch)
    monkeypatch.setattr(plain_kernels, "sgd", those.counting("update", plain_kernels.sgd))
    monkeypatch.setattr("cclfp.engine.kernels._has_kernels", lambda device: True)
    monkeypatch.setattr("cclfp.engine.kernels.WIDTH", WIDTH["cpu"])

    def in_float32(psi: nn.Module, mode: Any, dtype: torch.dtype | None) -> Layout | None:
        layout = layout_of(psi, mode, torch.bfloat16)
        return None if layout is None else dataclasses.replace(layout, dtype=torch.float32)

    monkeypatch.setattr(Layout, "of", in_float32)
    return those


def networks(
    R: int, device: str = "cpu", autocast: torch.dtype | None = torch.bfloat16
) -> tuple[StackedResNet, Network, Tensors, Tensors]:
    """A network in our kernels and in PyTorch's, and stacked tensors of R such, away from where they begin.

    On the CPU both compute in float32.
    """
    autocast = None if device == "cpu" else autocast
    psis = [ResNet18(width=WIDTH[device], seed=seed).to(device) for seed in range(R)]
    net = Network(
        psis[0],
        nn.Linear(8 * WIDTH[device], 10, device=device),
        psi_mode(psis[0]),
        None if device == "cpu" else autocast,
    )
    layout = layout_of(psis[0])
    assert layout is not None
    g = torch.Generator().manual_seed(0)

    def stack(name: str) -> Tensor:
        ts = torch.stack([psi.state_dict()[name] for psi in psis])
        if not ts.is_floating_point():
            return ts + 3
        noise = torch.randn(ts.shape, generator=g).to(device)
        return ts + (0.3 * noise.abs() if "running_var" in name else 0.1 * noise * (1 if ts.ndim == 2 else ts.std()))

    params = {f"psi.{name}": stack(name) for name, _ in psis[0].named_parameters()}
    stacked = StackedResNet(net, layout, in_place=False)
    return stacked, net, params, {name: stack(name) for name, _ in psis[0].named_buffers()}


def gradients(
    net: Network, params: Tensors, buffers: Tensors, x: Tensor, target: Tensor
) -> tuple[Tensors, Tensors, Tensor]:
    def loss(p: Tensors) -> tuple[Tensor, tuple[Tensors, Tensor]]:
        z, after = net.features(p, buffers, x)
        return (z * target).sum(), (after, z)

    grads, (after, z) = torch.func.grad(loss, has_aux=True)(params)
    return grads, after, z


def off(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-12))


def at(tensors: Tensors, r: int) -> Tensors:
    return {name: t[r] for name, t in tensors.items()}


def test_psi_under_vmap_as_one_by_one(in_pytorch: Counted) -> None:
    net, plain, params, buffers = networks(3)
    g = torch.Generator().manual_seed(1)
    x, target = torch.randn(3, 2, 3, 16, 16, generator=g), torch.randn(3, 2, 64, generator=g)
    grads, after, z = vmap(lambda *given: gradients(net, *given))(params, buffers, x, target)
    frozen = vmap(net.frozen_features)(params, buffers, x)
    shared = vmap(net.frozen_features, in_dims=(0, 0, None))(params, buffers, x[1])
    assert in_pytorch.calls == [("training", 3), ("gradient", 3), ("frozen", 3), ("frozen", 3)]
    for r in range(3):
        own = gradients(plain, at(params, r), at(buffers, r), x[r], target[r])
        assert off(z[r], own[2]) < 1e-4
        for ours, theirs in ((at(grads, r), own[0]), (at(after, r), own[1])):
            assert ours.keys() == theirs.keys()
            assert all(off(ours[name], theirs[name]) < 1e-3 for name in theirs)
        assert off(frozen[r], plain.frozen_features(at(params, r), at(buffers, r), x[r])) < 1e-4
        assert off(shared[r], plain.frozen_features(at(params, r), at(buffers, r), x[1])) < 1e-4


def test_gradients_of_inputs_are_launched_before_those_of_filters(
    in_pytorch: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next layer waits for the first; the second fills what the first leaves free of the GPU."""
    launched: list[tuple[str, Any]] = []
    convolve, filter_gradient = plain_kernels.convolve, plain_kernels.filter_gradient

    def convolve_logged(conv: Any, *given: Any, gradient: bool = False, **more: Any) -> Any:
        launched.extend([("input", conv)] * gradient)
        return convolve(conv, *given, gradient=gradient, **more)

    def filter_gradient_logged(conv: Any, *given: Any) -> Any:
        launched.append(("filters", conv))
        return filter_gradient(conv, *given)

    monkeypatch.setattr(plain_kernels, "convolve", convolve_logged)
    monkeypatch.setattr(plain_kernels, "filter_gradient", filter_gradient_logged)
    net, _, params, buffers = networks(2)
    vmap(lambda *given: gradients(net, *given))(params, buffers, torch.randn(2, 2, 3, 16, 16), torch.randn(2, 2, 64))
    kinds = [kind for kind, _ in launched]
    assert kinds.count("input") == 16  # all but the stem; a shortcut's is computed with that of its block
    assert kinds.count("filters") == 20
    for place, (kind, conv) in enumerate(launched):
        if kind == "input":
            assert launched[place + 1] == ("filters", conv)


def test_vmap_inside_vmap_is_more_replicas(in_pytorch: Counted) -> None:
    net, plain, params, buffers = networks(2)
    x = torch.randn(2, 3, 2, 3, 16, 16)  # three minibatches for each replica
    target = torch.randn(2, 2, 64)

    def several(params: Tensors, buffers: Tensors, x: Tensor, target: Tensor) -> Tensor:
        return vmap(lambda x: gradients(net, params, buffers, x, target)[0]["psi.stem.weight"])(x)

    ours = vmap(several)(params, buffers, x, target)
    assert in_pytorch.calls == [("training", 6), ("gradient", 6)]
    alone = gradients(plain, at(params, 1), at(buffers, 1), x[1, 2], target[1])[0]["psi.stem.weight"]
    assert off(ours[1, 2], alone) < 1e-3


def test_minibatches_of_one_network_share_its_filters(in_pytorch: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of them would be most of what a step of GEM moves."""
    net, plain, params, buffers = networks(2)
    x, counts = torch.randn(2, 3, 2, 3, 16, 16), set()

    def counted(run: Any) -> Any:
        def counting(layout: Layout, first: Tensor, parts: Any, *more: Any) -> Any:
            counts.add((len(first), *(len(ts[0]) for ts in parts)))
            return run(layout, first, parts, *more)

        return counting

    for name in ("training", "gradient", "frozen"):
        monkeypatch.setattr(passes, f"run_{name}", counted(getattr(passes, f"run_{name}")))
    target = torch.randn(2, 3, 2, 64)

    def several(params: Tensors, buffers: Tensors, x: Tensor, target: Tensor) -> Any:
        grads, after, _ = vmap(lambda x, target: gradients(net, params, buffers, x, target))(x, target)
        return grads, after, vmap(lambda x: net.frozen_features(params, buffers, x))(x)

    grads, after, frozen = vmap(several)(params, buffers, x, target)
    assert counts == {(6, 2, 6, 6, 6, 6), (6, 2, 6, 6)}
    for r in range(2):
        for i in range(3):
            own = gradients(plain, at(params, r), at(buffers, r), x[r, i], target[r, i])
            assert all(off(grads[name][r, i], own[0][name]) < 1e-3 for name in own[0])
            assert all(off(after[name][r, i], own[1][name]) < 1e-3 for name in own[1])
            assert off(frozen[r, i], plain.frozen_features(at(params, r), at(buffers, r), x[r, i])) < 1e-4


def test_what_the_kernels_have_not_got_is_refused(in_pytorch: Counted) -> None:
    net, _, params, buffers = networks(2)
    x = torch.randn(2, 2, 3, 16, 16)

    def of_input(p: Tensors, b: Tensors, x: Tensor) -> Any:
        return torch.func.grad(lambda x: net.features(p, b, x)[0].sum())(x)

    def in_eval_mode(p: Tensors, b: Tensors, x: Tensor) -> Any:
        return torch.func.grad(lambda p: net.frozen_features(p, b, x).sum())(p)

    def twice(p: Tensors, b: Tensors, x: Tensor) -> Any:
        def once(p: Tensors) -> Any:
            return torch.func.grad(lambda p: net.features(p, b, x)[0].sum())(p)["psi.stem.weight"].sum()

        return torch.func.grad(once)(p)

    refused = {of_input: "psi's input", in_eval_mode: "eval mode", twice: "second derivatives"}
    for function, reason in refused.items():
        with pytest.raises(NotStackable, match=reason):
            vmap(function)(params, buffers, x)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_update_and_its_copies(in_place: bool, in_pytorch: Counted) -> None:
    p = {"filters": torch.randn(2, 8, 4, 3, 3), "bias": torch.randn(2, 8)}
    g = {name: torch.randn_like(t) for name, t in p.items()}
    lr, before = torch.tensor([0.1, 0.2]), {name: t.clone() for name, t in p.items()}
    copy = p["filters"].to(torch.bfloat16)
    net, *_ = networks(2)
    net = StackedResNet(net, net._layout, in_place=in_place)
    with arrange.rounded([p["filters"]], [copy]) as copies:
        new = vmap(net.sgd)(p, g, lr)
        kept = copies.get(new["filters"])
        old = copies.get(p["filters"])
    for r in range(2):
        for name, t in new.items():
            torch.testing.assert_close(t[r], before[name][r] - lr[r] * g[name][r])
    assert kept is not None
    assert old is not None
    assert torch.equal(kept, new["filters"].to(torch.bfloat16))
    assert torch.equal(old, p["filters"].to(torch.bfloat16))  # whether p is what it was or not
    assert torch.equal(p["bias"], before["bias"])
    assert (new["filters"].data_ptr() == p["filters"].data_ptr()) == in_place
    assert torch.equal(p["filters"], before["filters"]) != in_place


# -- cohorts ---------------------------------------------------------------------------------------------------------


def pictures(device: str, scenario: str = "class", side: int = 16, each: int = 24) -> Stream:
    """Three tasks of two classes: blobs in different places and colours, that a network learns in a few steps."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(6 * each) % 6
    x = torch.randint(0, 60, (len(y), 3, side, side), dtype=torch.uint8, generator=g)
    for label in range(6):
        part = slice(side // 4 * (label % 3), side // 4 * (label % 3) + side // 3)
        x[y == label, label % 3, part, :] += 120
        x[y == label, (label + label // 3) % 3, :, part] += 60
    rows = [(y // 2 == t).nonzero().flatten() for t in range(3)]
    train = Examples(x, y, y // 2)
    stream = Stream(scenario, 6, [[0, 1], [2, 3], [4, 5]], train, rows, [train.rows(r) for r in rows])
    return dataclasses.replace(stream, transform=Normalise([0.3] * 3, [0.25] * 3)).to(torch.device(device))


def replica(method: str, seed: int, stream: Stream, **settings: Any) -> Replica:
    stream = stream.joint() if METHODS[method].joint else stream
    autocast = settings.pop("autocast", None)
    learner = cclfp.make(
        method,
        psi=ResNet18(width=WIDTH[stream.train.x.device.type], seed=seed),
        num_classes=6,
        memory=12,
        scenario=stream.scenario,
        tasks=stream.classes,
        transform=stream.transform,
        seed=seed,
        device=str(stream.train.x.device),
        **{"lr": 0.01, **settings},
    )
    learner.autocast = autocast
    return Replica(learner, stream, batch=10)


def trained(replicas: list[Replica], engine: str, precision: str = "float32", tasks: int = 3) -> list[str]:
    notes: list[str] = []
    cohort = Cohort(replicas, engine, notes.append, precision)
    while not cohort.is_done and replicas[0].position < tasks:
        cohort.advance()
    return notes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ccl-fp+", "gem", "a-gem", "si"])
def test_each_stacked_step_as_one_by_one(method: str, in_pytorch: Counted) -> None:
    """Step by step from the same state: in whole runs of so small a network rounding flips a ReLU, on any engine."""
    stream = pictures("cpu", each=6)
    several = [replica(method, seed, stream) for seed in range(2)]
    for _ in range(2):
        plans, masks = [one.plan() for one in several], [one.begin_task() for one in several]
        group = make_group([one.learner for one in several], masks, stream.train.x)
        assert type(group) is KernelGroup
        tables, state = StepTables(plans, [stream.train] * 2, [0, 0]), group.changing
        for i, (current, _) in enumerate(tables.sizes):
            row, before = tables.row(i), [t.clone() for t in state]
            with torch.no_grad():
                state = group.make_step(tables, i)(state, group.fixed, row)
            batches = prepare_batches(several[0].learner, group.fixed, row)
            for r, one in enumerate(several):
                own, batch = group.part_of(before, r), make_batch([t[r] for t in batches], current)
                alone = flat_step(one.learner.algorithm, own, group.spec, batch, one.learner.hyper_tensors)
                # GEM's projection amplifies rounding, to 1.3e-3 on one processor.
                compare_steps(own, group.part_of(state, r), alone, 5e-3 if method == "gem" else 1e-3)
        group.write_back(state, len(tables.sizes))
        for one, plan in zip(several, plans, strict=True):
            one.end_task(plan)
    assert ("training", 2) in in_pytorch.calls
    assert (("update", 2) in in_pytorch.calls) == (method != "si")  # whose step is not SGD's
    assert (("frozen", 2) in in_pytorch.calls) == (method == "ccl-fp+")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled engine takes the steps that it would compile."""
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled.Steps, "_compiler", lambda self, key: lambda step, *arguments, **options: step)


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_a_stacked_cohort(in_pytorch: Counted) -> None:
    """Each kind of step is compared with eager ones by the engine."""
    ours = [replica("ccl-fp+", seed, pictures("cpu", each=6)) for seed in range(2)]
    assert trained(ours, "compiled", tasks=2) == []
    assert {("training", 2), ("update", 2), ("frozen", 2)} <= set(in_pytorch.calls)
    for one in ours:
        assert one.learner.psi.state_dict()["norm.num_batches_tracked"] == one.learner.steps


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_hal_trains_side_by_side_once_it_has_anchors(in_pytorch: Counted) -> None:
    ours = [replica("hal", seed, pictures("cpu", each=6), steps=2) for seed in range(2)]
    assert trained(ours, "compiled", tasks=1) == []
    assert ("training", 2) in in_pytorch.calls
    reason = "NotStackable: a step takes second derivatives of psi"
    assert trained(ours, "compiled", tasks=2) == [f"its runs cannot be stacked ({reason}): they train side by side"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_pytorch", "uncompiled")
def test_what_cannot_be_stacked_trains_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*arguments: Any) -> Any:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(passes, "run_training", refusing)
    ours, eager = ([replica("er", seed, pictures("cpu", each=6)) for seed in range(2)] for _ in range(2))
    assert trained(ours, "compiled", tasks=2) == [
        "its runs cannot be stacked (RuntimeError: no such kernel): they train side by side"
    ]
    trained(eager, "eager", tasks=2)
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one.learner.psi.state_dict(), other.learner.psi.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("fitting", "at_once", "note"),
    [
        (100, 13, "25 runs train in stacked kernels, in 2 turns of at most 13"),
        (9, 9, "25 runs train in stacked kernels, in 3 turns of at most 9"),
        (25, 13, "25 runs train in stacked kernels, in 2 turns of at most 13"),
    ],
)
def test_many_runs_take_turns(fitting: int, at_once: int, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 train as one network, and turns are of about the same size."""
    notes: list[str] = []
    cohort = SimpleNamespace(
        replicas=[None] * 25, _pool=SimpleNamespace(is_cuda=True), _offsets=[0], _note=notes.append
    )
    cohort._kernels = lambda runs: True
    monkeypatch.setattr("cclfp.engine.cohort.count_fitting", lambda *arguments: fitting)
    assert Cohort._count_at_once(cohort, None, None) == at_once  # type: ignore[arg-type]
    assert notes == [note]


@pytest.mark.parametrize(("method", "copies"), [("er", 1), ("si", 1), ("ccl-fp+", 2), ("icarl", 2)])
def test_only_networks_are_copied(method: str, copies: int, in_pytorch: Counted) -> None:
    """SI's state has tensors with the parameters' names, which no kernel reads."""
    several = [replica(method, seed, pictures("cpu", each=5)) for seed in range(2)]
    trained(several, "eager", tasks=1)
    masks = [one.begin_task() for one in several]
    group = make_group([one.learner for one in several], masks, several[0].stream.train.x)
    assert isinstance(group, KernelGroup)
    assert len(group.changing) - group._leaves == copies * 20


def test_what_is_too_large_for_the_kernels_is_refused(in_pytorch: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their indices have 32 bits: at width 512 twenty replicas have more numbers in a layer's filters."""
    net, _, params, buffers = networks(2)
    x = torch.randn(2, 2, 3, 16, 16)
    largest = 2 * 64 * 64 * 9  # of the last layer's filters
    assert largest > 2 * 2 * 16 * 16 * 8
    monkeypatch.setattr(passes, "LARGEST", largest + 1)
    vmap(net.features)(params, buffers, x)
    for limit, reason in ((largest, "a network this wide"), (2 * 2 * 16 * 16 * 8, "2 examples of 2 replicas")):
        monkeypatch.setattr(passes, "LARGEST", limit)
        with pytest.raises(NotStackable, match=reason):
            vmap(net.features)(params, buffers, x)


def test_one_replica_and_other_networks_are_forked(in_pytorch: Counted) -> None:
    stream = pictures("cpu", each=5)
    two = [replica("er", seed, stream) for seed in range(2)]
    masks = [one.begin_task() for one in two]
    learners = [one.learner for one in two]
    assert type(make_group(learners, masks, stream.train.x)) is KernelGroup
    assert type(make_group(learners, masks, stream.train.x, kernels=False)) is ParallelGroup
    assert type(make_group(learners[:1], masks[:1], stream.train.x)) is ParallelGroup
    assert type(make_group(learners, masks, stream.train.x.to(torch.uint8)[..., :12])) is ParallelGroup


def test_replicas_of_several_streams_are_tested_together(in_pytorch: Counted) -> None:
    stream = pictures("cpu", "task", each=5)
    other = dataclasses.replace(stream, test=[test.rows(torch.arange(len(test.y)).flip(0)) for test in stream.test])
    several = [replica("er", 0, stream), replica("er", 1, other), replica("er", 2, stream)]
    for one in several:
        one.begin_task()
    method = several[0].learner.algorithm
    layout = kernels_for([one.learner for one in several], stream.train.x)
    assert layout is not None
    ours = count_correct(several, range(3), on_kernels(method, layout))
    assert in_pytorch.calls == [("frozen", 3)] * 3
    for one, counts in zip(several, torch.stack(ours).T, strict=True):
        evaluate_alone(one)
        right = [round(one.matrix[0][task] * len(one.stream.test[task].y) / 100) for task in range(3)]  # type: ignore[operator]
        assert counts.tolist() == right


# -- on the card -----------------------------------------------------------------------------------------------------


CARD = [pytest.param(R, side, marks=on_the_card) for R, side in ((1, 16), (2, 32), (7, 16), (2, 64))]


@pytest.mark.parametrize(("R", "side"), CARD)
def test_each_kernel_against_float64(R: int, side: int) -> None:
    import kernel_cases

    from cclfp.engine.kernels.triton_convolution import Conv

    case = kernel_cases.Case("cuda", torch.bfloat16, R, N=5)
    shapes = [Conv(32, 64, 1, 1, side), Conv(64, 64, 3, 1, side), Conv(64, 128, 3, 2, side), Conv(64, 128, 1, 2, side)]
    shapes += [Conv(256, 512, 3, 2, side // 4), Conv(512, 512, 3, 1, side // 8)]
    errors = {str(conv): kernel_cases.check_convolution(case, conv) for conv in shapes}
    for shortcut in (False, True):
        errors[f"norm {shortcut}"] = kernel_cases.check_norm(case, side, 64, shortcut=shortcut)
    errors["others"] = kernel_cases.check_others(case, side)
    kernel_cases.check_nan(case)
    for name, those in errors.items():
        for what, error in those.items():
            assert error < 5e-3, (name, what)


@pytest.mark.parametrize("R", [pytest.param(10, marks=on_the_card), pytest.param(20, marks=on_the_card)])
def test_the_large_tiles_against_float64(R: int) -> None:
    """So many replicas and examples get other tiles than the cases above: these are what most runs are made in."""
    import kernel_cases

    from cclfp.engine.kernels.triton_convolution import Conv, _conv_blocks

    case = kernel_cases.Case("cuda", torch.bfloat16, R, N=20)
    shapes = [Conv(64, 128, 3, 2, 32), Conv(128, 128, 3, 1, 16), Conv(256, 512, 3, 2, 8), Conv(512, 512, 3, 1, 4)]
    assert {_conv_blocks(conv, conv.K, R, case.N)[:2] for conv in shapes} >= {(128, 128)}
    for conv in shapes:
        for what, error in kernel_cases.check_convolution(case, conv).items():
            assert error < 5e-3, (conv, what)


@pytest.mark.parametrize("scenario", [pytest.param("task", marks=on_the_card)])
def test_testing_on_the_card_as_plain_pytorch(scenario: str) -> None:
    """Stacked replicas have as many test examples right as each has by itself, but for those on the fence."""
    stream = pictures("cuda", scenario, side=32, each=100)
    several = [replica("er", seed, stream, autocast=torch.bfloat16) for seed in range(3)]
    trained(several, "graph", "bf16", tasks=2)
    layout = kernels_for([one.learner for one in several], stream.train.x)
    assert layout is not None
    ours = torch.stack(count_correct(several, range(2), on_kernels(several[0].learner.algorithm, layout))).T.tolist()
    for one, counts in zip(several, ours, strict=True):
        for task, count in enumerate(counts):
            test = one.stream.test[task]
            alone = int((one.learner.predict(test.x, task=task) == test.y).sum())
            assert abs(count - alone) <= 0.02 * len(test.y)


@pytest.mark.parametrize(("R", "side"), CARD)
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


@pytest.mark.parametrize("method", [pytest.param(method, marks=on_the_card) for method in METHODS])
def test_a_cohort_on_the_card(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "SHORTEST", 2)
    scenario = METHODS[method].scenarios()[0]
    stream = dataclasses.replace(pictures("cuda", each=100), scenario=scenario)
    more: dict[str, Any] = {"steps": 3, "lam": 0.001} if method == "hal" else {}
    more["autocast"] = torch.bfloat16
    ours = [replica(method, seed, stream, **more) for seed in range(3)]
    notes = trained(ours, "graph", "bf16")
    assert "3 runs train as one network" in notes[0]
    assert ["they train side by side" in note for note in notes[1:]] == [True] * (method == "hal")
    alone = [replica(method, seed, stream, **more) for seed in range(3)]
    trained(alone, "eager", "bf16")
    accuracies = [torch.tensor([one.accuracy for one in those]).mean() for those in (ours, alone)]
    assert abs(accuracies[0] - accuracies[1]) < 25  # of a few steps; each kind of step was compared with eager ones
