"""What a run is: everything that its result depends on, except the seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from cclfp.core.arguments import check_whole
from cclfp.core.scenarios import check_scenario
from cclfp.core.userfiles import Reference, is_reference, show_reference
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS, Method, check_own_name, get_method, own_method
from cclfp.nets.backbones import Backbone, parse_backbone
from cclfp.streams.benchmarks import BENCHMARKS, MOST_CLASSES, Benchmark, ClassOrder, has_usual_order

# What is the same for all settings of a method where it is trained.
PLACE = ("method", "method_file", "buffer", "benchmark", "scenario", "class_order", "tasks", "backbone")
SHOWN = 8  # characters of a file's checksum
# The form of what refer makes of a user's file. Its path has only characters that terminals and databases accept.
FILE = {"file": r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\.py", "object": r"[^\W\d]\w*", "sha256": "[0-9a-f]{64}"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """A method on a benchmark with its hyperparameters; ``buffer`` and ``replay`` are None without a memory.

    A field with a default is left out of a key at this value, so that a setting that is added later does not change the
    keys of old runs. The defaults of ``batch``, ``replay`` and ``epochs`` are the paper's.
    """

    method: str
    method_file: Reference | None = None  # the file of a user's own method
    benchmark: str
    scenario: str
    buffer: int | None
    hyperparameters: dict[str, float]
    batch: int = 10
    replay: int | None = 10
    epochs: int = 1
    augment: bool = False  # training images are cropped and mirrored at random
    class_order: ClassOrder = None  # None: the order of the labels
    tasks: tuple[int, ...] | None = None  # how many classes each task has; None: as in the benchmark
    backbone: Backbone | None = None  # None: the benchmark's
    validation: bool = False  # tested on training examples that are held out, to choose hyperparameters
    max_classes: int | None = None  # rows of the classifier, some for classes that come later; None: one per class

    def __post_init__(self) -> None:
        """Check every value, which may come from a file. A user's own files and images need not be on this machine.

        For a method in a file only the form of the values is checked.
        """
        for name in ("class_order", "tasks"):
            if isinstance(value := getattr(self, name), list):  # as JSON has them
                object.__setattr__(self, name, tuple(value))
        for name in ("method", "benchmark"):
            self._expect(name, isinstance(getattr(self, name), str), "a string")
        for name in ("augment", "validation"):
            self._expect(name, isinstance(getattr(self, name), bool), "true or false")
        for name in ("batch", "epochs"):
            check_whole(name, getattr(self, name), at_least=1)
        check_scenario(self.scenario)
        kind = METHODS[self.method] if self.method_file is None and self.method in METHODS else None
        if self.method_file is not None:
            self._expect("method_file", _is_file(self.method_file), "a .py file, an object in it and its sha256")
            check_own_name(show_reference(self.method_file), self.method)
        elif kind is None:
            raise unknown("method", self.method, METHODS)
        self._check_memory(kind)
        self._check_hyperparameters(kind)
        self._check_stream(BENCHMARKS.get(self.benchmark))
        self._check_backbone()

    def _expect(self, name: str, fine: bool, expected: str) -> None:
        expect(name, getattr(self, name), fine, expected)

    def _check_memory(self, kind: type[Method] | None) -> None:
        """``buffer`` and ``replay`` are numbers exactly where the method has a memory and replays from it."""
        has_memory = self.buffer is not None if kind is None else kind.schedule is not None
        has_replay = has_memory and (self.replay is not None if kind is None else replays(kind))
        for name, wanted in (("buffer", has_memory), ("replay", has_replay)):
            if wanted:
                check_whole(name, getattr(self, name), at_least=1)
            self._expect(name, wanted or getattr(self, name) is None, f"null: {self.method} has none")

    def _check_hyperparameters(self, kind: type[Method] | None) -> None:
        """All of them are there. A record may be older than one that has an earlier value (see :func:`setting`)."""
        values = self.hyperparameters
        fine = isinstance(values, dict) and all(isinstance(name, str) and name.isidentifier() for name in values)
        self._expect("hyperparameters", fine and all(map(is_number, values.values())), "a finite number for each name")
        if kind is None:
            return
        kind.check_scenario(self.scenario)
        values = {**kind.earlier_values(vars(self)), **values}
        known = vars(kind.hyper(self.scenario, **values))
        if missing := [name for name in known if name not in values]:
            raise InputError(f"hyperparameters lack {', '.join(missing)}, which {kind.name} has")
        object.__setattr__(self, "hyperparameters", {name: values[name] for name in known})

    def _check_stream(self, benchmark: Benchmark | None) -> None:
        """The stream of a benchmark of the package, or of a user's own images, which have no usual tasks."""
        sizes, order, rows = self.tasks, self.class_order, self.max_classes
        if benchmark is None:
            is_name = re.fullmatch(r"[a-z0-9][a-z0-9._-]*", self.benchmark) is not None
            self._expect("benchmark", is_name, "a name of small letters, digits and hyphens")
            self._expect("scenario", self.scenario != "domain", "class or task, on own images")
        else:
            benchmark.check(self.scenario, self.augment)
            sizes = benchmark.sizes if sizes is None else sizes
            if benchmark.domains is not None:
                for name in ("tasks", "class_order", "max_classes"):
                    self._expect(name, getattr(self, name) is None, "null: all tasks have all classes")
                return
        fine = isinstance(sizes, tuple) and bool(sizes) and all(is_whole(size) and size > 0 for size in sizes)
        fine = fine and (benchmark is None or sum(sizes or ()) == benchmark.num_classes)
        in_all = "" if benchmark is None else f", {benchmark.num_classes} in all"
        self._expect("tasks", fine, f"how many classes each task has{in_all}")
        classes = sum(sizes or ())
        is_order = isinstance(order, tuple) and all(map(is_whole, order)) and sorted(order) == list(range(classes))
        expected = f'null, "random" or each of the numbers 0 to {classes - 1} once'
        self._expect("class_order", order is None or order == "random" or is_order, expected)
        fine = rows is None or (is_whole(rows) and classes <= rows <= MOST_CLASSES)
        self._expect("max_classes", fine, f"{classes}, the number of classes, or more, up to {MOST_CLASSES:,}")

    def _check_backbone(self) -> None:
        """It has the form that :func:`parse_backbone` makes; a file is not read."""
        backbone, fine = self.backbone, self.backbone is None or _is_file(self.backbone)
        if not fine and isinstance(backbone, dict) and backbone.keys() == {"name", "width"}:
            text = f"{backbone['name']}:width={backbone['width']}"
            fine = not is_reference(text) and parse_backbone(text) == backbone
        self._expect("backbone", fine, "null, a name and a width, or a .py file, an object in it and its sha256")

    def to_dict(self) -> dict[str, Any]:
        """The form in records, which have ``max_classes`` only where it is set."""
        values = {name: v for name, v in vars(self).items() if name != "max_classes" or v is not None}
        return {name: dict(v) if isinstance(v, dict) else v for name, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        """From the form in records, which may be older than a setting; InputError names the value that is wrong."""
        try:
            return cls(**{**USUAL, **values})
        except TypeError as error:
            what = str(error).removeprefix("Configuration.__init__() ")
            raise InputError(f"its configuration was written by another cclfp: {what}") from error

    def key(self, seed: int) -> str:
        """The key of a run: the same for the same run, on every machine."""
        values = {n: value for n, value in self.to_dict().items() if n not in USUAL or value != USUAL[n]}
        if self.method_file is None:  # hyperparameters that a method got later are left out at the values from before
            earlier = METHODS[self.method].earlier_values(vars(self))
            values["hyperparameters"] = {n: v for n, v in self.hyperparameters.items() if v != earlier.get(n)}
        text = json.dumps({**_by_content(values), "seed": seed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def place(self) -> dict[str, Any]:
        """The method and where it is trained, without its settings: the same on every machine."""
        return _by_content({name: getattr(self, name) for name in PLACE})

    @property
    def method_version(self) -> str:
        """The method's name, with the version of its file if it is a user's own: ``half@3fa2b1c0``."""
        return self.method if self.method_file is None else f"{self.method}@{self.method_file['sha256'][:SHOWN]}"

    def is_of_method(self, wanted: str) -> bool:
        """Whether its method is meant by ``NAME``, ``NAME@VERSION`` or ``FILE.py:NAME``, whatever the file's folder."""
        file = "" if self.method_file is None else show_reference(self.method_file)
        return wanted in (self.method, self.method_version) or (file != "" and Path(wanted).name == file)

    @property
    def settings(self) -> dict[str, float]:
        """All hyperparameters, what is unusual of the protocol, and augmentation."""
        protocol = {name: v for name, usual in PROTOCOL.items() if (v := getattr(self, name)) not in (None, usual)}
        return {**self.hyperparameters, **protocol, "augment": self.augment}

    @property
    def num_tasks(self) -> int:
        return len(self.tasks or ()) or BENCHMARKS[self.benchmark].num_tasks or 1

    @property
    def kind(self) -> type[Method]:
        return get_method(self.method) if self.method_file is None else own_method(self.method_file)

    @property
    def shape(self) -> dict[str, Any]:
        """What runs must share to train together: all but hyperparameters, and how many examples a batch has."""
        replay = self.kind.replay_size(self.kind.Hyper(**self.hyperparameters), self.replay)
        return {**self.to_dict(), "hyperparameters": None, "replay": replay}

    @property
    def is_papers_protocol(self) -> bool:
        """Whether the result may be set beside a published number."""
        names = ("batch", "epochs", "tasks", "backbone", "validation", "max_classes")
        is_usual = all(getattr(self, name) == USUAL[name] for name in names) and self.replay in (None, USUAL["replay"])
        return is_usual and has_usual_order(self.benchmark, self.class_order)


USUAL = {f.name: f.default for f in dataclasses.fields(Configuration) if f.default is not dataclasses.MISSING}
PROTOCOL: dict[str, int] = {name: USUAL[name] for name in ("batch", "replay", "epochs")}  # how the stream is trained


def _by_content(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration with a user's files by their content, wherever they are."""
    files = {name: value for name in ("backbone", "method_file") if (value := values.get(name)) is not None}
    return {**values, **{name: {k: v for k, v in file.items() if k != "file"} for name, file in files.items()}}


def replays(kind: type[Method]) -> bool:
    """Whether a batch of the method has examples from a memory."""
    return kind.schedule is not None and bool(kind.replays)


def show_value(value: float) -> str:
    """A setting's value as users write it, with all its digits: ``0.1``, ``1``, ``on``."""
    return ("on" if value else "off") if isinstance(value, bool) else repr(float(value)).removesuffix(".0")


def method_labels(configurations: Sequence[Configuration]) -> list[str]:
    """The name of the method of each configuration; ``half@3fa2b1c0`` where several versions have one name."""
    names = [method for method, _ in {(c.method, c.method_version) for c in configurations}]
    return [c.method_version if names.count(c.method) > 1 else c.method for c in configurations]


# -- values from files --------------------------------------------------------------------------------------------


def expect(name: str, value: Any, fine: bool, expected: str) -> None:
    """InputError for a value that is not what was expected."""
    if not fine:
        try:
            shown = json.dumps(value, default=repr)
        except RecursionError:
            shown = "nested too deeply"
        raise InputError(f"{name} is {shown if len(shown) < 60 else f'{shown[:60]}...'}: expected {expected}")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more, that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number that a float can hold."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max  # False for NaN


def _is_file(value: Any) -> bool:
    """Whether it has the form that :func:`refer` makes."""
    if not isinstance(value, dict) or value.keys() != FILE.keys():
        return False
    return all(isinstance(value[name], str) and re.fullmatch(form, value[name]) for name, form in FILE.items())
