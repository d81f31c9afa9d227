"""From a problem, names, presets and settings to configurations: one per method and combination of values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from cclfp.core.arguments import check_whole
from cclfp.core.files import write_atomic
from cclfp.core.scenarios import check_scenario
from cclfp.core.userfiles import is_reference, refer
from cclfp.data import import_images
from cclfp.errors import InputError, unknown
from cclfp.events import OnEvent, ignore
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets.backbones import Backbone, is_convolutional, parse_backbone
from cclfp.runs.configuration import PROTOCOL, Configuration, replays, wrong_value
from cclfp.runs.execution import Execution
from cclfp.runs.fields import field_names, from_keywords
from cclfp.runs.problem import MEMORY, Problem
from cclfp.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark, has_usual_order

SMALLEST = 32  # pixels; a crop of a smaller image is shifted by more than a quarter of it

SWITCHES = {"on": True, "true": True, "off": False, "false": False}

Settings = Mapping[str, Sequence[float]]  # the values of each setting
KEYWORDS = sorted([*field_names(Execution), *field_names(Problem)])  # what may be given beside settings

# The fields of a problem that are about images of one's own, and how errors call them.
ABOUT_IMAGES = {
    "image_size": "an image size",
    "split_seed": "a split seed",
    "classes": "classes",
    "skip_bad": "skip_bad",
}


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
    kinds = {name: get_method(name) for name in methods}
    check_setting_names(kinds, settings or {})
    check_setting_names(kinds, more, others=KEYWORDS)  # a keyword may be a misspelt field
    return what, how, {name: check_values(name, values) for name, values in {**(settings or {}), **more}.items()}


def configurations(
    methods: Sequence[str],
    benchmark: str,
    scenario: str | None = None,
    *,
    settings: Settings | None = None,
    **problem: Any,
) -> list[Configuration]:
    """All combinations of the methods and the settings' values, on a benchmark and with other fields of a problem.

    >>> [c.hyperparameters["w"] for c in configurations(["ccl-fp"], "split-mnist", settings={"w": [0.1, 0.3]})]
    [0.1, 0.3]
    """
    return make_grid(methods, Problem(benchmark, scenario=scenario, **problem), settings)


def make_grid(methods: Sequence[str], problem: Problem, settings: Settings | None = None) -> list[Configuration]:
    """All combinations of the methods and the settings' values.

    A setting is a hyperparameter, or ``batch``, ``replay``, ``epochs`` or ``augment``. It applies to the methods that
    have it, and at least one of them must. What is not set comes from the preset, else from the benchmark's and then
    the method's defaults.
    """
    kinds = {name: get_method(name) for name in methods}
    if not kinds:
        raise InputError("no method was given: cclfp list methods names them")
    benchmark = get_benchmark(str(problem.benchmark))
    scenario = check_scenario(problem.scenario) if problem.scenario is not None else benchmark.scenarios[0]
    benchmark.check(scenario)
    tasks = None if problem.tasks is None else check_whole("tasks", problem.tasks, at_least=1)
    order, sizes = benchmark.split_into(tasks, problem.class_order)
    psi = None if problem.backbone is None else parse_backbone(problem.backbone)
    common = {
        "benchmark": benchmark.name,
        "scenario": scenario,
        "class_order": order,
        "tasks": sizes,
        "backbone": None if psi == parse_backbone(benchmark.backbone) else psi,
        "validation": problem.validation,
        "max_classes": problem.max_classes,
    }
    memory = check_whole("memory", problem.memory, at_least=1)
    settings = dict(settings or {})
    _check_settings(kinds, settings)
    found = []
    for name, kind in kinds.items():
        kind.check_scenario(scenario)
        file = refer("method", name) if is_reference(name) else None
        usual = _usual_settings(kind, benchmark, scenario, psi)
        for given in _combinations(settings, settings_of(kind)):
            values = {**usual, **given}
            own = {"method": kind.name, "method_file": file, "buffer": memory if kind.schedule is not None else None}
            found.append(Configuration.from_dict({**common, **own, **_split_settings(kind, scenario, values)}))
    return found


def make_one(method: str, problem: Problem, settings: Mapping[str, float] | None = None) -> Configuration:
    """The configuration with these settings, and the usual values of those that are not given."""
    (found,) = make_grid([method], problem, {name: [value] for name, value in (settings or {}).items()})
    return found


def prepare(problem: Problem, on_event: OnEvent = ignore) -> Problem:
    """The same problem with the names of its benchmark and its scenario: images are imported."""
    if (problem.images is None) == (problem.benchmark is None):
        raise InputError("expected a benchmark (cclfp list benchmarks) or images of your own, one of the two")
    p, none = problem, {name: getattr(Problem, name) for name in ("images", *ABOUT_IMAGES)}
    if p.images is not None:
        how: dict[str, Any] = {"split_seed": p.split_seed, "classes": p.classes, "skip_bad": bool(p.skip_bad)}
        name = import_images(p.images, size=p.image_size, **how, on_event=on_event)
        p = dataclasses.replace(p, benchmark=name, **none)
    for name, what in ABOUT_IMAGES.items():
        if getattr(p, name) != none[name]:
            raise InputError(f"{what} can be given with images of your own only: give images too")
    return dataclasses.replace(p, scenario=p.scenario or get_benchmark(str(p.benchmark)).scenarios[0])


def is_papers(method: str, problem: Problem) -> bool:
    """Whether the method and the benchmark are of the paper, and all else as there."""
    if method not in METHODS or problem.benchmark not in BENCHMARKS:
        return False
    order, sizes = BENCHMARKS[problem.benchmark].split_into(problem.tasks, problem.class_order)
    is_usual = sizes is None and has_usual_order(problem.benchmark, order)
    return is_usual and problem.memory == MEMORY and problem.backbone is None


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


def check_values(name: str, values: object) -> list[float]:
    """One number, or several that make a grid. The values of augment are "on" and "off", which become bools."""
    several = [values] if isinstance(values, numbers.Real | str) else values
    if not isinstance(several, Iterable):
        raise InputError(f"{name}={values!r}: expected a number or several")
    several = list(several)
    if name == "augment":
        if wrong := [v for v in several if str(v).casefold() not in SWITCHES]:
            raise InputError(f"augment={wrong[0]}: expected on or off")
        return [SWITCHES[str(v).casefold()] for v in several]
    if not all(isinstance(v, numbers.Real) for v in several):
        raise InputError(f"{name}={values!r}: expected a number or several")
    return [float(v) for v in several]


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


# -- augmentation -------------------------------------------------------------------------------------------------


def default_augmentation(benchmark: Benchmark, backbone: Backbone | None) -> tuple[bool, str]:
    """Whether a user's own images are cropped and mirrored at random by default, and why.

    On small or grey images, and with networks that are not convolutional, that costs accuracy.
    """
    channels, *size = benchmark.image_shape
    reasons = {
        "they are grey": channels != 3,
        f"they are smaller than {SMALLEST} pixels": min(size) < SMALLEST,
        "the backbone is not convolutional": not is_convolutional(
            parse_backbone(benchmark.backbone) if backbone is None else backbone, benchmark.image_shape
        ),
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if against:
        return False, ", ".join(against)
    return True, f"they are in colour, of {SMALLEST} pixels or more, and the backbone is convolutional"


def describe_choice(name: str, augment: bool, reason: str) -> str:
    """A sentence that says what was chosen, and how to choose the other."""
    state, other = ("on", "off") if augment else ("off", "on")
    return f"{name}: random crops and flips of the images are {state}, because {reason}; augment={other} changes that"


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


@functools.cache
def presets() -> list[Preset]:
    text = resources.files(__package__).joinpath("presets.json").read_text(encoding="utf-8")
    return [Preset(**preset) for preset in json.loads(text)]


def find_preset(method: str, benchmark: str, scenario: str, among: Sequence[Preset] | None = None) -> Preset | None:
    """The first matching preset of the package, or ``among`` these; None where there is none."""
    wanted = (method, benchmark, scenario)
    several = presets() if among is None else among
    return next((p for p in several if (p.method, p.benchmark, p.scenario) == wanted), None)


def read_presets(path: Path) -> list[Preset]:
    """The presets in a file, which has the same form as the package's own."""
    try:
        several = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(several, list):
            raise InputError(f"expected a list of presets, got {type(several).__name__}")
        return [_checked(Preset(**values)) for values in several]
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a file of presets: {error}") from error


def _checked(preset: Preset) -> Preset:
    """The preset, if a configuration can have its values. It may be older than a hyperparameter."""
    values = dataclasses.asdict(preset)
    if not isinstance(values.pop("chosen"), str):
        raise wrong_value("chosen", preset.chosen, "a string")
    if values.pop("halved") is not None:
        check_whole("halved", preset.halved, at_least=1)
    if not _has_names(values.pop("inherited")):
        raise wrong_value("inherited", preset.inherited, "the names of settings by method")
    if preset.benchmark not in BENCHMARKS:
        raise unknown("benchmark", str(preset.benchmark), BENCHMARKS)
    kind = METHODS.get(preset.method)  # a method in a file is refused, so that no code is run
    memory = {"buffer": MEMORY if kind and kind.schedule is not None else None, "replay": None}
    memory |= {"replay": PROTOCOL["replay"]} if kind and replays(kind) else {}
    return dataclasses.replace(preset, hyperparameters=Configuration.from_dict({**values, **memory}).hyperparameters)


def _has_names(inherited: object) -> bool:
    """Whether these are lists of names by name."""
    return isinstance(inherited, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in inherited.values()
    )


def write_presets(several: Sequence[Preset], path: Path) -> None:
    text = json.dumps([_as_written(preset) for preset in several], indent=2) + "\n"
    try:
        write_atomic(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def _as_written(preset: Preset) -> dict[str, Any]:
    """Without what is empty for most."""
    return {name: v for name, v in dataclasses.asdict(preset).items() if v or name not in ("inherited", "halved")}


def with_preset(several: Sequence[Preset], new: Preset) -> list[Preset]:
    """The presets, with ``new`` in place of the one for the same method, benchmark and scenario, if there is one."""
    place = (new.method, new.benchmark, new.scenario)
    replaced = [new if (p.method, p.benchmark, p.scenario) == place else p for p in several]
    return replaced if new in replaced else [*replaced, new]
