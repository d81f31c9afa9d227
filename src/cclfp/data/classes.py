"""The names of the classes in the order of their ids."""

from __future__ import annotations

import json
from importlib import resources

_NAMES = json.loads(resources.files("cclfp.data").joinpath("classes.json").read_text(encoding="utf-8"))

CIFAR10: tuple[str, ...] = tuple(_NAMES["cifar10"])
CIFAR100: tuple[str, ...] = tuple(_NAMES["cifar100"])
TINY_IMAGENET: dict[str, str] = _NAMES["tiny-imagenet"]  # WordNet id, which is the folder's name -> name of the class
