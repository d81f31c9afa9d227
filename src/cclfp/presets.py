"""Default hyperparameters for each method, benchmark and scenario, each with the accuracy it was measured to give."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from cclfp.errors import InputError
from cclfp.files import write_atomic


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters, how they were ``chosen``, and what they gave: ``accuracy`` ± ``std`` over ``seeds`` seeds.

    ``seconds`` is what a run took, training and testing, on the ``hardware``. A preset that was chosen and not measured
    yet has no seeds.
    """

    method: str
    benchmark: str
    scenario: str
    hyperparameters: dict[str, float]
    augment: bool
    chosen: str
    accuracy: float
    std: float | None  # of one seed there is none
    seeds: int
    seconds: float
    hardware: str

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"cclfp run {self.method} {self.benchmark} --scenario {self.scenario} --seeds {self.seeds} --fresh"


@functools.cache
def presets() -> list[Preset]:
    text = resources.files(__package__).joinpath("presets.json").read_text(encoding="utf-8")
    return [Preset(**preset) for preset in json.loads(text)]


def find_preset(method: str, benchmark: str, scenario: str) -> Preset | None:
    wanted = (method, benchmark, scenario)
    return next((p for p in presets() if (p.method, p.benchmark, p.scenario) == wanted), None)


def read_presets(path: Path) -> list[Preset]:
    """The presets of a file that has the form of the package's."""
    try:
        return [Preset(**preset) for preset in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a file of presets: {error}") from error


def write_presets(several: Sequence[Preset], path: Path) -> None:
    text = json.dumps([dataclasses.asdict(preset) for preset in several], indent=2) + "\n"
    try:
        write_atomic(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def with_preset(several: Sequence[Preset], new: Preset) -> list[Preset]:
    """The presets, with a new one in the place of the old for the same method, benchmark and scenario."""
    place = (new.method, new.benchmark, new.scenario)
    replaced = [new if (p.method, p.benchmark, p.scenario) == place else p for p in several]
    return replaced if new in replaced else [*replaced, new]
