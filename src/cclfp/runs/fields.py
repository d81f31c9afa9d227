"""Dataclasses whose fields are options: of a command, and as keywords of a function. The help stands at the field."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cclfp.errors import InputError

T = TypeVar("T")
Documented = TypeVar("Documented", bound=Callable[..., Any])


def option(default: Any, help: str, metavar: str | None = None) -> Any:
    """A field with the help and the metavar that the command shows."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar})


def field_names(kind: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def from_keywords(kind: type[T], given: T | None, keywords: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """An instance of a dataclass, ``given`` or made of the keywords that are its fields, and the other keywords."""
    fields = {name: value for name, value in keywords.items() if name in field_names(kind)}
    argument = kind.__name__.lower()
    if given is not None and not isinstance(given, kind):
        raise InputError(f"{argument}={given!r}: expected a cclfp.{kind.__name__}")
    if given is not None and (beside := [name for name, value in fields.items() if value is not None]):
        raise InputError(f"give {', '.join(beside)} as part of {argument}, not beside it")
    others = {name: value for name, value in keywords.items() if name not in fields}
    return kind(**fields) if given is None else given, others


def documented(*kinds: type) -> Callable[[Documented], Documented]:
    """Put the fields of these dataclasses, with their help, where the docstring says ``{fields}``; of a class, its own.

    Options in the help, such as ``--skip-bad``, become keywords.
    """

    def document(what: Documented) -> Documented:
        lines: list[str] = []
        for field in itertools.chain(*map(dataclasses.fields, kinds or (what,))):  # type: ignore[arg-type]
            text = re.sub(r"--([a-z-]+)", lambda m: f"``{m[1].replace('-', '_')}``", field.metadata["help"])
            lines += [field.name, *(f"    {line}" for line in textwrap.wrap(text, 106, break_on_hyphens=False))]
        listed = "\n".join(lines)
        if what.__doc__ is not None:  # python -OO
            what.__doc__ = re.sub(r"^( *)\{fields\}", lambda m: textwrap.indent(listed, m[1]), what.__doc__, flags=re.M)
        return what

    return document
