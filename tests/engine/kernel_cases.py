"""Each kernel for stacked replicas beside the same function in plain PyTorch and float64, by relative error.

Run as a script (with ``TRITON_INTERPRET=1``, without a GPU) it prints the errors of small float32 cases.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import plain_kernels
import torch
from torch import Tensor, nn

from cclfp.engine.kernels import Layout, triton_others
from cclfp.engine.kernels.stacked_resnet import StackedResNet
from cclfp.engine.kernels.triton_convolution import Conv, columns, convolve, filter_gradient
from cclfp.engine.kernels.triton_norm import Norm, norm_gradients, normalise
from cclfp.nets import ResNet18
from cclfp.nets.network import Network, Tensors, psi_mode

Errors = dict[str, float]


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


class Case:
    """Random tensors of R replicas on N images, as the kernels take them."""

    def __init__(self, device: str, dtype: torch.dtype, R: int, N: int, seed: int = 0) -> None:
        self.device, self.dtype, self.R, self.N = device, dtype, R, N
        self.g = torch.Generator().manual_seed(seed)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self.g).to(self.device, dtype or self.dtype)

    def images(self, side: int, channels: int) -> Tensor:
        return self.random(self.N, side, side, self.R * channels)

    def vector(self, channels: int) -> Tensor:
        return self.random(self.R * channels, dtype=torch.float32)

    def norm(self, side: int, channels: int) -> Norm:
        """A BatchNorm of random images, with the sums of its channels in two parts."""
        y = self.images(side, channels)
        halves = [half.float().flatten(0, 2) for half in (y[: self.N // 2], y[self.N // 2 :])]
        sums = torch.stack([torch.stack([half.sum(0), half.square().sum(0)]) for half in halves])
        return Norm(y, sums, self.vector(channels), self.vector(channels))


def compared(what: str, function: Any, *given: Any, **more: Any) -> Errors:
    """The errors of the tensors that a kernel's function returns; partial sums are compared when they are added up."""
    ours = function(*given, **more)
    theirs = getattr(plain_kernels, function.__name__)(*map(exact, given), **{k: exact(v) for k, v in more.items()})
    if isinstance(ours, Tensor):
        return {what: error(ours, theirs)}
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None]
    return {f"{what} {i}": error(a if a.shape == b.shape else a.sum(0, True), b) for i, (a, b) in enumerate(pairs)}


def exact(value: Any) -> Any:
    """An argument in float64."""
    if isinstance(value, Tensor):
        return value.double()
    if isinstance(value, Norm):
        return Norm(*map(exact, (value.y, value.sums, value.gamma, value.beta)))
    return tuple(map(exact, value)) if isinstance(value, tuple) else value


def check_convolution(case: Case, conv: Conv) -> Errors:
    """Forward with statistics and in eval mode, and the gradients."""
    R, more = case.R, dict[str, Any]()
    x, dy, other = case.images(conv.side, conv.C), case.images(conv.out, conv.K), case.images(conv.out, conv.K)
    w, scale, shift = case.random(R * conv.K, conv.ks**2 * conv.C), case.vector(conv.K), case.vector(conv.K)
    errors = compared("forward", convolve, conv, R, x, w, statistics=True)
    errors |= compared("eval", convolve, conv, R, x, w, scale=scale, shift=shift, residual=other, relu=True)
    errors |= compared("filters", filter_gradient, conv, R, x, dy)
    if conv.ks == 3:
        errors |= compared("gradient", convolve, conv, R, dy, w, gradient=True)
        if conv.stride == 1:
            more = {"residual": case.images(conv.side, conv.C)}
        else:
            more = {"x2": other, "w2": case.random(R * conv.K, conv.C)}
        errors |= compared("masked gradient", convolve, conv, R, dy, w, gradient=True, mask=x, **more)
    return errors


def check_norm(case: Case, side: int, channels: int) -> Errors:
    """BatchNorm in training with ReLU, added to a residual or to another BatchNorm, and its gradients."""
    norm, other = case.norm(side, channels), case.norm(side, channels)
    residual, d = case.images(side, channels), case.images(side, channels)
    running, running2 = [(case.vector(channels), case.vector(channels).abs()) for _ in range(2)]
    return {
        **compared("norm", normalise, norm, running, None, None, residual),
        **compared("norms", normalise, norm, running, other, running2, None),
        **compared("gradient", norm_gradients, d, norm, None, True),
        **compared("gradients", norm_gradients, d, norm, other, False),
    }


def check_others(case: Case, side: int) -> Errors:
    """Sums, the update and the stem's columns."""
    errors = compared("columns", columns, case.random(case.R, case.N, 3, side, side, dtype=torch.float32), case.dtype)
    for T in (3, 70):
        partial = case.random(T, 2, 100, dtype=torch.float32)
        errors[f"sum of {T}"] = error(triton_others.add_up(partial), partial.double().sum(0))
    p, g = (case.random(case.R, 640, 5, 3, dtype=torch.float32) for _ in range(2))
    lr, out, copy = case.vector(1), torch.empty_like(p), torch.empty_like(p, dtype=case.dtype)
    with mock.patch("cclfp.engine.kernels.triton_others.PROGRAMS", 2):  # each has several blocks
        triton_others.sgd(p, g, lr, out, copy)
    wanted = p.double() - lr.double().view(-1, 1, 1, 1) * g.double()
    return {**errors, "sgd": error(out, wanted), "copy": error(copy, wanted)}


def check_nan(case: Case) -> None:
    """A NaN is still there after every ReLU, as in PyTorch: a network that diverged does not look well."""
    conv = Conv(64, 64, 1, 1, 4)
    x, w, ones = case.images(4, 64), case.random(case.R * 64, 64), torch.ones_like(case.vector(64))
    x[0, 0, 0, 0] = torch.nan
    y, sums = convolve(conv, case.R, x, w, statistics=True)
    eval_mode, _ = convolve(conv, case.R, x, w, scale=ones, shift=ones, relu=True)
    assert sums is not None
    assert y[0, 0, 0, :64].isnan().all()
    assert eval_mode[0, 0, 0, :64].isnan().all()
    assert not eval_mode[1:].isnan().any()
    out, _, _ = normalise(Norm(y, sums, ones, ones), (ones, ones), None, None, None)
    assert out[..., :64].isnan().all()
    assert not out[..., 64:].isnan().any()
    out, _, _ = normalise(Norm(y, torch.full_like(sums, torch.inf), ones, ones), (ones, ones), None, None, None)
    assert out.isnan().all()


def check_network(case: Case) -> Errors:
    """The stem and three blocks of stacked ResNet18s: z and its gradient in training, and z in eval mode."""
    whole = Layout.of(ResNet18(), psi_mode(ResNet18()), torch.bfloat16)
    assert whole is not None
    psi, f = ResNet18(), nn.Linear(128, 5)
    psi.blocks = nn.Sequential(*list(psi.blocks)[:3])
    layout = Layout(whole.layers[: whole.blocks[2][-1] + 1], whole.blocks[:3], case.dtype)
    net = StackedResNet(Network(psi, f, psi_mode(psi)), layout, in_place=False)
    plain = Network(copy.deepcopy(psi).double(), copy.deepcopy(f).double(), psi_mode(psi))

    def near(t: Tensor) -> Tensor:
        return t.detach() + 0.1 * case.random(case.R, *t.shape) if t.is_floating_point() else t.expand(case.R)

    params = {name: near(p) for name, p in net.params.items()}
    buffers = {name: near(b) for name, b in net.buffers.items()}
    x, target = case.random(case.R, case.N, 3, 8, 8), case.random(case.N, 128)

    def values(net: Network, params: Tensors, buffers: Tensors, x: Tensor) -> Tensors:
        def loss(p: Tensors) -> tuple[Tensor, Tensor]:
            z, _ = net.features(p, buffers, x)
            return (z * target).sum(), z

        grads, z = torch.func.grad(loss, has_aux=True)(params)
        return {**grads, "training": z, "eval mode": net.frozen_features(params, buffers, x)}

    ours = torch.func.vmap(lambda *given: values(net, *given))(params, buffers, x)
    errors: Errors = {}
    for r in range(case.R):
        p, b = ({name: t[r].double() for name, t in ts.items()} for ts in (params, buffers))
        for name, wanted in values(plain, p, b, x[r].double()).items():
            if wanted.any():  # f has no part in it
                errors[name] = max(errors.get(name, 0.0), error(ours[name][r], wanted))
    return errors


def small_cases() -> Iterator[tuple[str, Errors]]:
    case = Case("cpu", torch.float32, R=2, N=3)
    for conv in (Conv(64, 64, 3, 1, 4), Conv(64, 128, 3, 2, 8), Conv(64, 128, 1, 2, 8), Conv(32, 64, 1, 1, 8)):
        yield str(conv), check_convolution(case, conv)
    yield "norm", check_norm(case, 4, 64)
    yield "others", check_others(case, 8)
    check_nan(case)
    Layout.takes = lambda self, x: True  # type: ignore[method-assign]
    yield "network", check_network(Case("cpu", torch.float32, R=2, N=2))


if __name__ == "__main__":
    print(json.dumps(dict(small_cases())))
