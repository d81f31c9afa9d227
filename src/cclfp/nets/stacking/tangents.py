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
from cclfp.nets.stacking.cuda_streams import Event, SideStream, events_now, wait_for
from cclfp.nets.stacking.functions import Folded
from cclfp.nets.stacking.layout import Layout, Parts, Tensors
from cclfp.nets.stacking.passes import blocks_of, compiled, pooled, run_gradient, unpooled

EPS = 1e-5  # BatchNorm's
Saved = Sequence[Tensor]  # by a training pass; the first dimension is one replica


# -- for one replica --------------------------------------------------------------------------------------------------


def gradient(layout: Layout, params: Tensors, dz: Tensor, saved: Saved) -> tuple[Tensors, Saved]:
    """The gradient of psi's parameters, from the gradient of z and the tensors that the training pass saved.

    The other result is the gradients of the outputs and inputs of all BatchNorms.
    """
    own, n = [t.unsqueeze(0) for t in _parameters(layout, params)], 3 * len(layout.layers)
    grads = _Gradient.apply(layout, dz.unsqueeze(0), *own, *saved)
    return _named(layout, grads[:n]), grads[n:]


def tangent(layout: Layout, params: Tensors, direction: Tensors, saved: Saved) -> tuple[Tensor, Saved]:
    """The tangent of z along a direction, and the tangents of the activations that z is computed from."""
    own, along = ([t.unsqueeze(0) for t in _parameters(layout, given)] for given in (params, direction))
    dz, *others = _Tangent.apply(layout, *own, *along, *saved)
    return dz.squeeze(0), others


def curvature(
    layout: Layout, params: Tensors, direction: Tensors, grads: Tensors, dz_rate: Tensor, saved: Saved, tangents: Saved,
    norm_grads: Saved,
) -> Tensors:  # fmt: skip
    """The tangent of the gradient of psi's parameters: psi's part of the Hessian times the direction.

    ``dz_rate`` is the tangent of the gradient of z; ``grads`` and ``norm_grads`` are what :func:`gradient` gave.
    """
    kinds = (_parameters(layout, params), _parameters(layout, direction), _parameters(layout, grads))
    given = (t.unsqueeze(0) for kind in kinds for t in kind)
    return _named(layout, _Curvature.apply(layout, dz_rate.unsqueeze(0), *given, *saved, *tangents, *norm_grads))


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
        return tuple(run_gradient(layout, dz, parts_of(layout, tensors[:n], 3, len(dz)), tensors[n:], keep=True))


class _Tangent(_Constant):
    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        n, R = 3 * len(layout.layers), len(tensors[0])
        parts, directions = (parts_of(layout, tensors[i : i + n], 3, R) for i in (0, n))
        return tuple(run_tangent(layout, parts, directions, tensors[2 * n :]))


class _Curvature(_Constant):
    @staticmethod
    def forward(layout: Layout, dz_rate: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n, R = len(layout.layers), len(dz_rate)
        parts, directions, grads = (parts_of(layout, tensors[i : i + 3 * n], 3, R) for i in (0, 3 * n, 6 * n))
        others, relus = tensors[9 * n :], 1 + 2 * len(layout.blocks)
        counts = (1 + 2 * n + relus, 2 * n + relus)  # of the tensors that run_training and run_tangent return
        saved, tangents = others[: counts[0]], others[counts[0] : sum(counts)]
        norm_grads = others[sum(counts) :]
        return tuple(run_curvature(layout, dz_rate, parts, directions, grads, saved, tangents, norm_grads))


# -- for all replicas -------------------------------------------------------------------------------------------------


class _Norms:
    """BatchNorms in training, and the tangents of their outputs and gradients along a direction.

    ``grads`` are the gradients of their parameters, which :meth:`curvature` needs. Whatever is known before a pass is
    computed for all layers with one call (``_foreach``), because an operation on vectors takes as long as its launch.
    A name with ``quotient`` is of a vector divided by the number of pixels.
    """

    def __init__(
        self, parts: Parts, directions: Parts, activations: Saved, convs: Sequence[Any], grads: Parts | None = None
    ) -> None:
        gammas, _ = ([t.flatten() for t in kind] for kind in parts[1:])
        along, shifts = ([t.flatten() for t in kind] for kind in directions[1:])
        counts = [float(len(activations[0]) * conv.out**2) for conv in convs]  # pixels
        moments = torch._foreach_div([t.sum(0) for t in activations[-len(convs) :]], counts)
        self._means, squares = [mean for mean, _ in moments], [square for _, square in moments]
        variances = torch._foreach_sub(squares, torch._foreach_mul(self._means, self._means))
        self._r = torch._foreach_rsqrt(torch._foreach_add(torch._foreach_clamp_min(variances, 0.0), EPS))
        self._r_quotients = torch._foreach_div(self._r, counts)
        self._gammas, self._slopes = gammas, torch._foreach_mul(along, self._r)
        self._constants = torch._foreach_sub(shifts, torch._foreach_mul(self._slopes, self._means))
        if grads is not None:
            of_gammas, of_betas = ([t.flatten() for t in kind] for kind in grads[1:])  # the sums of d x^ and of d
            self._scales = torch._foreach_mul(gammas, self._r)
            self._scale_quotients = torch._foreach_div(self._scales, counts)
            self._mean_dx, self._mean_d = torch._foreach_div(of_gammas, counts), torch._foreach_div(of_betas, counts)
            self._pulls = torch._foreach_neg(torch._foreach_mul(self._scales, self._mean_dx))

    def tangent(self, i: int, y: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent of x^, from ``along``, the tangent of y; and t."""
        from cclfp.nets.stacking import kernels

        mean, r, quotient = self._means[i], self._r[i], self._r_quotients[i]
        sums = kernels.pair_sums(along, y, mean)
        t = sums[0] * quotient
        pull = -r * r * t
        return kernels.blend([along, y], [r, pull, -torch.addcmul(sums[1] * quotient, pull, mean)]), t

    def terms(self, i: int, y: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The tangent of gamma x^ + beta as tensors, their weights, and a constant vector. h is the tangent of x^."""
        return [h, y], [self._gammas[i], self._slopes[i]], self._constants[i]

    def curvature(
        self, i: int, y: Tensor, h: Tensor, t: Tensor, d: Tensor, along: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tangents of dy and of the gradients of gamma and beta; ``along`` is the tangent of d."""
        from cclfp.nets.stacking import kernels

        mean, r, scale, quotient = self._means[i], self._r[i], self._scales[i], self._scale_quotients[i]
        inner, total, crossed = kernels.pair_sums(along, y, mean, d, h)
        dgamma = torch.addcmul(crossed, inner, r)
        change = torch.addcmul(self._slopes[i], scale * r, t, value=-1)
        slope = -r * torch.addcmul(quotient * dgamma, change, self._mean_dx[i])
        constant = -torch.addcmul(torch.addcmul(quotient * total, change, self._mean_d[i]), slope, mean)
        return kernels.blend([along, d, y, h], [scale, change, slope, self._pulls[i], constant]), dgamma, total


def run_tangent(layout: Layout, parts: Parts, directions: Parts, saved: Saved) -> list[Tensor]:
    """The tangents of z (R, N, features), of each layer's x^, its t, and the tangent of each ReLU's output."""
    from cclfp.nets.stacking import kernels

    n, R = len(layout.layers), len(parts[1][0])
    joined = [side_by_side(t) for t in saved]
    activations, convs = joined[:-n], convs_of(layout, saved[0].shape[3])
    norms = _Norms(parts, directions, joined, convs)
    matrices, along = with_stem(parts[0], layout.dtype), with_stem(directions[0], layout.dtype)
    by_filters: list[Any] = [None] * n  # how the outputs of the convolutions change with their filters
    ready: list[list[Event]] = [[] for _ in range(n)]
    h: list[Any] = [None] * n
    t: list[Any] = [None] * n
    rates: list[Tensor] = []
    beside = SideStream(saved[0].device)

    def through(i: int, rate: Tensor | None, y: Tensor) -> None:
        """Propagate the tangent of a convolution's input, ``rate``, through it and to its BatchNorm's x^."""
        wait_for(*ready[i])
        whole = by_filters[i]
        if rate is not None:
            whole, _ = kernels.convolve(convs[i], R, rate, matrices[i], residual=whole)
        h[i], t[i] = norms.tangent(i, y, whole)

    def activated(layers: Sequence[tuple[int, Tensor]], out: Tensor, residual: Tensor | None = None) -> Tensor:
        """The tangent of ``out``, which is relu(the sum of these layers' outputs and the residual)."""
        several = [norms.terms(i, y, h[i]) for i, y in layers]
        tensors = [t for own, _, _ in several for t in own]
        weights = [w for _, own, _ in several for w in own]
        constant = several[0][2] if len(several) == 1 else several[0][2] + several[1][2]
        if residual is not None:
            tensors, weights = [*tensors, residual], [*weights, torch.ones_like(constant)]
        rates.append(kernels.blend(tensors, [*weights, constant], mask=out))
        return rates[-1]

    def run() -> Tensor:
        rates.clear()
        columns, y0, a0, *_ = activations
        blocks = blocks_of(layout, activations)
        inputs = {0: columns} | {i: a for i, _, _, a, *_ in blocks} | {k: a1 for _, k, _, _, _, a1, *_ in blocks}
        inputs |= {s: a for _, _, s, a, *_ in blocks if s is not None}
        with beside.after(*events_now(columns)):
            for i in range(n):
                by_filters[i], _ = kernels.convolve(convs[i], R, inputs[i], along[i])
                ready[i] = events_now(columns)
        through(0, None, y0)
        rate = activated([(0, y0)], a0)
        for i, k, s, _, y1, a1, y2, ys, out in blocks:
            through(i, rate, y1)
            through(k, activated([(i, y1)], a1), y2)
            if s is None:
                rate = activated([(k, y2)], out, rate)
            else:
                through(s, rate, ys)
                rate = activated([(k, y2), (s, ys)], out)
        beside.join()
        return pooled(rate, R)

    z = compiled(run, "tangent", layout, saved[0], parts[0])
    return [z, *(apart(x, R) for x in (*h, *t, *rates))]


def run_curvature(
    layout: Layout, dz_rate: Tensor, parts: Parts, directions: Parts, grads: Parts, saved: Saved, tangents: Saved,
    norm_grads: Saved,
) -> list[Tensor]:  # fmt: skip
    """The tangents of the gradients of the filters, gammas and betas. ``dz_rate`` is that of the gradient of z."""
    from cclfp.nets.stacking import kernels

    n, R = len(layout.layers), len(dz_rate)
    joined, rates, d_and_dy = ([side_by_side(t) for t in several] for several in (saved, tangents, norm_grads))
    activations, convs = joined[:-n], convs_of(layout, saved[0].shape[3])
    norms = _Norms(parts, directions, joined, convs, grads)
    h, t, rates = rates[:n], rates[n : 2 * n], rates[2 * n :]
    seconds = {block[2]: block[1] for block in layout.blocks if len(block) > 2}  # beside each shortcut
    of_outputs, dy = iter(d_and_dy[:-n]), d_and_dy[-n:]
    d: list[Any] = [None if i in seconds else next(of_outputs) for i in range(n)]
    matrices = [dz_rate, *matrices_of(parts[0][1:], layout.dtype)]
    along = [dz_rate, *matrices_of(directions[0][1:], layout.dtype)]
    dw, dgamma, dbeta = ([dz_rate] * n for _ in range(3))
    kept: list[Tensor] = []  # until the side streams have read them
    filter_stream, input_stream = SideStream(dz_rate.device), SideStream(dz_rate.device, 1)

    def through_norm(i: int, y: Tensor, rate: Tensor) -> Tensor:
        """The tangent of dy, from the tangent of d."""
        dy_rate, dgamma[i], dbeta[i] = norms.curvature(i, y, h[i], t[i], d[seconds.get(i, i)], rate)
        kept.append(dy_rate)
        return dy_rate

    def filter_gradient(i: int, a: Tensor, a_rate: Tensor | None, dy_rate: Tensor, ready: list[Event]) -> None:
        with filter_stream.after(*ready):
            other = None if a_rate is None else dy[i]
            dw[i] = kernels.filter_gradient(convs[i], R, a, dy_rate, a_rate, other)

    def change_by_filters(i: int, s: int | None, residual: Tensor | None) -> tuple[Tensor, list[Event]]:
        """How the gradient of a convolution's input changes with the filters (and with those of a shortcut s).

        It needs only what is known when the block begins, so it runs beside the other kernels. The events say when it
        is ready.
        """
        more: dict[str, Any] = {} if s is None else {"x2": dy[s], "w2": along[s]}
        with input_stream.after(*events_now(dz_rate)):
            part, _ = kernels.convolve(convs[i], R, dy[i], along[i], gradient=True, residual=residual, **more)
            kept.append(part)
            return part, events_now(dz_rate)

    def through_conv(i: int, dy_rate: Tensor, mask: Tensor, part: Tensor, ready: list[Event], **more: Any) -> Tensor:
        """The tangent of the gradient of the input of the ReLU whose output is ``mask``."""
        wait_for(*ready)
        rate, _ = kernels.convolve(convs[i], R, dy_rate, matrices[i], gradient=True, mask=mask, residual=part, **more)
        return rate

    def run() -> None:
        kept.clear()
        columns, y0, *_, last = activations
        rate = unpooled(dz_rate, last)
        inputs, firsts = [rates[0], *rates[2:-1:2]], rates[1::2]
        blocks = blocks_of(layout, activations)
        for (i, k, s, a, y1, a1, y2, ys, _), a_rate, a1_rate in reversed(
            list(zip(blocks, inputs, firsts, strict=True))
        ):
            kept.append(rate)
            of_second = change_by_filters(k, None, None)
            of_first = change_by_filters(i, s, rate if s is None else None)
            more: dict[str, Any] = {}
            if s is not None:
                more = {"x2": through_norm(s, ys, rate), "w2": matrices[s]}
            dy2_rate = through_norm(k, y2, rate)
            ready = events_now(dy2_rate)
            d1_rate = through_conv(k, dy2_rate, a1, *of_second)  # launched first: everything that follows waits for it
            filter_gradient(k, a1, a1_rate, dy2_rate, ready)
            dy1_rate = through_norm(i, y1, d1_rate)
            ready = events_now(dy1_rate)
            rate = through_conv(i, dy1_rate, a, *of_first, **more)
            filter_gradient(i, a, a_rate, dy1_rate, ready)
            if s is not None:
                filter_gradient(s, a, a_rate, more["x2"], [])  # follows that of i, so it waits long enough
        dy0_rate = through_norm(0, y0, rate)
        filter_gradient(0, columns, None, dy0_rate, events_now(dy0_rate))
        input_stream.join()
        filter_stream.join()

    compiled(run, "curvature", layout, saved[0], parts[0])
    vectors = [t.view(R, -1) for t in (*dgamma, *dbeta)]
    return [*(as_filters(x, w) for x, w in zip(dw, parts[0], strict=True)), *vectors]
