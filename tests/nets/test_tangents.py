"""What is built on the kernels of stacked replicas, with plain PyTorch in their place, against autograd in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import plain_kernels
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch
from cclfp.methods.hal import HAL, HALHyper
from cclfp.nets import ResNet18, stacking
from cclfp.nets.network import Derivatives, Network, Tensors, psi_mode
from cclfp.nets.stacking.layout import Layout
from cclfp.nets.stacking.rounding import rounded

CLASSES = 5


@pytest.fixture(autouse=True)
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of any width and precision have kernels, which are plain PyTorch's."""
    layout_of = Layout.of

    def of(psi: nn.Module, mode: Any, dtype: torch.dtype | None) -> Layout | None:
        layout = layout_of(psi.float(), mode, torch.bfloat16)
        psi.double()
        return None if layout is None else dataclasses.replace(layout, dtype=torch.float64)

    monkeypatch.setattr(stacking, "kernels", plain_kernels.kernels, raising=False)
    monkeypatch.setattr("cclfp.nets.stacking.layout.WIDTH", 4)
    monkeypatch.setattr(Layout, "of", of)
    monkeypatch.setattr(Layout, "takes", lambda self, x: True)


def stacked_networks(R: int) -> tuple[Network, Tensors, Tensors]:
    """A network, and parameters and buffers of R such, away from where they begin."""
    g = torch.Generator().manual_seed(0)
    psi = ResNet18(width=4).double()
    f = nn.Linear(32, CLASSES, dtype=torch.float64)
    net = Network(psi, f, psi_mode(psi))

    def several(t: Tensor, name: str) -> Tensor:
        if not t.is_floating_point():
            return t.expand(R, *t.shape).clone()
        noise = torch.randn(R, *t.shape, dtype=t.dtype, generator=g)
        return (t + 0.2 * noise.abs() if name.endswith("running_var") else t + 0.2 * noise).detach()

    params, buffers = ({n: several(t, n) for n, t in ts.items()} for ts in (net.params, net.buffers))
    return net, params, buffers


def at(tensors: Tensors, r: int) -> Tensors:
    return {name: t[r] for name, t in tensors.items()}


def assert_alike(ours: Tensors, exact: Tensors) -> None:
    assert ours.keys() == exact.keys()
    for name, t in exact.items():
        torch.testing.assert_close(ours[name], t, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("R", [1, 3])
def test_the_hessian_times_a_direction(R: int) -> None:
    net, params, buffers = stacked_networks(R)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(R, 4, 3, 16, 16, dtype=torch.float64, generator=g), torch.arange(4) % CLASSES
    mask = torch.ones(4, CLASSES, dtype=torch.bool)
    direction = {name: torch.randn(p.shape, dtype=p.dtype, generator=g) for name, p in params.items()}

    def loss(out: Tensor) -> Tensor:
        return cross_entropy(out, y, mask)

    def stacked_derivatives(params: Tensors, buffers: Tensors, x: Tensor, direction: Tensors) -> Any:
        L = Derivatives(net, params, buffers, x, loss)
        return L.gradient, L.hessian_times(direction), L.buffers

    gradient, product, after = vmap(stacked_derivatives)(params, buffers, x, direction)
    for r in range(R):

        def alone(p: Tensors, r: int = r) -> Any:
            z, after = net.features(p, at(buffers, r), x[r])
            return loss(net.classify(p, z)), after

        exact, after_alone = torch.func.grad(alone, has_aux=True)(at(params, r))
        assert_alike(at(gradient, r), exact)
        assert_alike(at(after, r), after_alone)
        of_gradient = torch.func.grad(
            lambda p, r=r: sum(
                (t * direction[name][r]).sum() for name, t in torch.func.grad(alone, has_aux=True)(p)[0].items()
            )
        )
        assert_alike(at(product, r), of_gradient(at(params, r)))


def test_the_gradient_in_eval_mode() -> None:
    net, params, buffers = stacked_networks(2)
    x, target = torch.randn(2, 3, 3, 16, 16, dtype=torch.float64), torch.randn(2, 3, 32, dtype=torch.float64)

    def gradient(params: Tensors, buffers: Tensors, x: Tensor, target: Tensor) -> Any:
        return torch.func.grad(lambda p: (net.frozen_features(p, buffers, x) * target).sum())(params)

    ours = vmap(gradient)(params, buffers, x, target)
    for r in range(2):
        assert_alike(at(ours, r), gradient(at(params, r), at(buffers, r), x[r], target[r]))


class BuildsOnHAL(HAL):
    name = "builds-on-hal"

    def step(self, *arguments: Any) -> Any:
        return super().step(*arguments)


@pytest.mark.parametrize("kind", [HAL, BuildsOnHAL])
def test_a_step_of_hal(kind: type[HAL]) -> None:
    """The analytic gradient is that which autograd finds through the tentative update.

    The filters with a rounded copy are overwritten, unless a subclass may still use them.
    """
    net, params, buffers = stacked_networks(2)
    method = kind(net)
    g = torch.Generator().manual_seed(2)

    def some(*shape: int) -> Tensor:
        return torch.randn(2, *shape, dtype=torch.float64, generator=g)

    mask = torch.tensor([True, True, True, True, False]).expand(2, 3, -1)
    state: dict[str, Any] = {
        "embedding": some(CLASSES, 32),
        "task": torch.tensor([0, 0, 1, -1, -1]).expand(2, -1),
        "anchors": {"x": some(3, 3, 16, 16), "mask": mask},
    }
    x, y, task = some(4, 3, 16, 16), torch.tensor([2, 3, 0, 1]), torch.tensor([1, 1, 0, 0])
    hyper = {"lr": 0.1, "lam": 0.5, "gamma": 0.1, "beta": 0.5, "steps": 2.0, "anchor_lr": 1.0}
    numbers = HALHyper(**{name: torch.tensor(v, dtype=torch.float64) for name, v in hyper.items()})  # type: ignore[arg-type]

    def step(params: Tensors, buffers: Tensors, state: Any, x: Tensor) -> Any:
        allowed = torch.ones(4, CLASSES, dtype=torch.bool)
        batch = Batch(x, y, task, allowed, 2, torch.arange(2), torch.ones(2, dtype=torch.bool))
        return method.step(params, buffers, state, batch, numbers)

    before = {name: p.clone() for name, p in params.items()}
    filters = [p for p in params.values() if p.ndim == 5]
    with rounded(filters, [p.clone() for p in filters]):
        ours = vmap(step)(params, buffers, state, x)
    assert len(filters) == 20
    changed = {name for name, p in params.items() if not torch.equal(p, before[name])}
    assert changed == ({name for name, p in params.items() if p.ndim == 5} if kind is HAL else set())
    params = before
    for r in range(2):
        own = {"embedding": state["embedding"][r], "task": state["task"][r], "anchors": at(state["anchors"], r)}
        exact = step(at(params, r), at(buffers, r), own, x[r])
        assert_alike(at(ours[0], r), exact[0])
        assert_alike(at(ours[1], r), exact[1])
        torch.testing.assert_close(ours[2]["embedding"][r], exact[2]["embedding"])
        plain = {name: p - params[name][r] for name, p in exact[0].items()}
        assert plain["f.weight"].abs().max() > 1e-4
