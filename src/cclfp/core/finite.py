"""A fast check for NaN and infinite numbers in tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def not_finite(tensors: Sequence[Tensor]) -> list[int]:
    """The indices of the tensors that contain NaN or infinite numbers. It synchronises with the device only once.

    >>> not_finite([torch.ones(2), torch.tensor([1.0, torch.nan]), torch.full((2,), 3e38), torch.tensor([7])])
    [1]
    """
    if all(t.is_cpu for t in tensors):
        # A sum is 40 times faster than the norm below. If it is finite, so are all numbers. If it is not, it may have
        # overflowed.
        sums = [t.sum().item() if t.is_floating_point() else 0.0 for t in tensors]
        return [i for i, total in enumerate(sums) if not math.isfinite(total) and not tensors[i].isfinite().all()]
    places = [i for i, t in enumerate(tensors) if t.is_floating_point() and t.numel()]
    if not places:
        return []
    device = next(t.device for t in tensors if not t.is_cpu)  # a user's method may keep a tensor on the CPU
    with torch.no_grad():
        norms = torch._foreach_norm([tensors[i] for i in places], math.inf)
        finite = torch.stack([norm.to(device) for norm in norms]).isfinite().tolist()
    return [i for i, fine in zip(places, finite, strict=True) if not fine]
