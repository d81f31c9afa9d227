"""A study of one's own: any methods on any benchmarks, as a table with the best of each column marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from cclfp.errors import InputError
from cclfp.events import OnEvent
from cclfp.methods import get_method
from cclfp.paper.plans import TrainingPlan
from cclfp.paper.ranking import Standing, rank
from cclfp.paper.searches import latest_search
from cclfp.paper.trials import Settings
from cclfp.paper.tuning import tune
from cclfp.runs.configuration import Configuration
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.record import Record
from cclfp.runs.seeds import Seeds
from cclfp.runs.settings import find_preset, make_one
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark

OwnColumn = tuple[str, str, int]  # a benchmark, a scenario and the size of the memory


@dataclasses.dataclass(frozen=True)
class OwnCell:
    """A method on a problem, and its settings: ``chosen`` says where they come from."""

    method: str  # a name or FILE.py:NAME
    problem: Problem
    settings: tuple[tuple[str, float], ...]
    chosen: str

    def configuration(self) -> Configuration:
        return make_one(self.method, self.problem, dict(self.settings))

    @property
    def has_preset(self) -> bool:
        """Whether its settings were tuned."""
        return self.chosen != DEFAULTS

    @property
    def column(self) -> OwnColumn:
        return str(self.problem.benchmark), str(self.problem.scenario), self.problem.memory


class OwnResult(NamedTuple):
    """A cell with its runs, and how it stands in its column."""

    cell: OwnCell
    seeds: Seeds
    standing: Standing


@dataclasses.dataclass(frozen=True)
class OwnStudy(TrainingPlan):
    """Methods by benchmarks of one's own choosing. Made by :func:`plan_mine`."""

    cells: Sequence[OwnCell]
    seeds: Sequence[int]
    execution: Execution

    def configurations(self) -> list[Configuration]:
        return [cell.configuration() for cell in self.cells]

    @property
    def columns(self) -> dict[OwnColumn, list[OwnCell]]:
        columns: dict[OwnColumn, list[OwnCell]] = {}
        for cell in self.cells:
            columns.setdefault(cell.column, []).append(cell)
        return columns

    @property
    def not_tuned(self) -> list[dict[str, str]]:
        """The methods and columns without a search or a preset: they are trained with the defaults."""
        places = dict.fromkeys(
            (c.method, str(c.problem.benchmark), str(c.problem.scenario)) for c in self.cells if not c.has_preset
        )
        return [dict(zip(("method", "benchmark", "scenario"), place, strict=True)) for place in places]

    def results(self, include_diverged: bool = False) -> dict[OwnColumn, list[OwnResult]]:
        """What the store has of each column, the best of it marked."""
        store = Store(self.execution.store)
        return {
            column: standings(cells, [self._records(cell, store) for cell in cells], include_diverged)
            for column, cells in self.columns.items()
        }

    def _records(self, cell: OwnCell, store: Store) -> list[Record]:
        configuration = cell.configuration()
        found = (store.find(configuration.key(seed)) for seed in self.seeds)
        return [record for record in found if record is not None]


DEFAULTS = "defaults"


def standings(cells: Sequence[OwnCell], records: Sequence[Sequence[Record]], include_diverged: bool) -> list[OwnResult]:
    """The cells of one column with their runs, compared with each other, except for methods that train jointly."""
    seeds = [Seeds(several, include_diverged) for several in records]
    candidates = [
        bool(one.accuracies) and not get_method(cell.method).joint for cell, one in zip(cells, seeds, strict=True)
    ]
    places = rank([one.accuracies for one in seeds], candidates)
    return [OwnResult(*one) for one in zip(cells, seeds, places, strict=True)]


def plan_mine(
    benchmarks: Sequence[str],
    methods: Sequence[str],
    scenarios: Sequence[str],
    seeds: Sequence[int],
    execution: Execution,
    *,
    memories: Sequence[int] = (200,),
    auto: float | None = None,
    on_event: OnEvent,
    **options: Any,
) -> OwnStudy:
    """The study of these methods on these benchmarks; nothing is trained yet, except for ``auto`` searches.

    The settings of a cell are those that the latest ``cclfp tune`` or ``--auto`` there found, else the preset, else the
    method's defaults.
    """
    for what, names in (("benchmark", benchmarks), ("method", methods)):
        if not names:
            raise InputError(f"which {what}s? A study of your own needs one or more: --{what} A,B")
    chosen = [
        (method, Problem(benchmark, scenario=scenario, memory=memory, **options))
        for benchmark in dict.fromkeys(benchmarks)
        for scenario in scenarios or get_benchmark(benchmark).scenarios[:1]
        for memory in dict.fromkeys(memories)
        for method in dict.fromkeys(methods)
    ]
    for one in chosen:
        make_one(*one)  # refuses what cannot be trained, before anything is
    return OwnStudy([_cell(*one, auto, execution, on_event) for one in chosen], seeds, execution)


def _cell(method: str, problem: Problem, auto: float | None, execution: Execution, on_event: OnEvent) -> OwnCell:
    if auto is not None:
        tuned = tune(method, problem=problem, budget=auto, repeatable=True, execution=execution, on_event=on_event)
        return OwnCell(method, problem, _items(tuned.settings), f"tuned in {auto:g} min")
    if (found := latest_search(execution.store, method, problem)) is not None:
        return OwnCell(method, problem, _items(found.settings), "tuned")
    is_known = find_preset(get_method(method).name, str(problem.benchmark), str(problem.scenario)) is not None
    return OwnCell(method, problem, (), "preset" if is_known else DEFAULTS)


def _items(settings: Settings) -> tuple[tuple[str, float], ...]:
    return tuple(settings.items())
