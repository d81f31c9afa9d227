"""Trees: nested dictionaries, lists and tuples of tensors, such as the state of a method; their leaves, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Path = tuple[Any, ...]  # the keys and numbers that lead to a leaf
Structure = Any  # of a tree: equal, and of equal text, where trees differ in their leaves only


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree.

    >>> leaves({"a": 1, "b": [2, (3,)]})
    [1, 2, 3]
    """
    return [leaf for _, leaf in walk(tree)]


def walk(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each leaf of a tree and its path.

    >>> list(walk({"a": 1, "b": [2, 3]}))
    [(('a',), 1), (('b', 0), 2), (('b', 1), 3)]
    """
    parts = _parts(tree)
    if parts is None:
        yield path, tree
        return
    for key, part in parts.items():
        yield from walk(part, (*path, key))


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and its structure, from which :func:`unflatten` makes it again.

    >>> flatten(({"a": 1}, 2))
    ([1, 2], (<class 'tuple'>, ((0, (<class 'dict'>, (('a', None),))), (1, None))))
    """
    return leaves(tree), _structure(tree)


def unflatten(given: Sequence[Any], structure: Structure) -> Any:
    """The tree of a structure with these leaves.

    >>> unflatten("xyz", flatten({"a": 1, "b": [2, 3]})[1])
    {'a': 'x', 'b': ['y', 'z']}
    """
    return _build(iter(given), structure)


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree of what a function makes of each leaf, with those of other trees; ValueError if their structures differ.

    >>> map_tree(max, {"a": 1, "b": (2,)}, {"a": 3, "b": (0,)})
    {'a': 3, 'b': (2,)}
    """
    given, structure = flatten(tree)
    if any(_structure(other) != structure for other in others):
        raise ValueError("the trees differ in structure")
    return unflatten([function(*several) for several in zip(given, *map(leaves, others), strict=True)], structure)


def _parts(tree: Any) -> dict[Any, Any] | None:
    """The parts of a tree by key or number; None for a leaf."""
    if isinstance(tree, dict):
        return tree
    return dict(enumerate(tree)) if isinstance(tree, list | tuple) else None


def _structure(tree: Any) -> Structure:
    parts = _parts(tree)
    return None if parts is None else (type(tree), tuple((key, _structure(part)) for key, part in parts.items()))


def _build(given: Iterator[Any], structure: Structure) -> Any:
    if structure is None:
        return next(given)
    kind, named = structure
    parts = {key: _build(given, part) for key, part in named}
    if issubclass(kind, dict):
        return parts
    return kind(*parts.values()) if hasattr(kind, "_fields") else kind(parts.values())  # of a named tuple, or others
