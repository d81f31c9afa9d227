"""Checks of what users give to a learner, of what their functions make of it, and of what a step has made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.core.arguments import as_tensor, check_names, check_whole
from cclfp.core.memory import Examples
from cclfp.core.randomness import seeded
from cclfp.errors import DivergenceError, InputError
from cclfp.methods.base import State
from cclfp.nets.network import Tensors, twin
from cclfp.transforms import Augmentation, Transform

if TYPE_CHECKING:
    from cclfp.learner.learner import Learner

Task = int | Sequence[int] | Tensor
Model = tuple[Tensors, Tensors, State]  # parameters, buffers of psi, the method's state

PROBE = 10  # examples that show how many features psi gives
MAX_TASKS = 10_000  # the table of each task's classes has one row per id, up to the largest id


# -- batches ------------------------------------------------------------------------------------------------------


def check_batch(learner: Learner, x: Any, y: Any, task: Task | None) -> Examples:
    """A labelled batch as raw examples on its learner's device. Without ``task``, it is of the current task."""
    inputs = check_inputs(learner, x)
    if len(inputs) == 0:
        raise InputError(f"x is empty (shape {tuple(inputs.shape)}): a batch has at least one example")
    labels = _check_ids("y", "label", y, len(inputs), learner.num_classes).to(learner.device)
    if task is None:
        task, known = learner.tasks_done, len(learner.mask.classes_of)
        if learner.scenario == "task":
            raise InputError("the task scenario needs the task of each batch: observe(x, y, task=...)")
        if learner.mask.declared and task >= known:
            raise InputError(f"all {task} declared tasks have ended: say which task this batch is of, task=...")
    ids = check_task(learner, task, len(inputs))
    if learner.mask.declared:
        foreign = (~learner.mask.classes_of[ids, labels]).nonzero()
        if len(foreign):
            i = int(foreign[0])
            raise InputError(f"label {int(labels[i])} is not among the classes declared for task {int(ids[i])}")
    return Examples(inputs, labels, ids)


def check_inputs(learner: Learner, x: Any) -> Tensor:
    """Inputs on their learner's device, of the shape and dtype of the first batch (but for the precision of floats)."""
    inputs = as_tensor("x", x)
    if inputs.ndim == 0:
        raise InputError("x must be a batch of examples, not a single number")
    if learner.example is not None:
        shape, dtype = learner.example
        if inputs.shape[1:] != shape:
            raise InputError(
                f"examples must have the shape {tuple(shape)} of the first batch, not {tuple(inputs.shape[1:])}"
            )
        if inputs.dtype != dtype and not (inputs.is_floating_point() and dtype.is_floating_point):
            raise InputError(f"examples must be {dtype} like the first batch, not {inputs.dtype}")
        inputs = inputs.to(dtype)
    if inputs.is_floating_point() and not inputs.isfinite().all():
        first = int((~inputs.isfinite()).nonzero()[0, 0])
        raise InputError(f"x has NaN or infinite values (the first in example {first} of the batch)")
    return inputs.to(learner.device)


def check_task(learner: Learner, task: Task, n: int) -> Tensor:
    """The task of each of n examples: ``task`` is one id for all of them or one id per example."""
    tasks = len(learner.mask.classes_of) if learner.mask.declared else MAX_TASKS
    return _check_ids("task", "task", task, n, tasks, or_one=True).to(learner.device).expand(n)


def _check_ids(name: str, noun: str, value: Any, n: int, count: int, *, or_one: bool = False) -> Tensor:
    """Whole numbers from 0 to below ``count``, one for each of n examples ``or_one`` for all."""
    ids = as_tensor(name, value, "whole numbers")
    if ids.shape != (n,) and not (or_one and ids.ndim == 0):
        expected = f"one {noun} or " * or_one + f"a {noun} for each of the {n} examples"
        raise InputError(f"{name} has the shape {tuple(ids.shape)}: expected {expected}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers; its values are of type {ids.dtype}")
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        raise InputError(f"{noun} {int(wrong[0])} is out of range: {noun}s are 0 to {count - 1:,}")
    return ids.long()


def check_classes(learner: Learner, classes: Sequence[int | str]) -> tuple[tuple[str, ...] | None, list[int]]:
    """The names of all classes, with those that these add, and the numbers of these."""
    if isinstance(classes, str) or not classes:
        raise InputError(f"classes={classes!r}: expected at least one class of the task, by name or number")
    names, known = [c for c in classes if isinstance(c, str)], learner.classes
    if names and known is None:
        raise InputError("this learner has no class names, so a class cannot be given by name: give its number")
    if known is not None:
        new, free = [name for name in dict.fromkeys(names) if name not in known], learner.num_classes - len(known)
        if len(new) > free:
            raise InputError(
                f"there is no room for the new class{'es' if len(new) > 1 else ''} {', '.join(new)}: the learner has "
                f"{len(known)} classes and room for {free} more; cclfp run --max-classes reserves room"
            )
        known = check_names([*known, *new], learner.num_classes)
    rows = {name: row for row, name in enumerate(known or ())}
    numbers = [rows[c] if isinstance(c, str) else check_whole("class", c, at_least=0) for c in classes]
    if max(numbers) >= learner.num_classes:
        raise InputError(f"class {max(numbers)} is out of range: classes are 0 to {learner.num_classes - 1}")
    return known, numbers


# -- psi and what prepares its inputs -----------------------------------------------------------------------------


def check_own_code(psi: Any, transforms: dict[str, Transform | None], augment: Augmentation | None) -> None:
    """InputError where psi cannot be trained here, or where a transform or augmentation cannot be called."""
    if not isinstance(psi, nn.Module):
        raise InputError(f"psi must be a torch.nn.Module that maps a batch to features, not {type(psi).__name__}")
    if isinstance(psi, nn.DataParallel | torch.jit.ScriptModule):
        raise InputError(f"psi is a {type(psi).__name__}: pass the plain module it was made from")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in psi.parameters()):
        raise InputError("psi has lazy layers that have seen no input yet: call psi(x) on some examples first")
    try:
        twin(psi)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"psi cannot be copied, which training needs: {error}") from error
    for name, function in transforms.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} must be a function of a batch of raw inputs, not {function!r}")
    if augment is not None and not (callable(augment) and callable(getattr(augment, "draw", None))):
        raise InputError(f"augment must have draw(n, generator) and take (x, table), not {augment!r}")


def prepare(
    x: Tensor,
    psi: nn.Module,
    transform: Transform | None,
    augment: Augmentation | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """What psi takes: raw examples, augmented as the rows of a table say, transformed, floats in psi's dtype."""
    n = x.shape[0]  # not len(x), which torch.export would take for a constant
    if augment is not None:
        assert table is not None, "an augmentation needs its table"
        x = _as_many("augment", augment(x, table.to(x.device)), n)
    if transform is not None:
        x = _as_many("transform", transform(x), n)
    if not x.is_floating_point():
        return x
    floating = (p.dtype for p in psi.parameters() if p.is_floating_point())
    return x.to(next(floating, torch.get_default_dtype()))


def _as_many(name: str, given: Any, n: int) -> Tensor:
    if not isinstance(given, Tensor) or given.ndim == 0 or given.shape[0] != n:
        got = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(f"{name} must give a tensor of as many examples as it takes ({n}), not {got}")
    return given


def check_features(learner: Learner, x: Tensor) -> Tensor:
    """psi of the first raw examples. InputError where it does not take them, or does not return features."""
    x = x[:PROBE]
    with torch.no_grad(), seeded(learner.seed, "probe", 0, x.device):
        prepared = learner.for_testing(x)
    try:
        with torch.no_grad():
            z = twin(learner.psi).eval()(prepared)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"psi does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}") from error
    dtypes = (torch.float32, torch.float64)
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x) or z.dtype not in dtypes:
        got = f"a {z.dtype} tensor of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(
            f"psi must map {len(x)} examples to float32 or float64 of shape ({len(x)}, features), not {got}"
        )
    return z


# -- what a step has made -----------------------------------------------------------------------------------------


def check_step(learner: Learner, after: Model) -> None:
    """InputError unless a step gave all parameters and buffers in their shapes; DivergenceError if not finite."""
    for kind, ours, new in zip(("parameter", "buffer"), learner.model[:2], after[:2], strict=True):
        for name, tensor in ours.items():
            if name not in new or new[name].shape != tensor.shape:
                got = f"in the shape {tuple(new[name].shape)}" if name in new else "not at all"
                text = f"a step of {learner.method.name} returned the {kind} {name} {got}"
                raise InputError(f"{text}, expected the shape {tuple(tensor.shape)}")
    refuse_not_finite("the step", learner, after)


def refuse_not_finite(what: str, learner: Learner, after: Model) -> None:
    """DivergenceError where ``what`` made parameters NaN or infinite, or buffers or state that were not so before.

    Buffers of a user's psi and the state of a user's method may hold such numbers on purpose, such as a mask of -inf.
    """
    buffers, old = learner.model[1].values(), dict(trees.walk(learner.model))
    new = [(path, tensor) for path, tensor in trees.walk(after) if tensor is not old.get(path)]
    for path, tensor in (new[i] for i in not_finite([tensor for _, tensor in new])):
        if path[0] == 0 or not _is_on_purpose(tensor, old.get(path), buffers):
            kind = ("weights that are", "buffers that are", "a state that is")[path[0]]
            text = f"{what} made {kind} not finite (lr={learner.hyper.lr:g}), in {'/'.join(map(str, path[1:]))}"
            raise DivergenceError(f"{text}: the learner is as it was; use a smaller lr or check the inputs")


def _is_on_purpose(new: Tensor, old: Tensor | None, buffers: Iterable[Tensor]) -> bool:
    """Whether a tensor is not finite only where it was so before, or is a copy of a buffer of psi."""
    if old is None:
        return any(torch.equal(new, buffer) for buffer in buffers)
    return old.shape == new.shape and not (old.isfinite() & ~new.isfinite()).any()


@torch.no_grad()
def not_finite(tensors: Sequence[Tensor]) -> list[int]:
    """The indices of the tensors that contain NaN or infinite numbers. It usually synchronises with the device once.

    >>> not_finite([torch.ones(2), torch.tensor([1.0, torch.nan]), torch.full((2,), 3e38), torch.tensor([7])])
    [1]
    """
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
    if not floats:
        return []
    sums = [tensors[i].sum() for i in floats]  # which are not finite where a number is not, or where they overflow
    device = next((s.device for s in sums if not s.is_cpu), sums[0].device)  # a user's method may keep some on the CPU
    fine = torch.stack([s.to(device) for s in sums]).isfinite().tolist()
    return [i for i, is_fine in zip(floats, fine, strict=True) if not is_fine and not tensors[i].isfinite().all()]
