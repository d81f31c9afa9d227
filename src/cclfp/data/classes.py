"""The names of the classes."""

from __future__ import annotations

import json
from importlib import resources

_NAMES = json.loads(resources.files("cclfp.data").joinpath("classes.json").read_text(encoding="utf-8"))

# In the order of the labels.
CIFAR10: tuple[str, ...] = tuple(_NAMES["cifar10"])
CIFAR100: tuple[str, ...] = tuple(_NAMES["cifar100"])
# WordNet id, which is the folder's name -> name of the class, in the order of the dataset's file wnids.txt.
TINY_IMAGENET: dict[str, str] = _NAMES["tiny-imagenet"]
