"""Saved states with one value altered, for the tests of what is read from files."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Way = tuple[Any, ...]  # the names that lead to a value in nested dictionaries and lists
DROPPED = object()


def alterations(state: dict[str, Any]) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What is altered, and a function that gives a copy of the state with it altered; every value in many ways."""
    for way, value in _values(state):
        for name, make in _instead(value, is_hyper="hyper" in way).items():
            yield f"{'.'.join(map(str, way))}: {name}", functools.partial(_altered, state, way, make)


def _values(tree: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    if way:
        yield way, tree
    inner = (
        list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree[:2])) if isinstance(tree, list) else []
    )
    for name, value in inner:
        yield from _values(value, (*way, name))


def _altered(state: dict[str, Any], way: Way, make: Callable[[], Any]) -> dict[str, Any]:
    altered: dict[str, Any] = _put(state, way, make())
    return altered


def _put(tree: Any, way: Way, value: Any) -> Any:
    tree = copy.copy(tree)
    if len(way) > 1:
        tree[way[0]] = _put(tree[way[0]], way[1:], value)
    elif value is DROPPED:
        del tree[way[0]]
    else:
        tree[way[0]] = value
    return tree


def _instead(value: Any, *, is_hyper: bool) -> dict[str, Callable[[], Any]]:
    """What to put in a value's place, by name."""
    junk: list[Any] = [None, "junk", [{"a": [1, {}]}], {}, torch.zeros(2), -1, True, float("nan"), [], torch.int8]
    news: dict[str, Any] = {f"is {new!r}": new for new in junk} | {"is dropped": DROPPED}
    if not is_hyper:  # there large numbers are values like others, with which training may diverge
        news |= {f"is {new!r:.20}": new for new in (3, 1.5, 2**40, 2**70, 10**400)}
    if isinstance(value, bool):
        news["is the other"] = not value
    elif isinstance(value, int):
        news |= {"is one more": value + 1, "is one less": value - 1, "is a float": float(value)}
    elif isinstance(value, list):
        news |= {"twice": value * 2, "reversed": value[::-1], "shorter": value[1:], "longer": [*value, "a"]}
        news["of None"] = [None] * len(value)
    elif isinstance(value, dict):
        news |= {"with a tensor more": {**value, "more": torch.zeros(3)}, "with a number more": {**value, 7: [7]}}
    elif isinstance(value, str):
        news |= {
            f"is {new!r}": new for new in ("class", "task", "domain", "er", "finetune", "a-gem", "custom", "same", "")
        }
    makers: dict[str, Callable[[], Any]] = {name: lambda new=new: new for name, new in news.items()}  # type: ignore[misc]
    return makers | _tensors(value) if isinstance(value, Tensor) else makers


def _tensors(value: Tensor) -> dict[str, Callable[[], Tensor]]:
    value = value.detach()
    is_float = value.is_floating_point()
    news: dict[str, Callable[[], Tensor]] = {
        "longer": lambda: torch.cat([value, value[:1]]) if value.ndim else value[None],
        "shorter": lambda: value[:-1] if value.ndim else value,
        "of one more dimension": lambda: value[None],
        "empty": lambda: value.flatten()[:0],
        "of float64": value.double,
        "of int32": value.int,
        "of bool": value.bool,
        "of complex numbers": lambda: value.to(torch.complex64),
        "of zeros": lambda: torch.zeros_like(value),
        "of ones": lambda: torch.ones_like(value),
        "negative": lambda: ~value if value.dtype == torch.bool else -value,
        "sparse": value.to_sparse,
        "without values": lambda: value.to("meta"),
        "expanded": lambda: torch.zeros((), dtype=value.dtype).expand(2**40),
        "transposed": lambda: value.mT if value.ndim > 1 else value,
    }
    if is_float:
        return news | {
            "NaN": lambda: torch.full_like(value, torch.nan),
            "inf": lambda: torch.full_like(value, torch.inf),
        }
    return news | {"large": lambda: torch.full_like(value, 100)}
