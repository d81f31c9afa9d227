"""All kinds of faults of the campaign."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

from torture import files, kills
from torture.campaign import Kind

KINDS: list[Kind] = [*kills.KINDS, *files.KINDS]


def warm_up(kinds: Sequence[Kind]) -> None:
    """Import in this process what the copies of it need, and compute nothing."""
    import cclfp.experiment
    import cclfp.report
    import cclfp.study.tuning  # noqa: F401

    if any("compiled" in kind.name for kind in kinds):
        importlib.import_module("torch._inductor.compile_fx")
    torch.set_num_threads(1)
