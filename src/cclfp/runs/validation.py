"""Checks of a configuration that may come from a file: every value, without running or reading a user's files."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.scenarios import SCENARIOS, check_scenario
from cclfp.core.userfiles import show_reference
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS, Method, check_own_name
from cclfp.nets import BACKBONES
from cclfp.nets.backbones import parse_backbone
from cclfp.runs.configuration import USUAL, Configuration, replays
from cclfp.streams.benchmarks import BENCHMARKS, MOST_CLASSES, Benchmark


def check_configuration(values: Mapping[str, Any]) -> Configuration:
    """The configuration with these values, which may come from a file; InputError names the value that is wrong.

    A user's own files and images need not be on this machine. A file is neither read nor run, so for a method in a file
    only the form of the values is checked.
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
        raise wrong_value("scenario", scenario, "class or task, on a user's own images")
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
    _check_max_classes(values["max_classes"], classes)
    if values["backbone"] is not None:
        _check_backbone(values["backbone"])
    return Configuration.from_dict(values)


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


def _check_method(method: Any, file: Any) -> type[Method] | None:
    """The method, or None for one in a user's file."""
    if not isinstance(method, str):
        raise wrong_value("method", method, "a string")
    if file is not None:
        _check_reference("method_file", file)
        check_own_name(show_reference(file), method)
        return None
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return METHODS[method]


def _check_benchmark(benchmark: Any) -> Benchmark | None:
    """The benchmark, or None for one of a user's own images."""
    if not isinstance(benchmark, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", benchmark):
        raise wrong_value("benchmark", benchmark, "a name of small letters, digits and hyphens")
    return BENCHMARKS.get(benchmark)


def _check_hyperparameters(settings: Mapping[str, Any], kind: type[Method] | None, scenario: str) -> dict[str, float]:
    """All hyperparameters. A record may be older than one that has an earlier value (see :func:`setting`)."""
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
    has_replay = (has_memory and values["replay"] is not None) if kind is None else replays(kind)
    for name, wanted in (("buffer", has_memory), ("replay", has_replay)):
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
        raise InputError(f"its configuration has no tasks, and {name} is not a benchmark of this cclfp")
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


def _check_max_classes(rows: Any, classes: int | None) -> None:
    if rows is None:
        return
    if classes is None:
        raise wrong_value("max_classes", rows, "null: all tasks have all classes, so no class comes later")
    if not is_whole(rows) or not classes <= rows <= MOST_CLASSES:
        raise wrong_value("max_classes", rows, f"{classes}, the number of classes, or more, up to {MOST_CLASSES:,}")


def _check_backbone(backbone: Any) -> None:
    """A backbone must have the form that :func:`parse_backbone` makes; a file is not read."""
    if isinstance(backbone, dict) and "file" in backbone:
        _check_reference("backbone", backbone)
        return
    fine = isinstance(backbone, dict) and backbone.keys() == {"name", "width"} and is_whole(backbone["width"])
    fine = fine and isinstance(backbone["name"], str) and backbone["name"] in BACKBONES
    if not fine or parse_backbone(f"{backbone['name']}:width={backbone['width']}") != backbone:
        raise wrong_value("backbone", backbone, "null, a name and a width, or a file, an object in it and a sha256")


def _check_reference(name: str, reference: Any) -> None:
    """A reference must have the form that :func:`refer` makes."""
    fine = isinstance(reference, dict) and reference.keys() == {"file", "object", "sha256"}
    fine = fine and all(isinstance(text, str) for text in reference.values()) and reference["object"].isidentifier()
    fine = (
        fine
        and reference["file"].endswith(".py")
        and not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", reference["file"])
    )
    if not fine or not re.fullmatch("[0-9a-f]{64}", reference["sha256"]):
        raise wrong_value(name, reference, "the path of a .py file, in UTF-8, an object in it and the file's sha256")
