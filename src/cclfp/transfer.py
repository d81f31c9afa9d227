"""Run records to and from JSON Lines, so that runs made on one machine join the store of another."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from cclfp import metrics
from cclfp.configuration import USUAL, Configuration
from cclfp.errors import InputError
from cclfp.files import write_atomic
from cclfp.store import Record, Store
from cclfp.streams.benchmarks import BENCHMARKS

TEXT = ("key", "method", "benchmark", "scenario", "finished_at")
TIMES = ("seconds", "train_seconds", "test_seconds")
MEASURES = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "forward_transfer": metrics.forward_transfer,
}
FIELDS = (*TEXT, "buffer", "seed", "configuration", *MEASURES, "accuracy_matrix", *TIMES, "environment")
OPTIONAL = ("diverged",)

# What a report's commands say of an environment.
NAMES = {
    "engine": ("eager", "compiled", "graph"),
    "device": ("cpu", "cuda"),
    "precision": ("float32", "tf32", "bf16"),
}


def export(records: Sequence[Record], path: Path) -> None:
    """Write the records, one a line."""
    lines = [_to_line(record) for record in records]
    try:
        write_atomic(path, lambda file: file.writelines(lines))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def _to_line(record: Record) -> bytes:
    return (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode()


def import_runs(paths: Sequence[Path], store: Store) -> tuple[int, list[str]]:
    """Add the records of the files to the store: how many were added, and the places of those refused as duplicates.

    A duplicate is word for word what the store has already, or another line before it. Nothing of the files is added
    where a line is no record, or differs from the record that the store or another line has of the same run.
    """
    records = [found for path in paths for found in read(path)]
    duplicates = store.merge(records)
    return len(records) - len(duplicates), duplicates


def read(path: Path) -> Iterator[tuple[str, Record]]:
    """The records of a file, each with its place: the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # not at a U+2028 in a name
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if lines == [""]:
        raise InputError(f"{path} is empty: expected a run record on every line, as cclfp export writes them")
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        try:
            record = check(json.loads(line, parse_constant=_refuse))
            _to_line(record)  # what comes in can go out again
            yield place, record
        except (ValueError, RecursionError) as error:  # InputError and JSON's own
            raise InputError(f"{place}: {error}") from error


def check(record: Any) -> Record:
    """A record as a finished run makes it; InputError says what is wrong with another."""
    if not isinstance(record, dict):
        raise InputError("not a run record: expected a JSON object")
    if missing := [name for name in FIELDS if name not in record]:
        raise InputError(f"not a run record: it has no {', '.join(missing)}")
    if strange := [name for name in record if name not in (*FIELDS, *OPTIONAL)]:
        raise InputError(f"not a run record: it has {', '.join(map(repr, strange))}, which records have not")
    for name in TEXT:
        _expect(record, name, isinstance(record[name], str), "a text")
    for name in ("configuration", "environment"):
        _expect(record, name, isinstance(record[name], dict), "an object")
    _expect(record, "seed", _is_whole(record["seed"]), "a whole number, 0 or more")
    _expect(record, "buffer", record["buffer"] is None or _is_whole(record["buffer"]), "a whole number or null")
    if "diverged" in record:
        whole = _is_whole(record["diverged"]) and record["diverged"] >= 1
        _expect(record, "diverged", whole, "a whole number of tasks, 1 or more")
    for name in TIMES:
        _expect(record, name, _is_number(record[name]) and record[name] >= 0, "a number of seconds")
    total = record["train_seconds"] + record["test_seconds"]
    _expect(record, "seconds", _agree(record["seconds"], total), f"{total}, those of training and testing")
    _expect(record, "finished_at", _is_moment(record["finished_at"]), "a time like 2026-01-31T23:59:59+00:00, in UTC")
    for name, known in NAMES.items():
        value = record["environment"].get(name)
        if value is not None and value not in known:
            raise InputError(f"its environment's {name} is {json.dumps(value)}: expected one of {', '.join(known)}")
    for name, value in record["environment"].items():
        kind = int if name in ("threads", "together") else str
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            expected = "a whole number" if kind is int else "text"
            raise InputError(f"its environment's {name} is {json.dumps(value)}: expected {expected}")
    _check_accuracies(record)
    configuration = _configuration(record["configuration"])
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


def _configuration(values: dict[str, Any]) -> Configuration:
    values = {**USUAL, **values}  # a record may be older than a setting
    names = {field.name for field in dataclasses.fields(Configuration)}
    if values.keys() != names:
        raise InputError(
            f"its configuration has {', '.join(sorted(values.keys() ^ names))} too much or too little: it was written "
            "by another cclfp"
        )
    try:
        return Configuration.from_dict(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"its configuration cannot be used: {error}") from error


def _check_accuracies(record: Record) -> None:
    matrix = record["accuracy_matrix"]
    is_matrix = isinstance(matrix, list) and len(matrix) > 1 and all(isinstance(row, list) for row in matrix)
    is_matrix = is_matrix and all(len(row) == len(matrix) - 1 for row in matrix)
    is_matrix = is_matrix and all(a is None or (_is_number(a) and 0 <= a <= 100) for row in matrix for a in row)
    _expect(record, "accuracy_matrix", is_matrix, "a row more than columns, of percentages and null")
    is_finished = all(accuracy is not None for accuracy in matrix[-1])
    _expect(record, "accuracy_matrix", is_finished, "a last row without null: a finished run is tested on all tasks")
    for name, measure in MEASURES.items():
        given, wanted = record[name], measure(matrix)
        same = given is wanted is None or (_is_number(given) and wanted is not None and _agree(given, wanted))
        _expect(record, name, same, f"{json.dumps(wanted)}, as the accuracy matrix gives it")


def _check_tasks(record: Record, configuration: Configuration) -> None:
    """The matrix has the tasks of the configuration's stream.

    A benchmark that the package has not is of images of a user's own, which need not be here: a run on such says how
    many classes each of its tasks has, but not how many there are.
    """
    name, sizes = configuration.benchmark, configuration.tasks
    benchmark = BENCHMARKS.get(name)
    if sizes is not None:
        fine = isinstance(sizes, tuple) and all(_is_whole(size) and size > 0 for size in sizes)
        wanted = "how many classes each task has"
        if benchmark is not None and benchmark.domains is None:
            fine, wanted = fine and sum(sizes) == benchmark.num_classes, f"{wanted}, {benchmark.num_classes} in all"
        elif benchmark is not None:
            fine, wanted = False, f"null: all tasks of {name} have all classes"
        _expect(record["configuration"], "tasks", fine, wanted)
    tasks = len(sizes) if sizes is not None else None if benchmark is None else benchmark.num_tasks
    if tasks is None:
        raise InputError(f"its configuration says no tasks, and {name} is no benchmark of this cclfp")
    _expect(record, "accuracy_matrix", len(record["accuracy_matrix"][0]) == tasks, f"{tasks} tasks, as its stream has")


def _expect(record: Record, name: str, fine: bool, what: str) -> None:
    if not fine:
        shown = json.dumps(record[name], ensure_ascii=False)
        raise InputError(f"{name} is {shown if len(shown) < 60 else shown[:60] + '...'}: expected {what}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # not so NaN


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
