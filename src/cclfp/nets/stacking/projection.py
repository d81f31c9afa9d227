"""GEM's projection of gradients for stacked replicas: their inner products, and their linear combinations.

g is the gradient of one parameter, and ``rows`` are T gradients of the same parameter, stacked in the first dimension.
Under vmap the rules put the replicas side by side and launch the kernels once for all of them. In plain PyTorch, a
matrix of all gradients in float64 would move ten times as much memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cclfp.nets.stacking.arrangement import replicas_first


class Products(torch.autograd.Function):
    """The inner products of g and the rows, in float64: (1 + T, 1 + T)."""

    @staticmethod
    def forward(g: Tensor, rows: Tensor) -> Tensor:
        return run_products(_flat(g[None], 1), _flat(rows[None], 2))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Tensor) -> tuple[Tensor, int]:
        g, rows = replicas_first(info.batch_size, dims, tensors)
        return run_products(_flat(g, 1), _flat(rows, 2)), 0


class Combined(torch.autograd.Function):
    """g plus the sum of the rows, weighted with v (T,)."""

    @staticmethod
    def forward(g: Tensor, rows: Tensor, v: Tensor) -> Tensor:
        return _like(run_combined(_flat(g[None], 1), _flat(rows[None], 2), v[None].contiguous()), g[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Tensor) -> tuple[Tensor, int]:
        g, rows, v = replicas_first(info.batch_size, dims, tensors)
        return _like(run_combined(_flat(g, 1), _flat(rows, 2), v.contiguous()), g), 0


def run_products(g: Tensor, rows: Tensor) -> Tensor:
    """The inner products (R, 1 + T, 1 + T) of g (R, n) and rows (R, T, n)."""
    from cclfp.nets.stacking import kernels

    return kernels.gram(g, rows)


def run_combined(g: Tensor, rows: Tensor, v: Tensor) -> Tensor:
    """g (R, n) plus the sum of rows (R, T, n), weighted with v (R, T)."""
    from cclfp.nets.stacking import kernels

    return kernels.combine(g, rows, v)


def _flat(t: Tensor, leading: int) -> Tensor:
    """Flatten all but the leading dimensions, contiguously; filters in their order in memory, channels last."""
    t = t.movedim(-3, -1) if t.ndim == leading + 4 else t
    return t.flatten(leading).contiguous()


def _like(flat: Tensor, g: Tensor) -> Tensor:
    """The inverse of :func:`_flat` for a tensor with the shape of g."""
    return flat.view(g.movedim(-3, -1).shape).movedim(-1, -3) if g.ndim == 5 else flat.view(g.shape)
