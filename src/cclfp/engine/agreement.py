"""Checks that a step that replicas take together is the step that each of them takes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cclfp.learner import Learner

# How much a tensor's change in a step may differ from its change where the replica steps alone, relative to the latter.
# In bf16 the changes of some of ResNet18's tensors, compiled and not, differ by a third.
TOLERANCE = {"float32": 0.02, "tf32": 0.2, "bf16": 0.6}
MAX_COMPARED = 16  # replicas that are compared with their step alone


def tolerance_of(trainer: Learner, device: torch.device) -> float:
    """The tolerance for the precision that a trainer computes in."""
    if trainer.autocast is not None:
        return TOLERANCE["bf16"]
    is_tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return TOLERANCE["tf32" if is_tf32 else "float32"]


def compare_steps(before: list[Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """ValueError where two steps from ``before`` differ by more than ``tolerance`` of a tensor's change.

    What rounding alone can cause is allowed.
    """
    known = [~(a.isnan() & b.isnan() | a.isinf() & (a == b)) for a, b in zip(ours, theirs, strict=True)]
    sizes = [_distance(b, start, where) for start, b, where in zip(before, theirs, known, strict=True)]
    floats = [t.is_floating_point() for t in before]
    largest = max((size for size, is_float in zip(sizes, floats, strict=True) if is_float), default=0.0)
    for start, a, b, where, size, is_float in zip(before, ours, theirs, known, sizes, floats, strict=True):
        off = _distance(a, b, where)
        slack = 0.0
        if is_float:
            slack = 1e-6 * float(start.double().nan_to_num(0.0, 0.0, 0.0).norm()) + 1e-3 * tolerance * largest
        if not off <= tolerance * size * is_float + slack:
            text = f"off by {off:.1e} where it is {size:.1e}"
            raise ValueError(f"a step reads something that is not in its arguments: {text}")


def _distance(a: Tensor, b: Tensor, where: Tensor) -> float:
    return float((a.double() - b.double())[where].norm())


def perturb(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, each scaled by a factor of its own between 1 and 1.02.

    When a task begins, a network equals its old copy and gives the outputs that were stored. The gradient of a distance
    to these is then nothing but rounding, so that steps from there cannot be compared.
    """
    factors = (1 + 0.02 * ((number + 1) * 0.618 % 1) for number in range(len(tensors)))
    return [t * factor if t.is_floating_point() else t for t, factor in zip(tensors, factors, strict=True)]


def pick_replicas(trainers: Sequence[Learner]) -> list[int]:
    """Which replicas to compare: all where they are few, else some of different seeds and hyperparameters."""
    if len(trainers) <= MAX_COMPARED:
        return list(range(len(trainers)))
    reverse = list(enumerate(trainers))[::-1]
    seeds = {trainer.seed: replica for replica, trainer in reverse}
    hypers = {str(trainer.hyper): replica for replica, trainer in reverse}
    return sorted({*sorted(seeds.values())[: MAX_COMPARED // 2], *sorted(hypers.values())[-MAX_COMPARED // 2 :]})


def refuse_randomness(step: Callable[[], object], device: torch.device) -> None:
    """ValueError where a step draws random numbers.

    Random layers would draw from generators that all replicas share. The eager engine seeds them at every step.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [g.get_state() for g in generators]
    step()
    if any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True)):
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)
        raise ValueError("a step draws random numbers, for example in random layers")
