"""CCL-FP and CCL-FP+ (Han & Guo 2021): experience replay on propagated features, with contrastive rehearsal."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cclfp.losses import contrastive_rehearsal, cross_entropy, distances, propagate, supervised_contrastive
from cclfp.methods.base import Batch, Hyperparameters, Method, State, TaskContext, setting
from cclfp.nets.network import Tensors
from cclfp.schedules import Reservoir

REFERENCE = "Han & Guo 2021, Contrastive Continual Learning with Feature Propagation"


@dataclasses.dataclass(frozen=True)
class CCLFPHyper(Hyperparameters):
    w: float = setting(0.5, "weight of the propagated old features (eq. 3)", low=0, high=1)
    alpha: float = setting(0.5, "weight of the contrastive rehearsal loss L_cl (eq. 7)", low=0)
    eta: float = setting(0.1, "multiplies the distance in the propagation weights (eq. 4)", low=0)
    tau: float = setting(
        0.1, "multiplies the distance in the contrastive losses (eqs. 6, 8); 1 by default in the domain scenario", low=0
    )


@dataclasses.dataclass(frozen=True)
class CCLFPPlusHyper(CCLFPHyper):
    beta: float = setting(0.01, "weight of the supervised contrastive loss L_scl (eq. 9)", low=0)


class CCLFP(Method):
    """CCL-FP, eq. 7: L_er' + alpha L_cl, where L_er' (eq. 5) is the cross-entropy of f on the propagated features.

    psi_old is a frozen copy of psi from the end of the last task, in eval mode. The first task has no psi_old, so
    neither propagation nor L_cl. At test time the prediction is f(psi(x)), without propagation.
    """

    name = "ccl-fp"
    reference = REFERENCE
    Hyper = CCLFPHyper
    schedule = Reservoir

    @classmethod
    def defaults(cls, scenario: str) -> dict[str, float]:
        return {"tau": 1.0} if scenario == "domain" else {}

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        z, buffers = self.net.features(params, buffers, batch.x)
        if "psi_old" not in state:
            loss = cross_entropy(self.net.classify(params, z), batch.y, batch.mask)
        else:
            with torch.no_grad():
                z_old = self.net.frozen_features(state["psi_old"], state["buffers_old"], batch.x)
            d = distances(z, z_old)
            fused = propagate(z, z_old, hyper.w, hyper.eta, d=d)
            loss = cross_entropy(self.net.classify(params, fused), batch.y, batch.mask)
            loss = loss + hyper.alpha * contrastive_rehearsal(z, z_old, hyper.tau, d=d)
        return loss + self.extra_loss(z, batch, hyper), buffers

    def extra_loss(self, z: Tensor, batch: Batch, hyper: Any) -> Tensor | float:
        """The loss that CCL-FP+ adds; 0 for CCL-FP."""
        return 0.0

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        psi = {name: p for name, p in params.items() if name.startswith("psi.")}
        return {"psi_old": psi, "buffers_old": buffers}  # the learner stores copies


class CCLFPPlus(CCLFP):
    """CCL-FP+, eq. 9: L_er' + alpha L_cl + beta L_scl."""

    name = "ccl-fp+"
    Hyper = CCLFPPlusHyper

    def extra_loss(self, z: Tensor, batch: Batch, hyper: Any) -> Tensor | float:
        return hyper.beta * supervised_contrastive(z, batch.y, hyper.tau)  # type: ignore[no-any-return]
