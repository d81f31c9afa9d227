"""A-GEM: a step may not, to first order, raise the loss on a few examples drawn from all past tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch, Hyperparameters, Method, State, Stepped, gradient_and_loss, setting
from cclfp.methods.gem import past_gradient
from cclfp.nets.network import Tensors
from cclfp.schedules import PastRing


@dataclasses.dataclass(frozen=True)
class AGEMHyper(Hyperparameters):
    reference: float = setting(
        256, "memory examples that the reference gradient is from, at most", low=1, whole=True, before="replay"
    )


class AGEM(Method):
    """A-GEM: GEM with one constraint, on the average over the past, instead of one per past task.

    With g the gradient of the loss on the current part of the batch and g_ref that on its replayed part, drawn from the
    memory of all past tasks, the step goes along (eq. 11)

        g - (g' g_ref / g_ref' g_ref) g_ref  where g' g_ref < 0,    g elsewhere.

    In the first task nothing is replayed, so this is plain SGD.

    Choices: the paper keeps |M| / T examples of each of T tasks, drawn at random; here the memory is always full and
    holds the most recent examples of every task, in shares that shrink as tasks come. g and g_ref go over all trainable
    parameters. BatchNorm: the pass on the current part updates the statistics; that on the replayed part is one of its
    own, as in GEM. g_ref is from ``reference`` examples, 256 in the authors' code. Where the memory holds fewer of past
    tasks once the current one has its share, it is from as many as that throughout the task.
    """

    name = "a-gem"
    reference = "Chaudhry et al. 2019, Efficient Lifelong Learning with A-GEM"
    Hyper = AGEMHyper
    schedule = PastRing
    replays = "reference"

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        """The loss it returns is the one on the new examples, without those replayed for the reference gradient."""
        n, x, y, mask = batch.n_current, batch.x, batch.y, batch.mask

        def current(params: Tensors) -> tuple[Tensor, Tensors]:
            z, after = self.net.features(params, buffers, x[:n])
            return cross_entropy(self.net.classify(params, z), y[:n], mask[:n]), after

        grads, loss, after = gradient_and_loss(current, params)
        if n < len(y):
            reference = past_gradient(self.net, params, buffers, x[n:], y[n:], mask[n:])
            grads = project(grads, reference)
        return self.net.sgd(params, grads, hyper.lr), after, state, {"loss": loss}


def project(grads: Tensors, reference: Tensors) -> Tensors:
    """Eq. 11: without its part against the reference gradient, where it has one.

    >>> project({"a": torch.tensor([2.0, -3.0])}, {"a": torch.tensor([0.0, 5.0])})
    {'a': tensor([2., 0.])}
    """
    agreement, size = dot(grads, reference), dot(reference, reference)
    # Where the reference gradient is 0 there is nothing to disagree with.
    share = torch.where(agreement < 0, agreement / torch.where(size > 0, size, 1), 0)
    return {name: g - share * reference[name] for name, g in grads.items()}


def dot(a: Tensors, b: Tensors) -> Tensor:
    """The inner product over all parameters."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()
