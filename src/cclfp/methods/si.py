"""SI: parameters that reduced the loss of a task are kept near their values at the end of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from cclfp.methods.base import Batch, Hyperparameters, State, Stepped, TaskContext, gradient_and_loss, setting
from cclfp.methods.er import Finetune
from cclfp.nets.network import Tensors


@dataclasses.dataclass(frozen=True)
class SIHyper(Hyperparameters):
    c: float = setting(1.0, "strength of the surrogate loss (eq. 4)", low=0)
    xi: float = setting(0.1, "damping of the importance of parameters that hardly moved (eq. 5)", low=0, low_open=True)


class SI(Finetune):
    """Synaptic intelligence: the cross-entropy L and a quadratic surrogate of the losses of past tasks.

    The equations are those of its paper; omega is ``path``, Omega ``importance`` and theta* ``start`` in the state.

    Eq. 3, the path integral of the gradient, summed over the steps of a task: omega_k -= dL/dtheta_k * (the change of
    theta_k in the step). The gradient is that of L alone; the change is that of the whole step, so it includes the
    effect of the surrogate (both as in the authors' own code).

    Eq. 5, at a task's end: Omega_k += omega_k / (Delta_k^2 + xi), where Delta_k is the change of theta_k over the task.

    Eq. 4, in later tasks: L + c sum_k Omega_k (theta_k - theta*_k)^2, where theta* are the parameters at the end of the
    last task. All parameters take part, including those of the classifier.

    The step takes the gradient of L at theta and that of the surrogate at the new theta', theta' = theta -
    lr (dL/dtheta + 2 c Omega (theta' - theta*)), which is solved in closed form. With both gradients at theta (plain
    SGD; the same to first order in lr) parameters with lr c Omega > 1 overshoot theta* further at every step: on
    Rotated MNIST (lr 0.1, xi 0.1) c = 1 ended in NaN; it now gives 75.9, and c = 0 gives 68.4.

    A parameter that the surrogate moved against the gradient has a negative omega. Eq. 5 adds it like any other, but
    with a negative Omega the surrogate would have no minimum and would push the parameter away. So the sum is clamped
    at 0, as in the authors' own code. Omega and omega start at 0, so the first task is the same as in Finetune.
    """

    name = "si"
    reference = "Zenke et al. 2017, Continual Learning Through Synaptic Intelligence"
    Hyper = SIHyper

    def begin_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """Set omega to 0, and store the parameters at the start of the task: theta*, the end of the last task."""
        nothing = {name: torch.zeros_like(p) for name, p in params.items()}
        # The learner stores copies.
        return {"path": nothing, "start": params, "importance": state.get("importance", nothing)}

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        """The loss it returns is the cross-entropy, without SI's penalty, which the update contains in closed form."""
        grads, loss, buffers = gradient_and_loss(lambda p: self.loss(p, buffers, state, batch, hyper), params)
        new, path = {}, {}
        for name, g in grads.items():
            p = params[name].detach()
            pull = 2 * hyper.lr * hyper.c * state["importance"][name]
            new[name] = p - (hyper.lr * g + pull * (p - state["start"][name])) / (1 + pull)  # theta', in closed form
            path[name] = state["path"][name] - g * (new[name] - p)  # eq. 3
        return new, buffers, {**state, "path": path}, {"loss": loss}

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """Add eq. 5 to Omega."""
        importance = {}
        for name, p in params.items():
            moved = p.detach() - state["start"][name]
            total = state["importance"][name] + state["path"][name] / (moved.square() + hyper.xi)
            importance[name] = total.clamp(min=0)
        return {"importance": importance}
