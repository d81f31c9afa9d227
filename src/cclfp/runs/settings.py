"""From a problem, names, presets and settings to configurations: one per method and combination of values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.files import write_file
from cclfp.core.userfiles import is_reference, refer
from cclfp.data import import_images
from cclfp.errors import InputError, reason_of, unknown
from cclfp.events import OnEvent, ignore
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets.backbones import Backbone, is_convolutional, parse_backbone
from cclfp.runs.configuration import PROTOCOL, Configuration, expect, is_whole, replays
from cclfp.runs.execution import Execution
from cclfp.runs.problem import MEMORY, Problem, field_names, from_keywords
from cclfp.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark

SMALLEST = 32  # pixels; a crop of a smaller image is shifted by more than a quarter of it
SWITCHES = {"on": True, "true": True, "off": False, "false": False}
Settings = Mapping[str, Sequence[float]]  # the values of each setting
KEYWORDS = sorted([*field_names(Execution), *field_names(Problem)])  # what may be given beside settings
ABOUT_IMAGES = ("image_size", "split_seed", "classes", "skip_bad")  # fields of a problem


def read_keywords(
    methods: Sequence[str],
    settings: Mapping[str, Any] | None,
    problem: Problem | None,
    execution: Execution | None,
    keywords: Mapping[str, Any],
) -> tuple[Problem, Execution, dict[str, list[float]]]:
    """What the keywords of ``run`` and ``tune`` say: the problem, the execution and the values of each setting."""
    how, others = from_keywords(Execution, execution, keywords)
    what, more = from_keywords(Problem, problem, others)
    check_setting_names(methods, settings or {})
    if twice := [name for name in more if name in (settings or {})]:
        raise InputError(f"{', '.join(twice)}: given twice, in settings and as a keyword")
    check_setting_names(methods, more, others=KEYWORDS)  # a keyword may be a misspelt field
    return what, how, {name: check_values(name, values) for name, values in {**(settings or {}), **more}.items()}


def configurations(
    methods: Sequence[str],
    problem: Problem | str,
    scenario: str | None = None,
    *,
    settings: Settings | None = None,
    **fields: Any,
) -> list[Configuration]:
    """All combinations of the methods and the settings' values. A problem may be given by its benchmark and ``fields``.

    A setting is a hyperparameter, or ``batch``, ``replay``, ``epochs`` or ``augment``. It applies to the methods that
    have it. What is not set comes from the preset, else from the benchmark's and then the method's defaults.

    >>> [c.hyperparameters["w"] for c in configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3]})]
    [0.1, 0.3]
    """
    if isinstance(problem, str):
        problem = Problem(problem, scenario=scenario, **fields)
    elif scenario is not None or fields:
        raise InputError("a problem has its scenario and other fields: give none beside it")
    benchmark = get_benchmark(str(problem.benchmark))
    scenario = benchmark.scenarios[0] if problem.scenario is None else problem.scenario
    tasks = None if problem.tasks is None else check_whole("tasks", problem.tasks, at_least=1)
    order, sizes = benchmark.split_into(tasks, problem.class_order)
    usual_psi = parse_backbone(benchmark.backbone)
    psi = usual_psi if problem.backbone is None else parse_backbone(problem.backbone)
    common: dict[str, Any] = {
        "benchmark": benchmark.name,
        "scenario": scenario,
        "class_order": order,
        "tasks": sizes,
        "backbone": None if psi == usual_psi else psi,
        "validation": problem.validation,
        "max_classes": problem.max_classes,
    }
    memory = check_whole("memory", problem.memory, at_least=1)
    found = []
    for name in dict.fromkeys(methods):
        kind = get_method(name)
        kind.check_scenario(scenario)
        file = refer("method", name) if is_reference(name) else None
        buffer = None if kind.schedule is None else memory
        usual = _usual_settings(kind, benchmark, scenario, psi)
        chosen = {name: dict.fromkeys(values) for name, values in (settings or {}).items() if name in settings_of(kind)}
        for values in itertools.product(*chosen.values()):
            given = _as_fields(kind, scenario, usual | dict(zip(chosen, values, strict=True)))
            found.append(Configuration(method=kind.name, method_file=file, buffer=buffer, **common, **given))
    return found


def make_one(method: str, problem: Problem, settings: Mapping[str, float] | None = None) -> Configuration:
    """The configuration with these settings, and the usual values of those that are not given."""
    (found,) = configurations([method], problem, settings={name: [v] for name, v in (settings or {}).items()})
    return found


def prepare(problem: Problem, on_event: OnEvent = ignore) -> Problem:
    """The same problem with the names of its benchmark and its scenario: images are imported."""
    if (problem.images is None) == (problem.benchmark is None):
        raise InputError("expected a benchmark (cclfp list benchmarks) or images of your own, one of the two")
    given = {name: value for name in ABOUT_IMAGES if (value := getattr(problem, name)) != getattr(Problem, name)}
    if given and problem.images is None:
        raise InputError(f"{next(iter(given))} can be given with images of your own only: give images too")
    if problem.images is not None:
        name = import_images(problem.images, size=given.pop("image_size", None), **given, on_event=on_event)
        usual = {name: getattr(Problem, name) for name in ABOUT_IMAGES}
        problem = dataclasses.replace(problem, benchmark=name, images=None, **usual)
    return dataclasses.replace(problem, scenario=problem.scenario or get_benchmark(str(problem.benchmark)).scenarios[0])


def is_papers(method: str, problem: Problem) -> bool:
    """Whether the method and the benchmark are of the paper, and all else as there."""
    if method not in METHODS or problem.benchmark not in BENCHMARKS:
        return False
    is_usual = problem.memory == MEMORY and problem.backbone is None
    return is_usual and make_one(method, problem).is_papers_protocol


def settings_of(kind: type[Method]) -> list[str]:
    """The names of all settings that a method has."""
    protocol = [name for name in PROTOCOL if name != "replay" or (replays(kind) and kind.replays is True)]
    return [field.name for field in dataclasses.fields(kind.Hyper)] + protocol + ["augment"]


def check_setting_names(methods: Sequence[str], names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse a name that is a setting of none of the methods; ``others`` are suggested beside their settings."""
    if not methods:
        raise InputError("no method was given: cclfp list methods names them")
    known = list(dict.fromkeys(setting for method in methods for setting in settings_of(get_method(method))))
    for name in names:
        if name not in known:
            raise unknown(f"setting of {', '.join(methods)}", name, [*known, *others])


def check_values(name: str, values: object) -> list[float]:
    """One number, or several that make a grid. The values of augment are "on" and "off", which become bools."""
    given = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    several: list[Any] = [SWITCHES.get(str(value).casefold()) for value in given] if name == "augment" else given
    if not several or not all(isinstance(value, numbers.Real) for value in several):
        expected = "on or off" if name == "augment" else "a number or several"
        raise InputError(f"{name}={','.join(map(str, given)) or repr(values)}: expected {expected}")
    return several if name == "augment" else [float(value) for value in several]


def _usual_settings(kind: type[Method], benchmark: Benchmark, scenario: str, psi: Backbone) -> dict[str, float]:
    """What a method's settings are where the user sets none, as far as they differ from the method's defaults.

    A user's own images are cropped and mirrored, unless that costs accuracy: if they are small or grey, or the network
    is not convolutional.
    """
    channels, *size = shape = benchmark.image_shape
    augment = benchmark.is_own and channels == 3 and min(size) >= SMALLEST and is_convolutional(psi, shape)
    usual: dict[str, float] = {"augment": augment, **benchmark.settings}
    if (preset := find_preset(kind.name, benchmark.name, scenario)) is not None:
        usual |= preset.settings
    return {name: value for name, value in usual.items() if name in settings_of(kind)}


def _as_fields(kind: type[Method], scenario: str, values: Mapping[str, float]) -> dict[str, Any]:
    """The settings as fields of a configuration. They are given as floats, also those that are whole numbers."""
    hyper = kind.hyper(scenario, **{name: v for name, v in values.items() if name not in (*PROTOCOL, "augment")})
    whole = {name: int(v) if float(v).is_integer() else v for name, v in values.items() if name in PROTOCOL}
    replay = {} if replays(kind) else {"replay": None}
    return {**whole, **replay, "hyperparameters": dataclasses.asdict(hyper), "augment": bool(values["augment"])}


# -- presets ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters, and how they were ``chosen``. Their results are in the records under ``results/``."""

    method: str
    benchmark: str
    scenario: str
    hyperparameters: dict[str, float]
    augment: bool
    chosen: str
    inherited: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # which settings, from which method
    halved: int | None = None  # how many settings the search had, if it was by halving without a limit of time

    @property
    def settings(self) -> dict[str, float]:
        return {**self.hyperparameters, "augment": self.augment}


@functools.cache
def presets() -> list[Preset]:
    """Those of the package."""
    return read_presets(Path(__file__).with_name("presets.json"))


def find_preset(method: str, benchmark: str, scenario: str, among: Sequence[Preset] | None = None) -> Preset | None:
    """The first matching preset of the package, or ``among`` these; None where there is none."""
    wanted = (method, benchmark, scenario)
    several = presets() if among is None else among
    return next((p for p in several if (p.method, p.benchmark, p.scenario) == wanted), None)


def read_presets(path: Path) -> list[Preset]:
    """The presets in a file, which has the same form as the package's own."""
    try:
        several = json.loads(path.read_text(encoding="utf-8"))
        expect("the file", several, isinstance(several, list), "a list of presets")
        return [_checked(Preset(**values)) for values in several]
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a file of presets: {reason_of(error)}") from error


def _checked(preset: Preset) -> Preset:
    """The preset, if a configuration can have its values. It may be older than a hyperparameter."""
    inherited = preset.inherited.values() if isinstance(preset.inherited, dict) else [None]
    is_names = all(isinstance(names, list) and set(map(type, names)) <= {str} for names in inherited)
    expect("inherited", preset.inherited, is_names, "the names of settings by method")
    expect("chosen", preset.chosen, isinstance(preset.chosen, str), "a string")
    expect("halved", preset.halved, preset.halved is None or is_whole(preset.halved), "how many settings")
    expect("benchmark", preset.benchmark, preset.benchmark in BENCHMARKS, "one of the package")
    kind = METHODS.get(preset.method)  # a method in a file is refused, so that no code is run
    fields = ("method", "benchmark", "scenario", "hyperparameters", "augment")
    values = {name: getattr(preset, name) for name in fields}
    values["buffer"] = MEMORY if kind and kind.schedule else None
    values["replay"] = PROTOCOL["replay"] if kind and replays(kind) else None
    return dataclasses.replace(preset, hyperparameters=Configuration.from_dict(values).hyperparameters)


def write_presets(several: Sequence[Preset], path: Path) -> None:
    rare = ("inherited", "halved")  # are left out where a preset has none
    written = [{name: v for name, v in vars(preset).items() if v or name not in rare} for preset in several]
    write_file(path, (json.dumps(written, indent=2) + "\n").encode())


def with_preset(several: Sequence[Preset], new: Preset) -> list[Preset]:
    """The presets, with ``new`` in place of the one for the same method, benchmark and scenario, if there is one."""
    old = find_preset(new.method, new.benchmark, new.scenario, several)
    return [*several, new] if old is None else [new if preset is old else preset for preset in several]
