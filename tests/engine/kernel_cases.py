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

from cclfp.engine.kernels import Layout, triton_others
from cclfp.engine.kernels.stacked_resnet import StackedResNet
from cclfp.engine.kernels.triton_convolution import Conv, columns, convolve, filter_gradient
from cclfp.engine.kernels.triton_norm import Norm, norm_gradients, normalise
from cclfp.nets import ResNet18
from cclfp.nets.network import Network, Tensors, psi_mode


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
    y, sums = convolve(conv, R, x, w, statistics=True)
    assert sums is not None
    sums = sums.sum(0)
    errors["forward"] = error(y, nhwc(exact))
    errors["squares"] = error(sums[1], y.double().pow(2).sum((0, 1, 2)))
    errors["sums"] = float(
        (sums[0].double() - y.double().sum((0, 1, 2))).norm() / y.double().abs().sum((0, 1, 2)).norm()
    )
    y, _ = convolve(conv, R, x, w, scale=scale, shift=shift, residual=other, relu=True)
    affine = nhwc(exact) * scale.double() + shift.double()
    errors["eval"] = error(y, torch.relu(affine + other.double()))
    if conv.ks == 3:
        gradient = nhwc(input_gradient(conv, R, dy, w))
        d, _ = convolve(conv, R, dy, w, gradient=True)
        errors["gradient"] = error(d, gradient)
        if conv.stride == 1:
            residual = case.images(conv.side, conv.C)
            d, _ = convolve(conv, R, dy, w, gradient=True, residual=residual, mask=x)
            more = residual.double()
        else:
            shortcut = Conv(conv.C, conv.K, 1, conv.stride, conv.side)
            w2 = case.random(R * conv.K, conv.C)
            d, _ = convolve(conv, R, dy, w, gradient=True, x2=other, w2=w2, mask=x)
            more = nhwc(input_gradient(shortcut, R, other, w2))
        errors["masked gradient"] = error(d, (gradient + more) * (x > 0))
    shared, _ = convolve(conv, R, x, w[: conv.K])
    errors["shared filters"] = error(shared, nhwc(convolution(conv, R, x, w[: conv.K].repeat(R, 1))))
    if conv.ks == 3:
        d, _ = convolve(conv, R, dy, w[: conv.K], gradient=True)
        errors["gradient by shared filters"] = error(d, nhwc(input_gradient(conv, R, dy, w[: conv.K].repeat(R, 1))))

    def filters(x: Tensor, dy: Tensor) -> Tensor:
        shape = (R * conv.K, conv.C, conv.ks, conv.ks)
        exact = conv2d_weight(nchw(x), shape, nchw(dy), stride=conv.stride, padding=conv.ks // 2, groups=R)
        return nhwc(exact).flatten(1)

    errors["filters"] = error(filter_gradient(conv, R, x, dy), filters(x, dy))
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
    out, new, new2 = normalise(
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
    dy, dy2, grads = norm_gradients(d, norm, other, not shortcut)
    exact = torch.autograd.grad(target, leaves, d.double(), allow_unused=True)
    errors["gradient of y"] = error(dy, exact[0])
    errors["gamma"], errors["beta"] = error(grads[0], exact[2]), error(grads[1], exact[3])
    if dy2 is not None:
        errors["gradient of y2"], errors["gamma 2"] = error(dy2, exact[1]), error(grads[2], exact[4])
    return errors


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
    infinite = torch.full_like(sums, torch.inf)
    out, _, _ = normalise(Norm(y, infinite, ones, ones), (ones, ones), None, None, None)
    assert out.isnan().all()


def check_others(case: Case, side: int) -> dict[str, float]:
    """Sums, the update and the stem's columns."""
    R, errors = case.R, {}
    for T in (3, 70):
        partial = case.random(T, 2, 100, dtype=torch.float32)
        errors[f"sum of {T}"] = error(triton_others.add_up(partial), partial.double().sum(0))
    p, g = (case.random(R, 640, 5, 3, dtype=torch.float32) for _ in range(2))
    lr, out, copy = case.vector(1), torch.empty_like(p), torch.empty_like(p, dtype=case.dtype)
    with mock.patch("cclfp.engine.kernels.triton_others.PROGRAMS", 2):  # each has several blocks
        triton_others.sgd(p, g, lr, out, copy)
    exact = p.double() - lr.double().view(R, 1, 1, 1) * g.double()
    errors["sgd"], errors["copy"] = error(out, exact), error(copy, exact)
    x = case.random(R, case.N, 3, side, side, dtype=torch.float32)
    found = columns(x, case.dtype).view(case.N, side, side, R, 32)
    exact = F.unfold(x.flatten(0, 1), 3, padding=1).view(R, case.N, 3, 9, side, side)  # channels, then taps
    exact = exact.permute(1, 4, 5, 0, 3, 2).reshape(case.N, side, side, R, 27)
    errors["columns"] = error(found[..., :27], exact.double())
    assert not found[..., 27:].any()
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
    """The stem and three blocks of stacked ResNet18s: z and its gradient in training, and z in eval mode."""
    whole = Layout.of(ResNet18(), psi_mode(ResNet18()), torch.bfloat16)
    assert whole is not None
    psi, f = ResNet18(), torch.nn.Linear(128, 5)
    psi.blocks = torch.nn.Sequential(*list(psi.blocks)[:3])
    layout = Layout(whole.layers[: whole.blocks[2][-1] + 1], whole.blocks[:3], case.dtype)
    net = StackedResNet(Network(psi, f, psi_mode(psi)), layout, in_place=False)

    def near(t: Tensor) -> Tensor:
        return t.detach() + 0.1 * case.random(case.R, *t.shape) if t.is_floating_point() else t.expand(case.R)

    exact: Any = Network(copy.deepcopy(psi).double(), copy.deepcopy(f).double(), psi_mode(psi))
    margin = 0.0
    while margin < 1e-5:  # closer to 0, rounding decides on which side of a ReLU's kink a value is
        params = {name: near(p) for name, p in net.params.items()}
        buffers = {name: near(b) for name, b in net.buffers.items()}
        x = case.random(case.R, case.N, 3, 8, 8)
        margin = min(kink_margin(exact, params, buffers, x, r) for r in range(case.R))
    target = case.random(case.N, 128)

    def ours(params: Tensors, buffers: Tensors, x: Tensor) -> Any:
        def loss(p: Tensors) -> tuple[Tensor, Tensor]:
            z, _ = net.features(p, buffers, x)
            return (z * target).sum(), z

        grads, z = torch.func.grad(loss, has_aux=True)(params)
        return grads, z, net.frozen_features(params, buffers, x)

    grads, z, frozen = torch.func.vmap(ours)(params, buffers, x)
    errors = {"gradient": 0.0, "training": 0.0, "eval mode": 0.0}
    for r in range(case.R):
        p, b = ({name: t[r].double() for name, t in ts.items()} for ts in (params, buffers))

        def loss(p: Tensors, r: int = r, b: Tensors = b) -> tuple[Tensor, Tensor]:
            z, _ = exact.features(p, b, x[r].double())
            return (z * target.double()).sum(), z

        wanted, wanted_z = torch.func.grad(loss, has_aux=True)(p)
        for name, t in wanted.items():
            if t.any():
                errors["gradient"] = max(errors["gradient"], error(grads[name][r], t))
        errors["training"] = max(errors["training"], error(z[r], wanted_z))
        errors["eval mode"] = max(errors["eval mode"], error(frozen[r], exact.frozen_features(p, b, x[r].double())))
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
        "others": check_others(case, 8),
    }
    check_nan(case)
    Layout.takes = lambda self, x: True  # type: ignore[method-assign]
    errors["network"] = check_network(Case("cpu", torch.float32, R=2, N=2))
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
