"""Layouts of saved values: types, shapes and ranges that values read from a file must have before they are used."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclfp.errors import DamagedError

KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", dict: "a dictionary"}
ANY = "*"  # the only key of a layout: the dictionary may have any keys, at least one


class Like(NamedTuple):
    """The layout of a dense tensor: its shape, its dtype and the range of its values.

    A name in the shape stands for any length of at least 1, which is the same wherever the name is used in one
    dictionary.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    low: int | None = None
    high: int | None = None


Layout = Like | Tensor | dict[str, Any]  # a tensor stands for its shape and dtype; a dictionary has one layout per key


def check_layout(name: str, value: Any, layout: Layout, lengths: dict[str, int] | None = None) -> None:
    """Raise DamagedError if a value does not have the layout.

    >>> pair = {"x": Like(("n", 2), torch.float32), "y": Like(("n",), torch.int64, low=0, high=9)}
    >>> check_layout("memory", {"x": torch.zeros(3, 2), "y": torch.tensor([1, 2, 9])}, pair)
    >>> check_layout("memory", {"x": torch.zeros(3, 2), "y": torch.tensor([1, 2])}, pair)
    Traceback (most recent call last):
    cclfp.errors.DamagedError: memory.y is torch.int64 (2,), expected torch.int64 (3,)
    """
    if not isinstance(layout, dict):
        _check_tensor(name, value, layout, {} if lengths is None else lengths)
        return
    if not isinstance(value, dict):
        raise DamagedError(f"{name} is {describe_value(value)}, expected a dictionary")
    if ANY in layout:
        layout = dict.fromkeys(value or [ANY], layout[ANY])
    if value.keys() != layout.keys():
        raise DamagedError(f"{name} has {sorted(map(str, value))}, expected {sorted(layout)}")
    lengths = {}
    for part, expected in layout.items():
        check_layout(f"{name}.{part}", value[part], expected, lengths)


def _check_tensor(name: str, value: Any, like: Like | Tensor, lengths: dict[str, int]) -> None:
    if isinstance(like, Tensor):
        like = Like(tuple(like.shape), like.dtype)
    if isinstance(value, Tensor) and value.ndim == len(like.shape):
        for length, found in zip(like.shape, value.shape, strict=True):
            if isinstance(length, str) and found > 0:
                lengths.setdefault(length, found)
    shape = tuple(lengths.get(length, length) if isinstance(length, str) else length for length in like.shape)
    expected = f"{like.dtype} ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
    if describe_value(value) != expected:
        raise DamagedError(f"{name} is {describe_value(value)}, expected {expected}")
    low, high = like.low, like.high
    if value.numel() and ((low is not None and value.min() < low) or (high is not None and value.max() > high)):
        raise DamagedError(f"{name} has values from {value.min()} to {value.max()}, expected {_show_range(low, high)}")


def check_value(name: str, value: Any, kind: type[Any], low: float | None = None, high: float | None = None) -> None:
    """Raise DamagedError if a value is out of range or not exactly of type ``kind`` (a bool is not an int)."""
    if type(value) is not kind:
        raise DamagedError(f"{name} is {describe_value(value)}, expected {KINDS.get(kind, kind.__name__)}")
    if (low is not None and not value >= low) or (high is not None and not value <= high):  # refuses NaN too
        raise DamagedError(f"{name} is {value!r}, expected {_show_range(low, high)}")


def _show_range(low: float | None, high: float | None) -> str:
    return f"{low} or more" if high is None else f"{high} or less" if low is None else f"{low} to {high}"


def describe_value(value: Any) -> str:
    """A value for a message: a tensor's dtype and shape, a number or short text itself, otherwise the type.

    >>> describe_value(torch.zeros(2, 3)), describe_value("a"), describe_value([1, 2])
    ('torch.float32 (2, 3)', "'a'", 'of type list')
    """
    if isinstance(value, str | int | float | None) and len(text := repr(value)) < 60:
        return text
    if not isinstance(value, Tensor):
        return f"of type {type(value).__name__}"
    is_plain = value.layout == torch.strided and not value.is_quantized and value.device.type != "meta"
    return f"{value.dtype} {tuple(value.shape)}" if is_plain else "a tensor of another kind"
