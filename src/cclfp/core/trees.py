"""Trees: nested dictionaries, lists and tuples of tensors, such as the state of a method.

torch has such functions too, under private names, which may change without notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Path = tuple[Any, ...]  # the keys and numbers that lead to a leaf
Structure = Any  # of a tree: equal, and of equal text, where trees differ in their leaves only


def walk(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each leaf of a tree and its path.

    >>> list(walk({"a": 1, "b": [2, 3]}))
    [(('a',), 1), (('b', 0), 2), (('b', 1), 3)]
    """
    if not isinstance(tree, dict | list | tuple):
        yield path, tree
        return
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from walk(part, (*path, key))


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in the order of :func:`walk`."""
    return [leaf for _, leaf in walk(tree)]


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree of what a function makes of each leaf.

    >>> map_tree(abs, {"a": -1, "b": (2,)})
    {'a': 1, 'b': (2,)}
    """
    given, structure = flatten(tree)
    return unflatten(map(function, given), structure)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and its structure, from which :func:`unflatten` makes it again.

    >>> flatten(({"a": 1}, 2))
    ([1, 2], (<class 'tuple'>, [(<class 'dict'>, [('a', None)]), None]))
    """
    return leaves(tree), _structure(tree)


def _structure(tree: Any) -> Structure:
    if isinstance(tree, dict):
        return dict, [(key, _structure(part)) for key, part in tree.items()]
    return (type(tree), [_structure(part) for part in tree]) if isinstance(tree, list | tuple) else None


def unflatten(given: Iterable[Any], structure: Structure) -> Any:
    """The tree of a structure with these leaves.

    >>> unflatten("xyz", flatten({"a": 1, "b": [2, 3]})[1])
    {'a': 'x', 'b': ['y', 'z']}
    """
    remaining = iter(given)  # the parts take their leaves one after the other
    if structure is None:
        return next(remaining)
    kind, parts = structure
    if kind is dict:
        return {key: unflatten(remaining, part) for key, part in parts}
    values = [unflatten(remaining, part) for part in parts]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)  # a named tuple, or another
