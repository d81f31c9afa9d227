"""Which methods a subclass overrides."""

from __future__ import annotations

from collections.abc import Iterable


def overrides_any(cls: type, names: Iterable[str], name: str) -> bool:
    """Whether a class more derived than the one that defines ``name`` defines one of ``names``.

    The definition of ``name`` then does not know about that override.

    >>> class Base:
    ...     def step(self): ...
    ...     def many_steps(self): ...
    >>> class Derived(Base):
    ...     def step(self): ...
    >>> overrides_any(Derived, ["step"], "many_steps"), overrides_any(Base, ["step"], "many_steps")
    (True, False)
    """

    def depth(attribute: str) -> int:
        return next(i for i, base in enumerate(cls.__mro__) if attribute in vars(base))

    return min(map(depth, names)) < depth(name)
