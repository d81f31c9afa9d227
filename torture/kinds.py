"""All kinds of faults in the campaign."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence

import torch

from torture import files, kills, planted, shortages, signals, streams, surroundings, writers
from torture.campaign import Kind
from torture.files import call

MODULES = (kills, writers, files, planted, shortages, signals, surroundings, streams)
KINDS: list[Kind] = [kind for module in MODULES for kind in module.KINDS]


def warm_up(kinds: Sequence[Kind]) -> None:
    """Import everything that forked processes need, without computing anything."""
    used = (
        "cclfp.runs.run",
        "cclfp.report",
        "cclfp.paper.tuning",
        "torch.fx.experimental.symbolic_shapes",
        "vl_convert",
    )
    for name in used:
        importlib.import_module(name)
    if any("traced" in kind.name for kind in kinds):
        importlib.import_module("torch._dynamo")
    warnings.simplefilter("ignore")  # torch warns about hostile files
    torch.set_num_threads(1)
    call("list", "methods")  # the command line imports modules when it is used
