"""``cclfp run --auto``: tune each method on held-out images first, then train it with the settings that were found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from cclfp.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cclfp.events import OnEvent
    from cclfp.paper.search import Tuned
    from cclfp.runs.execution import Execution
    from cclfp.runs.problem import Problem
    from cclfp.runs.results import Result


def run_tuned(
    minutes: float,
    methods: Sequence[str],
    problem: Problem,
    ranges: dict[str, list[Any]],
    *,
    seeds: int | Sequence[int],
    execution: Execution,
    on_event: OnEvent,
) -> list[tuple[Result, Tuned]]:
    """The results of each method with the settings that a search of so many minutes found, and the searches."""
    from cclfp.methods import get_method
    from cclfp.paper.tuning import tune
    from cclfp.runs.run import run
    from cclfp.runs.settings import check_setting_names, make_one, prepare, settings_of

    if not 0 < minutes < float("inf"):
        raise InputError(f"--auto {minutes:g}: expected minutes for the search of each method, more than 0")
    kinds = {name: get_method(name) for name in methods}
    check_setting_names(kinds, ranges)
    problem = prepare(problem, on_event)
    searched = dataclasses.replace(problem, validation=False, max_classes=None)
    for name in kinds:
        make_one(name, problem)  # refuses what cannot be trained, before any search
    searches = {}
    for name, kind in kinds.items():  # all searches first: the first that is refused ends the command
        own = {setting: values for setting, values in ranges.items() if setting in settings_of(kind)}
        searches[name] = tune(
            name,
            problem=searched,
            settings=own,
            budget=minutes,
            repeatable=True,
            execution=execution,
            on_event=on_event,
        )
    found = []
    for name, tuned in searches.items():
        settings: dict[str, Any] = {setting: [value] for setting, value in tuned.settings.items()}
        settings["augment"] = ["on" if tuned.preset.augment else "off"]
        (result,) = run(
            [name],
            problem=problem,
            seeds=seeds,
            settings=settings,
            execution=execution,
            on_event=on_event,
        )
        found.append((result, tuned))
    return found
