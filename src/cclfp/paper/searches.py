"""Finished searches, kept beside the store of runs, so that repeating one chooses the same settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cclfp.core.files import write_atomic
from cclfp.errors import InputError
from cclfp.paper.grids import Grid
from cclfp.paper.search import Tuned, find_doubts, usual_settings
from cclfp.paper.trials import Trial
from cclfp.runs.code import code, is_other_code, made_by
from cclfp.runs.configuration import Configuration
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.record import parse_json
from cclfp.runs.settings import Preset, make_one

Request = dict[str, Any]


def make_request(
    method: str,
    problem: Problem,
    grids: Sequence[Grid],
    ranges: Grid,
    seeds: Sequence[int],
    budget: float | None,
    halving: int | None,
) -> Request:
    """All that determines a search, as JSON: the same request finds the same search."""
    values = {
        "place": make_one(method, problem).place,
        "start": usual_settings(method, problem, ranges),
        "grids": list(grids),
        "seeds": list(seeds),
        "budget": budget,
        "halving": halving,
    }
    request: Request = json.loads(json.dumps(values))
    return request


def save_search(store: Path, request: Request, tuned: Tuned) -> None:
    """Keep the result of a search."""
    content = {
        "request": request,
        "settings": tuned.settings,
        "preset": dataclasses.asdict(tuned.preset),
        "trials": [dataclasses.asdict(trial) for trial in tuned.trials],
        "doubts": tuned.doubts,
        "code": code(make_one(tuned.method, tuned.problem, tuned.settings).to_dict()),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = json.dumps(content, indent=1) + "\n"
    path = _folder(store) / f"{_key(request)}.json"
    try:
        write_atomic(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def find_search(execution: Execution, request: Request, method: str, problem: Problem) -> Tuned | None:
    """The result of a search that was made before, unless one of other code is to be made again."""
    path = _folder(execution.store) / f"{_key(request)}.json"
    if execution.fresh or not path.exists():
        return None
    tuned = _tuned(path, content := _read(path), method, problem)
    return None if execution.other_code == "retrain" and _other_code(content, tuned) else tuned


def latest_search(store: Path, method: str, problem: Problem) -> Tuned | None:
    """The latest search at a place; with another size of the memory where there is none with this one."""
    wanted = json.loads(json.dumps(make_one(method, problem).place))
    anywhere = {**wanted, "buffer": None}
    found = [
        (content["request"]["place"] == wanted, content["finished_at"], path.name, content)
        for path, content in _all(store)
        if {**content["request"]["place"], "buffer": None} == anywhere
    ]
    if not found:
        return None
    _, _, name, content = max(found, key=lambda one: one[:3])
    return _tuned(_folder(store) / name, content, method, problem)


def _folder(store: Path) -> Path:
    return store.with_name(store.name + ".searches")


def _key(request: Request) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _all(store: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(_folder(store).glob("*.json")):
        yield path, _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except (OSError, InputError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or _key(content.get("request")) != path.stem:  # type: ignore[arg-type]
        raise _damaged(path, "it is not a search, or was changed")
    return content


def _tuned(path: Path, content: dict[str, Any], method: str, problem: Problem) -> Tuned:
    try:
        trials = [Trial(**trial) for trial in content["trials"]]
        doubts = _doubts(content)
        tuned = Tuned(method, problem, Preset(**content["preset"]), dict(content["settings"]), trials, doubts)
        tuned.doubts.extend(_other_code(content, tuned))
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    return tuned


def _doubts(content: dict[str, Any]) -> list[str]:
    """Those of the search; of one that is older than they are what can be known from its trials."""
    trials = [Trial(**trial) for trial in content["trials"]]
    return list(content.get("doubts", find_doubts(trials, content["request"]["grids"])))


def _other_code(content: dict[str, Any], tuned: Tuned) -> list[str]:
    """That other code than this has made the search; nothing where this has."""
    configuration = make_one(tuned.method, tuned.problem, tuned.settings).to_dict()
    made: Any = {"environment": dict(content.get("code", {})), "configuration": configuration}
    return [f"searched with other code ({made_by(made)})"] if is_other_code(made) else []


def stored_doubts(store: Path, configuration: Configuration) -> list[str]:
    """What the latest search says about a run's settings, if it chose them."""
    place = {**json.loads(json.dumps(configuration.place)), "buffer": None}
    settings = {**configuration.hyperparameters, "augment": configuration.augment}
    found = [
        content
        for _, content in _all(store)
        if {**content["request"]["place"], "buffer": None} == place
        and all(content["settings"].get(name) == value for name, value in settings.items())
    ]
    return _doubts(max(found, key=lambda content: str(content["finished_at"]))) if found else []


def _damaged(path: Path, error: object) -> InputError:
    return InputError(f"{path} cannot be read as a stored search ({error}): delete it, and search again")
