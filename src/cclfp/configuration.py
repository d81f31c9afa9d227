"""What a run is: everything its result depends on but the seed. From names, presets and settings to a list of them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.backbones import Backbone, parse_backbone
from cclfp.checks import check_whole
from cclfp.errors import InputError, unknown
from cclfp.methods import Method, get_method, own_method
from cclfp.presets import find_preset
from cclfp.scenarios import check_scenario
from cclfp.streams.benchmarks import ClassOrder, get_benchmark
from cclfp.userfiles import Reference, is_reference, refer

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
        for value in values:
            if name in PROTOCOL and (not float(value).is_integer() or value < 1):
                raise InputError(f"{name}={value:g}: expected a whole number, 1 or more")
            if name == "augment" and value not in (0, 1):
                raise InputError(f"augment={value:g}: expected on or off")
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
            chosen.check_augment(augment)
            protocol = {name: int(given.pop(name)) for name in PROTOCOL}
            found.append(
                Configuration(
                    method=kind.name,
                    method_file=files[method],
                    benchmark=benchmark,
                    scenario=scenario,
                    buffer=buffer if kind.schedule is not None else None,
                    hyperparameters=dataclasses.asdict(kind.hyper(scenario, **given)),
                    batch=protocol["batch"],
                    replay=protocol["replay"] if _replays(kind) else None,
                    epochs=protocol["epochs"],
                    augment=augment,
                    class_order=order,
                    tasks=sizes,
                    backbone=psi,
                    validation=validation,
                )
            )
    return found


def _settings_of(kind: type[Method]) -> list[str]:
    protocol = [name for name in PROTOCOL if _replays(kind) or name != "replay"]
    return [field.name for field in dataclasses.fields(kind.Hyper)] + protocol + ["augment"]


def _replays(kind: type[Method]) -> bool:
    return kind.schedule is not None and kind.replays


def show_value(value: float) -> str:
    """A setting's value as users write it: ``0.1``, ``on``."""
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"
