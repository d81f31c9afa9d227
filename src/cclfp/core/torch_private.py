"""Private names of torch, which it may change without notice: all that this package uses.

The eager engine needs none of them. What it would use is a loop here where torch lacks it, with the same numbers.
An engine is not used where torch lacks one of those that it needs.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

# By what needs them. Those of the compiler are looked up when it is imported, which takes seconds.
NEEDED = {
    "compiled": ("torch._C._aoti.AOTIModelContainerRunnerCpu",),
    "compiler": (
        "torch._inductor.aot_compile",
        "torch._inductor.compile",
        "torch._inductor.config.aot_inductor",
        "torch.ops.aten._linalg_solve_ex.default",
    ),
    "graph": ("torch._C._cuda_endAllocateToPool", "torch._C._cuda_releasePool"),
    "kernels": ("torch._foreach_add", "torch._foreach_addcmul", "torch._foreach_copy_"),
}


def missing(user: str) -> str:
    """The names that a user of them in ``NEEDED`` lacks in this torch, as a text; empty where there are all."""
    return ", ".join(name for name in NEEDED.get(user, ()) if not _exists(name))


def _exists(name: str) -> bool:
    found, parts = torch, name.split(".")[1:]
    for number, part in enumerate(parts, 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(name.split(".")[:number]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same dtype. On CUDA separate copies would cost one launch each."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def subtract_each(tensors: Sequence[Tensor], scale: Tensor, others: Sequence[Tensor]) -> Sequence[Tensor]:
    """t - scale * other for each pair of tensors."""
    if hasattr(torch, "_foreach_sub") and hasattr(torch, "_foreach_mul"):
        return torch._foreach_sub(list(tensors), torch._foreach_mul(list(others), scale))
    return [t - scale * other for t, other in zip(tensors, others, strict=True)]


def largest_each(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The largest absolute value of each tensor; NaN where it has one."""
    if hasattr(torch, "_foreach_norm"):
        return torch._foreach_norm(list(tensors), math.inf)
    return [t.abs().max() for t in tensors]
