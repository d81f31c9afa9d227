"""Triton kernels for the convolutions and BatchNorms of R replicas at once (Hopper or newer).

Activations of all replicas lie side by side, (N, H, W, R*C); filters are matrices (R*K, taps*C). What is read outside
an image is zero: the tensor-descriptor loads see to that. Sums over pixels leave a kernel as one partial sum per tile,
to be added in a fixed order, so the same inputs give the same bits. The tiles depend on how many replicas there are:
a replica among others gets the same bits again beside as many of them only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

EPS = tl.constexpr(1e-5)  # BatchNorm's
MOMENTUM = tl.constexpr(0.1)
COLUMNS = 64  # channels that a program of a BatchNorm kernel takes
ROWS = 64  # pixels that it takes, or twice as many where it sums
FEW = 32  # partial sums that a kernel adds up itself
MULTIPROCESSORS = 132  # of an H100 or H200: block sizes are chosen so that this many programs have work


@triton.jit
def _relu(x):
    """A NaN stays a NaN, as in PyTorch: a run that diverges must not look well."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def conv_kernel(
    x, w, y, x2, w2, residual, mask, scale, shift, partial, R, PER, HB,
    IN: tl.constexpr, OUT: tl.constexpr, KS: tl.constexpr, S: tl.constexpr, DGRAD: tl.constexpr, RELU: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution of replica r, or the gradient of its input: BN channels of BI images x BH rows x BW columns.

    x, y, residual and mask are seen as (N, H/s, s, W/s, s*R*C), so that a stride, or the parity of a pixel, is a
    coordinate. PER replicas in a row have the same filters. With stride 2 a gradient has four parities, each with taps
    of its own. Afterwards, where given: add another gradient (x2, w2: 1x1, stride 2), scale and shift, add the
    residual, ReLU, zero where the mask is not positive; and write the tile's sums of values and squares to partial
    (tiles, 2, R*OUT).
    """
    BM: tl.constexpr = BI * BH * BW
    blocks: tl.constexpr = OUT // BN
    steps: tl.constexpr = IN // BK
    tile = tl.program_id(0) // blocks
    r = tl.program_id(1)
    rw = r // PER
    k0 = tl.program_id(0) % blocks * BN
    n0 = tile // HB * BI
    h0 = tile % HB * BH
    if DGRAD and S == 2:
        parity = 3 - tl.program_id(2)  # those with most taps first
        ph = parity // 2
        pw = parity % 2
        taps_h = 1 + ph
        taps_w = 1 + pw
    else:
        parity = 0
        ph = 0
        pw = 0
        taps_h = KS
        taps_w = KS
    acc = tl.zeros((BN, BM), tl.float32)
    for i in range(taps_h * taps_w * steps):
        t = i // steps
        c = i % steps * BK
        a = t // taps_w
        b = t % taps_w
        if DGRAD:
            if S == 2:
                tap = (1 - ph + 2 * a) * KS + 1 - pw + 2 * b
                dh = ph - a
                dw = pw - b
            else:
                tap = t
                dh = KS // 2 - a
                dw = KS // 2 - b
            filters = w.load([rw * IN + c, tap * OUT + k0]).T
            pixels = x.load([n0, h0 + dh, 0, dw, r * IN + c])
        else:
            dh = a - KS // 2
            dw = b - KS // 2
            filters = w.load([rw * OUT + k0, t * IN + c])
            column = ((dw & (S - 1)) * R + r) * IN + c
            pixels = x.load([n0, h0 + (dh >> (S - 1)), dh & (S - 1), dw >> (S - 1), column])
        acc = tl.dot(filters, pixels.reshape(BM, BK).T, acc)
    if x2 is not None:
        for i in range(tl.where(parity == 0, steps, 0)):
            filters = w2.load([rw * IN + i * BK, k0]).T
            pixels = x2.load([n0, h0, 0, 0, r * IN + i * BK])
            acc = tl.dot(filters, pixels.reshape(BM, BK).T, acc)
    channels = r * OUT + k0 + tl.arange(0, BN)
    column = (pw * R + r) * OUT + k0
    if scale is not None:
        acc = acc * tl.load(scale + channels)[:, None] + tl.load(shift + channels)[:, None]
    if residual is not None:
        acc += residual.load([n0, h0, ph, 0, column]).reshape(BM, BN).T.to(tl.float32)
    if RELU:
        acc = _relu(acc)
    if mask is not None:
        acc = tl.where(mask.load([n0, h0, ph, 0, column]).reshape(BM, BN).T.to(tl.float32) <= 0, 0.0, acc)
    values = acc.to(y.dtype)
    if partial is not None:
        rounded = values.to(tl.float32)
        tl.store(partial + tile * 2 * R * OUT + channels, tl.sum(rounded, 1))
        tl.store(partial + (tile * 2 + 1) * R * OUT + channels, tl.sum(rounded * rounded, 1))
    y.store([n0, h0, ph, 0, column], values.T.reshape(BI, BH, 1, BW, BN))


@triton.jit
def filter_gradient_kernel(
    x, dy, dw, R, HB, TILES, C: tl.constexpr, K: tl.constexpr, KS: tl.constexpr, S: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """dw[part, k, tap, c]: the sum over the pixels of a part of dy[., k] * x[. moved by the tap, c]."""
    BP: tl.constexpr = BI * BH * BW
    blocks: tl.constexpr = C // BN
    t = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS
    r = tl.program_id(2)
    k0 = tl.program_id(0) // blocks * BM
    c0 = tl.program_id(0) % blocks * BN
    dh = t // KS - KS // 2
    dw_ = t % KS - KS // 2
    column = ((dw_ & (S - 1)) * R + r) * C + c0
    acc = tl.zeros((BM, BN), tl.float32)
    per = tl.cdiv(TILES, PARTS)
    for i in range(part * per, tl.minimum(part * per + per, TILES)):
        g = dy.load([i * BP, r * K + k0])
        pixels = x.load([i // HB * BI, i % HB * BH + (dh >> (S - 1)), dh & (S - 1), dw_ >> (S - 1), column])
        acc = tl.dot(g.T, pixels.reshape(BP, BN), acc)
    dw.store([(part * R + r) * K + k0, t * C + c0], acc)


@triton.jit
def add_up_kernel(partial, out, T, n, BT: tl.constexpr, BC: tl.constexpr):
    """out[j]: the sum over t of partial[t, j]."""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros((BT, BC), tl.float32)
    for t in range(0, T, BT):
        rows = t + tl.arange(0, BT)
        acc += tl.load(
            partial + rows[:, None] * n + cols[None, :], mask=(rows < T)[:, None] & (cols < n)[None, :], other=0.0
        )
    tl.store(out + cols, tl.sum(acc, 0), mask=cols < n)


@triton.jit
def _total(partial, T, stride, cols, BT: tl.constexpr):
    """The sum of T partial sums of each column, at most BT."""
    rows = tl.arange(0, BT)
    return tl.sum(tl.load(partial + rows[:, None] * stride + cols[None, :], mask=(rows < T)[:, None], other=0.0), 0)


@triton.jit
def _moments(sums, gamma, beta, cols, RC, M, T, BT: tl.constexpr):
    """A column's mean, variance, 1/deviation, scale and shift, from sums (T, 2, RC)."""
    mean = _total(sums, T, 2 * RC, cols, BT) / M
    var = _relu(_total(sums + RC, T, 2 * RC, cols, BT) / M - mean * mean)
    rstd = 1.0 / tl.sqrt(var + EPS)
    scale = tl.load(gamma + cols) * rstd
    return mean, var, rstd, scale, tl.load(beta + cols) - mean * scale


@triton.jit
def _normalised(y, sums, gamma, beta, running, variance, new, off, ok, cols, RC, M, T, BT: tl.constexpr):
    """BatchNorm of y in training. The first rows' program also writes the new running mean and variance."""
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
    tl.store(out + off, _relu(v).to(out.dtype.element_ty), mask=ok)


@triton.jit
def norm_sums_kernel(
    d, y, sums, gamma, beta, y2, sums2, gamma2, beta2, partial, M, RC, T, BT: tl.constexpr, T2, BT2: tl.constexpr,
    KINDS: tl.constexpr, MASKED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A tile's part of the gradients of gamma, beta and (with y2) gamma2: partial (tiles, KINDS, RC).

    d is the gradient of the BatchNorm's output or, MASKED, of a ReLU behind it.
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
    KINDS: tl.constexpr, MASKED: tl.constexpr, FROZEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of a BatchNorm's input y (and of y2), from the sums of :func:`norm_sums_kernel`.

    The first rows' program also writes these sums to grads (KINDS, RC). The statistics of a FROZEN BatchNorm do not
    depend on its input.
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
    value = v
    if not FROZEN:
        value = v - b[None, :] - (yy - mean[None, :]) * (dgamma / M * rstd)[None, :]
    value = scale[None, :] * value
    tl.store(dy + off, value.to(dy.dtype.element_ty), mask=ok)
    if y2 is not None:
        yy = tl.load(y2 + off, mask=ok, other=0.0).to(tl.float32)
        mean, _, rstd, scale, shift = _moments(sums2, gamma2, beta2, cols, RC, M, T2, BT2)
        dgamma = _total(partial + 2 * RC, TG, KINDS * RC, cols, BTG)
        if tl.program_id(1) == 0:
            tl.store(grads + 2 * RC + cols, dgamma)
        value = v
        if not FROZEN:
            value = v - b[None, :] - (yy - mean[None, :]) * (dgamma / M * rstd)[None, :]
        value = scale[None, :] * value
        tl.store(dy2 + off, value.to(dy2.dtype.element_ty), mask=ok)


@triton.jit
def sgd_kernel(p, g, lr, out, copy, n, per, B: tl.constexpr):
    """out = p - lr of the replica * g; copy = out in the precision that convolutions read."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    ok = i < n
    v = tl.load(p + i, mask=ok) - tl.load(lr + i // per, mask=ok) * tl.load(g + i, mask=ok)
    tl.store(out + i, v, mask=ok)
    tl.store(copy + i, v.to(copy.dtype.element_ty), mask=ok)


@triton.jit
def surrogate_kernel(p, g, path, importance, start, lr, c, copy, n, per, B: tl.constexpr):
    """SI's step of p along g, in place, and its part of the path integral; lr and c are those of the replica."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    ok = i < n
    rate = tl.load(lr + i // per, mask=ok, other=0.0)
    pull = 2 * rate * tl.load(c + i // per, mask=ok, other=0.0) * tl.load(importance + i, mask=ok, other=0.0)
    before = tl.load(p + i, mask=ok, other=0.0)
    along = tl.load(g + i, mask=ok, other=0.0)
    v = before - (rate * along + pull * (before - tl.load(start + i, mask=ok, other=0.0))) / (1 + pull)
    tl.store(path + i, tl.load(path + i, mask=ok, other=0.0) - along * (v - before), mask=ok)
    tl.store(p + i, v, mask=ok)
    tl.store(copy + i, v.to(copy.dtype.element_ty), mask=ok)


@triton.jit
def gram_kernel(g, rows, partial, T, n, per, B: tl.constexpr, BT: tl.constexpr):
    """partial[part, r]: the inner products of replica r's g (n,) and its T rows (T, n), over n numbers ``per`` part.

    Three products of ten bits each make one of float32's precision.
    """
    part = tl.program_id(0)
    r = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, BT)
    acc = tl.zeros((BT, BT), tl.float32)
    for start in range(part * per, tl.minimum(part * per + per, n), B):
        i = start + tl.arange(0, B)
        ok = (i < n)[None, :]
        is_row = ((t > 0) & (t <= T))[:, None]
        a = tl.load(rows + ((r * T + t - 1) * n)[:, None] + i[None, :], mask=is_row & ok, other=0.0)
        a += tl.load(g + r * n + i[None, :] + 0 * t[:, None], mask=(t == 0)[:, None] & ok, other=0.0)
        acc = tl.dot(a, a.T, acc, input_precision="tf32x3")
    place = partial + ((part * tl.num_programs(1) + r) * BT + t)[:, None] * BT + t[None, :]
    tl.store(place, acc)


@triton.jit
def combine_kernel(g, rows, v, out, T, n, B: tl.constexpr):
    """out = g + the sum over t of v[r, t] * rows[r, t]."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    r = tl.program_id(1).to(tl.int64)
    ok = i < n
    acc = tl.load(g + r * n + i, mask=ok, other=0.0)
    for t in range(T):
        acc += tl.load(v + r * T + t) * tl.load(rows + (r * T + t) * n + i, mask=ok, other=0.0)
    tl.store(out + r * n + i, acc, mask=ok)


@triton.jit
def columns_kernel(x, out, stride, R, N, H, W, BM: tl.constexpr):
    """out[n, h, w, r, (kh, kw, c)]: the 3x3 neighbourhoods of images x[r, n, c, h, w]; 27 columns and 5 of zeros."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    r = tl.program_id(1)
    j = tl.arange(0, 32)
    n = m // (H * W)
    h = (m // W % H)[:, None] + (j // 9 - 1)[None, :]
    w = (m % W)[:, None] + (j // 3 % 3 - 1)[None, :]
    ok = (m < N * H * W)[:, None]
    inside = ok & (j < 27)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    v = tl.load(x + r * stride + ((n[:, None] * 3 + (j % 3)[None, :]) * H + h) * W + w, mask=inside, other=0.0)
    tl.store(out + (m * R + r)[:, None] * 32 + j[None, :], v.to(out.dtype.element_ty), mask=ok)


@dataclasses.dataclass(frozen=True)
class Conv:
    """The shape of a convolution: C to K channels, ks x ks taps, from images of ``side`` pixels to side / stride."""

    C: int
    K: int
    ks: int
    stride: int
    side: int

    @property
    def out(self) -> int:
        return self.side // self.stride


_compile_only = False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, launches only compile their kernels, on all processors at once."""
    global _compile_only
    _compile_only = True
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
            yield
    finally:
        _compile_only = False


def launch(kernel, grid, *arguments, **settings):
    if _compile_only:
        kernel.warmup(*arguments, grid=grid, **settings)
    else:
        kernel[grid](*arguments, **settings)


def _tile(side: int, pixels: int) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of so many pixels: whole rows, then whole images."""
    rows = max(1, min(side, pixels // side))
    return max(1, pixels // (side * rows)), rows, side


def _images(t: Tensor, s: int, block: list[int]) -> TensorDescriptor:
    """(N, H, W, X) as (N, H/s, s, W/s, s*X)."""
    N, H, W, X = t.shape
    return TensorDescriptor(t, [N, H // s, s, W // s, s * X], [H * W * X, s * W * X, W * X, s * X, 1], block)


def _conv_blocks(conv: Conv, OUT: int, images: int, N: int) -> tuple[int, int, int, int]:
    """Channels and pixels of a tile, warps and stages: large tiles, where enough programs are left."""
    if OUT == 64:
        return 64, 128, 4, 3
    bi, bh, _ = _tile(conv.out, 128)
    programs = triton.cdiv(N, bi) * (conv.out // bh) * (OUT // 128) * images
    return (128, 128, 8, 3) if programs >= MULTIPROCESSORS else (128, 64, 4, 4)


def _filter_blocks(conv: Conv, R: int, N: int) -> tuple[int, int, int, int, int]:
    """Output and input channels of a tile, warps, stages, and in how many parts the pixels are summed."""
    bm, bn = (128, 128) if conv.C >= 128 else (64, min(conv.C, 64))
    programs, parts = (conv.K // bm) * (conv.C // bn) * conv.ks**2 * R, 1
    enough = MULTIPROCESSORS if bm == 64 else MULTIPROCESSORS * 2 // 3
    while programs * parts < enough and N * conv.out**2 >= 512 * parts:
        parts *= 2
    warps, stages = (8, 4) if conv.C >= 128 and conv.K > 128 else (4, 3) if conv.C >= 128 else (4, 4)
    return bm, bn, warps, stages, parts


def convolve(
    conv: Conv, R: int, x: Tensor, w: Tensor, *, gradient: bool = False, statistics: bool = False, relu: bool = False,
    x2: Tensor | None = None, w2: Tensor | None = None, residual: Tensor | None = None, mask: Tensor | None = None,
    scale: Tensor | None = None, shift: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The convolution of x or, with ``gradient``, the gradient of its input where that of its output is x.

    Where there are fewer filters (rows of w) than R replicas have, several replicas in a row share them.
    What is done to it afterwards, see :func:`conv_kernel`; with ``statistics`` the sums of values and squares of each
    channel are the second result: (T, 2, R*K), T sums to be added.
    """
    IN, OUT = (conv.K, conv.C) if gradient else (conv.C, conv.K)
    s_in, s_out = (1, conv.stride) if gradient else (conv.stride, 1)
    N, side, parities = len(x), conv.out * s_out, conv.stride**2 if gradient else 1

    bn, pixels, warps, stages = _conv_blocks(conv, OUT, R * parities, N)
    (bi, bh, bw), bk = _tile(conv.out, pixels), min(64, IN)
    y = x.new_empty(N, side, side, R * OUT)
    tiles = triton.cdiv(N, bi) * (conv.out // bh)
    partial = x.new_empty(tiles, 2, R * OUT, dtype=torch.float32) if statistics else None

    def given(t: Tensor | None) -> TensorDescriptor | None:
        return None if t is None else _images(t, s_out, [bi, bh, 1, bw, bn])

    taken = [bi, bh, 1, bw, bk]
    launch(
        conv_kernel, (tiles * (OUT // bn), R, parities),
        _images(x, s_in, taken), TensorDescriptor.from_tensor(w, [bk, bn] if gradient else [bn, bk]), given(y),
        None if x2 is None else _images(x2, 1, taken),
        None if w2 is None else TensorDescriptor.from_tensor(w2, [bk, bn]),
        given(residual), given(mask), scale, shift, partial, R, R * conv.K // len(w), conv.out // bh,
        IN=IN, OUT=OUT, KS=conv.ks, S=conv.stride, DGRAD=gradient, RELU=relu,
        BI=bi, BH=bh, BW=bw, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, None if partial is None else few(partial)


def filter_gradient(conv: Conv, R: int, x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of the filters, as a matrix (R*K, taps*C) in float32."""
    taps, N = conv.ks**2, len(x)
    bm, bn, warps, stages, parts = _filter_blocks(conv, R, N)
    bi, bh, bw = _tile(conv.out, 64)
    dw = x.new_empty(parts, R * conv.K, taps * conv.C, dtype=torch.float32)
    launch(
        filter_gradient_kernel, ((conv.K // bm) * (conv.C // bn), taps * parts, R),
        _images(x, conv.stride, [bi, bh, 1, bw, bn]),
        TensorDescriptor.from_tensor(dy.view(-1, R * conv.K), [bi * bh * bw, bm]),
        TensorDescriptor.from_tensor(dw.flatten(0, 1), [bm, bn]),
        R, conv.out // bh, triton.cdiv(N, bi) * (conv.out // bh),
        C=conv.C, K=conv.K, KS=conv.ks, S=conv.stride, BI=bi, BH=bh, BW=bw, BM=bm, BN=bn, PARTS=parts,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dw[0] if parts == 1 else add_up(dw)


def add_up(partial: Tensor) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    out = torch.empty_like(partial[0])
    T, n = len(partial), out.numel()
    bt = min(256, triton.next_power_of_2(T))
    bc = 32 if bt > 8 else 512
    launch(add_up_kernel, (triton.cdiv(n, bc),), partial, out, T, n, BT=bt, BC=bc)
    return out


def few(partial: Tensor) -> Tensor:
    """Partial sums, so few that a kernel can add them up."""
    return partial if len(partial) <= FEW else add_up(partial).unsqueeze(0)


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
    """relu(norm(y) [+ the other's] [+ residual]) and the new running mean and variance, (2, RC), of both."""
    M, RC = _size(norm.y)
    out, new = torch.empty_like(norm.y), torch.empty_like(norm.sums[0])
    new2 = None if other is None else torch.empty_like(new)
    launch(
        norm_kernel, (RC // COLUMNS, triton.cdiv(M, ROWS)),
        *_tensors(norm), *running, new, *_tensors(other), *(running2 or (None, None)), new2,
        residual, out, M, RC, *_count(norm.sums), *_count(None if other is None else other.sums), BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
    return out, new, new2


def norm_gradients(
    d: Tensor, norm: Norm, other: Norm | None, masked: bool, frozen: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of y, of the other's, and (kinds, RC) those of gamma, beta and the other's gamma."""
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
        KINDS=kinds, MASKED=masked, FROZEN=frozen, BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
    return dy, dy2, grads


def _tensors(norm: Norm | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if norm is None else (norm.y, norm.sums, norm.gamma, norm.beta)


def _count(partial: Tensor | None) -> tuple[int, int]:
    """How many partial sums there are, and for how many a kernel is to be made."""
    T = 1 if partial is None else len(partial)
    return T, triton.next_power_of_2(T)


def _size(y: Tensor) -> tuple[int, int]:
    return y.numel() // y.shape[-1], y.shape[-1]


def sgd(p: Tensor, g: Tensor, lr: Tensor, out: Tensor, copy: Tensor) -> None:
    """out = p - lr * g for stacked parameters that lie alike in memory, and the copy of it that convolutions read."""
    n = p.numel()
    launch(sgd_kernel, (triton.cdiv(n, 2048),), p, g, lr, out, copy, n, n // len(p), B=2048, num_warps=8)


def surrogate(tensors: Sequence[Tensor], lr: Tensor, c: Tensor, copy: Tensor) -> None:
    """SI's step in place for stacked tensors that lie alike in memory, and the copy that convolutions read.

    ``tensors`` are those of :func:`surrogate_kernel`, the parameters first.
    """
    n, R = tensors[0].numel(), len(tensors[0])
    launch(surrogate_kernel, (triton.cdiv(n, 2048),), *tensors, lr, c, copy, n, n // R, B=2048, num_warps=8)


def gram(g: Tensor, rows: Tensor) -> Tensor:
    """The inner products of g (R, n) and rows (R, T, n): (R, 1 + T, 1 + T), in float64."""
    (R, n), T, block = g.shape, rows.shape[1], 128
    bt = max(16, triton.next_power_of_2(1 + T))
    parts = min(triton.cdiv(n, block), max(1, 4 * MULTIPROCESSORS // R))
    per = triton.cdiv(triton.cdiv(n, parts), block) * block
    parts = triton.cdiv(n, per)
    partial = g.new_empty(parts, R, bt, bt)
    launch(gram_kernel, (parts, R), g, rows, partial, T, n, per, B=block, BT=bt, num_warps=4)
    return partial[:, :, : 1 + T, : 1 + T].sum(0, dtype=torch.float64)


def combine(g: Tensor, rows: Tensor, v: Tensor) -> Tensor:
    """g (R, n) plus the sum of rows (R, T, n), weighted with v (R, T)."""
    (R, n), out = g.shape, torch.empty_like(g)
    launch(combine_kernel, (triton.cdiv(n, 1024), R), g, rows, v, out, rows.shape[1], n, B=1024)
    return out


def columns(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The 3x3 neighbourhoods of images (R, N, 3, H, W) as (N, H, W, R*32): the stem is a 1x1 convolution of them."""
    R, N, _, H, W = x.shape
    x = x if x[0].is_contiguous() else x.contiguous()
    out = x.new_empty(N, H, W, R * 32, dtype=dtype)
    launch(columns_kernel, (triton.cdiv(N * H * W, 64), R), x, out, x.stride(0), R, N, H, W, BM=64)
    return out
