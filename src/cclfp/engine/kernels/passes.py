"""The passes of all replicas through psi as sequences of kernels: training, its gradient, and eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.engine.kernels import Layout, NotStackable, Parts
from cclfp.engine.kernels.arrange import (
    Event,
    SideStream,
    apart,
    as_filters,
    convs_of,
    current_copies,
    events_now,
    matrices_of,
    side_by_side,
    with_stem,
)

# The kernels' indices, of 32 bits, reach this many numbers of an activation, or of one layer's stacked filters, and the
# blocks of SGD beyond the last.
LARGEST = 2**31 - 2**21


def run_training(layout: Layout, x: Tensor, parts: Parts) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """z (R, N, features), the new running means and variances, and the tensors that :func:`run_gradient` needs."""
    from cclfp.engine.kernels.triton_convolution import columns, convolve
    from cclfp.engine.kernels.triton_norm import Norm, normalise

    filters, *vectors = parts
    R, matrices, convs = len(x), with_stem(filters, layout.dtype), convs_of(layout, x.shape[3])
    gammas, betas, means, variances = ([t.contiguous() for t in kind] for kind in vectors)
    current_copies().begin_pass(x)
    saved: list[Tensor] = []
    sums: list[Any] = [None] * len(convs)
    new: list[Any] = [None] * len(convs)

    def convolved(i: int, a: Tensor) -> Norm:
        y, sums[i] = convolve(convs[i], R, a, matrices[i], statistics=True)
        saved.append(y)
        return Norm(y, sums[i], gammas[i], betas[i])

    def normalised(
        i: int, norm: Any, residual: Tensor | None = None, j: int | None = None, other: Any = None
    ) -> Tensor:
        running2 = None if j is None else (means[j], variances[j])
        out, new[i], new2 = normalise(norm, (means[i], variances[i]), other, running2, residual)
        if j is not None:
            new[j] = new2
        saved.append(out)
        return out

    def run() -> Tensor:
        saved.clear()
        saved.append(columns(x, layout.dtype))
        a = normalised(0, convolved(0, saved[0]))
        for i, k, *shortcut in layout.blocks:
            y = convolved(k, normalised(i, convolved(i, a)))
            j = shortcut[0] if shortcut else None
            a = normalised(k, y, a) if j is None else normalised(k, y, None, j, convolved(j, a))
        return pooled(a, R)

    z = compiled(run, "training", layout, x, filters)
    halves = [t.view(2, R, -1) for t in new]
    kept = [apart(t, R) for t in (*saved, *sums)]
    return z, [mean for mean, _ in halves], [variance for _, variance in halves], kept


def run_gradient(layout: Layout, dz: Tensor, parts: Parts, saved: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the filters, gammas and betas."""
    from cclfp.engine.kernels.triton_convolution import convolve, filter_gradient
    from cclfp.engine.kernels.triton_norm import Norm, norm_gradients

    filters, gammas, betas = parts
    R, n = len(dz), len(layout.layers)
    joined = [side_by_side(t) for t in saved]
    activations, sums = joined[:-n], joined[-n:]
    matrices, convs = [dz, *matrices_of(filters[1:], layout.dtype)], convs_of(layout, saved[0].shape[3])
    dw, dgamma, dbeta = ([dz] * n for _ in range(3))
    kept: list[Tensor] = []  # until the side stream has read them
    beside = SideStream(dz.device)
    events: list[list[Event]] = [[] for _ in range(n)]

    def norm(i: int, y: Tensor) -> Norm:
        return Norm(y, sums[i], gammas[i].contiguous(), betas[i].contiguous())

    def through_norm(d: Tensor, i: int, y: Tensor, masked: bool, j: int | None = None, y2: Tensor | None = None) -> Any:
        other = None if j is None or y2 is None else norm(j, y2)
        dy, dy2, grads = norm_gradients(d, norm(i, y), other, masked)
        parts = [t.view(R, -1) for t in grads]
        dgamma[i], dbeta[i] = parts[:2]
        if j is not None:
            dgamma[j], dbeta[j] = parts[2], parts[1]
        return dy, dy2

    def through_filters(i: int, a: Tensor, dy: Tensor, ready: list[Event]) -> None:
        kept.append(dy)
        with beside.after(*ready):
            dw[i] = filter_gradient(convs[i], R, a, dy)
            events[i] += events_now(dy)

    def through_conv(i: int, a: Tensor, dy: Tensor, **more: Any) -> Tensor:
        """The gradient of a convolution's input a and, beside it, that of its filters.

        The first is launched first: everything that follows waits for it.
        """
        ready = events_now(dy)
        d: Tensor = convolve(convs[i], R, dy, matrices[i], gradient=True, **more)[0]
        events[i] += events_now(dy)
        through_filters(i, a, dy, ready)
        return d

    def run() -> None:
        kept.clear()
        for several in events:
            several.clear()
        columns, y0, *_, last = activations
        g = unpooled(dz, last)
        for i, k, s, a, y1, a1, y2, ys, _ in reversed(blocks_of(layout, activations)):
            dy2, dys = through_norm(g, k, y2, False, s, ys)
            d1 = through_conv(k, a1, dy2)
            dy1, _ = through_norm(d1, i, y1, True)
            if s is None:
                g = through_conv(i, a, dy1, residual=g, mask=a)
            else:
                g = through_conv(i, a, dy1, x2=dys, w2=matrices[s], mask=a)
                through_filters(s, a, dys, [])  # follows that of i on the side stream, so it waits long enough
                events[s] += events[i]
        dy0, _ = through_norm(g, 0, y0, False)
        through_filters(0, columns, dy0, events_now(dy0))
        beside.join()

    compiled(run, "gradient", layout, saved[0], filters)
    current_copies().make(dw[1:], events[1:])
    return [*(as_filters(t, w) for t, w in zip(dw, filters, strict=True)), *dgamma, *dbeta]


def run_frozen(layout: Layout, x: Tensor, parts: Parts) -> Tensor:
    """z (R, N, features) in eval mode."""
    from cclfp.engine.kernels.triton_convolution import columns, convolve

    R, convs = len(x), convs_of(layout, x.shape[3])
    begun = current_copies().beginning(x, (t for kind in parts for t in kind))

    def run() -> Tensor:
        matrices = with_stem(parts[0], layout.dtype)
        gamma, beta, mean, variance = (torch.cat([t.flatten() for t in kind]) for kind in parts[1:])
        scale = gamma * torch.rsqrt(variance + 1e-5)
        sizes = [t.numel() for t in parts[1]]
        scales, shifts = scale.split(sizes), torch.addcmul(beta, mean, scale, value=-1).split(sizes)

        def convolved(i: int, a: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
            out, _ = convolve(
                convs[i], R, a, matrices[i], scale=scales[i], shift=shifts[i], residual=residual, relu=relu
            )
            return out

        a = convolved(0, columns(x, layout.dtype))
        for i, k, *shortcut in layout.blocks:
            residual = convolved(shortcut[0], a, relu=False) if shortcut else a
            a = convolved(k, convolved(i, a), residual)
        return pooled(a, R)

    if not begun:
        alone: Tensor = compiled(run, "frozen", layout, x, parts[0])
        return alone
    beside = SideStream(x.device)
    with beside.after(*begun):
        z: Tensor = compiled(run, "frozen", layout, x, parts[0])
    beside.join()
    return z


def blocks_of(layout: Layout, activations: Sequence[Any]) -> list[tuple[Any, ...]]:
    """For each block, its layers (first, second, and shortcut or None) and its saved activations.

    These are its input, the output of its first convolution before and after BatchNorm and ReLU, the outputs of its
    second and its shortcut convolution, and the output of the block.
    """
    _, _, a, *rest = activations
    found, places = [], iter(rest)
    for i, k, *shortcut in layout.blocks:
        y1, a1, y2 = next(places), next(places), next(places)
        ys = next(places) if shortcut else None
        out = next(places)
        found.append((i, k, shortcut[0] if shortcut else None, a, y1, a1, y2, ys, out))
        a = out
    return found


def pooled(a: Tensor, R: int) -> Tensor:
    """z (R, N, features) from the last activations."""
    return (
        a.view(len(a), -1, R, a.shape[-1] // R)
        .mean(1, dtype=torch.promote_types(a.dtype, torch.float32))
        .transpose(0, 1)
    )


def unpooled(dz: Tensor, a: Tensor) -> Tensor:
    """The gradient of the input of the last ReLU, whose output is a, from the gradient of z."""
    mean = (dz.transpose(0, 1) / (a.shape[1] * a.shape[2])).to(a.dtype).reshape(len(a), 1, 1, -1)
    g: Tensor = torch.ops.aten.threshold_backward(mean.expand_as(a), a, 0)
    return g


_seen: set[Any] = set()


def compiled(run: Callable[[], Any], kind: str, layout: Layout, x: Tensor, filters: Sequence[Tensor]) -> Any:
    """The result of ``run``. The first time, all its kernels are compiled in parallel; one by one takes a minute."""
    if x.shape[0] * x.shape[1] * x.shape[3] ** 2 * layout.layers[0].shape[1] >= LARGEST:
        raise NotStackable(f"{x.shape[1]:,} examples of {x.shape[0]} replicas are too many at once")
    if x.shape[0] * max(w[0].numel() for w in filters) >= LARGEST:
        raise NotStackable(f"{x.shape[0]} replicas of a network this wide are too many at once")
    key = (kind, layout, x.device, x.shape, len(filters[0]))
    if x.is_cuda and key not in _seen:
        from cclfp.engine.kernels.triton_others import compiling

        with compiling():
            run()
        _seen.add(key)
    return run()
