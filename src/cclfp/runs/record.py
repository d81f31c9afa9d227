"""What a run record is: the result of one run, as the store keeps it and as files carry it to other machines."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from cclfp import metrics
from cclfp.errors import InputError
from cclfp.metrics import Matrix
from cclfp.runs.configuration import Configuration, check_configuration, is_number, is_whole, wrong_value
from cclfp.streams.benchmarks import BENCHMARKS

Record = dict[str, Any]

TEXT = ("key", "method", "benchmark", "scenario", "finished_at")
TIMES = ("seconds", "train_seconds", "test_seconds")
MEASURES: dict[str, Callable[[Matrix], float | None]] = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "forward_transfer": metrics.forward_transfer,
}
FIELDS = (*TEXT, "buffer", "seed", "configuration", *MEASURES, "accuracy_matrix", *TIMES, "environment")
# After how many tasks the weights were first found not finite; healthy records do not have it.
OPTIONAL = ("diverged",)

# What a report's commands say of an environment.
NAMES = {
    "engine": ("eager", "compiled", "graph"),
    "device": ("cpu", "cuda"),
    "precision": ("float32", "tf32", "bf16"),
}
LONGEST = 500  # characters of a message, which may show what a file has


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says; InputError where it is none, is nested too deeply or has NaN."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error


def check_record(record: Any) -> Record:
    """A record as a finished run makes it; InputError says what is wrong with another."""
    try:
        return _check(record)
    except RecursionError as error:
        raise InputError("not a run record: it is nested too deeply") from error
    except InputError as error:
        text = str(error)
        raise InputError(text if len(text) <= LONGEST else text[:LONGEST] + "...") from error


def _check(record: Any) -> Record:
    if not isinstance(record, dict):
        raise InputError("not a run record: expected a JSON object")
    if missing := [name for name in FIELDS if name not in record]:
        raise InputError(f"not a run record: it has no {', '.join(missing)}")
    if strange := [name for name in record if name not in (*FIELDS, *OPTIONAL)]:
        raise InputError(f"not a run record: it has {', '.join(map(repr, strange))}, which is not a field of a record")
    for name in TEXT:
        _expect(record, name, isinstance(record[name], str), "a text")
    for name in ("configuration", "environment"):
        _expect(record, name, isinstance(record[name], dict), "an object")
    _expect(record, "seed", is_whole(record["seed"]), "a whole number, 0 or more")
    _expect(record, "buffer", record["buffer"] is None or is_whole(record["buffer"]), "a whole number or null")
    for name in TIMES:
        _expect(record, name, is_number(record[name]) and 0 <= record[name] < 1e300, "a number of seconds")
    total = record["train_seconds"] + record["test_seconds"]
    _expect(record, "seconds", _agree(record["seconds"], total), f"{total}, those of training and testing")
    _expect(record, "finished_at", _is_moment(record["finished_at"]), "a time like 2026-01-31T23:59:59+00:00, in UTC")
    for name, known in NAMES.items():
        value = record["environment"].get(name)
        if value is not None and value not in known:
            raise wrong_value(f"its environment's {name}", value, f"one of {', '.join(known)}")
    for name, value in record["environment"].items():
        is_count = name in ("threads", "together")
        if value is not None and not (is_whole(value) if is_count else isinstance(value, str)):
            raise wrong_value(f"its environment's {name}", value, "a whole number" if is_count else "text")
    _check_accuracies(record)
    configuration = check_configuration(record["configuration"])
    for name in ("method", "benchmark", "scenario", "buffer"):
        wanted = getattr(configuration, name)
        _expect(record, name, record[name] == wanted, f"{wanted!r}, as its configuration says")
    _check_tasks(record, configuration)
    if record["key"] != configuration.key(record["seed"]):
        raise InputError(
            f"the key {record['key']!r} is not that of its configuration and seed: it was changed, or written by a "
            "cclfp whose configurations mean something else"
        )
    return record


def _check_accuracies(record: Record) -> None:
    matrix = record["accuracy_matrix"]
    is_matrix = isinstance(matrix, list) and len(matrix) > 1 and all(isinstance(row, list) for row in matrix)
    is_matrix = is_matrix and all(len(row) == len(matrix) - 1 for row in matrix)
    is_matrix = is_matrix and all(map(_is_percentage, itertools.chain.from_iterable(matrix)))
    _expect(record, "accuracy_matrix", is_matrix, "a row more than columns, of percentages and null")
    is_finished = all(accuracy is not None for accuracy in matrix[-1])
    _expect(record, "accuracy_matrix", is_finished, "a last row without null: a finished run is tested on all tasks")
    for name, measure in MEASURES.items():
        given, wanted = record[name], measure(matrix)
        same = given is wanted is None or (is_number(given) and wanted is not None and _agree(given, wanted))
        _expect(record, name, same, f"{json.dumps(wanted)}, as the accuracy matrix gives it")


def _check_tasks(record: Record, configuration: Configuration) -> None:
    """The matrix has the tasks of the configuration's stream."""
    sizes = configuration.tasks
    tasks = BENCHMARKS[configuration.benchmark].num_tasks if sizes is None else len(sizes)
    _expect(record, "accuracy_matrix", len(record["accuracy_matrix"][0]) == tasks, f"{tasks} tasks, as its stream has")
    if "diverged" in record:
        after = record["diverged"]
        fine = is_whole(after) and 1 <= after <= len(record["accuracy_matrix"][0])
        _expect(record, "diverged", fine, f"after how many of the {tasks} tasks, or no such field")


def _expect(record: Record, name: str, fine: bool, what: str) -> None:
    if not fine:
        raise wrong_value(name, record[name], what)


def _is_percentage(value: Any) -> bool:
    return value is None or (type(value) in (float, int) and 0 <= value <= 100)


def _agree(a: float, b: float) -> bool:
    """The same but for rounding."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


def _is_moment(text: str) -> bool:
    """A time as runs have it: one form, so that the order of the texts is that of the times."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds") == text
    except (ValueError, OverflowError):
        return False


def _refuse(constant: str) -> NoReturn:
    raise InputError(f"{constant} is not a number")
