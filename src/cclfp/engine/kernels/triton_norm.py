"""BatchNorm followed by ReLU, and its gradients."""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclfp.engine.kernels.triton_others import COLUMNS, ROWS, few, launch, relu

EPS = tl.constexpr(1e-5)  # of BatchNorm, as is MOMENTUM
MOMENTUM = tl.constexpr(0.1)


@triton.jit
def _total(partial, T, stride, cols, BT: tl.constexpr):
    """The sum of the T partial sums of each column, where T is at most BT."""
    rows = tl.arange(0, BT)
    return tl.sum(tl.load(partial + rows[:, None] * stride + cols[None, :], mask=(rows < T)[:, None], other=0.0), 0)


@triton.jit
def _moments(sums, gamma, beta, cols, RC, M, T, BT: tl.constexpr):
    """The mean, variance, 1/deviation, scale and shift of each column, from sums (T, 2, RC)."""
    mean = _total(sums, T, 2 * RC, cols, BT) / M
    var = relu(_total(sums + RC, T, 2 * RC, cols, BT) / M - mean * mean)
    rstd = 1.0 / tl.sqrt(var + EPS)
    scale = tl.load(gamma + cols) * rstd
    return mean, var, rstd, scale, tl.load(beta + cols) - mean * scale


@triton.jit
def _normalised(y, sums, gamma, beta, running, variance, new, off, ok, cols, RC, M, T, BT: tl.constexpr):
    """BatchNorm of y in training. The program of the first rows also writes the new running mean and variance."""
    mean, var, _, scale, shift = _moments(sums, gamma, beta, cols, RC, M, T, BT)
    if tl.program_id(1) == 0:
        tl.store(new + cols, tl.load(running + cols) * (1 - MOMENTUM) + MOMENTUM * mean)
        unbiased = var * (M / (M - 1.0))
        tl.store(new + RC + cols, tl.load(variance + cols) * (1 - MOMENTUM) + MOMENTUM * unbiased)
    return tl.load(y + off, mask=ok, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]


@triton.jit
def norm_kernel(
    y, sums, gamma, beta, running, variance, new,
    y2, sums2, gamma2, beta2, running2, variance2, new2,
    residual, out, M, RC, T, BT: tl.constexpr, T2, BT2: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out = relu(norm(y) [+ norm(y2)] [+ residual]), and the new running statistics."""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    rows = tl.program_id(1) * BR + tl.arange(0, BR)
    off = rows[:, None] * RC + cols[None, :]
    ok = (rows < M)[:, None]
    v = _normalised(y, sums, gamma, beta, running, variance, new, off, ok, cols, RC, M, T, BT)
    if y2 is not None:
        v += _normalised(y2, sums2, gamma2, beta2, running2, variance2, new2, off, ok, cols, RC, M, T2, BT2)
    if residual is not None:
        v += tl.load(residual + off, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + off, relu(v).to(out.dtype.element_ty), mask=ok)


@triton.jit
def norm_sums_kernel(
    d, y, sums, gamma, beta, y2, sums2, gamma2, beta2, partial, M, RC, T, BT: tl.constexpr, T2, BT2: tl.constexpr,
    KINDS: tl.constexpr, MASKED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A tile's part of the gradients of gamma, beta and (with y2) gamma2: partial (tiles, KINDS, RC).

    d is the gradient of the BatchNorm's output or, if MASKED, of the output of the ReLU that follows it.
    """
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    rows = tl.program_id(1) * BR + tl.arange(0, BR)
    off = rows[:, None] * RC + cols[None, :]
    ok = (rows < M)[:, None]
    v = tl.load(d + off, mask=ok, other=0.0).to(tl.float32)
    yy = tl.load(y + off, mask=ok, other=0.0).to(tl.float32)
    mean, _, rstd, scale, shift = _moments(sums, gamma, beta, cols, RC, M, T, BT)
    if MASKED:
        v = tl.where(yy * scale[None, :] + shift[None, :] <= 0, 0.0, v)
    place = partial + tl.program_id(1) * KINDS * RC + cols
    tl.store(place, tl.sum(v * (yy - mean[None, :]), 0) * rstd)
    tl.store(place + RC, tl.sum(v, 0))
    if y2 is not None:
        yy = tl.load(y2 + off, mask=ok, other=0.0).to(tl.float32)
        mean, _, rstd, scale, shift = _moments(sums2, gamma2, beta2, cols, RC, M, T2, BT2)
        tl.store(place + 2 * RC, tl.sum(v * (yy - mean[None, :]), 0) * rstd)


@triton.jit
def norm_gradient_kernel(
    d, y, sums, gamma, beta, dy, y2, sums2, gamma2, beta2, dy2, partial, grads, M, RC,
    T, BT: tl.constexpr, T2, BT2: tl.constexpr, TG, BTG: tl.constexpr,
    KINDS: tl.constexpr, MASKED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of a BatchNorm's input y (and of y2), from the sums of :func:`norm_sums_kernel`.

    The program of the first rows also writes these sums to grads (KINDS, RC).
    """
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    rows = tl.program_id(1) * BR + tl.arange(0, BR)
    off = rows[:, None] * RC + cols[None, :]
    ok = (rows < M)[:, None]
    v = tl.load(d + off, mask=ok, other=0.0).to(tl.float32)
    yy = tl.load(y + off, mask=ok, other=0.0).to(tl.float32)
    mean, _, rstd, scale, shift = _moments(sums, gamma, beta, cols, RC, M, T, BT)
    if MASKED:
        v = tl.where(yy * scale[None, :] + shift[None, :] <= 0, 0.0, v)
    dgamma = _total(partial, TG, KINDS * RC, cols, BTG)
    dbeta = _total(partial + RC, TG, KINDS * RC, cols, BTG)
    if tl.program_id(1) == 0:
        tl.store(grads + cols, dgamma)
        tl.store(grads + RC + cols, dbeta)
    b = dbeta / M
    value = scale[None, :] * (v - b[None, :] - (yy - mean[None, :]) * (dgamma / M * rstd)[None, :])
    tl.store(dy + off, value.to(dy.dtype.element_ty), mask=ok)
    if y2 is not None:
        yy = tl.load(y2 + off, mask=ok, other=0.0).to(tl.float32)
        mean, _, rstd, scale, shift = _moments(sums2, gamma2, beta2, cols, RC, M, T2, BT2)
        dgamma = _total(partial + 2 * RC, TG, KINDS * RC, cols, BTG)
        if tl.program_id(1) == 0:
            tl.store(grads + 2 * RC + cols, dgamma)
        value = scale[None, :] * (v - b[None, :] - (yy - mean[None, :]) * (dgamma / M * rstd)[None, :])
        tl.store(dy2 + off, value.to(dy2.dtype.element_ty), mask=ok)


@dataclasses.dataclass(frozen=True)
class Norm:
    """A BatchNorm in training: its input, the (partial) sums of its input's channels (T, 2, RC), its parameters."""

    y: Tensor
    sums: Tensor
    gamma: Tensor
    beta: Tensor


def normalise(
    norm: Norm, running: tuple[Tensor, Tensor], other: Norm | None, running2: tuple[Tensor, Tensor] | None,
    residual: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """relu(norm(y) [+ other(y2)] [+ residual]), and the new running mean and variance, (2, RC), of both."""
    M, RC = _size(norm.y)
    out, new = torch.empty_like(norm.y), torch.empty_like(norm.sums[0])
    new2 = None if other is None else torch.empty_like(new)
    launch(
        norm_kernel, (RC // COLUMNS, triton.cdiv(M, ROWS)),
        *_tensors(norm), *running, new, *_tensors(other), *(running2 or (None, None)), new2,
        residual, out, M, RC, *_count(norm.sums), *_count(None if other is None else other.sums), BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
    return out, new, new2


def norm_gradients(d: Tensor, norm: Norm, other: Norm | None, masked: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of y and of the other's y, and those of gamma, beta and the other's gamma as (kinds, RC)."""
    M, RC = _size(norm.y)
    kinds = 2 if other is None else 3
    counts = *_count(norm.sums), *_count(None if other is None else other.sums)
    partial = d.new_empty(triton.cdiv(M, 2 * ROWS), kinds, RC, dtype=torch.float32)
    launch(
        norm_sums_kernel, (RC // COLUMNS, len(partial)),
        d, *_tensors(norm), *_tensors(other), partial, M, RC, *counts,
        KINDS=kinds, MASKED=masked, BR=2 * ROWS, BC=COLUMNS,
    )  # fmt: skip
    partial = few(partial)
    grads = torch.empty_like(partial[0])
    dy, dy2 = torch.empty_like(norm.y), None if other is None else torch.empty_like(norm.y)
    launch(
        norm_gradient_kernel, (RC // COLUMNS, triton.cdiv(M, ROWS)),
        d, *_tensors(norm), dy, *_tensors(other), dy2, partial, grads, M, RC, *counts, *_count(partial),
        KINDS=kinds, MASKED=masked, BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
    return dy, dy2, grads


def _tensors(norm: Norm | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if norm is None else (norm.y, norm.sums, norm.gamma, norm.beta)


def _count(partial: Tensor | None) -> tuple[int, int]:
    """The number of partial sums, and the number that the kernel is compiled for."""
    T = 1 if partial is None else len(partial)
    return T, triton.next_power_of_2(T)


def _size(y: Tensor) -> tuple[int, int]:
    return y.numel() // y.shape[-1], y.shape[-1]
