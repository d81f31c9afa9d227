"""Launching kernels, compiling them in parallel beforehand, ReLU, sums, and the step of SGD.

CPU builds of torch have no Triton, so the other modules import those whose names begin with ``triton_`` in functions.
These are kernels for R replicas at once (Hopper or newer). The activations of all replicas lie side by side, (N, H, W,
R*C). Filters are matrices (R*K, taps*C). Pixels outside an image are read as zeros by the tensor descriptors. A kernel
that sums over pixels writes one partial sum per tile; these are added in a fixed order, so the same inputs give the
same bits. The tiles depend on the number of replicas: a replica gets the same bits again only beside the same number of
others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64  # channels per program of a BatchNorm kernel
ROWS = 64  # pixels per program, or twice as many in the kernels that sum
MULTIPROCESSORS = 132  # of an H100 or H200: block sizes are chosen so that this many programs have work

_compile_only = False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, launches only compile their kernels, on all processors in parallel."""
    global _compile_only
    _compile_only = True
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
            yield
    finally:
        _compile_only = False


def launch(kernel, grid, *arguments, **settings):
    """Run the kernel on the grid or, inside :func:`compiling`, compile it."""
    if _compile_only:
        kernel.warmup(*arguments, grid=grid, **settings)
    else:
        kernel[grid](*arguments, **settings)


@triton.jit
def relu(x):
    """A NaN stays a NaN, as in PyTorch: a run that diverges must not look healthy."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


# -- sums --------------------------------------------------------------------------------------------------------------

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


# -- SGD ---------------------------------------------------------------------------------------------------------------

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
