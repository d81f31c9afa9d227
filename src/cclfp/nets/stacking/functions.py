"""psi(x) as autograd functions that vmap can stack.

:func:`train` and :func:`freeze` compute psi(x) in training and in eval mode. Like the rest of a method's step they are
written for one replica. Under vmap, :class:`Folded` puts the replicas side by side, and
:mod:`cclfp.nets.stacking.passes` computes all of them at once. The rest of PyTorch sees two autograd
functions, psi and its gradient.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from cclfp.nets.stacking import passes
from cclfp.nets.stacking.arrangement import parts_of, replicas_first
from cclfp.nets.stacking.layout import Layout, NotStackable, Tensors


def train(layout: Layout, params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Tensors]:
    """psi(x) in training mode, and the new buffers."""
    norms = [layer.norm for layer in layout.layers]
    counts = [buffers[f"{name}.num_batches_tracked"] for name in norms]
    given = [x, *layout.tensors(params, buffers), *counts]
    z, *others = _Train.apply(layout, *(t.unsqueeze(0) for t in given))
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    names = [f"{name}.{kind}" for kind in kinds for name in norms]
    return z.squeeze(0), {name: t.squeeze(0) for name, t in zip(names, others, strict=False)}


def freeze(layout: Layout, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
    """psi(x) in eval mode."""
    given = [x, *layout.tensors(params, buffers)]
    z: Tensor = _Frozen.apply(layout, *(t.unsqueeze(0) for t in given))
    return z.squeeze(0)


class Folded(torch.autograd.Function):
    """A function of tensors whose first dimension is the replicas. vmap folds the dimension that it adds into it.

    If vmap adds a dimension to the minibatches but not to the network, the minibatches share one network.
    """

    kinds: ClassVar[int]  # of the network's tensors, which follow the first tensor: one of each kind per layer

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
    """z, the new buffers, and the tensors that the gradient needs."""

    kinds = 6

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, *given = tensors
        *parts, counts = parts_of(layout, given, 6, len(x))
        z, means, variances, saved = passes.run_training(layout, x, parts)
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
    """The gradients of psi's parameters, from the gradient of z."""

    kinds = 3

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(layout.layers)
        dz, *given = tensors
        return tuple(passes.run_gradient(layout, dz, parts_of(layout, given[: 3 * n], 3, len(dz)), given[3 * n :]))

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
        return passes.run_frozen(layout, x, parts_of(layout, given, 5, len(x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotStackable("a step takes a gradient through psi in eval mode")
