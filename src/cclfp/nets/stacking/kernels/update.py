"""The step of SGD on the filters, which also writes the rounded copies."""

from __future__ import annotations

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


def sgd(p: Tensor, g: Tensor, lr: Tensor, out: Tensor, copy: Tensor) -> None:
    """out = p - lr * g for stacked parameters with equal strides, and the copy of it that convolutions read."""
    n = p.numel()
    launch(sgd_kernel, (min(triton.cdiv(n, 2048), PROGRAMS),), p, g, lr, out, copy, n, n // len(p), B=2048, num_warps=8)
