"""ResNet18 with stacked replicas: one function of psi's tensors under vmap, in kernels of our own.

:class:`Layout` says which networks have it. :func:`train` and :func:`freeze` are psi(x) in training and in eval mode,
written for one replica like all of a method's step. Under vmap their rules put the replicas side by side and run
:mod:`cclfp.nets.kernels` once for all of them. The rest of PyTorch sees two autograd functions, psi and its gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cclfp.nets.modules import ResNet18

WIDTH = 64  # channels come in multiples of it
SIDES = (16, 32, 64)  # of the images
LARGEST = 2**31  # numbers of an activation, or of all replicas' filters of a layer: what the kernels' indices reach

Event = torch.cuda.Event
Tensors = dict[str, Tensor]
Parts = list[list[Tensor]]  # of each layer: filters, gamma, beta, running mean, running variance


class NotStackable(Exception):
    """Something that a step does to psi and that the kernels have not got."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution and its BatchNorm: their names in psi, and the convolution's shape (see ``kernels.Conv``)."""

    conv: str
    norm: str
    shape: tuple[int, int, int, int, int]  # inputs, outputs, taps a side, stride, by how much the image has shrunk


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layers of a ResNet18 that the kernels can compute: the stem's, then two or three for each block."""

    layers: tuple[Layer, ...]
    blocks: tuple[tuple[int, ...], ...]  # the layers of each: first, second and, where it has one, the shortcut's
    dtype: torch.dtype

    @classmethod
    def of(cls, psi: nn.Module, mode: dict[str, list[str]], dtype: torch.dtype | None) -> Layout | None:
        """That of psi, trained as ``mode`` says and computing in ``dtype``; None where there are no kernels for it."""
        if type(psi) is not ResNet18 or dtype != torch.bfloat16:
            return None
        norms = [module for module in psi.modules() if isinstance(module, nn.BatchNorm2d)]
        whole = len(mode["trained"]) == len(list(psi.parameters()))
        training = len(mode["training"]) == len(list(psi.modules()))
        usual = all((norm.eps, norm.momentum, norm.affine) == (1e-5, 0.1, True) for norm in norms)
        plain = all(p.dtype == torch.float32 for p in psi.parameters()) and _is_unchanged(psi)
        width, channels = psi.stem.out_channels, psi.stem.in_channels
        if not (whole and training and usual and plain) or width % WIDTH or width & (width - 1) or channels != 3:
            return None
        layers, blocks, shrunk = [Layer("stem", "norm", (32, width, 1, 1, 1))], [], 1
        for number, block in enumerate(psi.blocks):
            assert isinstance(block.conv1, nn.Conv2d)
            (stride, _), C, K = block.conv1.stride, block.conv1.in_channels, block.conv1.out_channels
            name, first = f"blocks.{number}", len(layers)
            layers.append(Layer(f"{name}.conv1", f"{name}.norm1", (C, K, 3, stride, shrunk)))
            layers.append(Layer(f"{name}.conv2", f"{name}.norm2", (K, K, 3, 1, shrunk * stride)))
            if stride != 1 or C != K:
                layers.append(Layer(f"{name}.shortcut.0", f"{name}.shortcut.1", (C, K, 1, stride, shrunk)))
            blocks.append(tuple(range(first, len(layers))))
            shrunk *= stride
        return cls(tuple(layers), tuple(blocks), dtype)

    def takes(self, x: Tensor) -> bool:
        """Whether the kernels can compute psi of such images, on the device where they are."""
        square = x.ndim >= 3 and x.shape[-3:] in [(3, side, side) for side in SIDES]
        return square and x.dtype == torch.float32 and _has_kernels(x.device)

    @property
    def filters(self) -> list[str]:
        """The names of the parameters that are rounded to the kernels' precision."""
        return [f"{layer.conv}.weight" for layer in self.layers]

    def tensors(self, params: Tensors, buffers: Tensors) -> list[Tensor]:
        """All that psi reads, kind by kind, in the order of the layers."""
        names = [layer.norm for layer in self.layers]
        return [
            *(params[name] for name in self.filters),
            *(params[f"{name}.weight"] for name in names),
            *(params[f"{name}.bias"] for name in names),
            *(buffers[f"{name}.running_mean"] for name in names),
            *(buffers[f"{name}.running_var"] for name in names),
        ]


@functools.cache
def _has_kernels(device: torch.device) -> bool:
    """Whether the device is a Hopper card or newer, and Triton is there."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return importlib.util.find_spec("triton") is not None


# -- psi of one replica ----------------------------------------------------------------------------------------------


def train(layout: Layout, params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Tensors]:
    """psi(x) in training, and its buffers afterwards."""
    return train_saving(layout, params, buffers, x)[:2]


def train_saving(
    layout: Layout, params: Tensors, buffers: Tensors, x: Tensor
) -> tuple[Tensor, Tensors, tuple[Tensor, ...]]:
    """The same, and what its derivatives need, with a dimension of one replica first."""
    norms = [layer.norm for layer in layout.layers]
    counts = [buffers[f"{name}.num_batches_tracked"] for name in norms]
    given = [x, *layout.tensors(params, buffers), *counts]
    z, *others = _Train.apply(layout, *(t.unsqueeze(0) for t in given))
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    names = [f"{name}.{kind}" for kind in kinds for name in norms]
    after = {name: t.squeeze(0) for name, t in zip(names, others, strict=False)}
    return z.squeeze(0), after, tuple(others[len(names) :])


def freeze(layout: Layout, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
    """psi(x) in eval mode."""
    given = [x, *layout.tensors(params, buffers)]
    z: Tensor = _Frozen.apply(layout, *(t.unsqueeze(0) for t in given))
    return z.squeeze(0)


class Folded(torch.autograd.Function):
    """A function of tensors with a dimension of replicas first. A dimension that vmap adds is one of replicas too.

    Where the network has no such dimension, as in one step on several minibatches, it stays one that they share.
    """

    kinds: ClassVar[int]  # of the network's tensors, which come second, as many of each as there are layers

    @classmethod
    def vmap(cls, info: Any, dims: Any, layout: Layout, *tensors: Tensor) -> Any:
        size, network = info.batch_size, range(1, 1 + cls.kinds * len(layout.layers))
        folded = [t.flatten(0, 1) for t in replicas_first(size, dims[1:], tensors)]
        shared = [i for i in network if dims[1] is not None and dims[1 + i] is None and len(tensors[i]) == 1]
        for i in shared:
            folded[i] = tensors[i]
        new = cls.apply(layout, *folded)
        if isinstance(new, Tensor):
            return new.unflatten(0, (size, -1)), 0
        return tuple(t.unflatten(0, (size, -1)) for t in new), (0,) * len(new)


class _Train(Folded):
    """z, the new buffers, and what the gradient needs."""

    kinds = 6

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, *given = tensors
        *parts, counts = parts_of(layout, given, 6, len(x))
        z, means, variances, saved = run_training(layout, x, parts)
        return (z, *means, *variances, *torch._foreach_add(counts, 1), *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.layout, n = inputs[0], len(inputs[0].layers)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[2 : 2 + 3 * n], *output[1 + 3 * n :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[1]:
            raise NotStackable("a step takes a gradient with respect to psi's input")
        n = len(ctx.layout.layers)
        if grads[0] is None:
            return (None,) * (2 + 6 * n)
        return (None, None, *_Gradient.apply(ctx.layout, grads[0], *ctx.saved_tensors), *(None,) * (3 * n))


class _Gradient(Folded):
    """The gradients of psi's parameters, from that of z."""

    kinds = 3

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(layout.layers)
        dz, *given = tensors
        return tuple(run_gradient(layout, dz, parts_of(layout, given[: 3 * n], 3, len(dz)), given[3 * n :]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotStackable("a step takes second derivatives of psi")


class _Frozen(Folded):
    """z in eval mode."""

    kinds = 5

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> Tensor:
        x, *given = tensors
        return run_frozen(layout, x, parts_of(layout, given, 5, len(x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.layout = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[1]:
            raise NotStackable("a step takes a gradient with respect to psi's input")
        x, *network = ctx.saved_tensors
        new = _FrozenGradient.apply(ctx.layout, grads[0], *network, x)
        return (None, None, *new, *(None,) * (2 * len(ctx.layout.layers)))


class _FrozenGradient(Folded):
    """The gradients of psi's parameters in eval mode, from that of z. Its activations are computed anew."""

    kinds = 5

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        dz, *network, x = tensors
        parts = parts_of(layout, network, 5, len(dz))
        saved = run_training(layout, x, parts, frozen=True)[3]
        return tuple(run_gradient(layout, dz, parts[:3], saved, frozen=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotStackable("a step takes second derivatives of psi")


def parts_of(layout: Layout, tensors: Sequence[Tensor], kinds: int, replicas: int) -> Parts:
    """The network's tensors by kind; the vectors once per replica, the filters as often as there are networks."""
    n = len(layout.layers)
    vectors = [t if len(t) == replicas else t.repeat_interleave(replicas // len(t), 0) for t in tensors[n:]]
    return [list(tensors[:n]), *(vectors[i * n : (i + 1) * n] for i in range(kinds - 1))]


# -- copies of the parameters in the kernels' precision --------------------------------------------------------------


class Copies:
    """What is known during a step: copies of tensors in another precision, found by where the tensors lie.

    It holds the tensors too, so that no other can come to lie there. ``arguments`` are there when the step begins.
    """

    def __init__(self, arguments: Sequence[Tensor] = ()) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._arguments = {t.data_ptr() for t in arguments}
        self._pass: tuple[Tensor, list[Event]] | None = None
        self._made: dict[int, tuple[Tensor, list[Event]]] = {}

    def begin_pass(self, x: Tensor) -> None:
        """A training pass begins."""
        self._pass = x, _now(x)

    def beginning(self, x: Tensor, tensors: Iterable[Tensor]) -> list[Event]:
        """When the last training pass began, once, if it has the same x and the tensors were there at the time."""
        last, self._pass = self._pass, None
        is_there = last is not None and (last[0].data_ptr(), last[0].shape) == (x.data_ptr(), x.shape)
        if last is None or not is_there or any(t.data_ptr() not in self._arguments for t in tensors):
            return []
        return last[1]

    def make(self, grads: Sequence[Tensor], events: Sequence[list[Event]]) -> None:
        """The last gradients that were made: when each was, and its filters were read for the last time."""
        self._made = {g.data_ptr(): (g, own) for g, own in zip(grads, events, strict=True)}

    def made(self, g: Tensor) -> list[Event]:
        """When a gradient was made and its filters were read for the last time; nothing if that is not known."""
        return self._made.get(g.data_ptr(), (g, []))[1]

    def add(self, t: Tensor, copy: Tensor) -> None:
        self._copies[t.data_ptr()] = t, copy

    def get(self, t: Tensor) -> Tensor | None:
        own, copy = self._copies.get(t.data_ptr(), (None, None))
        return copy if own is not None and (own.shape, own.stride()) == (t.shape, t.stride()) else None


_copies: Copies | None = None


@contextlib.contextmanager
def rounded(tensors: Sequence[Tensor], copies: Sequence[Tensor], arguments: Sequence[Tensor] = ()) -> Iterator[Copies]:
    """A step in which these copies are read in the place of the tensors. :class:`Update` keeps them up to date.

    Two things then run beside others: a pass in eval mode that reads nothing but the step's ``arguments`` beside the
    training pass before it, and an update in place beside the gradients of earlier layers.
    """
    global _copies
    before, _copies = _copies, Copies(arguments)
    for t, copy in zip(tensors, copies, strict=True):
        _copies.add(t, copy)
    try:
        yield _copies
    finally:
        _copies = before


def is_rounding() -> bool:
    """Whether there are copies to keep up to date."""
    return _copies is not None


def copy_of(t: Tensor) -> Tensor | None:
    """The copy of a tensor that convolutions read, where it has one."""
    return None if _copies is None else _copies.get(t)


def round_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of the tensors, all in one go."""
    new = [torch.empty_like(t, dtype=dtype) for t in tensors]
    if new:
        torch._foreach_copy_(new, list(tensors))
    return new


def _is_unchanged(psi: ResNet18) -> bool:
    """Whether psi's layers are those it was made with: nobody replaced one, or hooked into it."""
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in psi.modules())
    return str(psi) == _layers(**psi.arguments) and not any(hooks)


@functools.cache
def _layers(channels: int, width: int) -> str:
    """A ResNet18's layers, as a text."""
    return str(ResNet18(channels, width))


class Update(torch.autograd.Function):
    """p - lr g for a list of parameters and one of gradients: one kernel for each of the stacked filters.

    ``in_place`` says that nothing reads the parameters any more, so that those with a copy may be overwritten.
    """

    @staticmethod
    def forward(in_place: bool, lr: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(tensors) // 2
        return tuple(p - lr * g for p, g in zip(tensors[:n], tensors[n:], strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, dims: Any, in_place: bool, lr: Tensor, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        lr, *stacked = replicas_first(info.batch_size, dims[1:], [lr, *tensors])
        n = len(stacked) // 2
        new, rest = list(stacked[:n]), []
        held: list[Tensor] = []  # what the other stream reads, until it is joined
        beside = _Beside(lr.device, 1)
        pairs = list(enumerate(zip(stacked[:n], stacked[n:], strict=True)))
        for i, (p, g) in reversed(pairs):  # the last gradients are made first
            copy = None if _copies is None else _copies.get(p)
            if copy is None or _copies is None:
                rest.append((i, p, lying_like(g, p)))
                continue
            if not in_place:
                new[i], copy = torch.empty_like(p), torch.empty_like(copy)
                _copies.add(new[i], copy)
            g = lying_like(g, p)
            held.append(g)
            if in_place:
                with beside.after(*(_copies.made(g) or _now(g))):
                    run_update(p, g, lr, p, copy)
            else:
                run_update(p, g, lr, new[i], copy)
        beside.join()
        shapes = {p.shape for _, p, _ in rest}
        rates = {shape: lr.view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous() for shape in shapes}
        if rest:
            places, params, grads = zip(*rest, strict=True)
            after = torch._foreach_addcmul(params, grads, [rates[p.shape] for p in params], value=-1)
            for i, t in zip(places, after, strict=True):
                new[i] = t
        return tuple(new), (0,) * n


def replicas_first(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with vmap's dimension first."""
    return [
        t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, dims, strict=True)
    ]


def lying_like(t: Tensor, model: Tensor) -> Tensor:
    """The tensor, lying in memory as another does."""
    strides = zip(t.shape, t.stride(), model.stride(), strict=True)
    return t if all(a == b for size, a, b in strides if size > 1) else torch.empty_like(model).copy_(t)


# -- psi of all replicas ---------------------------------------------------------------------------------------------


def run_training(
    layout: Layout, x: Tensor, parts: Parts, frozen: bool = False
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """z (R, N, features), the new running means and variances, and what :func:`run_gradient` takes.

    ``frozen`` is in eval mode: the running statistics take the place of the batch's, and the new ones mean nothing.
    """
    from cclfp.nets import kernels

    filters, *vectors = parts
    R, matrices, convs = len(x), with_stem(filters, layout.dtype), convs_of(layout, x.shape[3])
    gammas, betas, means, variances = ([t.contiguous() for t in kind] for kind in vectors)
    if _copies is not None and not frozen:
        _copies.begin_pass(x)
    saved: list[Tensor] = []
    sums: list[Any] = [None] * len(convs)
    new: list[Any] = [None] * len(convs)

    def convolved(i: int, a: Tensor) -> kernels.Norm:
        y, sums[i] = kernels.convolve(convs[i], R, a, matrices[i], statistics=not frozen)
        if frozen:
            pixels, mean = y.numel() // y.shape[-1], means[i].flatten()
            sums[i] = torch.stack([mean, variances[i].flatten() + mean * mean]).unsqueeze(0) * pixels
        saved.append(y)
        return kernels.Norm(y, sums[i], gammas[i], betas[i])

    def normalised(
        i: int, norm: Any, residual: Tensor | None = None, j: int | None = None, other: Any = None
    ) -> Tensor:
        running2 = None if j is None else (means[j], variances[j])
        out, new[i], new2 = kernels.normalise(norm, (means[i], variances[i]), other, running2, residual)
        if j is not None:
            new[j] = new2
        saved.append(out)
        return out

    def run() -> Tensor:
        saved.clear()
        saved.append(kernels.columns(x, layout.dtype))
        a = normalised(0, convolved(0, saved[0]))
        for i, k, *shortcut in layout.blocks:
            y = convolved(k, normalised(i, convolved(i, a)))
            j = shortcut[0] if shortcut else None
            a = normalised(k, y, a) if j is None else normalised(k, y, None, j, convolved(j, a))
        return pooled(a, R)

    z = compiled(run, f"training {frozen}", layout, x, filters)
    halves = [t.view(2, R, -1) for t in new]
    kept = [apart(t, R) for t in (*saved, *sums)]
    return z, [mean for mean, _ in halves], [variance for _, variance in halves], kept


def run_gradient(
    layout: Layout, dz: Tensor, parts: Parts, saved: Sequence[Tensor], frozen: bool = False
) -> list[Tensor]:
    """The gradients of the filters, gammas and betas."""
    from cclfp.nets import kernels

    filters, gammas, betas = parts
    R, n = len(dz), len(layout.layers)
    joined = [side_by_side(t) for t in saved]
    activations, sums = joined[:-n], joined[-n:]
    matrices, convs = [dz, *matrices_of(filters[1:], layout.dtype)], convs_of(layout, saved[0].shape[3])
    dw, dgamma, dbeta = ([dz] * n for _ in range(3))
    kept: list[Tensor] = []  # until the other queue has read it
    beside = _Beside(dz.device)
    events: list[list[Event]] = [[] for _ in range(n)]

    def norm(i: int, y: Tensor) -> kernels.Norm:
        return kernels.Norm(y, sums[i], gammas[i].contiguous(), betas[i].contiguous())

    def through_norm(d: Tensor, i: int, y: Tensor, masked: bool, j: int | None = None, y2: Tensor | None = None) -> Any:
        other = None if j is None or y2 is None else norm(j, y2)
        dy, dy2, grads = kernels.norm_gradients(d, norm(i, y), other, masked, frozen)
        parts = [t.view(R, -1) for t in grads]
        dgamma[i], dbeta[i] = parts[:2]
        if j is not None:
            dgamma[j], dbeta[j] = parts[2], parts[1]
        return dy, dy2

    def filter_gradient(i: int, a: Tensor, dy: Tensor) -> None:
        kept.append(dy)
        with beside.after(*_now(dy)):
            dw[i] = kernels.filter_gradient(convs[i], R, a, dy)
            events[i] = _now(dy)

    def input_gradient(i: int, dy: Tensor, **more: Any) -> Tensor:
        d: Tensor = kernels.convolve(convs[i], R, dy, matrices[i], gradient=True, **more)[0]
        events[i] += _now(dy)
        return d

    def run() -> None:
        columns, y0, *_, last = activations
        g = unpooled(dz, last)
        for i, k, s, a, y1, a1, y2, ys, _ in reversed(blocks_of(layout, activations)):
            dy2, dys = through_norm(g, k, y2, False, s, ys)
            filter_gradient(k, a1, dy2)
            dy1, _ = through_norm(input_gradient(k, dy2), i, y1, True)
            filter_gradient(i, a, dy1)
            if s is None:
                g = input_gradient(i, dy1, residual=g, mask=a)
            else:
                filter_gradient(s, a, dys)
                g = input_gradient(i, dy1, x2=dys, w2=matrices[s], mask=a)
                events[s] += events[i]
        dy0, _ = through_norm(g, 0, y0, False)
        filter_gradient(0, columns, dy0)
        beside.join()

    compiled(run, f"gradient {frozen}", layout, saved[0], filters)
    if _copies is not None and not frozen:
        _copies.make(dw[1:], events[1:])
    return [*(as_filters(t, w) for t, w in zip(dw, filters, strict=True)), *dgamma, *dbeta]


def blocks_of(layout: Layout, activations: Sequence[Any]) -> list[tuple[Any, ...]]:
    """For each block its layers (first, second, and shortcut or None) and what was saved of it.

    That is its input, the first convolution's output and what became of it, the outputs of the second and of the
    shortcut's, and the block's own.
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


def unpooled(dz: Tensor, a: Tensor) -> Tensor:
    """The gradient before the last ReLU, whose output is a, from that of z."""
    mean = (dz.transpose(0, 1) / (a.shape[1] * a.shape[2])).to(a.dtype).reshape(len(a), 1, 1, -1)
    g: Tensor = torch.ops.aten.threshold_backward(mean.expand_as(a), a, 0)
    return g


def run_frozen(layout: Layout, x: Tensor, parts: Parts) -> Tensor:
    """z (R, N, features) in eval mode."""
    from cclfp.nets import kernels

    R, convs = len(x), convs_of(layout, x.shape[3])
    begun = [] if _copies is None else _copies.beginning(x, (t for kind in parts for t in kind))

    def run() -> Tensor:
        matrices = with_stem(parts[0], layout.dtype)
        gamma, beta, mean, variance = (torch.cat([t.flatten() for t in kind]) for kind in parts[1:])
        scale = gamma * torch.rsqrt(variance + 1e-5)
        sizes = [t.numel() for t in parts[1]]
        scales, shifts = scale.split(sizes), torch.addcmul(beta, mean, scale, value=-1).split(sizes)

        def convolved(i: int, a: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
            out, _ = kernels.convolve(
                convs[i], R, a, matrices[i], scale=scales[i], shift=shifts[i], residual=residual, relu=relu
            )
            return out

        a = convolved(0, kernels.columns(x, layout.dtype))
        for i, k, *shortcut in layout.blocks:
            residual = convolved(shortcut[0], a, relu=False) if shortcut else a
            a = convolved(k, convolved(i, a), residual)
        return pooled(a, R)

    if not begun:
        alone: Tensor = compiled(run, "frozen", layout, x, parts[0])
        return alone
    beside = _Beside(x.device)
    with beside.after(*begun):
        z: Tensor = compiled(run, "frozen", layout, x, parts[0])
    beside.join()
    return z


def run_update(p: Tensor, g: Tensor, lr: Tensor, out: Tensor, copy: Tensor) -> None:
    """out = p - lr g, and a copy of it in another precision."""
    from cclfp.nets import kernels

    kernels.sgd(p, g, lr.contiguous(), out, copy)


def convs_of(layout: Layout, side: int) -> list[Any]:
    from cclfp.nets import kernels

    shapes = (layer.shape for layer in layout.layers)
    return [kernels.Conv(C, K, ks, stride, side // shrunk) for C, K, ks, stride, shrunk in shapes]


def matrices_of(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Filters (R, K, C, kh, kw) as the kernels read them: rounded, (R*K, taps*C)."""
    copies = [None if _copies is None else _copies.get(w) for w in filters]
    made = iter(round_all([w for w, copy in zip(filters, copies, strict=True) if copy is None], dtype))
    return [_matrix(next(made) if copy is None else copy) for copy in copies]


def with_stem(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The same, the first of them the stem's, with its 27 columns filled up to 32."""
    stem, *others = matrices_of(filters, dtype)
    return [F.pad(stem, (0, 5)), *others]


def _matrix(w: Tensor) -> Tensor:
    return w.permute(0, 1, 3, 4, 2).reshape(w.shape[0] * w.shape[1], -1)


def as_filters(dw: Tensor, w: Tensor) -> Tensor:
    """A gradient from the kernels in the shape of the filters."""
    _, K, C, height, width = w.shape
    return dw[:, : C * height * width].reshape(-1, K, height, width, C).permute(0, 1, 4, 2, 3)


def side_by_side(t: Tensor) -> Tensor:
    """Replicas, which are the first dimension, beside each other in the last."""
    return t.movedim(0, -2).flatten(-2)


def apart(t: Tensor, R: int) -> Tensor:
    """The same the other way round."""
    replicas: Tensor = t.unflatten(-1, (R, -1))
    return replicas.movedim(-2, 0)


def pooled(a: Tensor, R: int) -> Tensor:
    """z (R, N, features) from the last activations."""
    return (
        a.view(len(a), -1, R, a.shape[-1] // R)
        .mean(1, dtype=torch.promote_types(a.dtype, torch.float32))
        .transpose(0, 1)
    )


class _Beside:
    """Another queue of a graphics card; elsewhere all runs in turn.

    What it reads or writes must be held until it is joined.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self._stream = _side_stream(device, number) if device.type == "cuda" else None
        self._is_used = False

    @contextlib.contextmanager
    def after(self, *events: Event) -> Iterator[None]:
        """What is launched inside waits for these events and, but for the queue's own, nothing else."""
        if self._stream is None:
            yield
            return
        self._is_used = True
        for event in events:
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What is launched from now on waits for all of the queue."""
        if self._stream is not None and self._is_used:
            torch.cuda.current_stream().wait_stream(self._stream)


@functools.cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _now(t: Tensor) -> list[Event]:
    """All that was launched so far on the current queue of the tensor's device."""
    return [torch.cuda.current_stream().record_event()] if t.is_cuda else []


_seen: set[Any] = set()


def compiled(run: Callable[[], Any], kind: str, layout: Layout, x: Tensor, filters: Sequence[Tensor]) -> Any:
    """What ``run`` gives. The first time, all its kernels are compiled at once; one by one they would take a minute."""
    from cclfp.nets import kernels

    if x.shape[0] * x.shape[1] * x.shape[3] ** 2 * layout.layers[0].shape[1] >= LARGEST:
        raise NotStackable(f"{x.shape[1]:,} examples of {x.shape[0]} replicas are too many at once")
    if x.shape[0] * max(w[0].numel() for w in filters) >= LARGEST:
        raise NotStackable(f"{x.shape[0]} replicas of a network this wide are too many at once")
    key = (kind, layout, x.device, x.shape, len(filters[0]))
    if x.is_cuda and key not in _seen:
        with kernels.compiling():
            run()
        _seen.add(key)
    return run()
