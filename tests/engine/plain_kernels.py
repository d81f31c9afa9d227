"""The kernels' functions in plain PyTorch, in any precision and on any device: what is built on them can be tested."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

EPS, MOMENTUM = 1e-5, 0.1


class Conv(NamedTuple):
    C: int
    K: int
    ks: int
    stride: int
    side: int

    @property
    def out(self) -> int:
        return self.side // self.stride


class Norm(NamedTuple):
    y: Tensor
    sums: Tensor
    gamma: Tensor
    beta: Tensor


def nchw(t: Tensor) -> Tensor:
    return t.permute(0, 3, 1, 2)


def nhwc(t: Tensor) -> Tensor:
    return t.permute(0, 2, 3, 1).contiguous()


def filters(conv: Conv, R: int, w: Tensor) -> Tensor:
    """As PyTorch has them."""
    return w.view(R, conv.K, conv.ks, conv.ks, conv.C).permute(0, 1, 4, 2, 3).flatten(0, 1)


def input_gradient(conv: Conv, R: int, dy: Tensor, w: Tensor) -> Tensor:
    shape = (len(dy), R * conv.C, conv.side, conv.side)
    how: Any = {"stride": conv.stride, "padding": conv.ks // 2, "groups": R}
    return nhwc(conv2d_input(shape, filters(conv, R, w), nchw(dy), **how))


def convolve(conv: Conv, R: int, x: Tensor, w: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
    how: Any = {"stride": conv.stride, "padding": conv.ks // 2, "groups": R}
    if more.get("gradient"):
        y = input_gradient(conv, R, x, w)
        if more.get("x2") is not None:
            y = y + input_gradient(Conv(conv.C, conv.K, 1, conv.stride, conv.side), R, more["x2"], more["w2"])
    else:
        y = nhwc(F.conv2d(nchw(x), filters(conv, R, w), **how))
    if more.get("scale") is not None:
        y = y * more["scale"] + more["shift"]
    if more.get("residual") is not None:
        y = y + more["residual"]
    y = torch.relu(y) if more.get("relu") else y
    y = torch.where(more["mask"] > 0, y, 0) if more.get("mask") is not None else y
    sums = torch.stack([y.sum((0, 1, 2)), y.square().sum((0, 1, 2))]).unsqueeze(0) if more.get("statistics") else None
    return y, sums


def filter_gradient(conv: Conv, R: int, x: Tensor, dy: Tensor) -> Tensor:
    shape = (R * conv.K, conv.C, conv.ks, conv.ks)
    how: Any = {"stride": conv.stride, "padding": conv.ks // 2, "groups": R}
    return nhwc(conv2d_weight(nchw(x), shape, nchw(dy), **how)).flatten(1)


def moments(norm: Norm) -> tuple[Tensor, Tensor, int]:
    pixels = norm.y.numel() // norm.y.shape[-1]
    mean, square = norm.sums.sum(0) / pixels
    return mean, square - mean.square(), pixels


def normalise(norm: Norm, running: Any, other: Norm | None, running2: Any, residual: Tensor | None) -> Any:
    def one(norm: Norm, running: Any) -> tuple[Tensor, Tensor]:
        mean, var, n = moments(norm)
        new = [
            old.flatten() * (1 - MOMENTUM) + MOMENTUM * now
            for old, now in zip(running, (mean, var * n / (n - 1)), strict=True)
        ]
        out = (norm.y - mean) * torch.rsqrt(var + EPS) * norm.gamma.flatten() + norm.beta.flatten()
        return out, torch.stack(new)

    out, new = one(norm, running)
    out2, new2 = (0, None) if other is None else one(other, running2)
    return torch.relu(out + out2 + (0 if residual is None else residual)), new, new2


def norm_gradients(d: Tensor, norm: Norm, other: Norm | None, masked: bool) -> Any:
    def one(norm: Norm, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var, n = moments(norm)
        r = torch.rsqrt(var + EPS)
        xhat = (norm.y - mean) * r
        if masked:
            d = torch.where(xhat * norm.gamma.flatten() + norm.beta.flatten() > 0, d, 0)
        dgamma, dbeta = (d * xhat).sum((0, 1, 2)), d.sum((0, 1, 2))
        return norm.gamma.flatten() * r * (d - dbeta / n - xhat * dgamma / n), dgamma, dbeta

    dy, *grads = one(norm, d)
    if other is None:
        return dy, None, torch.stack(grads)
    dy2, dgamma2, _ = one(other, d)
    return dy, dy2, torch.stack([*grads, dgamma2])


def columns(x: Tensor, dtype: torch.dtype) -> Tensor:
    R, N, _, H, W = x.shape
    taps = F.unfold(x.flatten(0, 1), 3, padding=1).view(R, N, 3, 9, H, W).permute(1, 4, 5, 0, 3, 2)
    return F.pad(taps.reshape(N, H, W, R, 27), (0, 5)).flatten(3).to(dtype)


def sgd(p: Tensor, g: Tensor, lr: Tensor, out: Tensor, copy: Tensor) -> None:
    out.copy_(p - lr.view(-1, *[1] * (p.ndim - 1)) * g)
    copy.copy_(out)


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put these functions in the place of the Triton kernels."""
    for name in ("convolution", "norm", "others"):
        monkeypatch.setitem(sys.modules, f"cclfp.engine.kernels.triton_{name}", sys.modules[__name__])
