"""Methods that train on the outputs of all classes, also of those that have not come yet.

The class scenario trains on the classes seen so far. The code of DER++ trains SI, ER and others on all outputs.
RESULTS.md has the numbers, under "Numbers below the paper's".

    cclfp run results/tried/all_outputs.py:SI split-mnist lr=0.001 c=100 xi=0.001
"""

import dataclasses
from typing import Any

import torch

from cclfp.methods import METHODS
from cclfp.methods.base import Batch, Method, State, Stepped
from cclfp.nets.network import Tensors


class AllOutputs(Method):
    """Listed before a method's class, it lets every training example choose from all classes."""

    moves_every_row = True

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        batch = dataclasses.replace(batch, mask=torch.ones_like(batch.mask))
        return super().step(params, buffers, state, batch, hyper)


def on_all_outputs(name: str) -> type[Method]:
    """A method that ships with cclfp, trained on all outputs."""
    described = {"name": f"{name}-all-outputs", "__doc__": f"{name}, trained on the outputs of all classes."}
    return type(METHODS[name].__name__, (AllOutputs, METHODS[name]), described)


Finetune, SI, LwF, ER = map(on_all_outputs, ("finetune", "si", "lwf", "er"))
GEM, AGEM, ICaRL = map(on_all_outputs, ("gem", "a-gem", "icarl"))
CCLFP, CCLFPPlus = map(on_all_outputs, ("ccl-fp", "ccl-fp+"))
