"""Methods that train on the outputs of all classes, also of those that have not come yet.

The class scenario trains on the classes seen so far. The code of DER++ trains SI, ER and others on all outputs.
RESULTS.md has the numbers, under "Numbers below the paper's".

    cclfp run results/tried/all_outputs.py:SI split-mnist lr=0.001 c=1000 xi=0.01
"""

import dataclasses
from typing import Any

from cclfp.methods import ccl_fp, er, si
from cclfp.methods.base import Batch, Method, State, Stepped
from cclfp.nets.network import Tensors


class AllOutputs(Method):
    """Put before a method, it lets every training example choose from all classes."""

    moves_every_row = True

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        everything = batch.mask | ~batch.mask
        return super().step(params, buffers, state, dataclasses.replace(batch, mask=everything), hyper)


class SI(AllOutputs, si.SI):
    name = "si-all-outputs"


class ER(AllOutputs, er.ER):
    name = "er-all-outputs"


class CCLFPPlus(AllOutputs, ccl_fp.CCLFPPlus):
    name = "ccl-fp+-all-outputs"
