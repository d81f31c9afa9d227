"""Finetune: train on each task in turn, without any measure against forgetting. The lower bound."""

from __future__ import annotations

from cclfp.methods.er import ER


class Finetune(ER):
    """ER without a memory: the lower bound of the paper's tables."""

    name = "finetune"
    reference = "lower bound: plain SGD on the stream"
    schedule = None
