"""Private names of torch, which it may change without notice: all that engines need.

An engine is not used where torch lacks one of them. The eager engine needs none. Two modules ask for some, and go
without: ``nets.network`` has loops in place of operations on many tensors, with the same numbers, and ``losses``
computes as under vmap where torch does not tell whether vmap runs.
"""

from __future__ import annotations

import pkgutil

# By what needs them.
NEEDED = {
    "traced": ("torch.utils._python_dispatch.TorchDispatchMode",),
    "graph": ("torch._C._cuda_endAllocateToPool", "torch._C._cuda_releasePool"),
    "kernels": ("torch._foreach_add", "torch._foreach_addcmul", "torch._foreach_copy_"),
}


def missing(user: str) -> str:
    """The names that a user of them in ``NEEDED`` lacks in this torch, as a text; empty where none is missing."""
    return ", ".join(name for name in NEEDED.get(user, ()) if not _exists(name))


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
