"""What a run is: everything that its result depends on, except the seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cclfp.core.userfiles import Reference
from cclfp.methods import METHODS, Method, get_method, own_method
from cclfp.nets.backbones import Backbone
from cclfp.streams.benchmarks import ClassOrder, has_usual_order

# How the stream is trained: the paper's protocol by default.
PROTOCOL = {"batch": 10, "replay": 10, "epochs": 1}
# Values that are left out of a key, so that a setting that is added later does not change the keys of old runs.
USUAL: dict[str, Any] = {
    **PROTOCOL,
    "augment": False,
    "class_order": None,
    "tasks": None,
    "backbone": None,
    "method_file": None,
    "validation": False,
    "max_classes": None,
}
# What is the same for all settings of a method where it is trained, besides the size of the memory.
PLACE = ("benchmark", "scenario", "class_order", "tasks", "backbone")
ALWAYS = object()  # no value equals it
# The methods that got hyperparameters later. These are left out of a key at the values that runs had before.
_EXTENDED = [kind.name for kind in METHODS.values() if kind.earlier_values(PROTOCOL)]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A method on a benchmark with its hyperparameters; ``buffer`` and ``replay`` are None without a memory."""

    method: str
    method_file: Reference | None  # the file of a user's own method
    benchmark: str
    scenario: str
    buffer: int | None
    hyperparameters: dict[str, float]
    batch: int
    replay: int | None
    epochs: int
    augment: bool  # training images are cropped and mirrored at random
    class_order: ClassOrder  # None: the order of the labels
    tasks: tuple[int, ...] | None  # how many classes each task has; None: as in the benchmark
    backbone: Backbone | None  # None: the benchmark's
    validation: bool  # tested on training examples that are held out, to choose hyperparameters
    max_classes: int | None = None  # rows of the classifier, some for classes that come later; None: one per class

    def to_dict(self) -> dict[str, Any]:
        """The form in records, which have ``max_classes`` only where it is set."""
        return {name: v for name, v in dataclasses.asdict(self).items() if name != "max_classes" or v is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Configuration:
        lists = {name: tuple(values[name]) for name in ("class_order", "tasks") if isinstance(values[name], list)}
        return cls(**{**values, **lists})

    def key(self, seed: int) -> str:
        """The key of a run: the same for the same run, on every machine."""
        values = {name: value for name, value in self.to_dict().items() if value != USUAL.get(name, ALWAYS)}
        if self.method in _EXTENDED and self.method_file is None:
            earlier = METHODS[self.method].earlier_values(self.to_dict())
            values["hyperparameters"] = {n: v for n, v in self.hyperparameters.items() if v != earlier.get(n)}
        text = json.dumps({**_by_content(values), "seed": seed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def place(self) -> dict[str, Any]:
        """The method and where it is trained, without its settings: the same on every machine."""
        names = ("method", "method_file", "buffer", *PLACE)
        return _by_content({name: getattr(self, name) for name in names})

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return get_method(self.method) if self.method_file is None else own_method(self.method_file)

    @property
    def shape(self) -> dict[str, Any]:
        """What runs must share to train together: all but hyperparameters, and how many examples a batch has."""
        replay = self.kind.replay_size(self.kind.Hyper(**self.hyperparameters), self.replay)
        return {**self.to_dict(), "hyperparameters": None, "replay": replay}

    @property
    def is_papers_protocol(self) -> bool:
        """Whether the result may be set beside a published number."""
        given = {"batch": self.batch, "replay": self.replay or PROTOCOL["replay"], "epochs": self.epochs}
        others = ("tasks", "backbone", "validation", "max_classes")
        is_usual = given == PROTOCOL and all(getattr(self, name) == USUAL[name] for name in others)
        return is_usual and has_usual_order(self.benchmark, self.class_order)


def _by_content(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration with a user's files by their content, wherever they are."""
    files = {name: value for name in ("backbone", "method_file") if (value := values.get(name)) is not None}
    return {**values, **{name: {k: v for k, v in file.items() if k != "file"} for name, file in files.items()}}


def replays(kind: type[Method]) -> bool:
    """Whether a batch of the method has examples from a memory."""
    return kind.schedule is not None and bool(kind.replays)


def show_value(value: float) -> str:
    """A setting's value as users write it: ``0.1``, ``on``."""
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"
