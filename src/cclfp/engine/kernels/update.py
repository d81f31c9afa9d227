"""The update of SGD for stacked replicas: one kernel per layer, which also rounds the new filters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cclfp.engine.kernels.arrange import SideStream, current_copies, events_now, lying_like, replicas_first


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
            copy = None if copies is None else copies.get(p)
            if copy is None or copies is None:
                rest.append((i, p, lying_like(g, p)))
                continue
            if not in_place:
                new[i], copy = torch.empty_like(p), torch.empty_like(copy)
                copies.add(new[i], copy)
            g = lying_like(g, p)
            held.append(g)
            if in_place:
                with beside.after(*(copies.made(g) or events_now(g))):
                    sgd(p, g, lr, p, copy)
            else:
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
