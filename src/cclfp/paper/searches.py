"""What a search found. Searches are kept beside the store of runs, so that repeating one chooses the same settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cclfp.core.files import write_atomic
from cclfp.errors import InputError
from cclfp.metrics import count_of
from cclfp.paper.search import Grid, Settings, Trial
from cclfp.runs.code import code, is_other_code, made_by
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.record import parse_json
from cclfp.runs.settings import Preset, make_one

ENOUGH_SEEDS = 3  # fewer say little

Json = dict[str, Any]  # a search: the request, which is all that determines it, and what was found


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The settings that were found, and all that was tried, the best first: nothing where there is nothing to search.

    ``preset`` has the hyperparameters and how they were chosen, ``settings`` what ``run`` needs to use them.
    """

    method: str  # a name or FILE.py:NAME
    problem: Problem
    preset: Preset
    settings: Settings
    trials: list[Trial]
    doubts: list[str] = dataclasses.field(default_factory=list)  # why the choice may not be the best, in words


def find_doubts(trials: Sequence[Trial], grids: Sequence[Grid]) -> list[str]:
    """Too few seeds for a choice, or a choice at the edge of its range, in words; the best of the trials is the first.

    >>> find_doubts([Trial({"lr": 0.3}, [80.0])], [{"lr": [0.03, 0.1, 0.3]}])
    ['chosen with 1 seed, which says little', 'lr=0.3 is at the edge of what was searched (0.03 0.1 0.3)']
    """
    if not trials:
        return []
    best = trials[0]
    few = [f"chosen with {count_of(best.seeds, 'seed')}, which says little"] if best.seeds < ENOUGH_SEEDS else []
    searched = {name: values for grid in grids for name, values in grid.items() if name != "augment"}
    return few + [
        f"{name}={show_value(value)} is at the edge of what was searched ({' '.join(map(show_value, values))})"
        for name, values in searched.items()
        if (value := best.settings.get(name)) in (min(values), max(values)) and value and len(values) > 1
    ]


def save_search(store: Path, request: Json, tuned: Tuned) -> None:
    """Keep the result of a search."""
    found = dataclasses.asdict(tuned)
    content = {
        "request": request,
        **{name: found[name] for name in ("settings", "preset", "trials", "doubts")},
        "code": code(request["place"]),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path = _path(store, request)
    try:
        write_atomic(path, lambda file: file.write(f"{json.dumps(content, indent=1)}\n".encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def find_search(execution: Execution, request: Json, method: str, problem: Problem) -> Tuned | None:
    """The result of a search that was made before, unless one of other code is to be made again."""
    path = _path(execution.store, request)
    if execution.fresh or not path.exists():
        return None
    content = _read(path)
    is_outdated = execution.other_code == "retrain" and _other_code(content)
    return None if is_outdated else _tuned(content, method, problem)


def latest_search(store: Path, method: str, problem: Problem) -> Tuned | None:
    """The latest search at a place; with another size of the memory where there is none with this one."""
    place = make_one(method, problem).place
    found = _searches_at(store, place)
    found = [content for content in found if content["request"]["place"]["buffer"] == place["buffer"]] or found
    return _tuned(found[-1], method, problem) if found else None


def stored_doubts(store: Path, configuration: Configuration) -> list[str]:
    """What the latest search says about a run's settings, if it chose them."""
    settings = {**configuration.hyperparameters, "augment": configuration.augment}
    found = _searches_at(store, configuration.place)
    found = [content for content in found if settings.items() <= content["settings"].items()]
    return list(found[-1]["doubts"]) if found else []


def _searches_at(store: Path, place: Json) -> list[Json]:
    """The searches at a place, whatever the size of their memory; the latest is the last."""
    wanted = _text({**place, "buffer": None})
    several = [_read(path) for path in sorted(_path(store, {}).parent.glob("*.json"))]
    alike = [content for content in several if _text({**content["request"]["place"], "buffer": None}) == wanted]
    return sorted(alike, key=lambda content: content["finished_at"])


def _read(path: Path) -> Json:
    """A kept search, checked. One that is older than its doubts has those that can be known from its trials."""
    try:
        content: Json = parse_json(path.read_bytes())
        if _key(content["request"]) != path.stem:
            raise InputError("it was changed")
        trials = [Trial(**trial) for trial in content["trials"]]
        found = {"preset": Preset(**content["preset"]), "trials": trials, "finished_at": str(content["finished_at"])}
        older = {"doubts": find_doubts(trials, content["request"]["grids"]), "code": {}}
        return {**older, **content, **found, "settings": dict(content["settings"])}
    except (OSError, InputError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a stored search ({error}): delete it, and search again") from error


def _tuned(content: Json, method: str, problem: Problem) -> Tuned:
    doubts = [*content["doubts"], *_other_code(content)]
    return Tuned(method, problem, content["preset"], content["settings"], content["trials"], doubts)


def _other_code(content: Json) -> list[str]:
    """That other code than this has made the search; nothing where this has."""
    made: Any = {"environment": content["code"], "configuration": content["request"]["place"]}
    return [f"searched with other code ({made_by(made)})"] if is_other_code(made) else []


def _path(store: Path, request: Json) -> Path:
    return store.with_name(f"{store.name}.searches") / f"{_key(request)}.json"


def _key(request: Json) -> str:
    return hashlib.sha256(_text(request).encode()).hexdigest()


def _text(values: Json) -> str:
    return json.dumps(values, sort_keys=True)
