"""From names, presets and settings to configurations: one per method and combination of values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.scenarios import check_scenario
from cclfp.core.userfiles import is_reference, refer
from cclfp.errors import InputError, unknown
from cclfp.methods import Method, get_method
from cclfp.nets.backbones import Backbone, parse_backbone
from cclfp.runs.augmentation import default_augmentation
from cclfp.runs.configuration import PROTOCOL, Configuration, replays
from cclfp.runs.presets import find_preset
from cclfp.runs.validation import check_configuration
from cclfp.streams.benchmarks import Benchmark, get_benchmark

Settings = Mapping[str, Sequence[float]]  # the values of each setting


def configurations(
    methods: Sequence[str],
    benchmark: str,
    scenario: str | None = None,
    *,
    memory: int = 200,
    class_order: str | Sequence[Any] | None = None,
    tasks: int | None = None,
    backbone: str | None = None,
    validation: bool = False,
    max_classes: int | None = None,
    settings: Settings | None = None,
) -> list[Configuration]:
    """All combinations of the methods and the settings' values.

    A setting is a hyperparameter, or ``batch``, ``replay``, ``epochs`` or ``augment``. It applies to the methods that
    have it, and at least one of them must. What is not set comes from the preset, else from the benchmark's and then
    the method's defaults.

    >>> [c.hyperparameters["w"] for c in configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3]})]
    [0.1, 0.3]
    """
    kinds = {name: get_method(name) for name in methods}
    if not kinds:
        raise InputError("no method was given: cclfp list methods names them")
    chosen = get_benchmark(benchmark)
    scenario = check_scenario(scenario) if scenario is not None else chosen.scenarios[0]
    chosen.check(scenario)
    order, sizes = chosen.split_into(None if tasks is None else check_whole("tasks", tasks, at_least=1), class_order)
    psi = None if backbone is None else parse_backbone(backbone)
    common = {
        "benchmark": benchmark,
        "scenario": scenario,
        "class_order": order,
        "tasks": sizes,
        "backbone": None if psi == parse_backbone(chosen.backbone) else psi,
        "validation": validation,
        "max_classes": max_classes,
    }
    memory = check_whole("memory", memory, at_least=1)
    settings = dict(settings or {})
    _check_settings(kinds, settings)
    found = []
    for name, kind in kinds.items():
        kind.check_scenario(scenario)
        file = refer("method", name) if is_reference(name) else None
        usual = _usual_settings(kind, chosen, scenario, psi)
        for given in _combinations(settings, settings_of(kind)):
            values = {**usual, **given}
            own = {"method": kind.name, "method_file": file, "buffer": memory if kind.schedule is not None else None}
            found.append(check_configuration({**common, **own, **_split_settings(kind, scenario, values)}))
    return found


def settings_of(kind: type[Method]) -> list[str]:
    """The names of all settings that a method has."""
    protocol = [name for name in PROTOCOL if name != "replay" or (replays(kind) and kind.replays is True)]
    return [field.name for field in dataclasses.fields(kind.Hyper)] + protocol + ["augment"]


def check_setting_names(kinds: Mapping[str, type[Method]], names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse a name that is a setting of none of the methods; ``others`` are suggested beside their settings."""
    known = list(dict.fromkeys(itertools.chain.from_iterable(map(settings_of, kinds.values()))))
    for name in names:
        if name not in known:
            raise unknown(f"setting of {', '.join(kinds)}", name, [*known, *others])


def _check_settings(kinds: Mapping[str, type[Method]], settings: Settings) -> None:
    check_setting_names(kinds, settings)
    for name, values in settings.items():
        if not values:
            raise InputError(f"{name} has no value: expected {name}=VALUE")
        if name == "augment" and (wrong := [value for value in values if value not in (0, 1)]):
            raise InputError(f"augment={wrong[0]:g}: expected on or off")


def _combinations(settings: Settings, names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Every combination of the values of those settings that are among ``names``."""
    chosen = [name for name in settings if name in names]
    for values in itertools.product(*(dict.fromkeys(settings[name]) for name in chosen)):
        yield dict(zip(chosen, values, strict=True))


def _usual_settings(
    kind: type[Method], benchmark: Benchmark, scenario: str, backbone: Backbone | None
) -> dict[str, float]:
    """What a method's settings are where the user sets none, as far as they differ from the method's defaults."""
    usual: dict[str, float] = {**PROTOCOL, "augment": False, **benchmark.settings}
    if benchmark.is_own:
        usual["augment"], _ = default_augmentation(benchmark, backbone)
    if (preset := find_preset(kind.name, benchmark.name, scenario)) is not None:
        usual |= {**preset.hyperparameters, "augment": preset.augment}
    return {name: value for name, value in usual.items() if name in settings_of(kind)}


def _split_settings(kind: type[Method], scenario: str, values: Mapping[str, float]) -> dict[str, Any]:
    """The settings as fields of a configuration."""
    others = (*PROTOCOL, "augment")
    hyper = kind.hyper(scenario, **{name: value for name, value in values.items() if name not in others})
    protocol: dict[str, float | None] = {name: _as_whole(values.get(name, PROTOCOL[name])) for name in PROTOCOL}
    if not replays(kind):
        protocol["replay"] = None
    return {"hyperparameters": dataclasses.asdict(hyper), **protocol, "augment": bool(values["augment"])}


def _as_whole(value: float) -> float:
    """1.0 as 1: settings are given as floats."""
    return int(value) if float(value).is_integer() else value
