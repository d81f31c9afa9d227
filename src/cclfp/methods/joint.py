"""Joint: train on all tasks at once. The upper bound."""

from __future__ import annotations

from cclfp.methods.finetune import Finetune


class Joint(Finetune):
    """Finetune on one shuffled stream of all tasks: the upper bound of the paper's tables."""

    name = "joint"
    reference = "upper bound: plain SGD on one shuffled stream of all tasks"
    joint = True
