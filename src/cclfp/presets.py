"""Default hyperparameters for each method, benchmark and scenario, each with the accuracy it was measured to give."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters, how they were ``chosen``, and what they gave: ``accuracy`` ± ``std`` over ``seeds`` seeds.

    ``seconds`` is what a run took, training and testing, on the ``hardware``.
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
