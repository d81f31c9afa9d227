"""The precision that psi computes in: ``float32``, or on CUDA ``tf32`` (ten bits in products) or ``bf16``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def autocast_of(precision: str) -> torch.dtype | None:
    """The dtype that psi's layers are cast to; None for that of its weights."""
    return torch.bfloat16 if precision == "bf16" else None


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let CUDA compute in this precision inside the context."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
