"""The methods by name. Each has its own file; ``cclfp.methods.base`` has what they share."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from cclfp.core.userfiles import Reference, is_reference, refer, resolve, show_reference
from cclfp.errors import InputError, unknown
from cclfp.methods.a_gem import AGEM
from cclfp.methods.base import Batch, Hyperparameters, Method, TaskContext, gradient, gradient_and_loss, setting
from cclfp.methods.ccl_fp import CCLFP, CCLFPPlus
from cclfp.methods.er import ER, Finetune, Joint
from cclfp.methods.fdr import FDR
from cclfp.methods.gem import GEM
from cclfp.methods.hal import HAL
from cclfp.methods.icarl import ICaRL
from cclfp.methods.lwf import LwF
from cclfp.methods.si import SI

# In the order of the paper's table.
METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Joint, Finetune, SI, LwF, ER, GEM, AGEM, ICaRL, FDR, HAL, CCLFP, CCLFPPlus)
}


def get_method(method: str | type[Method]) -> type[Method]:
    """A method by name or as ``FILE.py:NAME``; a :class:`Method` subclass is returned unchanged."""
    if not isinstance(method, str):
        return method if method in METHODS.values() else _check(method, getattr(method, "__name__", repr(method)))
    if is_reference(method):
        return own_method(refer("method", method))
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return METHODS[method]


def own_method(reference: Reference) -> type[Method]:
    """A user's own method, from its file."""
    return _check(resolve("method", reference), show_reference(reference))


def check_own_name(shown: str, name: object) -> None:
    """Raise InputError if a user's own method may not have this name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise InputError(f"{shown} has the name {name!r}: expected letters, digits and . _ + -, such as 'mine'")
    if name in METHODS:
        raise InputError(f"{shown} has the name {name!r} of a method that ships with cclfp: choose another name")


def _check(method: Any, shown: str) -> type[Method]:
    """A user's own method, if it is one, has a name of its own and can be trained."""
    if not isinstance(method, type) or not issubclass(method, Method):
        raise InputError(f"{shown} is not a method: expected a name or a subclass of cclfp.Method")
    check_own_name(shown, getattr(method, "name", None))
    if method.loss is Method.loss and method.step is Method.step:
        raise InputError(f"{shown} defines neither loss nor step, so it cannot be trained: expected one of the two")
    for field in dataclasses.fields(method.Hyper):
        if "doc" not in field.metadata:
            text = f"hyperparameter {field.name} of {method.name} must be declared with cclfp.methods.setting(...)"
            raise InputError(text)
    return method


__all__ = [
    "METHODS",
    "Batch",
    "Hyperparameters",
    "Method",
    "TaskContext",
    "check_own_name",
    "get_method",
    "gradient",
    "gradient_and_loss",
    "own_method",
    "setting",
]
