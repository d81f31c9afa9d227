"""Finetune: train on each task as it comes and do nothing against forgetting. The lower bound."""

from __future__ import annotations

from cclfp.methods.er import ER


class Finetune(ER):
    """ER with nothing to replay: the lower bound of the paper's tables."""

    name = "finetune"
    reference = "lower bound: plain SGD on the stream"
    schedule = None
