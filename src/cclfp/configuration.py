"""What a run is: everything its result depends on but the seed. From names, presets and settings to a list of them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.checks import check_whole
from cclfp.errors import InputError, unknown
from cclfp.methods import Method, get_method
from cclfp.presets import find_preset
from cclfp.scenarios import check_scenario
from cclfp.streams.benchmarks import ClassOrder, get_benchmark

# How the stream is trained: the paper's protocol by default.
PROTOCOL = {"batch": 10, "replay": 10, "epochs": 1}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A method on a benchmark with its hyperparameters; ``buffer`` and ``replay`` are None without a memory."""

    method: str
    benchmark: str
    scenario: str
    buffer: int | None
    hyperparameters: dict[str, float]
    batch: int
    replay: int | None
    epochs: int
    class_order: ClassOrder

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Configuration:
        order = values["class_order"]
        return cls(**{**values, "class_order": tuple(order) if isinstance(order, list) else order})

    def key(self, seed: int) -> str:
        """The same for the same run, on every machine.

        What is as usual is left out, so that a setting added later does not change the keys of runs without it.
        """
        usual = {**PROTOCOL, "class_order": None}
        values = {name: value for name, value in self.to_dict().items() if value != usual.get(name, "always said")}
        text = json.dumps({**values, "seed": seed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_papers_protocol(self) -> bool:
        """Whether the result may be set beside a published number."""
        given = {"batch": self.batch, "replay": self.replay or PROTOCOL["replay"], "epochs": self.epochs}
        return given == PROTOCOL and self.class_order is None


def configurations(
    methods: Sequence[str],
    benchmark: str,
    scenario: str | None = None,
    *,
    buffer: int = 200,
    class_order: ClassOrder = None,
    settings: Mapping[str, Sequence[float]] | None = None,
) -> list[Configuration]:
    """All combinations of the methods and the settings' values.

    A setting is a hyperparameter, or ``batch``, ``replay`` or ``epochs``; it goes to the methods that know it, and at
    least one must. What is not set comes from the preset, else from the method's defaults.

    >>> [c.hyperparameters["w"] for c in configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3]})]
    [0.1, 0.3]
    """
    kinds = [get_method(name) for name in dict.fromkeys(methods)]
    if not kinds:
        raise InputError("no method was given: cclfp list methods names them")
    chosen = get_benchmark(benchmark)
    scenario = check_scenario(scenario) if scenario is not None else chosen.scenarios[0]
    chosen.check(scenario, class_order)
    if class_order == tuple(range(chosen.num_classes)):
        class_order = None
    buffer = check_whole("buffer", buffer, at_least=1)
    settings = dict(settings or {})
    known = {kind: _settings_of(kind) for kind in kinds}
    for name, values in settings.items():
        if not any(name in names for names in known.values()):
            everything = list(dict.fromkeys(itertools.chain.from_iterable(known.values())))
            raise unknown(f"setting of {', '.join(methods)}", name, everything)
        if not values:
            raise InputError(f"{name} has no value: expected {name}=VALUE")
        if name in PROTOCOL:
            for value in values:
                if not float(value).is_integer() or value < 1:
                    raise InputError(f"{name}={value:g}: expected a whole number, 1 or more")
    found = []
    for kind in kinds:
        kind.check_scenario(scenario)
        names = [name for name in settings if name in known[kind]]
        for values in itertools.product(*(dict.fromkeys(settings[name]) for name in names)):
            found.append(_one(kind, benchmark, scenario, buffer, class_order, dict(zip(names, values, strict=True))))
    return found


def _one(
    kind: type[Method], benchmark: str, scenario: str, buffer: int, class_order: ClassOrder, given: dict[str, float]
) -> Configuration:
    protocol = {name: int(given.pop(name, default)) for name, default in PROTOCOL.items()}
    preset = find_preset(kind.name, benchmark, scenario)
    hyper = kind.hyper(scenario, **{**(preset.hyperparameters if preset else {}), **given})
    return Configuration(
        method=kind.name,
        benchmark=benchmark,
        scenario=scenario,
        buffer=buffer if kind.schedule is not None else None,
        hyperparameters=dataclasses.asdict(hyper),
        batch=protocol["batch"],
        replay=protocol["replay"] if kind.schedule is not None else None,
        epochs=protocol["epochs"],
        class_order=class_order,
    )


def _settings_of(kind: type[Method]) -> list[str]:
    protocol = [name for name in PROTOCOL if kind.schedule is not None or name != "replay"]
    return [field.name for field in dataclasses.fields(kind.Hyper)] + protocol
