"""Replicas of toy learners, and how those that trained together are compared with those that trained alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.core.torch_private import NEEDED
from cclfp.engine import graph
from cclfp.engine.cohort import Cohort
from cclfp.engine.kernels import Layout
from cclfp.engine.kernels.stacked_resnet import StackedResNet
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS, Method
from cclfp.nets import ResNet18, linear
from cclfp.nets.network import Network, Tensors, psi_mode
from cclfp.streams import Stream
from cclfp.testing import stackable_psi, toy_stream
from cclfp.transforms import Normalise

CASES = [(m, s) for m, method in METHODS.items() for s in method.scenarios()]


def batch_norm_psi(seed: int = 0) -> nn.Module:
    """Replicas with it go side by side. In float64, so that rounding cannot hide what is not the same."""
    g = generator(seed, "psi")
    return nn.Sequential(linear(8, 16, g), nn.BatchNorm1d(16), nn.ReLU(), linear(16, 8, g)).double()


def relu_psi() -> nn.Module:
    """Can be stacked, and becomes infinite where a step is too large."""
    return nn.Sequential(linear(8, 16, generator(0, "psi")), nn.ReLU())


def replica(
    method: str | type[Method],
    scenario: str | None = None,
    seed: int = 0,
    *,
    psi: Callable[[], nn.Module] = stackable_psi,
    stream: Stream | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Replica:
    """A new replica on a toy stream, in the method's last scenario; its psi can be stacked."""
    kind = METHODS[method] if isinstance(method, str) else method
    scenario = scenario or kind.scenarios()[-1]
    stream = stream or toy_stream(scenario)
    stream = stream if device == "cpu" else stream.to(torch.device(device))
    stream = stream.joint() if kind.joint else stream
    learner = cclfp.make(
        kind,
        psi=psi(),
        num_classes=6,
        scenario=scenario,
        tasks=stream.classes,
        transform=stream.transform,
        seed=seed,
        device=device,
        **{"memory": 30, "lr": 0.02, **settings},
    )
    return Replica(learner, stream)


WIDTH = {"cpu": 8, "cuda": 64}  # of the networks for pictures


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
    train, transform = Examples(x, y, y // 2), Normalise([0.3] * 3, [0.25] * 3)
    stream = Stream(scenario, 6, [[0, 1], [2, 3], [4, 5]], train, rows, [train.rows(r) for r in rows], transform)
    return stream.to(torch.device(device))


def picture_replica(
    method: str, seed: int, stream: Stream, autocast: torch.dtype | None = None, **settings: Any
) -> Replica:
    """A replica of ResNet18 on a stream of pictures."""
    device = stream.train.x.device.type
    psi = partial(ResNet18, width=WIDTH[device], seed=seed)
    settings = {"memory": 12, "lr": 0.01, **settings}
    one = replica(method, stream.scenario, seed, psi=psi, stream=stream, device=device, **settings)
    one.learner.autocast = autocast
    return one


def layout_of(psi: nn.Module, dtype: torch.dtype | None = torch.bfloat16) -> Layout | None:
    return Layout.of(psi, psi_mode(psi), dtype)


def networks(
    R: int, device: str = "cpu", autocast: torch.dtype | None = torch.bfloat16
) -> tuple[StackedResNet, Network, Tensors, Tensors]:
    """A network in our kernels and in PyTorch's, and stacked tensors of R such, away from where they begin.

    On the CPU both compute in float32.
    """
    autocast = None if device == "cpu" else autocast
    psis = [ResNet18(width=WIDTH[device], seed=seed).to(device) for seed in range(R)]
    f = nn.Linear(8 * WIDTH[device], 10, device=device)
    net, layout = Network(psis[0], f, psi_mode(psis[0]), autocast), layout_of(psis[0])
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


def at(tensors: Tensors, *place: int) -> Tensors:
    return {name: t[place] for name, t in tensors.items()}


def trained(
    replicas: list[Replica], engine: str = "eager", precision: str = "float32", notes: list[str] | None = None
) -> list[Replica]:
    """The replicas after all of their tasks; without a list for its notes the engine must have none."""
    said: list[str] = []
    cohort = Cohort(replicas, engine, (said if notes is None else notes).append, precision, shortest=2)
    while not cohort.is_done:
        cohort.advance()
    assert said == [], said
    return replicas


def without_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the graph engine run on the CPU: all but the recording itself."""
    monkeypatch.setitem(NEEDED, "graph", ())  # for the recording itself
    monkeypatch.setattr(graph, "capture", lambda work, *others: SimpleNamespace(replay=work))
    monkeypatch.setattr(graph, "SHORTEST", 2)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Mock)  # which has always happened


def assert_as_alone(
    make: Sequence[Callable[[], Replica]], engine: str, notes: list[str] | None = None
) -> list[Replica]:
    """The replicas, trained together, are as each trained alone."""
    ours = trained([one() for one in make], engine, notes=notes)
    for mine, one in zip(ours, make, strict=True):
        assert_alike(mine, trained([one()])[0])
    return ours


def assert_alike(ours: Replica, theirs: Replica, tolerance: float = 1e-8) -> None:
    """Both have the same weights, states and accuracies."""
    # Where a task of FDR begins, its outputs are those it has stored. Rounding then decides where the gradient of their
    # distance points, and on some processors differs between one and many replicas.
    is_fdr = ours.learner.method.name == "fdr" and tolerance > 0
    tolerance = max(tolerance, 0.05) if is_fdr else tolerance
    for a, b in zip(ours.learner.model, theirs.learner.model, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert is_fdr or ours.matrix == theirs.matrix
    assert ours.learner.steps == theirs.learner.steps
