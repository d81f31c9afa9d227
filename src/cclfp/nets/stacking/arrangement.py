"""How the tensors of stacked replicas are arranged: under vmap, in memory, and as the kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cclfp.nets.stacking.layout import Layout, Parts
from cclfp.nets.stacking.rounding import copy_of, round_all


def replicas_first(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with the dimension of vmap first."""
    return [
        t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, dims, strict=True)
    ]


def lying_like(t: Tensor, model: Tensor) -> Tensor:
    """The tensor with the memory layout of the model, copied only if its strides differ."""
    strides = zip(t.shape, t.stride(), model.stride(), strict=True)
    return t if all(a == b for size, a, b in strides if size > 1) else torch.empty_like(model).copy_(t)


def parts_of(layout: Layout, tensors: Sequence[Tensor], kinds: int, replicas: int) -> Parts:
    """The network's tensors, grouped by kind: the vectors once per replica, the filters once per network."""
    n = len(layout.layers)
    vectors = [t if len(t) == replicas else t.repeat_interleave(replicas // len(t), 0) for t in tensors[n:]]
    return [list(tensors[:n]), *(vectors[i * n : (i + 1) * n] for i in range(kinds - 1))]


def convs_of(layout: Layout, side: int) -> list[Any]:
    """The shapes of all convolutions, for images of ``side`` pixels."""
    from cclfp.nets.stacking import kernels

    shapes = (layer.shape for layer in layout.layers)
    return [kernels.Conv(C, K, ks, stride, side // shrunk) for C, K, ks, stride, shrunk in shapes]


def matrices_of(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Filters (R, K, C, kh, kw) as the kernels read them: rounded, (R*K, taps*C)."""
    copies = [copy_of(w) for w in filters]
    made = iter(round_all([w for w, copy in zip(filters, copies, strict=True) if copy is None], dtype))
    return [_matrix(next(made) if copy is None else copy) for copy in copies]


def with_stem(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Like :func:`matrices_of`. The first matrix is that of the stem: its 27 columns are padded to 32."""
    stem, *others = matrices_of(filters, dtype)
    return [F.pad(stem, (0, 5)), *others]


def _matrix(w: Tensor) -> Tensor:
    return w.permute(0, 1, 3, 4, 2).reshape(w.shape[0] * w.shape[1], -1)


def as_filters(dw: Tensor, w: Tensor) -> Tensor:
    """A gradient as the kernels write it, in the shape of the filters w."""
    _, K, C, height, width = w.shape
    return dw[:, : C * height * width].reshape(-1, K, height, width, C).permute(0, 1, 4, 2, 3)


def side_by_side(t: Tensor) -> Tensor:
    """Move the replicas from the first dimension into the last one, side by side."""
    return t.movedim(0, -2).flatten(-2)


def apart(t: Tensor, R: int) -> Tensor:
    """The inverse of :func:`side_by_side`."""
    replicas: Tensor = t.unflatten(-1, (R, -1))
    return replicas.movedim(-2, 0)
