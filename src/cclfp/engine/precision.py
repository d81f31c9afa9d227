"""The precision that psi computes in: ``float32``, or on CUDA ``tf32`` (ten bits in products) or ``bf16``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from cclfp.errors import InputError, unknown

PRECISIONS = ("auto", "float32", "tf32", "bf16")


def pick_precision(wanted: str, device: str) -> str:
    """``auto`` is tf32 on a GPU and float32 elsewhere."""
    if wanted not in PRECISIONS:
        raise unknown("precision", wanted, PRECISIONS)
    if wanted == "auto":
        return "tf32" if device == "cuda" else "float32"
    if wanted != "float32" and device != "cuda":
        raise InputError(f"precision {wanted} needs a CUDA device: on the cpu there is float32")
    return wanted


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
