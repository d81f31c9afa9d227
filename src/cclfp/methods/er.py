"""ER-Reservoir, and the bounds of the paper's tables, which are ER without a memory: Finetune and Joint."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch, Method, State
from cclfp.nets.network import Tensors
from cclfp.schedules import Reservoir, Schedule


class ER(Method):
    """Experience replay: eq. 2, the cross-entropy over the current and the replayed examples.

    A few examples from a reservoir-sampled memory join every minibatch.
    """

    name = "er"
    reference = "Chaudhry et al. 2019, On Tiny Episodic Memories in Continual Learning (ER-Reservoir)"
    schedule: ClassVar[type[Schedule] | None] = Reservoir

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        z, buffers = self.net.features(params, buffers, batch.x)
        return cross_entropy(self.net.classify(params, z), batch.y, batch.mask), buffers


class Finetune(ER):
    """ER without a memory: the lower bound of the paper's tables."""

    name = "finetune"
    reference = "lower bound: plain SGD on the stream"
    schedule = None


class Joint(Finetune):
    """Finetune on one shuffled stream of all tasks: the upper bound of the paper's tables."""

    name = "joint"
    reference = "upper bound: plain SGD on one shuffled stream of all tasks"
    joint = True
