"""Each kernel for stacked replicas against PyTorch in float64, by relative error.

Run as a script (with ``TRITON_INTERPRET=1``, without a GPU) it prints the errors of small float32 cases.
"""

from __future__ import annotations

import copy
import json
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from cclfp.nets import ResNet18
from cclfp.nets.network import Derivatives, Network, Tensors, psi_mode
from cclfp.nets.stacking import kernels
from cclfp.nets.stacking.kernels import Conv, Norm
from cclfp.nets.stacking.layout import Layout
from cclfp.nets.stacking.surrogate import surrogate_step


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


class Case:
    """Random tensors of R replicas on images, as the kernels take them and as PyTorch does."""

    def __init__(self, device: str, dtype: torch.dtype, R: int, N: int, seed: int = 0) -> None:
        self.device, self.dtype, self.R, self.N = device, dtype, R, N
        self.g = torch.Generator().manual_seed(seed)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self.g).to(self.device, dtype or self.dtype)

    def images(self, side: int, channels: int) -> Tensor:
        return self.random(self.N, side, side, self.R * channels)

    def vector(self, channels: int) -> Tensor:
        return self.random(self.R * channels, dtype=torch.float32)


def nchw(t: Tensor) -> Tensor:
    return t.double().permute(0, 3, 1, 2)


def nhwc(t: Tensor) -> Tensor:
    return t.permute(0, 2, 3, 1)


def filters(conv: Conv, w: Tensor) -> Tensor:
    return w.double().view(-1, conv.ks, conv.ks, conv.C).permute(0, 3, 1, 2)


def convolution(conv: Conv, R: int, x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(nchw(x), filters(conv, w), stride=conv.stride, padding=conv.ks // 2, groups=R)


def input_gradient(conv: Conv, R: int, dy: Tensor, w: Tensor) -> Any:
    shape = (len(dy), R * conv.C, conv.side, conv.side)
    return conv2d_input(shape, filters(conv, w), nchw(dy), stride=conv.stride, padding=conv.ks // 2, groups=R)


def check_convolution(case: Case, conv: Conv) -> dict[str, float]:
    """Forward with statistics, in eval mode, and the gradients of input and filters."""
    R, errors = case.R, {}
    x, dy, other = case.images(conv.side, conv.C), case.images(conv.out, conv.K), case.images(conv.out, conv.K)
    w, scale, shift = case.random(R * conv.K, conv.ks**2 * conv.C), case.vector(conv.K), case.vector(conv.K)
    exact = convolution(conv, R, x, w)
    y, sums = kernels.convolve(conv, R, x, w, statistics=True)
    assert sums is not None
    sums = sums.sum(0)
    errors["forward"] = error(y, nhwc(exact))
    errors["squares"] = error(sums[1], y.double().pow(2).sum((0, 1, 2)))
    errors["sums"] = float(
        (sums[0].double() - y.double().sum((0, 1, 2))).norm() / y.double().abs().sum((0, 1, 2)).norm()
    )
    y, _ = kernels.convolve(conv, R, x, w, scale=scale, shift=shift, residual=other, relu=True)
    affine = nhwc(exact) * scale.double() + shift.double()
    errors["eval"] = error(y, torch.relu(affine + other.double()))
    if conv.ks == 3:
        gradient = nhwc(input_gradient(conv, R, dy, w))
        d, _ = kernels.convolve(conv, R, dy, w, gradient=True)
        errors["gradient"] = error(d, gradient)
        if conv.stride == 1:
            residual = case.images(conv.side, conv.C)
            d, _ = kernels.convolve(conv, R, dy, w, gradient=True, residual=residual, mask=x)
            more = residual.double()
        else:
            shortcut = Conv(conv.C, conv.K, 1, conv.stride, conv.side)
            w2 = case.random(R * conv.K, conv.C)
            d, _ = kernels.convolve(conv, R, dy, w, gradient=True, x2=other, w2=w2, mask=x)
            more = nhwc(input_gradient(shortcut, R, other, w2))
        errors["masked gradient"] = error(d, (gradient + more) * (x > 0))
    shared, _ = kernels.convolve(conv, R, x, w[: conv.K])
    errors["shared filters"] = error(shared, nhwc(convolution(conv, R, x, w[: conv.K].repeat(R, 1))))
    if conv.ks == 3:
        d, _ = kernels.convolve(conv, R, dy, w[: conv.K], gradient=True)
        errors["gradient by shared filters"] = error(d, nhwc(input_gradient(conv, R, dy, w[: conv.K].repeat(R, 1))))

    def filters(x: Tensor, dy: Tensor) -> Tensor:
        shape = (R * conv.K, conv.C, conv.ks, conv.ks)
        exact = conv2d_weight(nchw(x), shape, nchw(dy), stride=conv.stride, padding=conv.ks // 2, groups=R)
        return nhwc(exact).flatten(1)

    errors["filters"] = error(kernels.filter_gradient(conv, R, x, dy), filters(x, dy))
    x2 = case.images(conv.side, conv.C)
    errors["sum of filters"] = error(
        kernels.filter_gradient(conv, R, x, dy, x2, other), filters(x, dy) + filters(x2, other)
    )
    return errors


def check_norm(case: Case, side: int, channels: int, *, shortcut: bool) -> dict[str, float]:
    """BatchNorm in training with ReLU, added to a residual or to another BatchNorm, and its gradients."""
    C, errors = channels, {}
    y, y2, residual, d = (case.images(side, C) for _ in range(4))
    vectors = [case.vector(C) for _ in range(4)]
    running = [(case.vector(C), case.vector(C).abs()) for _ in range(2)]

    def made(y: Tensor, gamma: Tensor, beta: Tensor) -> Norm:
        v = y.float()
        halves = (half.flatten(0, 2) for half in (v[: case.N // 2], v[case.N // 2 :]))  # as partial sums
        return Norm(y, torch.stack([torch.stack([h.sum(0), h.pow(2).sum(0)]) for h in halves]), gamma, beta)

    norm, other = made(y, *vectors[:2]), made(y2, *vectors[2:]) if shortcut else None
    out, new, new2 = kernels.normalise(
        norm, running[0], other, running[1] if shortcut else None, None if shortcut else residual
    )
    leaves = [t.double().requires_grad_() for t in (y, y2, *vectors)]
    stats = [[t.double() for t in pair] for pair in running]

    def exact_norm(t: Tensor, mean: Tensor, var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return nhwc(F.batch_norm(t.permute(0, 3, 1, 2), mean, var, gamma, beta, True, 0.1, 1e-5))

    first = exact_norm(leaves[0], *stats[0], *leaves[2:4])
    total = first + exact_norm(leaves[1], *stats[1], *leaves[4:6]) if shortcut else first + residual.double()
    errors["norm"] = error(out, torch.relu(total).detach())
    errors["running"] = max(error(new[i], stats[0][i]) for i in range(2))
    if new2 is not None:
        errors["running 2"] = max(error(new2[i], stats[1][i]) for i in range(2))
    # The gradient of what the norms add up to; or, of the first alone, that of a ReLU behind it.
    target = total if shortcut else torch.relu(first)
    frozen, _, _ = kernels.norm_gradients(d, norm, None, masked=False, frozen=True)
    v = y.double()
    scale = vectors[0].double() * torch.rsqrt(v.var((0, 1, 2), correction=0) + 1e-5)
    errors["frozen gradient of y"] = error(frozen, d.double() * scale)
    dy, dy2, grads = kernels.norm_gradients(d, norm, other, not shortcut)
    exact = torch.autograd.grad(target, leaves, d.double(), allow_unused=True)
    errors["gradient of y"] = error(dy, exact[0])
    errors["gamma"], errors["beta"] = error(grads[0], exact[2]), error(grads[1], exact[3])
    if dy2 is not None:
        errors["gradient of y2"], errors["gamma 2"] = error(dy2, exact[1]), error(grads[2], exact[4])
    return errors


def check_tangents(case: Case, side: int, channels: int) -> dict[str, float]:
    """Sums of products, and weighted sums of several tensors."""
    errors = {}
    tensors = [case.images(side, channels) for _ in range(5)]
    weights = [case.vector(channels) for _ in range(6)]
    exact = [t.double() for t in tensors]
    for count in (1, 2, 5):
        blended = (
            sum(t * w.double() for t, w in zip(exact[:count], weights[:count], strict=True)) + weights[-1].double()
        )
        used = [*weights[:count], weights[-1]]
        errors[f"blend of {count}"] = error(kernels.blend(tensors[:count], used), blended)
        masked = kernels.blend(tensors[:count], used, mask=tensors[4])
        errors[f"masked blend of {count}"] = error(masked, blended * (exact[4] > 0))
    a, y, b, h, _ = exact
    wanted = torch.stack([(t.sum((0, 1, 2))) for t in (a * (y - weights[0].double()), a, b * h)])
    errors["two sums"] = error(kernels.pair_sums(tensors[0], tensors[1], weights[0]), wanted[:2])
    errors["three sums"] = error(kernels.pair_sums(tensors[0], tensors[1], weights[0], tensors[2], tensors[3]), wanted)
    return errors


def check_nan(case: Case) -> None:
    """A NaN is still there after every ReLU, as in PyTorch: a network that diverged does not look well."""
    conv = Conv(64, 64, 1, 1, 4)
    x, w, ones = case.images(4, 64), case.random(case.R * 64, 64), torch.ones_like(case.vector(64))
    x[0, 0, 0, 0] = torch.nan
    y, sums = kernels.convolve(conv, case.R, x, w, statistics=True)
    eval_mode, _ = kernels.convolve(conv, case.R, x, w, scale=ones, shift=ones, relu=True)
    assert sums is not None
    assert y[0, 0, 0, :64].isnan().all()
    assert eval_mode[0, 0, 0, :64].isnan().all()
    assert not eval_mode[1:].isnan().any()
    out, _, _ = kernels.normalise(Norm(y, sums, ones, ones), (ones, ones), None, None, None)
    assert out[..., :64].isnan().all()
    assert not out[..., 64:].isnan().any()
    infinite = torch.full_like(sums, torch.inf)
    out, _, _ = kernels.normalise(Norm(y, infinite, ones, ones), (ones, ones), None, None, None)
    assert out.isnan().all()


def check_others(case: Case, side: int) -> dict[str, float]:
    """Sums, the update and the stem's columns."""
    R, errors = case.R, {}
    for T in (1, 17):
        g, rows, v = (case.random(R, *shape, dtype=torch.float32) for shape in ((3001,), (T, 3001), (T,)))
        both = torch.cat([g[:, None], rows], 1).double()
        errors[f"products of {T}"] = error(kernels.gram(g, rows), both @ both.mT)
        exact = g.double() + (v[..., None].double() * rows.double()).sum(1)
        errors[f"combination of {T}"] = error(kernels.combine(g, rows, v), exact)
    for T in (3, 70):
        partial = case.random(T, 2, 100, dtype=torch.float32)
        errors[f"sum of {T}"] = error(kernels.add_up(partial), partial.double().sum(0))
    p, g = (case.random(R, 640, 5, 3, dtype=torch.float32) for _ in range(2))
    lr, out, copy = case.vector(1), torch.empty_like(p), torch.empty_like(p, dtype=case.dtype)
    with mock.patch("cclfp.nets.stacking.kernels.update.PROGRAMS", 2):  # each has several blocks
        kernels.sgd(p, g, lr, out, copy)
    exact = p.double() - lr.double().view(R, 1, 1, 1) * g.double()
    errors["sgd"], errors["copy"] = error(out, exact), error(copy, exact)
    g, path, importance, start = (case.random(R, 640, 5, 3, dtype=torch.float32) for _ in range(4))
    c, given = case.vector(1), [t.double() for t in (p, g, path, importance.abs(), start)]
    rates = (t.double().view(R, 1, 1, 1) for t in (lr.abs(), c.abs()))
    exact, exact_path = surrogate_step(given, *rates)
    kernels.surrogate([p, g, path, importance.abs(), start], lr.abs(), c.abs(), copy)
    errors["surrogate"], errors["path"] = error(p, exact), error(path, exact_path)
    errors["surrogate's copy"] = error(copy, exact)
    x = case.random(R, case.N, 3, side, side, dtype=torch.float32)
    columns = kernels.columns(x, case.dtype).view(case.N, side, side, R, 32)
    exact = F.unfold(x.flatten(0, 1), 3, padding=1).view(R, case.N, 3, 9, side, side)  # channels, then taps
    exact = exact.permute(1, 4, 5, 0, 3, 2).reshape(case.N, side, side, R, 27)
    errors["columns"] = error(columns[..., :27], exact.double())
    assert not columns[..., 27:].any()
    return errors


def kink_margin(net: Network, params: Tensors, buffers: Tensors, x: Tensor, r: int) -> float:
    """How near to 0 an input of a ReLU comes in replica r, in both modes, relative to the spread of its layer."""
    margins, relu = [], torch.relu

    def watched(t: Tensor) -> Tensor:
        margins.append(float(t.abs().min() / t.std()))
        return relu(t)

    p, b = ({name: t[r].double() for name, t in ts.items()} for ts in (params, buffers))
    with mock.patch("torch.relu", watched):
        net.features(p, b, x[r].double())
        net.frozen_features(p, b, x[r].double())
    return min(margins)


def check_network(case: Case) -> dict[str, float]:
    """The stem and three blocks of a ResNet18 of stacked replicas: gradients in both modes, and a Hessian's product."""
    whole = Layout.of(ResNet18(), psi_mode(ResNet18()), torch.bfloat16)
    assert whole is not None
    psi, f = ResNet18(), torch.nn.Linear(128, 5)
    psi.blocks = torch.nn.Sequential(*list(psi.blocks)[:3])
    net = Network(psi, f, psi_mode(psi))
    net.layout = Layout(whole.layers[: whole.blocks[2][-1] + 1], whole.blocks[:3], case.dtype)

    def near(t: Tensor) -> Tensor:
        return t.detach() + 0.1 * case.random(case.R, *t.shape) if t.is_floating_point() else t.expand(case.R)

    exact: Any = Network(copy.deepcopy(psi).double(), copy.deepcopy(f).double(), psi_mode(psi))
    margin = 0.0
    while margin < 1e-5:  # closer to 0, rounding decides on which side of a ReLU's kink a value is
        params = {name: near(p) for name, p in net.params.items()}
        buffers = {name: near(b) for name, b in net.buffers.items()}
        x = case.random(case.R, case.N, 3, 8, 8)
        margin = min(kink_margin(exact, params, buffers, x, r) for r in range(case.R))
    direction = {name: case.random(*p.shape) for name, p in params.items()}
    y = torch.arange(case.N)

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out, y)

    def ours(params: Tensors, buffers: Tensors, x: Tensor, direction: Tensors) -> Any:
        L = Derivatives(net, params, buffers, x, loss)
        z, pull = torch.func.vjp(lambda p: net.frozen_features(p, buffers, x), params)[:2]
        return L.gradient, L.hessian_times(direction), pull(torch.ones_like(z))[0]

    found = torch.func.vmap(ours)(params, buffers, x, direction)
    errors: dict[str, float] = {}
    for r in range(case.R):
        p, b, v = ({name: t[r].double() for name, t in ts.items()} for ts in (params, buffers, direction))

        def of(p: Tensors, r: int = r, b: Tensors = b) -> Tensor:
            return loss(exact.classify(p, exact.features(p, b, x[r].double())[0]))

        def along(p: Tensors, v: Tensors = v, of: Any = of) -> Any:
            return sum((t * v[name]).sum() for name, t in torch.func.grad(of)(p).items())

        def frozen(p: Tensors, r: int = r, b: Tensors = b) -> Any:
            return exact.frozen_features(p, b, x[r].double()).sum()

        functions: list[Any] = [of, along, frozen]
        for what, function, own in zip(("gradient", "Hessian", "eval mode"), functions, found, strict=True):
            for name, wanted in torch.func.grad(function)(p).items():
                if wanted.any():
                    errors[what] = max(errors.get(what, 0.0), error(own[name][r], wanted))
    return errors


def main() -> None:
    case = Case("cpu", torch.float32, R=2, N=3)
    errors = {
        "stride 1": check_convolution(case, Conv(64, 64, 3, 1, 4)),
        "stride 2": check_convolution(case, Conv(64, 128, 3, 2, 8)),
        "1x1": check_convolution(case, Conv(64, 128, 1, 2, 8)),
        "stem": check_convolution(case, Conv(32, 64, 1, 1, 8)),
        "norm": check_norm(case, 4, 64, shortcut=False),
        "norms": check_norm(case, 4, 64, shortcut=True),
        "tangents": check_tangents(case, 4, 64),
        "others": check_others(case, 8),
    }
    check_nan(case)
    Layout.takes = lambda self, x: True  # type: ignore[method-assign]
    errors["network"] = check_network(Case("cpu", torch.float32, R=2, N=2))
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
