"""A ResNet18 whose functions vmap can stack: all replicas at once, in kernels of our own.

Like the rest of a method's step, the functions are written for one replica. Under vmap, :class:`Folded` puts the
replicas side by side, and :mod:`cclfp.engine.kernels.passes` computes all of them at once. The rest of PyTorch sees
autograd functions: psi, its gradient, and the update of SGD.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from cclfp.core.torch_private import missing
from cclfp.engine.kernels import Layout, NotStackable, Tensors, passes
from cclfp.engine.kernels.arrange import (
    SideStream,
    current_copies,
    events_now,
    lying_like,
    parts_of,
    replicas_first,
)
from cclfp.methods import Method
from cclfp.nets.network import Network


class StackedResNet(Network):
    """A network as a step sees it that is taken for many replicas under vmap.

    With ``in_place`` the step reads no parameter after :meth:`sgd`, which may then overwrite them.
    """

    def __init__(self, net: Network, layout: Layout, *, in_place: bool) -> None:
        if lacking := missing("kernels"):
            raise NotStackable(f"torch {torch.__version__} has no {lacking}")
        vars(self).update(vars(net))  # the same psi and f
        self._layout, self._in_place = layout, in_place

    def features(self, params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Tensors]:
        norms = [layer.norm for layer in self._layout.layers]
        counts = [buffers[f"{name}.num_batches_tracked"] for name in norms]
        z, *others = self._apply(_Train, params, buffers, x, *counts)
        kinds = ("running_mean", "running_var", "num_batches_tracked")
        names = [f"{name}.{kind}" for kind in kinds for name in norms]
        after = {name: t.squeeze(0) for name, t in zip(names, others, strict=False)}
        return z.squeeze(0), {name: after[name] for name in buffers}

    def frozen_features(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        z: Tensor = self._apply(_Frozen, params, buffers, x)
        return z.squeeze(0)

    def normalised_features(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        if len(x) == 1:
            return self.frozen_features(params, buffers, x)
        return self.features(params, buffers, x)[0]  # ResNet18 has no other layers with a training mode

    def sgd(self, params: Tensors, grads: Tensors, lr: Tensor) -> Tensors:
        before, along = [p.detach() for p in params.values()], [grads[name] for name in params]
        return dict(zip(params, Update.apply(self._in_place, lr, *before, *along), strict=True))

    def _apply(self, function: type[Folded], params: Tensors, buffers: Tensors, x: Tensor, *more: Tensor) -> Any:
        if not self._layout.takes(x):
            raise NotStackable(f"a step gives psi inputs of shape {tuple(x.shape)} and {x.dtype}")
        given = [x, *self._layout.tensors(self._own(params), buffers), *more]
        return function.apply(self._layout, *(t.unsqueeze(0) for t in given))


def on_kernels(method: Method, layout: Layout) -> Method:
    """The method on a :class:`StackedResNet`."""
    new = copy.copy(method)
    # The default step is over with SGD. One that calls it may still use the parameters that it was given.
    new.net = StackedResNet(method.net, layout, in_place=type(method).step is Method.step)
    return new


class Folded(torch.autograd.Function):
    """A function of tensors whose first dimension is the replicas. vmap folds the dimension that it adds into it."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is saved for a gradient."""

    @classmethod
    def vmap(cls, info: Any, dims: Any, layout: Layout, *tensors: Tensor) -> Any:
        size = info.batch_size
        new = cls.apply(layout, *(t.flatten(0, 1) for t in replicas_first(size, dims[1:], tensors)))
        if isinstance(new, Tensor):
            return new.unflatten(0, (size, -1)), 0
        return tuple(t.unflatten(0, (size, -1)) for t in new), (0,) * len(new)


class _Train(Folded):
    """z, the new buffers, and the tensors that the gradient needs."""

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, *given = tensors
        *parts, counts = parts_of(layout, given)
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

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(layout.layers)
        dz, *given = tensors
        return tuple(passes.run_gradient(layout, dz, parts_of(layout, given[: 3 * n]), given[3 * n :]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotStackable("a step takes second derivatives of psi")


class _Frozen(Folded):
    """z in eval mode."""

    @staticmethod
    def forward(layout: Layout, *tensors: Tensor) -> Tensor:
        x, *given = tensors
        return passes.run_frozen(layout, x, parts_of(layout, given))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotStackable("a step takes a gradient through psi in eval mode")


class Update(torch.autograd.Function):
    """p - lr g for a list of parameters and a list of their gradients: one kernel per layer for the stacked filters.

    With ``in_place`` nothing reads the parameters any more, so those with a rounded copy are overwritten.
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
        from cclfp.engine.kernels.triton_others import sgd

        copies = current_copies()
        lr, *stacked = replicas_first(info.batch_size, dims[1:], [lr, *tensors])
        lr = lr.contiguous()
        n = len(stacked) // 2
        new, rest = list(stacked[:n]), []
        held: list[Tensor] = []  # what the side stream reads, until it is joined
        beside = SideStream(lr.device, 1)
        pairs = list(enumerate(zip(stacked[:n], stacked[n:], strict=True)))
        for i, (p, g) in reversed(pairs):  # the gradients of the last layers are computed first
            g, copy = lying_like(g, p), copies.get(p)
            if copy is None:
                rest.append((i, p, g))
            elif in_place:
                held.append(g)
                with beside.after(*(copies.made(g) or events_now(g))):
                    sgd(p, g, lr, p, copy)
            else:
                new[i], copy = torch.empty_like(p), torch.empty_like(copy)
                copies.add(new[i], copy)
                sgd(p, g, lr, new[i], copy)
        beside.join()
        shapes = {p.shape for _, p, _ in rest}
        rates = {shape: lr.view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous() for shape in shapes}
        if rest:
            places, params, grads = zip(*rest, strict=True)
            after = torch._foreach_addcmul(params, grads, [rates[p.shape] for p in params], value=-1)
            for i, t in zip(places, after, strict=True):
                new[i] = t
        return tuple(new), (0,) * n
