"""GEM: a step may not, to first order, raise the loss on the memory of any past task."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch, Hyperparameters, State, Stepped, TaskContext, gradient, gradient_and_loss, setting
from cclfp.methods.er import ER
from cclfp.methods.qp import solve
from cclfp.nets.network import Network, Tensors
from cclfp.schedules import Ring

RIDGE = 1e-3  # on the diagonal of the dual programme's matrix, as in the authors' code
PART = 16_384  # numbers of a gradient that a GPU multiplies at once


@dataclasses.dataclass(frozen=True)
class GEMHyper(Hyperparameters):
    gamma: float = setting(0.5, "margin: lower bound of the dual variables; more favours backward transfer", low=0)


class GEM(ER):
    """GEM: the gradient g of the loss on the current batch is replaced with the nearest one that agrees with the past.

    With g_k the gradient of the loss on all examples that the memory holds of task k, the step goes along the solution
    of min_x 1/2 |g - x|^2 subject to <x, g_k> >= 0 for all past tasks k (eq. 8). It is found through the dual (eq. 11),
    in one variable a past task: with the g_k as the rows of M,

        min_v 1/2 v' M M' v + (M g)' v  subject to v >= gamma,    x = g + M' v.

    Where no <g, g_k> is negative, g is left as it is. In the first task this is plain SGD.

    Choices: the paper solves with v >= 0 and adds gamma to the solution; we do as the authors' code does, which solves
    with v >= gamma, and adds 1e-3 to the diagonal of M M'. The memory is split evenly over the tasks and holds the most
    recent examples of each, not augmented. g and the g_k go over all trainable parameters. BatchNorm: each g_k is from
    a pass of its own in training mode, whose statistics are thrown away (see :func:`past_gradient`).
    """

    name = "gem"
    reference = "Lopez-Paz & Ranzato 2017, Gradient Episodic Memory for Continual Learning"
    Hyper = GEMHyper
    schedule = Ring
    replays = False

    def begin_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """What the memory holds of each past task, no more than its share once the task that begins has its own."""
        ring = context.memory.schedule
        assert isinstance(ring, Ring)
        share = ring.share(len(ring.slots) + 1)
        past = {}
        for task, slots in ring.slots.items():
            if slots:
                raw = context.memory.read(slots[-share:])
                past[str(task)] = {"x": context.prepare(raw.x), "y": raw.y}
                if context.classes.scenario == "task":  # elsewhere all examples have the mask of the current batch
                    past[str(task)]["mask"] = context.classes.train(raw.task)
        return {"past": past} if past else {}

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        """The loss it returns is the one on the new examples, without those of past tasks."""
        if "past" not in state:
            return super().step(params, buffers, state, batch, hyper)
        g, loss, after = gradient_and_loss(lambda p: self.loss(p, buffers, state, batch, hyper), params)
        rows = [g]
        for past in state["past"].values():
            mask = past["mask"] if "mask" in past else batch.mask[:1].expand(len(past["y"]), -1)
            rows.append(past_gradient(self.net, params, buffers, past["x"], past["y"], mask))
        nearest = project(torch.stack([torch.cat([t.flatten() for t in row.values()]) for row in rows]), hyper.gamma)
        parts = nearest.split([p.numel() for p in params.values()])
        grads = {name: part.view_as(p) for (name, p), part in zip(params.items(), parts, strict=True)}
        return self.net.sgd(params, grads, hyper.lr), after, state, {"loss": loss}

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        return {}  # the next task begins with what the memory holds then


def past_gradient(net: Network, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, mask: Tensor) -> Tensors:
    """The gradient of the loss on examples of the past. psi's buffers stay as they are.

    BatchNorm normalises the examples with their own statistics. One alone has none, so psi is in eval mode then.
    """

    def loss(p: Tensors) -> tuple[Tensor, Tensors]:
        z = net.features(p, buffers, x)[0] if len(y) > 1 else net.frozen_features(p, buffers, x)
        return cross_entropy(net.classify(p, z), y, mask), {}

    return gradient(loss, params)[0]


def project(rows: Tensor, gamma: Tensor) -> Tensor:
    """The gradient nearest to the first row, g, that agrees with all others, M; g itself where it does so already.

    >>> project(torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.tensor(0.0)).round(decimals=2)
    tensor([2., -0.])
    """
    exact = rows.double() if rows.is_cuda else rows  # a GPU may round matmuls to ten bits (TF32)
    if rows.is_cuda:  # whose matmul of two rows of millions would leave the card idle: in parts, side by side
        parts = F.pad(exact, (0, -exact.shape[-1] % PART)).unflatten(-1, (-1, PART)).transpose(0, 1)
        products = (parts @ parts.mT).sum(0)
    else:
        products = (exact @ exact.mT).double()
    # The products are rounded: so much more on the diagonal keeps P positive definite.
    products.diagonal().add_(RIDGE + torch.finfo(rows.dtype).eps * products.trace())
    agreement, P = products[1:, 0], products[1:, 1:]  # M g and M M'
    v = torch.where(agreement.amin() < 0, solve(P, agreement, gamma), 0)
    return torch.addmv(exact[0], exact[1:].mT, v.to(exact.dtype)).to(rows.dtype)
