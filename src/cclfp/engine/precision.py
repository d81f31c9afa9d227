"""What numbers psi is computed in: ``float32``, ``tf32`` (CUDA: products rounded to ten bits) or ``bf16`` (CUDA)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from cclfp.errors import InputError, unknown

PRECISIONS = ("auto", "float32", "tf32", "bf16")


def pick_precision(wanted: str, device: str) -> str:
    """``auto`` is tf32 on a graphics card and float32 elsewhere."""
    if wanted not in PRECISIONS:
        raise unknown("precision", wanted, PRECISIONS)
    if wanted == "auto":
        return "tf32" if device == "cuda" else "float32"
    if wanted != "float32" and device != "cuda":
        raise InputError(f"precision {wanted} needs a CUDA device: on the cpu there is float32")
    return wanted


def autocast_of(precision: str) -> torch.dtype | None:
    """What psi's layers are cast to."""
    return torch.bfloat16 if precision == "bf16" else None


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Have CUDA compute so inside."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
