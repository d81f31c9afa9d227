"""Where a method is tuned or studied: a benchmark, the paper's or a user's own, and how its stream is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.methods import METHODS, Method, get_method
from cclfp.runs.configuration import Configuration
from cclfp.runs.grid import configurations
from cclfp.streams import BENCHMARKS
from cclfp.streams.benchmarks import has_usual_order

# What is the same for all settings of a method at a place.
FIXED = ("method", "method_file", "benchmark", "scenario", "buffer", "class_order", "tasks", "backbone")


@dataclasses.dataclass(frozen=True)
class Place:
    """All of a configuration but the method's settings. ``method`` is a name or ``FILE.py:NAME``."""

    method: str
    benchmark: str
    scenario: str
    memory: int = 200
    tasks: int | None = None
    class_order: str | Sequence[Any] | None = None
    backbone: str | None = None

    @property
    def kind(self) -> type[Method]:
        return get_method(self.method)

    @property
    def is_papers(self) -> bool:
        """Whether the method and the benchmark are of the paper, and all else as there."""
        if self.method not in METHODS or self.benchmark not in BENCHMARKS:
            return False
        order, sizes = BENCHMARKS[self.benchmark].split_into(self.tasks, self.class_order)
        is_usual = sizes is None and has_usual_order(self.benchmark, order)
        return is_usual and self.memory == 200 and self.backbone is None

    @property
    def name(self) -> str:
        return f"{self.method} on {self.benchmark} ({self.scenario})"

    def configuration(self, settings: Mapping[str, float] | None = None, *, validation: bool = False) -> Configuration:
        """The configuration with these settings, and the usual values of those that are not given."""
        (found,) = configurations(
            [self.method],
            self.benchmark,
            self.scenario,
            memory=self.memory,
            class_order=self.class_order,
            tasks=self.tasks,
            backbone=self.backbone,
            validation=validation,
            settings={name: [value] for name, value in (settings or {}).items()},
        )
        return found

    def identity(self) -> dict[str, Any]:
        """What tells the place from others, on every machine. A user's file counts by its content."""
        return identity_of(self.configuration())


def identity_of(configuration: Configuration) -> dict[str, Any]:
    """The identity of the place where a configuration is trained."""
    values = {name: value for name, value in configuration.to_dict().items() if name in FIXED}
    for name in ("method_file", "backbone"):
        if values[name] is not None:
            values[name] = {key: value for key, value in values[name].items() if key != "file"}
    return values
