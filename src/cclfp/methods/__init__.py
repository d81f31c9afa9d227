"""The methods, by name. Each is one file; ``cclfp.methods.base`` holds what they share."""

from __future__ import annotations

from cclfp.errors import unknown
from cclfp.methods.base import Batch, Hyperparameters, Method, gradient, setting, sgd
from cclfp.methods.ccl_fp import CCLFP, CCLFPPlus
from cclfp.methods.er import ER
from cclfp.methods.finetune import Finetune
from cclfp.methods.joint import Joint

METHODS: dict[str, type[Method]] = {method.name: method for method in (Joint, Finetune, ER, CCLFP, CCLFPPlus)}


def get_method(name: str) -> type[Method]:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Batch", "Hyperparameters", "Method", "get_method", "gradient", "setting", "sgd"]
