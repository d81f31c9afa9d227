"""A trained learner as one ``nn.Module``, for use without the learner."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.learner.checks import prepare
from cclfp.methods import Method
from cclfp.nets.network import Network, Tensors

if TYPE_CHECKING:
    from cclfp.learner.learner import Learner


class Classifier(nn.Module):
    """Maps raw inputs to one score per class, as ``Learner.logits`` does. Training the learner on does not change it.

    It takes the learner's transform for predicting, always computes in eval mode, and gives -inf for the classes that
    a prediction may not choose.
    """

    allowed: Tensor

    def __init__(self, learner: Learner, allowed: Tensor) -> None:
        super().__init__()
        assert learner.f is not None
        self.psi, self.f = copy.deepcopy(learner.psi), copy.deepcopy(learner.f)
        self.register_buffer("allowed", allowed.clone())
        self._transform = learner.predict_transform
        self._method = learner.method(Network(self.psi, self.f, learner.psi_mode, learner.autocast))
        self._trained = learner.psi_mode["trained"]
        leaves, self._spec = trees.flatten({} if learner.method.scores is Method.scores else learner.state)
        self._state = [f"state_{number}" for number in range(len(leaves))]
        for name, leaf in zip(self._state, leaves, strict=True):
            self.register_buffer(name, leaf.clone())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        params: Tensors = {f"psi.{name}": self.psi.get_parameter(name) for name in self._trained}
        params |= {"f.weight": self.f.weight, "f.bias": self.f.bias}
        state = trees.unflatten([getattr(self, name) for name in self._state], self._spec)
        prepared = prepare(x, self.psi, self._transform)
        return self._method.scores(params, dict(self.psi.named_buffers()), state, prepared).masked_fill(
            ~self.allowed, -torch.inf
        )
