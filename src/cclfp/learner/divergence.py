"""Refuses NaN and infinite numbers that a step, or the end of a task, has produced."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from cclfp.errors import DivergenceError
from cclfp.methods.base import State
from cclfp.nets.network import Tensors

Model = tuple[Tensors, Tensors, State]  # parameters, buffers of psi, the method's state


def refuse_not_finite(what: str, before: Model, after: Model, lr: float) -> None:
    """Raise DivergenceError where parameters are NaN or infinite, or where buffers or state have become so.

    ``what`` made ``after`` from ``before``. Buffers of a user's psi and the state of a user's method may hold such
    numbers on purpose, such as a mask of -inf.
    """
    params, buffers, state = after
    new = [*params.values(), *buffers.values()]
    if state is not before[2]:
        known = set(map(id, tree_leaves(before[2])))
        new += [t for t in tree_leaves(state) if id(t) not in known]
    if not not_finite(new):
        return
    old, named = _named(before), _named(after)
    names = list(named)
    for name in (names[i] for i in not_finite(list(named.values()))):
        if name in params and not_finite([old[name]]):
            raise DivergenceError(f"the weights of this learner were not finite before ({name}): it has diverged")
        if name in params or not _is_on_purpose(named[name], old.get(name), before[1]):
            kind = "weights that are" if name in params else "a state that is"
            text = f"{what} made {kind} not finite (lr={lr:g}), in {name}: the learner is as it was"
            raise DivergenceError(f"{text}; use a smaller lr or check the inputs")


def _named(model: Model) -> Tensors:
    """Every tensor of a model, by its name in messages."""
    params, buffers, state = model
    of_psi = {f"buffer {name}": b for name, b in buffers.items()}
    return params | of_psi | {f"state{keystr(path)}": t for path, t in tree_flatten_with_path(state)[0]}


def _is_on_purpose(new: Tensor, old: Tensor | None, buffers: Tensors) -> bool:
    """Whether a tensor is not finite only where it was so before, or is a copy of a buffer of psi."""
    if old is None:
        return any(torch.equal(new, buffer) for buffer in buffers.values())
    return old.shape == new.shape and not (old.isfinite() & ~new.isfinite()).any()


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
