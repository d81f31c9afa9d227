"""SI's step for stacked replicas: one kernel per layer for the filters, instead of forty passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.nets.stacking.arrangement import lying_like, replicas_first
from cclfp.nets.stacking.rounding import copy_of


def surrogate_step(tensors: Sequence[Tensor], lr: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One parameter after a step of SI, and its path integral (see :class:`cclfp.methods.si.SI`).

    ``tensors`` are the parameter, its gradient, path integral and importance, and its value when the task began.
    """
    p, g, path, importance, start = tensors
    pull = 2 * lr * c * importance
    new = p - (lr * g + pull * (p - start)) / (1 + pull)
    return new, path - g * (new - p)


class SurrogateUpdate(torch.autograd.Function):
    """:func:`surrogate_step` for a list of parameters: the new parameters, then their path integrals.

    ``tensors`` are all parameters, then all gradients, and so on. Nothing may read the parameters and path integrals
    any more: those of the filters are overwritten.
    """

    @staticmethod
    def forward(lr: Tensor, c: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _flat([surrogate_step(own, lr, c) for own in _by_parameter(tensors)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, dims: Any, lr: Tensor, c: Tensor, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        lr, c, *stacked = replicas_first(info.batch_size, dims, [lr, c, *tensors])
        lr, c = lr.contiguous(), c.contiguous()
        new = []
        for own in _by_parameter(stacked):
            p, _, path, *_ = own
            copy = copy_of(p)
            if copy is None or path.stride() != p.stride():
                ones = [1] * (p.ndim - 1)
                new.append(surrogate_step(own, lr.view(-1, *ones), c.view(-1, *ones)))
            else:
                run_surrogate([lying_like(t, p) for t in own], lr, c, copy)
                new.append((p, path))
        return _flat(new), (0,) * (2 * len(new))


def _by_parameter(tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    n = len(tensors) // 5
    return list(zip(*(tensors[i * n : (i + 1) * n] for i in range(5)), strict=True))


def _flat(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    return tuple(new for new, _ in pairs) + tuple(path for _, path in pairs)


def run_surrogate(tensors: Sequence[Tensor], lr: Tensor, c: Tensor, copy: Tensor) -> None:
    """:func:`surrogate_step` of stacked parameters, in place. Also writes their copy in another precision."""
    from cclfp.nets.stacking import kernels

    kernels.surrogate(tensors, lr, c, copy)
