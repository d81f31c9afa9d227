"""What a run is: everything its result depends on but the seed. From names, presets and settings to a list of them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.core.checks import check_whole
from cclfp.core.scenarios import SCENARIOS, check_scenario
from cclfp.core.userfiles import Reference, is_reference, refer, show_reference
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS, Method, check_own_name, get_method, own_method
from cclfp.nets import BACKBONES
from cclfp.nets.backbones import Backbone, parse_backbone
from cclfp.runs.presets import find_preset
from cclfp.streams.benchmarks import BENCHMARKS, Benchmark, ClassOrder, get_benchmark

# How the stream is trained: the paper's protocol by default.
PROTOCOL = {"batch": 10, "replay": 10, "epochs": 1}
# What a configuration leaves unsaid in its key, so that a setting added later does not change the keys of old runs.
USUAL: dict[str, Any] = {
    **PROTOCOL,
    "augment": False,
    "class_order": None,
    "tasks": None,
    "backbone": None,
    "method_file": None,
    "validation": False,
}
# The methods that got hyperparameters later; at the values they had before, these are left unsaid too.
_ADDED = [kind.name for kind in METHODS.values() if kind.earlier_values(PROTOCOL)]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A method on a benchmark with its hyperparameters; ``buffer`` and ``replay`` are None without a memory."""

    method: str
    method_file: Reference | None  # where a method of a user's own is
    benchmark: str
    scenario: str
    buffer: int | None
    hyperparameters: dict[str, float]
    batch: int
    replay: int | None
    epochs: int
    augment: bool  # training images are cropped and mirrored at random
    class_order: ClassOrder  # None: that of the labels
    tasks: tuple[int, ...] | None  # how many classes each task has; None: as the benchmark has it
    backbone: Backbone | None  # None: the benchmark's
    validation: bool  # tested on training examples that are held out, to choose hyperparameters

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Configuration:
        lists = {name: tuple(values[name]) for name in ("class_order", "tasks") if isinstance(values[name], list)}
        return cls(**{**values, **lists})

    def key(self, seed: int) -> str:
        """The same for the same run, on every machine."""
        values = {name: value for name, value in self.to_dict().items() if value != USUAL.get(name, "always said")}
        if self.method in _ADDED and self.method_file is None:
            earlier = METHODS[self.method].earlier_values(self.to_dict())
            values["hyperparameters"] = {n: v for n, v in self.hyperparameters.items() if v != earlier.get(n)}
        for name in ("backbone", "method_file"):
            if name in values:  # a file counts by what is in it, wherever it lies
                values[name] = {key: value for key, value in values[name].items() if key != "file"}
        text = json.dumps({**values, "seed": seed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def kind(self) -> type[Method]:
        """The method itself."""
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
        others = ("class_order", "tasks", "backbone", "validation")
        return given == PROTOCOL and all(getattr(self, name) == USUAL[name] for name in others)


def configurations(
    methods: Sequence[str],
    benchmark: str,
    scenario: str | None = None,
    *,
    buffer: int = 200,
    class_order: str | Sequence[Any] | None = None,
    tasks: int | None = None,
    backbone: str | None = None,
    validation: bool = False,
    settings: Mapping[str, Sequence[float]] | None = None,
) -> list[Configuration]:
    """All combinations of the methods and the settings' values.

    A setting is a hyperparameter, or ``batch``, ``replay``, ``epochs`` or ``augment``; it goes to the methods that know
    it, and at least one must. What is not set comes from the preset, else from the benchmark's and then the method's
    defaults.

    >>> [c.hyperparameters["w"] for c in configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3]})]
    [0.1, 0.3]
    """
    files = {name: refer("method", name) if is_reference(name) else None for name in methods}
    kinds = {name: get_method(name) for name in files}
    if not kinds:
        raise InputError("no method was given: cclfp list methods names them")
    chosen = get_benchmark(benchmark)
    scenario = check_scenario(scenario) if scenario is not None else chosen.scenarios[0]
    chosen.check(scenario)
    order, sizes = chosen.split_into(None if tasks is None else check_whole("tasks", tasks, at_least=1), class_order)
    psi = None if backbone is None else parse_backbone(backbone)
    psi = None if psi == parse_backbone(chosen.backbone) else psi
    buffer = check_whole("buffer", buffer, at_least=1)
    settings = dict(settings or {})
    known = {name: _settings_of(kind) for name, kind in kinds.items()}
    for name, values in settings.items():
        if not any(name in names for names in known.values()):
            everything = list(dict.fromkeys(itertools.chain.from_iterable(known.values())))
            raise unknown(f"setting of {', '.join(methods)}", name, everything)
        if not values:
            raise InputError(f"{name} has no value: expected {name}=VALUE")
        if name == "augment" and (wrong := [value for value in values if value not in (0, 1)]):
            raise InputError(f"augment={wrong[0]:g}: expected on or off")
    found = []
    for method, kind in kinds.items():
        kind.check_scenario(scenario)
        names = [name for name in settings if name in known[method]]
        for values in itertools.product(*(dict.fromkeys(settings[name]) for name in names)):
            given = dict(zip(names, values, strict=True))
            preset = find_preset(kind.name, benchmark, scenario)
            usual = {"augment": False, **chosen.settings}
            if preset is not None:
                usual |= {**preset.hyperparameters, "augment": preset.augment}
            given = {**PROTOCOL, **{name: value for name, value in usual.items() if name in known[method]}, **given}
            augment = bool(given.pop("augment"))
            protocol = {name: _as_whole(given.pop(name)) for name in PROTOCOL}
            found.append(
                check_configuration(
                    {
                        "method": kind.name,
                        "method_file": files[method],
                        "benchmark": benchmark,
                        "scenario": scenario,
                        "buffer": buffer if kind.schedule is not None else None,
                        "hyperparameters": dataclasses.asdict(kind.hyper(scenario, **given)),
                        "batch": protocol["batch"],
                        "replay": protocol["replay"] if _replays(kind) else None,
                        "epochs": protocol["epochs"],
                        "augment": augment,
                        "class_order": order,
                        "tasks": sizes,
                        "backbone": psi,
                        "validation": validation,
                    }
                )
            )
    return found


def check_configuration(values: Mapping[str, Any]) -> Configuration:
    """The configuration with these values, which may come from a file; InputError says which of them is wrong.

    Files and images of a user's own need not be here. A file is neither read nor run, so of a method in a file only
    the form of its values is checked.
    """
    values = {**USUAL, **values}  # a record may be older than a setting
    names = {field.name for field in dataclasses.fields(Configuration)}
    if values.keys() != names:
        lacks = "".join(f" lacks {name}," for name in sorted(names - values.keys()))
        has = "".join(f" has {shown(name)}, which is not a setting," for name in sorted(values.keys() - names, key=str))
        raise InputError(f"its configuration{lacks}{has} so it was written by another cclfp")
    method, scenario = values["method"], values["scenario"]
    kind = _check_method(method, values["method_file"])
    chosen = _check_benchmark(values["benchmark"])
    if not isinstance(scenario, str):
        raise wrong_value("scenario", scenario, f"one of {', '.join(SCENARIOS)}")
    check_scenario(scenario)
    if chosen is not None:
        chosen.check(scenario)
    elif scenario == "domain":
        raise wrong_value("scenario", scenario, "class or task, on images of a user's own")
    if kind is not None:
        kind.check_scenario(scenario)
    for name in ("batch", "epochs"):
        check_whole(name, values[name], at_least=1)
    _check_memory(values, kind)
    values["hyperparameters"] = _check_hyperparameters(values, kind, scenario)
    for name in ("augment", "validation"):
        if not isinstance(values[name], bool):
            raise wrong_value(name, values[name], "true or false")
    if chosen is not None:
        chosen.check_augment(values["augment"])
    classes = _check_tasks(values["tasks"], values["benchmark"], chosen)
    _check_class_order(values["class_order"], classes)
    if values["backbone"] is not None:
        _check_backbone(values["backbone"])
    return Configuration.from_dict(values)


def wrong_value(name: str, value: Any, expected: str) -> InputError:
    """The error for a value of a file that is not what was expected."""
    return InputError(f"{name} is {shown(value)}: expected {expected}")


def shown(value: Any, length: int = 60) -> str:
    """A value as JSON has it, cut where it is long."""
    text = json.dumps(value, default=repr)
    return text if len(text) < length else text[:length] + "..."


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, 0 or more, small enough for every file it is written to."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max  # False for NaN


def _check_method(method: Any, file: Any) -> type[Method] | None:
    """The method, or None for one in a user's file."""
    if not isinstance(method, str):
        raise wrong_value("method", method, "a text")
    if file is not None:
        _check_reference("method_file", file)
        check_own_name(show_reference(file), method)
        return None
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return METHODS[method]


def _check_benchmark(benchmark: Any) -> Benchmark | None:
    """The benchmark, or None for one that the package does not have: it is of images of a user's own."""
    if not isinstance(benchmark, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", benchmark):
        raise wrong_value("benchmark", benchmark, "a name of small letters, digits and hyphens")
    return BENCHMARKS.get(benchmark)


def _check_hyperparameters(settings: Mapping[str, Any], kind: type[Method] | None, scenario: str) -> dict[str, float]:
    """All hyperparameters; a record may be older than one that has an earlier value (see :func:`setting`)."""
    values = settings["hyperparameters"]
    is_mapping = isinstance(values, dict) and all(isinstance(name, str) and name.isidentifier() for name in values)
    if not is_mapping:
        raise wrong_value("hyperparameters", values, "an object with a number for each name")
    for name, value in values.items():
        if not is_number(value):
            raise wrong_value(f"hyperparameter {name}", value, "a finite number")
    if kind is None:
        return dict(values)
    known = [field.name for field in dataclasses.fields(kind.Hyper)]
    for name in values:
        if name not in known:
            raise unknown(f"hyperparameter of {kind.name}", name, known)
    values = {**kind.earlier_values(settings), **values}
    if missing := [name for name in known if name not in values]:
        raise InputError(f"hyperparameters lack {', '.join(missing)}, which {kind.name} has")
    kind.hyper(scenario, **values)
    return {name: values[name] for name in known}


def _check_memory(values: Mapping[str, Any], kind: type[Method] | None) -> None:
    """``buffer`` and ``replay`` are numbers exactly where the method has a memory and replays from it."""
    has_memory = values["buffer"] is not None if kind is None else kind.schedule is not None
    replays = (has_memory and values["replay"] is not None) if kind is None else _replays(kind)
    for name, wanted in (("buffer", has_memory), ("replay", replays)):
        if wanted:
            check_whole(name, values[name], at_least=1)
        elif values[name] is not None:
            raise wrong_value(name, values[name], f"null: {values['method']} has none")


def _check_tasks(sizes: Any, name: str, benchmark: Benchmark | None) -> int | None:
    """How many classes there are; None where all tasks have all of them."""
    if benchmark is not None and benchmark.domains is not None:
        if sizes is not None:
            raise wrong_value("tasks", sizes, f"null: all tasks of {name} have all classes")
        return None
    if sizes is None and benchmark is None:
        raise InputError(f"its configuration says no tasks, and {name} is no benchmark of this cclfp")
    if sizes is None and benchmark is not None:
        return benchmark.num_classes
    fine = isinstance(sizes, list | tuple) and all(is_whole(size) and size > 0 for size in sizes) and len(sizes) > 0
    if benchmark is not None and not (fine and sum(sizes) == benchmark.num_classes):
        raise wrong_value("tasks", sizes, f"how many classes each task has, {benchmark.num_classes} in all")
    if not fine:
        raise wrong_value("tasks", sizes, "how many classes each task has")
    return int(sum(sizes))


def _check_class_order(order: Any, classes: int | None) -> None:
    if order is None or (order == "random" and classes is not None):
        return
    if classes is None:
        raise wrong_value("class_order", order, "null: all tasks have all classes")
    fine = isinstance(order, list | tuple) and len(order) == classes and all(map(is_whole, order))
    if not fine or len(set(order)) < classes or max(order) >= classes:
        raise wrong_value("class_order", order, f'null, "random" or each of the numbers 0 to {classes - 1} once')


def _check_backbone(backbone: Any) -> None:
    """As :func:`parse_backbone` makes it, without a look at the file where it is one."""
    if isinstance(backbone, dict) and "file" in backbone:
        _check_reference("backbone", backbone)
        return
    fine = isinstance(backbone, dict) and backbone.keys() == {"name", "width"} and is_whole(backbone["width"])
    fine = fine and isinstance(backbone["name"], str) and backbone["name"] in BACKBONES
    if not fine or parse_backbone(f"{backbone['name']}:width={backbone['width']}") != backbone:
        raise wrong_value("backbone", backbone, "null, a name and a width, or a file, an object in it and a sha256")


def _check_reference(name: str, reference: Any) -> None:
    """As :func:`refer` makes it."""
    fine = isinstance(reference, dict) and reference.keys() == {"file", "object", "sha256"}
    fine = fine and all(isinstance(text, str) for text in reference.values()) and reference["object"].isidentifier()
    fine = (
        fine
        and reference["file"].endswith(".py")
        and not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", reference["file"])
    )
    if not fine or not re.fullmatch("[0-9a-f]{64}", reference["sha256"]):
        raise wrong_value(name, reference, "the path of a .py file, in UTF-8, an object in it and the file's sha256")


def _as_whole(value: float) -> float:
    """1.0 as 1: settings are given as floats."""
    return int(value) if float(value).is_integer() else value


def _settings_of(kind: type[Method]) -> list[str]:
    protocol = [name for name in PROTOCOL if name != "replay" or (_replays(kind) and kind.replays is True)]
    return [field.name for field in dataclasses.fields(kind.Hyper)] + protocol + ["augment"]


def _replays(kind: type[Method]) -> bool:
    return kind.schedule is not None and bool(kind.replays)


def show_value(value: float) -> str:
    """A setting's value as users write it: ``0.1``, ``on``."""
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"
