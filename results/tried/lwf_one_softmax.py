"""LwF with one softmax over the classes of all past tasks, in place of one for each past task.

The code of DER++ does this in the class scenario. RESULTS.md has its numbers, under "Numbers below the paper's".

    cclfp run results/tried/lwf_one_softmax.py:OneSoftmax split-mnist lr=0.03 lambda_o=10
"""

from typing import Any

import torch

from cclfp.methods.base import State, TaskContext
from cclfp.methods.lwf import LwF
from cclfp.nets.network import Tensors


class OneSoftmax(LwF):
    """LwF whose distillation compares the classes of all past tasks with each other."""

    name = "lwf-one-softmax"

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        state = super().end_task(params, buffers, state, hyper, context)
        masks = state["masks"]
        return {**state, "masks": torch.cat([masks.any(0, keepdim=True), torch.zeros_like(masks[1:])])}
