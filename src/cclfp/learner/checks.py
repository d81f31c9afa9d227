"""Checks of what users give to a learner, of what their functions make of it, and of what a step has made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.core.arguments import add_names, as_tensor, check_whole
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

MAX_TASKS = 10_000  # the table of each task's classes has one row per id, up to the largest id


def check_batch(learner: Learner, x: Any, y: Any, task: Task | None) -> Examples:
    """A labelled batch as raw examples on its learner's device. Without ``task``, it is of the current task."""
    x, y = _check_format(learner, as_tensor("x", x)), as_tensor("y", y)
    if len(x) == 0:
        raise InputError(f"x is empty (shape {tuple(x.shape)}): a batch has at least one example")
    y = _check_labels(y, len(x), learner.num_classes)
    _check_finite(x)
    ids = check_task(learner, _current_task(learner) if task is None else task, len(x))
    x, y = x.to(learner.device), y.to(learner.device)
    if learner.mask.declared:
        foreign = ~learner.mask.classes_of[ids, y]
        if foreign.any():
            i = int(foreign.nonzero()[0])
            raise InputError(f"label {int(y[i])} is not among the classes declared for task {int(ids[i])}")
    return Examples(x, y, ids)


def check_inputs(learner: Learner, x: Any) -> Tensor:
    """Inputs without labels, on its learner's device."""
    return _check_finite(_check_format(learner, as_tensor("x", x))).to(learner.device)


def check_task(learner: Learner, task: Task, n: int) -> Tensor:
    """The task of each of n examples: ``task`` is one id for all of them or one id per example."""
    ids = as_tensor("task", task)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.shape not in ((), (n,)):
        raise InputError(f"task must be one whole number or one for each of the {n} examples, not {task!r}")
    ids = ids.long().to(learner.device).expand(n)
    if n and not 0 <= int(ids.min()) <= int(ids.max()) < MAX_TASKS:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"task {wrong} is out of range: tasks are counted from 0 to {MAX_TASKS - 1:,}")
    known = len(learner.mask.classes_of)
    if learner.mask.declared and n and int(ids.max()) >= known:
        raise InputError(f"task {int(ids.max())} is not one of the {known} declared tasks (counted from 0)")
    return ids


def _current_task(learner: Learner) -> int:
    """The id of the task that follows those that have ended."""
    if learner.scenario == "task":
        raise InputError("the task scenario needs the task of each batch: observe(x, y, task=...)")
    task = learner.tasks_done
    if learner.mask.declared and task >= len(learner.mask.classes_of):
        raise InputError(f"all {task} declared tasks are ended: say which task this batch is of, task=...")
    return task


def _check_labels(y: Tensor, n: int, num_classes: int) -> Tensor:
    if y.shape != (n,):
        raise InputError(f"y must hold one label for each of the {n} examples, but its shape is {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y must hold whole numbers (class ids), not {y.dtype}")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise InputError(f"label {wrong} is out of range: this learner has classes 0 to {num_classes - 1}")
    return y


def _check_finite(x: Tensor) -> Tensor:
    if x.is_floating_point() and not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x.flatten(1) if x.ndim > 1 else x[:, None])).any(1).nonzero()[0])
        raise InputError(f"x has NaN or infinite values (the first in example {bad} of the batch)")
    return x


def _check_format(learner: Learner, x: Tensor) -> Tensor:
    """Examples must have the shape and dtype of the first batch; floats of another precision are converted."""
    if x.ndim == 0:
        raise InputError("x must be a batch of examples, not a single number")
    if learner.example is None:
        return x
    shape, dtype = learner.example
    if x.shape[1:] != shape:
        raise InputError(f"examples must have the shape {tuple(shape)} of the first batch, not {tuple(x.shape[1:])}")
    if x.dtype != dtype and not (x.is_floating_point() and dtype.is_floating_point):
        raise InputError(f"examples must be {dtype} like the first batch, not {x.dtype}")
    return x.to(dtype)


def check_classes(learner: Learner, classes: Sequence[int | str]) -> tuple[tuple[str, ...] | None, list[int]]:
    """The names of all classes, with those that these add, and the numbers of these."""
    if isinstance(classes, str) or not classes:
        raise InputError(f"classes={classes!r}: expected at least one class of the task, by name or number")
    names = add_names(learner.classes, [c for c in classes if isinstance(c, str)], learner.num_classes)
    rows = {name: row for row, name in enumerate(names or ())}
    numbers = [rows[c] if isinstance(c, str) else check_whole("class", c, at_least=0) for c in classes]
    if max(numbers) >= learner.num_classes:
        raise InputError(f"class {max(numbers)} is out of range: classes are 0 to {learner.num_classes - 1}")
    return names, numbers


def check_psi(psi: Any) -> None:
    """Raise InputError if psi is not a module that can be trained here."""
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


def check_preparation(
    transform: Transform | None, predict_transform: Transform | None, augment: Augmentation | None
) -> None:
    """Raise InputError for transforms that cannot be called, or an augmentation that cannot be drawn."""
    for name, function in (("transform", transform), ("predict_transform", predict_transform)):
        if function is not None and not callable(function):
            raise InputError(f"{name} must be a function of a batch of raw inputs, not {function!r}")
    if augment is not None and not (callable(augment) and callable(getattr(augment, "draw", None))):
        raise InputError(f"augment must have draw(n, generator) and take (x, table), not {augment!r}")


def transformed(x: Tensor, transform: Transform | None, psi: nn.Module) -> Tensor:
    """Raw examples after the transform, floats in the dtype of psi's parameters."""
    n = x.shape[0]  # not len(x), which torch.export would take for a constant
    x = x if transform is None else _as_many("transform", transform(x), n)
    if not x.is_floating_point():
        return x
    floating = (p.dtype for p in psi.parameters() if p.is_floating_point())
    return x.to(next(floating, torch.get_default_dtype()))


def augmented(x: Tensor, augment: Augmentation, table: Tensor | None) -> Tensor:
    """Raw examples, changed as each one's row of the table says."""
    assert table is not None, "an augmentation needs its table"
    return _as_many("augment", augment(x, table.to(x.device)), x.shape[0])


def _as_many(name: str, given: Any, n: int) -> Tensor:
    if not isinstance(given, Tensor) or given.ndim == 0 or given.shape[0] != n:
        got = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(f"{name} must give a tensor of as many examples as it takes ({n}), not {got}")
    return given


def check_features(learner: Learner, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """psi of raw examples, once prepared. InputError where it does not take them, or does not return features."""
    with torch.no_grad(), seeded(learner.seed, "probe", 0, x.device):
        prepared = prepare(x)
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


def refuse_not_finite(what: str, before: Model, after: Model, lr: float) -> None:
    """Raise DivergenceError where parameters are NaN or infinite, or where buffers or state have become so.

    ``what`` made ``after`` from ``before``. Buffers of a user's psi and the state of a user's method may hold such
    numbers on purpose, such as a mask of -inf.
    """
    params, buffers, state = after
    new = [*params.values(), *buffers.values()]
    if state is not before[2]:
        known = set(map(id, trees.leaves(before[2])))
        new += [t for t in trees.leaves(state) if id(t) not in known]
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
    return params | of_psi | {"state" + "".join(f"[{key!r}]" for key in path): t for path, t in trees.walk(state)}


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
        chosen = [tensors[i] for i in places]
        has_norm = hasattr(torch, "_foreach_norm")  # a private name of torch: one launch instead of one per tensor
        norms = torch._foreach_norm(chosen, math.inf) if has_norm else [t.abs().max() for t in chosen]
        finite = torch.stack([norm.to(device) for norm in norms]).isfinite().tolist()
    return [i for i, fine in zip(places, finite, strict=True) if not fine]
