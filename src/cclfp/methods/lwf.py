"""LwF: on the current inputs, the new model keeps the old model's outputs for the classes of each past task."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from cclfp.losses import MASKED, cross_entropy
from cclfp.methods.base import Batch, Hyperparameters, Method, State, TaskContext, setting
from cclfp.nets.network import Tensors


@dataclasses.dataclass(frozen=True)
class LwFHyper(Hyperparameters):
    lambda_o: float = setting(1.0, "weight of the distillation loss L_old", low=0)
    T: float = setting(2.0, "temperature of the distillation: it divides the logits", low=0, low_open=True)


def distillation(logits: Tensor, old: Tensor, masks: Tensor, T: Tensor | float) -> Tensor:
    """Eqs. 2 to 4: the sum over past tasks of the mean over examples of -sum_i y'_old_i log y'_i.

    y' are probabilities at temperature T, y_i^(1/T) / sum_j y_j^(1/T): the softmax of the logits divided by T.
    ``masks`` (tasks x classes) has the classes of each task's softmax; a task without classes adds nothing.

    >>> two_heads = torch.tensor([[True, True, False], [False, False, True]])
    >>> distillation(torch.zeros(5, 3), torch.zeros(5, 3), two_heads, T=2.0)  # two classes: log 2; one class: 0
    tensor(0.6931)
    """
    heads = masks[:, None, :]  # tasks x examples x classes
    target = torch.softmax((old / T).masked_fill(~heads, MASKED), dim=-1)
    log_p = torch.log_softmax((logits / T).masked_fill(~heads, MASKED), dim=-1)
    return torch.where(heads, -target * log_p, 0).sum((0, 2)).mean()


class LwF(Method):
    """Learning without forgetting: L_new + lambda_o L_old.

    L_new (eq. 1) is the cross-entropy on the current examples, under the scenario's mask. L_old (eqs. 2 to 4) distils
    the old model into the new one on the same inputs, with the same augmentation and normalisation: for each past task
    a softmax over that task's classes, at temperature T, summed over the tasks. The old model is the whole network at
    the end of the last task, in eval mode; the first task has none. (Equations are numbered as in the paper's journal
    version, which uses T = 2 and, in most experiments, lambda_o = 1.)

    The paper records the old model's outputs for the whole new task, and trains the new head alone until it converges
    before it trains all parameters. Both require several passes over the task's data. Here the old model is evaluated
    on each minibatch, which gives the same targets (and takes the augmentation into account), and there is no warm-up,
    which the paper found "not so crucial" to the method. As for all methods, the paper's weight decay is left out. As
    in the paper, no factor T^2 compensates for the temperature.

    In the class scenario each softmax compares the classes of one past task with each other, and nothing compares them
    with the new classes, which are predicted almost everywhere: LwF is designed for separate heads (the task scenario).
    """

    name = "lwf"
    reference = "Li & Hoiem 2016, Learning without Forgetting"
    Hyper = LwFHyper
    refuses: ClassVar[dict[str, str]] = {
        "domain": "all tasks share their classes, so no outputs belong only to past tasks: on the new task's inputs "
        "the old model's outputs would contradict the new labels"
    }

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        z, buffers = self.net.features(params, buffers, batch.x)
        logits = self.net.classify(params, z)
        loss = cross_entropy(logits, batch.y, batch.mask)
        if "old" in state:
            with torch.no_grad():
                z_old = self.net.frozen_features(state["old"], state["buffers_old"], batch.x)
                old = self.net.classify(state["old"], z_old)
            loss = loss + hyper.lambda_o * distillation(logits, old, state["masks"], hyper.T)
        return loss, buffers

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        classes = context.classes
        return {
            "old": params,  # the learner stores copies
            "buffers_old": buffers,
            # One row per declared task, empty for future tasks, so that the step has the same shapes in all tasks.
            "masks": classes.classes_of & classes.seen[:, None],
        }
