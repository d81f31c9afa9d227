"""What a run is: everything that its result depends on, except the seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.scenarios import SCENARIOS, check_scenario
from cclfp.core.userfiles import Reference, is_reference, show_reference
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS, Method, check_own_name, get_method, own_method
from cclfp.nets import BACKBONES
from cclfp.nets.backbones import Backbone, parse_backbone
from cclfp.streams.benchmarks import BENCHMARKS, MOST_CLASSES, Benchmark, ClassOrder, has_usual_order

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
SHOWN = 8  # characters of a file's checksum
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

    def __post_init__(self) -> None:
        """Check every value, which may come from a file, without reading or running a user's files.

        A user's own files and images need not be on this machine. For a method in a file only the form of the values
        is checked.
        """
        for name in ("class_order", "tasks"):
            if isinstance(value := getattr(self, name), list):  # as JSON has them
                object.__setattr__(self, name, tuple(value))
        kind, benchmark = self._check_method(), self._check_benchmark()
        self._expect("scenario", isinstance(self.scenario, str), f"one of {', '.join(SCENARIOS)}")
        check_scenario(self.scenario)
        if benchmark is not None:
            benchmark.check(self.scenario)
        self._expect("scenario", self.scenario != "domain" or benchmark is not None, "class or task, on own images")
        if kind is not None:
            kind.check_scenario(self.scenario)
        for name in ("batch", "epochs"):
            check_whole(name, getattr(self, name), at_least=1)
        self._check_memory(kind)
        self._check_hyperparameters(kind)
        for name in ("augment", "validation"):
            self._expect(name, isinstance(getattr(self, name), bool), "true or false")
        if benchmark is not None:
            benchmark.check_augment(self.augment)
        self._check_classes(self._check_tasks(benchmark))
        self._check_backbone()

    def _expect(self, name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise wrong_value(name, getattr(self, name), expected)

    def _check_method(self) -> type[Method] | None:
        """The method, or None for one in a user's file."""
        self._expect("method", isinstance(self.method, str), "a string")
        if self.method_file is not None:
            self._check_reference("method_file")
            check_own_name(show_reference(self.method_file), self.method)
            return None
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        return METHODS[self.method]

    def _check_benchmark(self) -> Benchmark | None:
        """The benchmark, or None for one of a user's own images."""
        fine = isinstance(self.benchmark, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]*", self.benchmark) is not None
        self._expect("benchmark", fine, "a name of small letters, digits and hyphens")
        return BENCHMARKS.get(self.benchmark)

    def _check_memory(self, kind: type[Method] | None) -> None:
        """``buffer`` and ``replay`` are numbers exactly where the method has a memory and replays from it."""
        has_memory = self.buffer is not None if kind is None else kind.schedule is not None
        has_replay = (has_memory and self.replay is not None) if kind is None else replays(kind)
        for name, wanted in (("buffer", has_memory), ("replay", has_replay)):
            if wanted:
                check_whole(name, getattr(self, name), at_least=1)
            self._expect(name, wanted or getattr(self, name) is None, f"null: {self.method} has none")

    def _check_hyperparameters(self, kind: type[Method] | None) -> None:
        """All of them are there. A record may be older than one that has an earlier value (see :func:`setting`)."""
        values = self.hyperparameters
        fine = isinstance(values, dict) and all(isinstance(name, str) and name.isidentifier() for name in values)
        self._expect("hyperparameters", fine, "an object with a number for each name")
        for name, value in values.items():
            if not is_number(value):
                raise wrong_value(f"hyperparameter {name}", value, "a finite number")
        if kind is None:
            return
        values = {**kind.earlier_values(vars(self)), **values}
        known = dataclasses.asdict(kind.hyper(self.scenario, **values))
        if missing := [name for name in known if name not in values]:
            raise InputError(f"hyperparameters lack {', '.join(missing)}, which {kind.name} has")
        object.__setattr__(self, "hyperparameters", {name: values[name] for name in known})

    def _check_tasks(self, benchmark: Benchmark | None) -> int | None:
        """How many classes there are; None where all tasks have all of them."""
        sizes, name = self.tasks, self.benchmark
        if benchmark is not None and benchmark.domains is not None:
            self._expect("tasks", sizes is None, f"null: all tasks of {name} have all classes")
            return None
        if sizes is None and benchmark is None:
            raise InputError(f"its configuration has no tasks, and {name} is not a benchmark of this cclfp")
        if sizes is None:
            return benchmark.num_classes if benchmark is not None else None
        fine = isinstance(sizes, tuple) and len(sizes) > 0 and all(is_whole(size) and size > 0 for size in sizes)
        fine = fine and (benchmark is None or sum(sizes) == benchmark.num_classes)
        in_all = "" if benchmark is None else f", {benchmark.num_classes} in all"
        self._expect("tasks", fine, f"how many classes each task has{in_all}")
        return sum(sizes)

    def _check_classes(self, classes: int | None) -> None:
        """Their order, and how many more may come."""
        order, rows = self.class_order, self.max_classes
        if classes is None:
            self._expect("class_order", order is None, "null: all tasks have all classes")
            self._expect("max_classes", rows is None, "null: all tasks have all classes, so no class comes later")
            return
        is_order = isinstance(order, tuple) and len(order) == classes and all(map(is_whole, order))
        is_order = is_order and set(order or ()) == set(range(classes))
        expected = f'null, "random" or each of the numbers 0 to {classes - 1} once'
        self._expect("class_order", order is None or order == "random" or is_order, expected)
        fine = rows is None or (is_whole(rows) and classes <= rows <= MOST_CLASSES)
        self._expect("max_classes", fine, f"{classes}, the number of classes, or more, up to {MOST_CLASSES:,}")

    def _check_backbone(self) -> None:
        """It has the form that :func:`parse_backbone` makes; a file is not read."""
        backbone: Any = self.backbone
        if isinstance(backbone, dict) and "file" in backbone:
            self._check_reference("backbone")
        elif backbone is not None:
            fine = isinstance(backbone, dict) and backbone.keys() == {"name", "width"} and is_whole(backbone["width"])
            fine = fine and isinstance(backbone["name"], str) and backbone["name"] in BACKBONES
            fine = fine and parse_backbone(f"{backbone['name']}:width={backbone['width']}") == backbone
            self._expect("backbone", fine, "null, a name and a width, or a file, an object in it and a sha256")

    def _check_reference(self, name: str) -> None:
        """It has the form that :func:`refer` makes."""
        reference: Any = getattr(self, name)
        fine = isinstance(reference, dict) and reference.keys() == {"file", "object", "sha256"}
        fine = fine and all(isinstance(text, str) for text in reference.values()) and reference["object"].isidentifier()
        fine = fine and re.fullmatch(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\.py", reference["file"]) is not None
        fine = fine and re.fullmatch("[0-9a-f]{64}", reference["sha256"]) is not None
        self._expect(name, fine, "the path of a .py file, in UTF-8, an object in it and the file's sha256")

    def to_dict(self) -> dict[str, Any]:
        """The form in records, which have ``max_classes`` only where it is set."""
        return {name: v for name, v in dataclasses.asdict(self).items() if name != "max_classes" or v is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        """From the form in records, which may be older than a setting; InputError names the value that is wrong."""
        values = {**USUAL, **values}
        names = {field.name for field in dataclasses.fields(Configuration)}
        if values.keys() != names:
            lacks = "".join(f" lacks {name}," for name in sorted(names - values.keys()))
            strange = sorted(values.keys() - names, key=str)
            has = "".join(f" has {shown(name)}, which is not a setting," for name in strange)
            raise InputError(f"its configuration{lacks}{has} so it was written by another cclfp")
        return cls(**values)

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


# -- names --------------------------------------------------------------------------------------------------------


def method_labels(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of the method of each configuration; ``half@3fa2b1c0`` where several versions have one name.

    >>> files = [{"file": "half.py", "object": "Half", "sha256": letter * 64} for letter in "ab"]
    >>> method_labels([{"method": "er"}, *({"method": "half", "method_file": file} for file in files)])
    ['er', 'half@aaaaaaaa', 'half@bbbbbbbb']
    """
    versions: dict[str, set[str]] = {}
    for values in configurations:
        versions.setdefault(values["method"], set()).add(_version(values))
    return [
        with_version(values) if len(versions[values["method"]]) > 1 else str(values["method"])
        for values in configurations
    ]


def with_version(values: Mapping[str, Any]) -> str:
    """The name of a configuration's method, with the version of its file if it is a user's own."""
    version = _version(values)
    return f"{values['method']}@{version}" if version else str(values["method"])


def is_of_method(values: Mapping[str, Any], wanted: str) -> bool:
    """Whether a configuration is of a method, which is given as ``NAME``, ``NAME@VERSION`` or ``FILE.py:NAME``.

    A file counts by its name, whatever its folder and content.
    """
    if is_reference(wanted):
        file, _, name = wanted.rpartition(":")
        reference = values.get("method_file")
        return reference is not None and show_reference(reference) == f"{Path(file).name}:{name}"
    return wanted in (values["method"], with_version(values))


def _version(values: Mapping[str, Any]) -> str:
    reference = values.get("method_file")
    return "" if reference is None else str(reference["sha256"])[:SHOWN]


# -- values from files --------------------------------------------------------------------------------------------


def wrong_value(name: str, value: Any, expected: str) -> InputError:
    """The error for a value that is not what was expected."""
    return InputError(f"{name} is {shown(value)}: expected {expected}")


def shown(value: Any, length: int = 60) -> str:
    """A value as JSON, shortened where it is long."""
    text = json.dumps(value, default=repr)
    return text if len(text) < length else text[:length] + "..."


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, 0 or more, that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max  # False for NaN
