"""ReLU inside a kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def relu(x):
    """A NaN stays a NaN, as in PyTorch: a run that diverges must not look healthy."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
