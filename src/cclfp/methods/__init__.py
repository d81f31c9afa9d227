"""The methods, by name. Each is one file; ``cclfp.methods.base`` holds what they share."""

from __future__ import annotations

from cclfp.errors import InputError, unknown
from cclfp.methods.base import Batch, Hyperparameters, Method, TaskContext, gradient, setting, sgd
from cclfp.methods.ccl_fp import CCLFP, CCLFPPlus
from cclfp.methods.er import ER
from cclfp.methods.finetune import Finetune
from cclfp.methods.joint import Joint

METHODS: dict[str, type[Method]] = {method.name: method for method in (Joint, Finetune, ER, CCLFP, CCLFPPlus)}


def get_method(method: str | type[Method]) -> type[Method]:
    """A method by its name; a :class:`Method` subclass of a user's own is given back as it is."""
    if isinstance(method, type) and issubclass(method, Method):
        return method
    if not isinstance(method, str):
        raise InputError(f"{method!r} is not a method: expected a name or a subclass of cclfp.Method")
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return METHODS[method]


__all__ = ["METHODS", "Batch", "Hyperparameters", "Method", "TaskContext", "get_method", "gradient", "setting", "sgd"]
