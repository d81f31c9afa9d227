"""Checks of arguments: tensors, numbers, names, devices. An InputError names the value and what was expected.

The options of the command are checked here, too, so torch is imported where it is needed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cclfp.core import trees
from cclfp.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def as_tensor(name: str, value: Any, expected: str = "a tensor, an array or numbers") -> Tensor:
    """The value as a dense tensor, detached from any graph."""
    import torch

    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        other = next((type(leaf).__name__ for leaf in trees.leaves(value) if not hasattr(leaf, "__float__")), None)
        got = f", not {type(value).__name__}: {error}" if other is None else f"; its values are of type {other}"
        raise InputError(f"{name} must be {expected}{got}") from error
    if tensor.layout != torch.strided:
        raise InputError(f"{name} must be a dense tensor, not {tensor.layout}: pass {name}.to_dense()")
    return tensor


def check_whole(name: str, value: Any, at_least: int) -> int:
    """The value as an int of at least ``at_least`` that fits in 64 bits, as in files; numpy integers are accepted."""
    try:
        number = operator.index(value)
    except TypeError:
        number = at_least - 1
    if isinstance(value, bool) or not at_least <= number < 2**63:
        raise InputError(f"{name}={value!r}: expected a whole number, {at_least} or more (and below 2**63)")
    return number


def check_tasks(
    tasks: Sequence[Sequence[int]] | None, num_tasks: int | None, num_classes: int
) -> tuple[list[list[int]] | None, int | None]:
    """The declared classes of each task as lists of ints, and how many tasks there will be."""
    if num_tasks is not None:
        num_tasks = check_whole("num_tasks", num_tasks, at_least=1)
    if tasks is None:
        return None, num_tasks
    try:
        declared = [[operator.index(c) for c in classes] for classes in tasks]
    except TypeError as error:
        raise InputError(f"tasks={tasks!r}: expected the classes of each task, such as [[0, 1], [2, 3]]") from error
    for task, classes in enumerate(declared):
        if not classes or not 0 <= min(classes) <= max(classes) < num_classes:
            raise InputError(f"tasks[{task}] declares {classes}: expected classes from 0 to {num_classes - 1}")
    if num_tasks not in (None, len(declared)):
        raise InputError(f"num_tasks={num_tasks}, but tasks declares {len(declared)}")
    return declared, len(declared)


def check_names(names: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """The names of the first classes, which must be different and can be printed."""
    is_text = isinstance(names, Sequence) and all(isinstance(name, str) and name.isprintable() for name in names)
    if isinstance(names, str) or not is_text or len(set(names)) < len(names):
        raise InputError(f"classes={names!r}: expected the names of the classes, all different, such as ['cat', 'dog']")
    if len(names) > num_classes:
        raise InputError(f"{len(names)} names of classes, but there are {num_classes} classes")
    return tuple(names)


def check_device(device: str | torch.device) -> torch.device:
    """The device, which must be a CPU or a CUDA device that works; a CUDA device is returned with its index."""
    import torch

    try:
        chosen = torch.empty(0, device=torch.device(device)).device  # with its index
        if chosen.type not in ("cpu", "cuda"):
            raise TypeError("it is of another type")
    except (RuntimeError, TypeError, AssertionError) as error:  # the last where torch is built without CUDA
        text = "expected cpu, or cuda where torch finds a CUDA device that works"
        raise InputError(f"device {device!r} cannot be used: {text}") from error
    return chosen


def split_names(text: str, separator: str = ",") -> list[str]:
    """The parts of a text between separators, with spaces around them removed; separators in quotes do not count.

    >>> split_names('cat, "black, white",dog')
    ['cat', '"black, white"', 'dog']
    """
    if text.count('"') % 2:
        raise InputError(f"{text[:60]!r}: a quotation mark has no partner")
    outside_quotes = rf'{separator}(?=(?:[^"]*"[^"]*")*[^"]*$)'  # an even number of quotes follow
    return [part.strip() for part in re.split(outside_quotes, text)]


def unquote(name: str) -> str:
    """A name without the quotes around it; two quotes inside stand for one.

    >>> unquote('"black, white"'), unquote('"5"" pipe"'), unquote("cat")
    ('black, white', '5" pipe', 'cat')
    """
    is_quoted = len(name) > 1 and name[0] == name[-1] == '"'
    return name[1:-1].replace('""', '"') if is_quoted else name
