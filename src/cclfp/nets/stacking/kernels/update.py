"""The steps of SGD and SI on the filters, which also write the rounded copies."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from cclfp.nets.stacking.kernels.launch import MULTIPROCESSORS, launch

# Programs of the SGD kernel: enough to use the memory's bandwidth, few enough to leave room for other kernels.
PROGRAMS = 4 * MULTIPROCESSORS


@triton.jit
def sgd_kernel(p, g, lr, out, copy, n, per, B: tl.constexpr):
    """out = p - lr * g with the lr of the replica; copy = out in the precision that convolutions read."""
    for start in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
        i = start + tl.arange(0, B)
        ok = i < n
        v = tl.load(p + i, mask=ok) - tl.load(lr + i // per, mask=ok) * tl.load(g + i, mask=ok)
        tl.store(out + i, v, mask=ok)
        tl.store(copy + i, v.to(copy.dtype.element_ty), mask=ok)


@triton.jit
def surrogate_kernel(p, g, path, importance, start, lr, c, copy, n, per, B: tl.constexpr):
    """SI's step of p along g in place, and its part of the path integral, with the lr and c of the replica."""
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


def sgd(p: Tensor, g: Tensor, lr: Tensor, out: Tensor, copy: Tensor) -> None:
    """out = p - lr * g for stacked parameters with equal strides, and the copy of it that convolutions read."""
    n = p.numel()
    launch(sgd_kernel, (min(triton.cdiv(n, 2048), PROGRAMS),), p, g, lr, out, copy, n, n // len(p), B=2048, num_warps=8)


def surrogate(tensors: Sequence[Tensor], lr: Tensor, c: Tensor, copy: Tensor) -> None:
    """SI's step in place for stacked tensors with equal strides, and the copy that convolutions read.

    ``tensors`` are the first five arguments of :func:`surrogate_kernel`.
    """
    n, R = tensors[0].numel(), len(tensors[0])
    launch(surrogate_kernel, (triton.cdiv(n, 2048),), *tensors, lr, c, copy, n, n // R, B=2048, num_warps=8)
