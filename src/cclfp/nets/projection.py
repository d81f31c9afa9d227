"""What GEM does to gradients, for stacked replicas: inner products, and sums that they are the weights of.

A gradient is a tensor g of one parameter, and ``rows`` are T more of its kind, with a dimension of T first. Under vmap
the rules put the replicas side by side and run :mod:`cclfp.nets.kernels` once for all of them. PyTorch's own way, a
matrix of all gradients in float64, moves ten times as much memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cclfp.nets.stacked import replicas_first


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
    from cclfp.nets import kernels

    return kernels.gram(g, rows)


def run_combined(g: Tensor, rows: Tensor, v: Tensor) -> Tensor:
    """g (R, n) plus the sum of rows (R, T, n), weighted with v (R, T)."""
    from cclfp.nets import kernels

    return kernels.combine(g, rows, v)


def _flat(t: Tensor, leading: int) -> Tensor:
    """All but the leading dimensions as one, contiguous; filters' in the order they lie in memory, channels last."""
    t = t.movedim(-3, -1) if t.ndim == leading + 4 else t
    return t.flatten(leading).contiguous()


def _like(flat: Tensor, g: Tensor) -> Tensor:
    """A tensor that :func:`_flat` made, as it was."""
    return flat.view(g.movedim(-3, -1).shape).movedim(-1, -3) if g.ndim == 5 else flat.view(g.shape)
