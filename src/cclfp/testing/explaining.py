"""Explains why a check failed: the line of the user's own code first, then one cause."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from cclfp.errors import InputError
from cclfp.methods import Method

CLEAR = (AssertionError, InputError)  # errors whose message says what the method does wrong
LONGEST = 300  # characters of a cause: some of torch's messages are pages long


def explain(error: BaseException, method: type[Method], what: str) -> str:
    """The message for an error that a check raised; ``what`` names the check."""
    line = own_line(error, method)
    cause = str(error) if isinstance(error, CLEAR) else f"{type(error).__name__}: {first_sentence(str(error))}"
    return f"{what}: {cause}" if line is None else f"{line}\n{what}: {cause}"


def own_line(error: BaseException, method: type[Method]) -> str | None:
    """The last line in the method's own file that an error, or its cause, passed through."""
    files = set(_files(method))
    of_cause = own_line(error.__cause__, method) if error.__cause__ is not None else None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if of_cause is not None or not frames:
        return of_cause
    frame = frames[-1]
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{_short(frame.filename)}:{frame.lineno}, in {frame.name}: {text}"


def _files(method: type[Method]) -> Iterator[str]:
    """The files of the functions that the method and its bases define; not those of bases that ship with cclfp."""
    kinds = method.__mro__[: method.__mro__.index(Method)]
    for kind in [kind for kind in kinds if not kind.__module__.startswith("cclfp.")] or kinds:
        for value in vars(kind).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function.__code__.co_filename


def _short(file: str) -> str:
    """A path relative to the current folder, where it is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def why_not_vmapped(error: Exception) -> str:
    """Why a step does not run under vmap, in our words where torch's message is known."""
    text = str(error)
    if "data-dependent control flow" in text:
        return "it needs the value of a tensor (.item(), if tensor, F.one_hot): use torch.where and comparisons"
    if "dynamic shape" in text:
        return "a shape depends on data (tensor[mask], nonzero, unique): use torch.where"
    return first_sentence(text.removeprefix("vmap: "))


def first_sentence(text: str) -> str:
    """The first sentence of a message, in one line.

    >>> first_sentence("vmap: It looks like you are\\ncalling .item() on a Tensor. We do not support that. See ...")
    'vmap: It looks like you are calling .item() on a Tensor.'
    """
    joined = " ".join(text.split())
    sentence, dot, _ = joined.partition(". ")
    return (sentence + dot.strip())[:LONGEST]
