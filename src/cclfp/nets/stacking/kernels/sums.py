"""Adding up the partial sums that other kernels write, one per tile, in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclfp.nets.stacking.kernels.launch import launch

FEW = 32  # partial sums that a kernel adds up itself


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


def add_up(partial: Tensor) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    out = torch.empty_like(partial[0])
    T, n = len(partial), out.numel()
    bt = min(256, triton.next_power_of_2(T))
    bc = 32 if bt > 8 else 512
    launch(add_up_kernel, (triton.cdiv(n, bc),), partial, out, T, n, BT=bt, BC=bc)
    return out


def few(partial: Tensor) -> Tensor:
    """The partial sums, added up first if they are too many for the kernel that reads them."""
    return partial if len(partial) <= FEW else add_up(partial).unsqueeze(0)
