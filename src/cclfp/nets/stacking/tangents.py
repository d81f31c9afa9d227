"""Second derivatives for stacked replicas of ResNet18: the Hessian of a loss of z = psi(x), times a direction.

When psi's parameters change along a direction v, everything that a training pass computes changes with them, forward
and backward (Pearlmutter's R-operator). Such a rate of change is called a tangent here. The tangent of the gradient is
exactly the Hessian times v. Computing it takes twice the convolutions of the pass itself, in the same kernels.

With the mean m, the variance, 1 / deviation r and x^ = (y - m) r of a BatchNorm's input y, and means over the pixels:

    x^' = r (y' - mean(y') - x^ t),  r' = -r^2 t,  where t = mean(y' x^)
    dy  = gamma r (d - mean(d) - x^ mean(d x^)),   where d is the gradient of its output
    dy' = gamma r (d' - mean(d') - x^ (mean(d' x^) + mean(d x^')) - x^' mean(d x^))
          + (gamma r)' (d - mean(d) - x^ mean(d x^))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.nets.stacking.arrangement import (
    apart,
    as_filters,
    convs_of,
    matrices_of,
    parts_of,
    side_by_side,
    with_stem,
)
from cclfp.nets.stacking.functions import Folded
from cclfp.nets.stacking.layout import Layout, Parts, Tensors
from cclfp.nets.stacking.passes import blocks_of, compiled, pooled, run_gradient, unpooled

EPS = 1e-5  # BatchNorm's
Saved = Sequence[Tensor]  # by a training pass; the first dimension is one replica


# -- for one replica --------------------------------------------------------------------------------------------------


def gradient(layout: Layout, params: Tensors, dz: Tensor, saved: Saved) -> Tensors:
    """The gradient of psi's parameters, from the gradient of z and the tensors that the training pass saved."""
    own = [t.unsqueeze(0) for t in _parameters(layout, params)]
    return _named(layout, _Gradient.apply(layout, dz.unsqueeze(0), *own, *saved))


def tangent(layout: Layout, params: Tensors, direction: Tensors, saved: Saved) -> tuple[Tensor, Saved]:
    """The tangent of z along a direction, and the tangents of the activations that z is computed from."""
    own, along = ([t.unsqueeze(0) for t in _parameters(layout, given)] for given in (params, direction))
    dz, *others = _Tangent.apply(layout, *own, *along, *saved)
    return dz.squeeze(0), others


def curvature(
    layout: Layout, params: Tensors, direction: Tensors, dz: Tensor, dz_tangent: Tensor, saved: Saved, tangents: Saved
) -> Tensors:
    """The tangent of the gradient of psi's parameters: psi's part of the Hessian times the direction.

    ``dz_tangent`` is the tangent of the gradient of z.
    """
    own, along = ([t.unsqueeze(0) for t in _parameters(layout, given)] for given in (params, direction))
    both = (dz.unsqueeze(0), dz_tangent.unsqueeze(0))
    return _named(layout, _Curvature.apply(layout, *both, *own, *along, *saved, *tangents))


def _parameters(layout: Layout, params: Tensors) -> list[Tensor]:
    norms = [layer.norm for layer in layout.layers]
    names = [*layout.filters, *(f"{name}.weight" for name in norms), *(f"{name}.bias" for name in norms)]
    return [params[name] for name in names]


def _named(layout: Layout, tensors: Sequence[Tensor]) -> Tensors:
    norms = [layer.norm for layer in layout.layers]
    names = [*layout.filters, *(f"{name}.weight" for name in norms), *(f"{name}.bias" for name in norms)]
    return {name: t.squeeze(0) for name, t in zip(names, tensors, strict=True)}


class _Constant(Folded):
    """A function whose results are not differentiable."""

    kinds = 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)


class _Gradient(_Constant):
    @staticmethod
    def forward(layout: Layout, dz: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = 3 * len(layout.layers)
        return tuple(run_gradient(layout, dz, parts_of(layout, tensors[:n], 3, len(dz)), tensors[n:]))


class _Tangent(_Constant):
    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        n, R = 3 * len(layout.layers), len(tensors[0])
        parts, directions = (parts_of(layout, tensors[i : i + n], 3, R) for i in (0, n))
        return tuple(run_tangent(layout, parts, directions, tensors[2 * n :]))


class _Curvature(_Constant):
    @staticmethod
    def forward(layout: Layout, dz: Tensor, dz_tangent: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n, R = 3 * len(layout.layers), len(dz)
        parts, directions = (parts_of(layout, tensors[i : i + n], 3, R) for i in (0, n))
        others, count = tensors[2 * n :], _saved(layout)
        return tuple(run_curvature(layout, dz, dz_tangent, parts, directions, others[:count], others[count:]))


def _saved(layout: Layout) -> int:
    """How many tensors a training pass saves: columns, the output and sums of each layer, and each ReLU's output."""
    return 1 + 2 * len(layout.layers) + 1 + 2 * len(layout.blocks)


# -- for all replicas -------------------------------------------------------------------------------------------------


class _Norms:
    """BatchNorms in training, and the tangents of their outputs and gradients along a direction."""

    def __init__(self, parts: Parts, directions: Parts, sums: Sequence[Tensor]) -> None:
        _, self._gammas, self._betas = ([t.flatten() for t in kind] for kind in parts)
        _, self._along, self._shifts = ([t.flatten() for t in kind] for kind in directions)
        self._sums = sums

    def _moments(self, i: int, y: Tensor) -> tuple[Tensor, Tensor, int]:
        pixels = y.numel() // y.shape[-1]
        mean, square = self._sums[i].sum(0) / pixels
        return mean, torch.rsqrt((square - mean * mean).clamp(min=0) + EPS), pixels

    def tangent(self, i: int, y: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent of x^, from ``along``, the tangent of y; and t."""
        from cclfp.nets.stacking import kernels

        mean, r, pixels = self._moments(i, y)
        sums = kernels.pair_sums(along, y, mean)
        t = sums[0] * r / pixels
        pull = r * r * t
        return kernels.blend([along, y], [r, -pull, pull * mean - r * sums[1] / pixels]), t

    def terms(self, i: int, y: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The tangent of gamma x^ + beta as tensors, their weights, and a constant vector. h is the tangent of x^."""
        mean, r, _ = self._moments(i, y)
        slope = self._along[i] * r
        return [h, y], [self._gammas[i], slope], self._shifts[i] - slope * mean

    def gradient(self, i: int, y: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """dy, and the sums over the pixels of d x^ and d."""
        from cclfp.nets.stacking import kernels

        norm = kernels.Norm(y, self._sums[i], self._gammas[i], self._betas[i])
        dy, _, grads = kernels.norm_gradients(d, norm, None, masked=False)
        return dy, grads

    def curvature(
        self, i: int, y: Tensor, h: Tensor, t: Tensor, d: Tensor, along: Tensor, grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tangents of dy and of the gradients of gamma and beta; ``along`` is the tangent of d."""
        from cclfp.nets.stacking import kernels

        mean, r, pixels = self._moments(i, y)
        inner, total, crossed = kernels.pair_sums(along, y, mean, d, h)
        dgamma = inner * r + crossed
        scale = self._gammas[i] * r
        change = self._along[i] * r - scale * r * t
        by_d, of_d = grads[0] / pixels, grads[1] / pixels
        slope = -(scale * dgamma / pixels + change * by_d) * r
        constant = -scale * total / pixels - change * of_d - slope * mean
        return kernels.blend([along, d, y, h], [scale, change, slope, -scale * by_d, constant]), dgamma, total


def run_tangent(layout: Layout, parts: Parts, directions: Parts, saved: Saved) -> list[Tensor]:
    """The tangents of z (R, N, features), of each layer's x^, its t, and the tangent of each ReLU's output."""
    from cclfp.nets.stacking import kernels

    n, R = len(layout.layers), len(parts[1][0])
    joined = [side_by_side(t) for t in saved]
    activations, convs = joined[:-n], convs_of(layout, saved[0].shape[3])
    norms = _Norms(parts, directions, joined[-n:])
    matrices, along = with_stem(parts[0], layout.dtype), with_stem(directions[0], layout.dtype)
    h: list[Any] = [None] * n
    t: list[Any] = [None] * n
    rates: list[Tensor] = []

    def through(i: int, a: Tensor, rate: Tensor | None, y: Tensor) -> None:
        """Propagate the tangent of a convolution's input, ``rate``, through it and to its BatchNorm's x^."""
        by_filters, _ = kernels.convolve(convs[i], R, a, along[i])
        whole = by_filters
        if rate is not None:
            whole, _ = kernels.convolve(convs[i], R, rate, matrices[i], residual=by_filters)
        h[i], t[i] = norms.tangent(i, y, whole)

    def activated(layers: Sequence[tuple[int, Tensor]], out: Tensor, residual: Tensor | None = None) -> Tensor:
        """The tangent of ``out``, which is relu(the sum of these layers' outputs and the residual)."""
        several = [norms.terms(i, y, h[i]) for i, y in layers]
        tensors = [t for own, _, _ in several for t in own]
        weights = [w for _, own, _ in several for w in own]
        constant = torch.stack([c for _, _, c in several]).sum(0)
        if residual is not None:
            tensors, weights = [*tensors, residual], [*weights, torch.ones_like(constant)]
        rates.append(kernels.blend(tensors, [*weights, constant], mask=out))
        return rates[-1]

    def run() -> Tensor:
        rates.clear()
        columns, y0, a0, *_ = activations
        through(0, columns, None, y0)
        rate = activated([(0, y0)], a0)
        for i, k, s, a, y1, a1, y2, ys, out in blocks_of(layout, activations):
            through(i, a, rate, y1)
            through(k, a1, activated([(i, y1)], a1), y2)
            if s is None:
                rate = activated([(k, y2)], out, rate)
            else:
                through(s, a, rate, ys)
                rate = activated([(k, y2), (s, ys)], out)
        return pooled(rate, R)

    z = compiled(run, "tangent", layout, saved[0], parts[0])
    return [z, *(apart(x, R) for x in (*h, *t, *rates))]


def run_curvature(
    layout: Layout, dz: Tensor, dz_tangent: Tensor, parts: Parts, directions: Parts, saved: Saved, tangents: Saved
) -> list[Tensor]:
    """The tangents of the gradients of the filters, gammas and betas."""
    from cclfp.nets.stacking import kernels

    n, R = len(layout.layers), len(dz)
    joined, rates = [side_by_side(t) for t in saved], [side_by_side(t) for t in tangents]
    activations, convs = joined[:-n], convs_of(layout, saved[0].shape[3])
    norms = _Norms(parts, directions, joined[-n:])
    h, t, rates = rates[:n], rates[n : 2 * n], rates[2 * n :]
    matrices = [dz, *matrices_of(parts[0][1:], layout.dtype)]
    along = [dz, *matrices_of(directions[0][1:], layout.dtype)]
    dw, dgamma, dbeta = ([dz] * n for _ in range(3))

    def through_norm(i: int, y: Tensor, d: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """dy and its tangent."""
        dy, grads = norms.gradient(i, y, d)
        dy_rate, dgamma[i], dbeta[i] = norms.curvature(i, y, h[i], t[i], d, rate, grads)
        return dy, dy_rate

    def of_filters(i: int, a: Tensor, a_rate: Tensor | None, dy: Tensor, dy_rate: Tensor) -> None:
        dw[i] = kernels.filter_gradient(convs[i], R, a, dy_rate)
        if a_rate is not None:
            dw[i] = dw[i] + kernels.filter_gradient(convs[i], R, a_rate, dy)

    def of_input(i: int, dy: Tensor, dy_rate: Tensor, mask: Tensor, residual: Any, s: int | None, dys: Any) -> Any:
        """The gradient of the input of the ReLU whose output is ``mask``, and its tangent.

        They include those of a shortcut s, or of a residual.
        """
        pairs = [(dy, matrices), (dy, along), (dy_rate, matrices)]
        more: list[dict[str, Any]] = [{}, {}, {}]
        if s is not None:
            others = [(dys[0], matrices), (dys[0], along), (dys[1], matrices)]
            more = [{"x2": x, "w2": w[s]} for x, w in others]
        if residual is not None:
            more[0]["residual"], more[1]["residual"] = residual
        (x, w), (x1, w1), (x2, w2) = pairs
        g, _ = kernels.convolve(convs[i], R, x, w[i], gradient=True, mask=mask, **more[0])
        part, _ = kernels.convolve(convs[i], R, x1, w1[i], gradient=True, **more[1])
        rate, _ = kernels.convolve(convs[i], R, x2, w2[i], gradient=True, mask=mask, residual=part, **more[2])
        return g, rate

    def run() -> None:
        columns, y0, *_, last = activations
        g, g_rate = unpooled(dz, last), unpooled(dz_tangent, last)
        inputs, firsts = [rates[0], *rates[2:-1:2]], rates[1::2]
        blocks = blocks_of(layout, activations)
        for (i, k, s, a, y1, a1, y2, ys, _), a_rate, a1_rate in reversed(
            list(zip(blocks, inputs, firsts, strict=True))
        ):
            dy2, dy2_rate = through_norm(k, y2, g, g_rate)
            dys = None if s is None else through_norm(s, ys, g, g_rate)
            of_filters(k, a1, a1_rate, dy2, dy2_rate)
            d, d_rate = of_input(k, dy2, dy2_rate, a1, None, None, None)
            dy1, dy1_rate = through_norm(i, y1, d, d_rate)
            of_filters(i, a, a_rate, dy1, dy1_rate)
            if s is not None and dys is not None:
                of_filters(s, a, a_rate, *dys)
            g, g_rate = of_input(i, dy1, dy1_rate, a, (g, g_rate) if s is None else None, s, dys)
        of_filters(0, columns, None, *through_norm(0, y0, g, g_rate))

    compiled(run, "curvature", layout, saved[0], parts[0])
    vectors = [t.view(R, -1) for t in (*dgamma, *dbeta)]
    return [*(as_filters(x, w) for x, w in zip(dw, parts[0], strict=True)), *vectors]
