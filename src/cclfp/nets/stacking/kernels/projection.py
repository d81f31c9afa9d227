"""Inner products and linear combinations of gradients, for GEM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclfp.nets.stacking.kernels.launch import MULTIPROCESSORS, launch


@triton.jit
def gram_kernel(g, rows, partial, T, n, per, B: tl.constexpr, BT: tl.constexpr):
    """partial[part, r]: the inner products of replica r's g (n,) and its T rows (T, n), over ``per`` of the n numbers.

    Three TF32 products, of ten bits each, give one product in the precision of float32.
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
    """g (R, n) plus the sum of rows (R, T, n) weighted with v (R, T)."""
    (R, n), out = g.shape, torch.empty_like(g)
    launch(combine_kernel, (triton.cdiv(n, 1024), R), g, rows, v, out, rows.shape[1], n, B=1024)
    return out
