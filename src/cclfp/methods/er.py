"""ER-Reservoir: replay a few examples from a reservoir-sampled memory with every minibatch."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch, Method, State
from cclfp.nets.network import Tensors
from cclfp.schedules import Reservoir, Schedule


class ER(Method):
    """Experience replay: eq. 2, the cross-entropy over the current and the replayed examples."""

    name = "er"
    reference = "Chaudhry et al. 2019, On Tiny Episodic Memories in Continual Learning (ER-Reservoir)"
    schedule: ClassVar[type[Schedule] | None] = Reservoir

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        z, buffers = self.net.features(params, buffers, batch.x)
        return cross_entropy(self.net.classify(params, z), batch.y, batch.mask), buffers
