"""What ``cclfp tune`` searches: the paper's ranges for w, α and β, the step size for all, each baseline's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cclfp.errors import InputError
from cclfp.methods import METHODS, get_method
from cclfp.paper.search import Grid, Settings
from cclfp.runs.configuration import PROTOCOL, show_value
from cclfp.runs.problem import Problem
from cclfp.runs.settings import Preset, find_preset, make_one
from cclfp.streams import BENCHMARKS, get_benchmark

_LR = [0.01, 0.03, 0.1, 0.3]
_W, _WEIGHTS = [0.1, 0.3, 0.5], [0.01, 0.1, 0.5, 1.0]

GRIDS: dict[str, Grid] = {
    "joint": {"lr": _LR},
    "finetune": {"lr": _LR},
    "si": {"lr": _LR, "c": [0.3, 1.0, 3.0], "xi": [0.01, 0.1]},
    "lwf": {"lr": _LR, "lambda_o": [0.3, 1.0, 3.0]},
    "er": {"lr": _LR},
    "gem": {"lr": [0.003, 0.01, 0.03, 0.1], "gamma": [0.5, 1.0]},  # on Split MNIST, class, the smallest is best
    "a-gem": {"lr": _LR},
    "icarl": {"lr": [0.03, 0.1, 0.3, 1.0]},
    "fdr": {"lr": _LR, "alpha": [0.3, 1.0, 3.0]},
    "hal": {"lr": [0.01, 0.03, 0.1], "lam": [0.03, 0.1, 0.3]},  # lam lr^3 above 1e-4 diverges
    "ccl-fp": {"lr": [0.03, 0.1, 0.3], "w": _W, "alpha": _WEIGHTS},
    "ccl-fp+": {"lr": [0.03, 0.1, 0.3], "w": _W, "alpha": _WEIGHTS, "beta": _WEIGHTS},
}

# On the convolutional streams a run takes minutes, and the product of all ranges hours. There ER searches these. The
# others inherit what it found and search their own settings one after the other; CCL-FP+ inherits CCL-FP's and adds β.
CONVOLUTIONAL: Grid = {"lr": [0.01, 0.03, 0.1], "augment": [True, False]}

# On other data than the paper's a component of CCL-FP+ may not help: 0 switches it off, and without any it is ER.
_WITH_OFF: dict[str, Grid] = {
    name: {"lr": _LR, **{setting: [0.0, *values] for setting, values in GRIDS[name].items() if setting != "lr"}}
    for name in ("ccl-fp", "ccl-fp+")
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a search starts, the grids that it searches one after the other, and what is inherited from which method.

    Where any of the grids has 0 for a weight, the search also starts without: see :attr:`switched_off`.
    """

    start: Settings
    grids: list[Grid]
    inherited: dict[str, Settings] = dataclasses.field(default_factory=dict)

    @property
    def ranges(self) -> Grid:
        """All that is searched."""
        return {name: values for grid in self.grids for name, values in grid.items()}

    @property
    def switched_off(self) -> Settings:
        """The start with all settings at 0 that are searched and may be 0, such as the weights of a method's losses.

        >>> Plan({"lr": 0.1, "w": 0.5}, [{"lr": [0.1, 0.3], "augment": [False, True]}, {"w": [0.0, 0.5]}]).switched_off
        {'lr': 0.1, 'w': 0.0}
        """
        return self.start | {name: 0.0 for name, values in self.ranges.items() if name != "augment" and 0 in values}

    def describe(self, left: Sequence[str] = ()) -> str:
        """What is searched, in words, but for the settings that are ``left``."""
        searched = {name: " ".join(map(show_value, of)) for name, of in self.ranges.items() if name not in left}
        text = ", ".join(f"{name} from {values}" for name, values in searched.items())
        return text + ", one after the other" * (sum(any(name in searched for name in grid) for grid in self.grids) > 1)


def plan_anywhere(method: str, problem: Problem, given: Grid) -> Plan:
    """The plan for any method on any benchmark: lr and augmentation together, then the method's own settings.

    It starts with the usual settings. A built-in method's own settings are those of ``GRIDS``; the weights of CCL-FP's
    components may be 0 too. A user's own method declares what is searched: ``setting(..., search=(...))``. ``given``
    are a user's ranges; a setting with one value is not searched.

    >>> plan_anywhere("fdr", Problem("split-cifar10"), {"lr": [0.5], "alpha": [1.0, 2.0]}).grids
    [{'augment': [False, True]}, {'alpha': [1.0, 2.0]}]
    """
    kind = get_method(method)
    declared = {field.name: list(field.metadata.get("search", ())) for field in dataclasses.fields(kind.Hyper)}
    own = _WITH_OFF.get(kind.name) or GRIDS.get(kind.name, declared)
    can_augment = get_benchmark(str(problem.benchmark)).no_augmentation is None
    first: Grid = {"lr": own.get("lr") or _LR, **({"augment": [False, True]} if can_augment else {})}
    ranges = {**first, **{name: values for name, values in own.items() if values and name != "lr"}, **given}
    searched = {name: values for name, values in ranges.items() if len(values) > 1}
    together = {name: searched.pop(name) for name in first if name in searched}
    grids = ([together] if together else []) + [{name: values} for name, values in searched.items()]
    usual = make_one(method, problem)
    protocol = {name: value for name in PROTOCOL if name in given and (value := getattr(usual, name)) is not None}
    return Plan(_nearest({**usual.hyperparameters, "augment": usual.augment, **protocol}, given), grids)


def plan_preset(method: str, problem: Problem, known: Sequence[Preset], *, jointly: bool) -> Plan:
    """The plan that chose the presets of the paper's methods on its benchmarks.

    Whatever is not searched is as the method has it, not as the preset that the search replaces. ``jointly`` searches
    a method's own step size with its other settings on the convolutional streams too.
    """
    benchmark, scenario = str(problem.benchmark), str(problem.scenario)
    inherited: dict[str, Settings] = {}
    for other, names in _sources(method, benchmark, jointly).items():
        preset = find_preset(other, benchmark, scenario, known)
        if preset is None:
            text = f"{method} inherits {' and '.join(names)} from {other} on {benchmark} ({scenario})"
            raise InputError(f"{text}: tune {other} there first")
        inherited[other] = _settings_of(preset, names)
    taken = {name: value for settings in inherited.values() for name, value in settings.items()}
    grid = CONVOLUTIONAL if method == "er" and BENCHMARKS[benchmark].backbone != "mlp" else GRIDS[method]
    grids = [{name: values} for name, values in grid.items() if name not in taken] if "lr" in taken else [grid]
    start = dataclasses.asdict(METHODS[method].hyper(scenario)) | taken
    return Plan(_nearest(start, {name: values for one in grids for name, values in one.items()}), grids, inherited)


def _sources(method: str, benchmark: str, jointly: bool) -> dict[str, list[str]]:
    """Which settings a method takes from which other methods' presets."""
    if method == "er" or BENCHMARKS[benchmark].backbone == "mlp":
        return {}
    if jointly:
        return {"er": ["augment"]}
    return {"er": list(CONVOLUTIONAL)} | ({"ccl-fp": ["w", "alpha"]} if method == "ccl-fp+" else {})


def _nearest(start: Settings, ranges: Grid) -> Settings:
    """The start, with the nearest value of each range."""
    return start | {name: min(values, key=lambda v: abs(v - start.get(name, 0))) for name, values in ranges.items()}


def _settings_of(preset: Preset, names: Sequence[str]) -> Settings:
    settings: Settings = preset.hyperparameters | {"augment": preset.augment}
    return {name: settings[name] for name in names}


def outdated(known: Sequence[Preset]) -> list[Preset]:
    """Those that inherited other settings than the presets they come from have now, in the order to tune them again."""

    def is_outdated(preset: Preset) -> bool:
        for other, names in preset.inherited.items():
            source = find_preset(other, preset.benchmark, preset.scenario, known)
            if source is not None and _settings_of(source, names) != _settings_of(preset, names):
                return True
        return False

    return sorted(filter(is_outdated, known), key=lambda preset: list(GRIDS).index(preset.method))
