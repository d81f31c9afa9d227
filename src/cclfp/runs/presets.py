"""Default hyperparameters for each method, benchmark and scenario, as ``cclfp tune`` chose them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from cclfp.core.files import write_atomic
from cclfp.errors import InputError, unknown
from cclfp.methods import METHODS
from cclfp.runs.configuration import PROTOCOL
from cclfp.streams import BENCHMARKS

KINDS: dict[str, tuple[type, str]] = {"hyperparameters": (dict, "an object"), "augment": (bool, "true or false")}


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters, and how they were ``chosen``. Their results are in the records under ``results/``."""

    method: str
    benchmark: str
    scenario: str
    hyperparameters: dict[str, float]
    augment: bool
    chosen: str


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
        found = []
        for preset in (Preset(**values) for values in several):
            for name, value in dataclasses.asdict(preset).items():
                kind, expected = KINDS.get(name, (str, "a string"))
                if not isinstance(value, kind):
                    raise InputError(f"{name} is {json.dumps(value)}: expected {expected}")
            if preset.benchmark not in BENCHMARKS:
                raise unknown("benchmark", preset.benchmark, BENCHMARKS)
            if preset.method not in METHODS:  # a method in a file is refused, so that no code is run
                raise unknown("method", preset.method, METHODS)
            BENCHMARKS[preset.benchmark].check(preset.scenario)
            BENCHMARKS[preset.benchmark].check_augment(preset.augment)
            METHODS[preset.method].check_scenario(preset.scenario)
            kind = METHODS[preset.method]
            given = {**kind.earlier_values(PROTOCOL), **preset.hyperparameters}  # it may be older than a hyperparameter
            if missing := dataclasses.asdict(kind.hyper(preset.scenario, **given)).keys() - given.keys():
                raise InputError(f"{preset.method} lacks {', '.join(sorted(missing))}")
            found.append(dataclasses.replace(preset, hyperparameters=given))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a file of presets: {error}") from error
    return found


def write_presets(several: Sequence[Preset], path: Path) -> None:
    text = json.dumps([dataclasses.asdict(preset) for preset in several], indent=2) + "\n"
    try:
        write_atomic(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def with_preset(several: Sequence[Preset], new: Preset) -> list[Preset]:
    """The presets, with ``new`` in place of the one for the same method, benchmark and scenario, if there is one."""
    place = (new.method, new.benchmark, new.scenario)
    replaced = [new if (p.method, p.benchmark, p.scenario) == place else p for p in several]
    return replaced if new in replaced else [*replaced, new]
