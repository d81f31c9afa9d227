"""Weighted sums of activations and sums of their products, for :mod:`cclfp.nets.stacking.tangents`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclfp.nets.stacking.kernels.launch import COLUMNS, ROWS, launch
from cclfp.nets.stacking.kernels.sums import add_up

MOST = 5  # tensors per blend


@triton.jit
def blend_kernel(
    t0, t1, t2, t3, t4, mask, out, weights, M, RC, K: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """out = the sum over k of weights[k] * t_k, plus weights[K]; zero where the mask is not positive."""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    rows = tl.program_id(1) * BR + tl.arange(0, BR)
    off = rows[:, None] * RC + cols[None, :]
    ok = (rows < M)[:, None]
    v = tl.zeros((BR, BC), tl.float32) + tl.load(weights + K * RC + cols)[None, :]
    v += tl.load(t0 + off, mask=ok, other=0.0).to(tl.float32) * tl.load(weights + cols)[None, :]
    if t1 is not None:
        v += tl.load(t1 + off, mask=ok, other=0.0).to(tl.float32) * tl.load(weights + RC + cols)[None, :]
    if t2 is not None:
        v += tl.load(t2 + off, mask=ok, other=0.0).to(tl.float32) * tl.load(weights + 2 * RC + cols)[None, :]
    if t3 is not None:
        v += tl.load(t3 + off, mask=ok, other=0.0).to(tl.float32) * tl.load(weights + 3 * RC + cols)[None, :]
    if t4 is not None:
        v += tl.load(t4 + off, mask=ok, other=0.0).to(tl.float32) * tl.load(weights + 4 * RC + cols)[None, :]
    if mask is not None:
        v = tl.where(tl.load(mask + off, mask=ok, other=0.0).to(tl.float32) <= 0, 0.0, v)
    tl.store(out + off, v.to(out.dtype.element_ty), mask=ok)


@triton.jit
def pair_sums_kernel(
    a, y, mean, b, h, partial, M, RC, KINDS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """A tile's sums of a * (y - mean), of a and, where given, of b * h: partial (tiles, KINDS, RC)."""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    rows = tl.program_id(1) * BR + tl.arange(0, BR)
    off = rows[:, None] * RC + cols[None, :]
    ok = (rows < M)[:, None]
    place = partial + tl.program_id(1) * KINDS * RC + cols
    v = tl.load(a + off, mask=ok, other=0.0).to(tl.float32)
    centred = tl.load(y + off, mask=ok, other=0.0).to(tl.float32) - tl.load(mean + cols)[None, :]
    tl.store(place, tl.sum(v * centred, 0))
    tl.store(place + RC, tl.sum(v, 0))
    if b is not None:
        v = tl.load(b + off, mask=ok, other=0.0).to(tl.float32) * tl.load(h + off, mask=ok, other=0.0).to(tl.float32)
        tl.store(place + 2 * RC, tl.sum(v, 0))


def blend(tensors: Sequence[Tensor], weights: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    """The sum of activations (N, H, W, RC), each weighted with a vector (RC), plus the last vector of ``weights``.

    It is zero where the mask, if given, is not positive.
    """
    assert len(tensors) + 1 == len(weights) <= MOST + 1
    first, out = tensors[0], torch.empty_like(tensors[0])
    M, RC = first.numel() // first.shape[-1], first.shape[-1]
    launch(
        blend_kernel, (RC // COLUMNS, triton.cdiv(M, ROWS)),
        *tensors, *[None] * (MOST - len(tensors)), mask, out, torch.stack(list(weights)), M, RC,
        K=len(tensors), BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
    return out


def pair_sums(a: Tensor, y: Tensor, mean: Tensor, b: Tensor | None = None, h: Tensor | None = None) -> Tensor:
    """The sums over all pixels of a * (y - mean), of a and, where given, of b * h: (kinds, RC)."""
    M, RC = a.numel() // a.shape[-1], a.shape[-1]
    kinds = 2 if b is None else 3
    partial = a.new_empty(triton.cdiv(M, 2 * ROWS), kinds, RC, dtype=torch.float32)
    launch(
        pair_sums_kernel, (RC // COLUMNS, len(partial)),
        a, y, mean, b, h, partial, M, RC, KINDS=kinds, BR=2 * ROWS, BC=COLUMNS,
    )  # fmt: skip
    return add_up(partial)
