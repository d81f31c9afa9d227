"""A record is the result of one run: its fields, their checks, and its forms in a database row and a line of JSON."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, NotRequired, TypedDict

from cclfp import metrics
from cclfp.errors import InputError
from cclfp.metrics import Matrix
from cclfp.runs.configuration import Configuration, expect, is_number, is_whole
from cclfp.runs.execution import DEVICES, ENGINES, GONE, PRECISIONS
from cclfp.streams.benchmarks import BENCHMARKS

MEASURES: dict[str, Callable[[Matrix], float | None]] = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "forward_transfer": metrics.forward_transfer,
}
# What the environment of a record may say.
NAMES: dict[str, tuple[str, ...]] = {"engine": (*ENGINES, GONE), "device": DEVICES, "precision": PRECISIONS}


def _is_table(rows: Any, is_cell: Callable[[Any], bool], more: int = 0) -> bool:
    """Rows of cells, so many more rows than columns."""
    is_list = isinstance(rows, list) and len(rows) > 1 and all(isinstance(row, list) for row in rows)
    return is_list and all(len(row) == len(rows) - more and all(map(is_cell, row)) for row in rows)


def _is_percentage(value: Any) -> bool:
    return value is None or (is_number(value) and 0 <= value <= 100)


def _is_moment(text: Any) -> bool:
    """A time as runs have it: one form, so that the order of the texts is that of the times."""
    try:
        return bool(text == datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds"))
    except (TypeError, ValueError, OverflowError):
        return False


class Record(TypedDict):
    """The result of one run."""

    key: str  # of the configuration and the seed
    method: str
    benchmark: str
    scenario: str
    buffer: int | None  # the size of the memory; None: the method has no memory
    seed: int
    configuration: dict[str, Any]
    average_accuracy: float | None  # percent, as the other measures
    forgetting: float | None
    backward_transfer: float | None
    forward_transfer: float | None
    accuracy_matrix: Matrix  # row t has the accuracies after t tasks
    seconds: float  # training and testing
    train_seconds: float
    test_seconds: float
    environment: dict[str, Any]  # engine, precision, threads, device, versions, commit
    finished_at: str
    # After how many tasks the weights were first not finite; absent in healthy runs.
    diverged: NotRequired[int]
    # How often each class (row) was predicted as each class (column) after the last task. Absent in older records, in
    # runs on held-out images and where there are many classes.
    confusion: NotRequired[list[list[int]]]


FIELDS = tuple(Record.__annotations__)
OPTIONAL = ("diverged", "confusion")
JSON = ("configuration", "accuracy_matrix", "environment", "confusion")  # stored as text
REAL = (*MEASURES, "seconds", "train_seconds", "test_seconds")  # stored as floats, also where they are whole
OBJECT = (lambda value: isinstance(value, dict), "an object")
SECONDS = (lambda value: is_number(value) and 0 <= value < 1e300, "a number of seconds")
# What the values are, and what to say of others. Fields without a check follow from other fields.
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (is_whole, "a whole number, 0 or more"),
    "configuration": OBJECT,
    "accuracy_matrix": (
        lambda rows: _is_table(rows, _is_percentage, more=1) and None not in rows[-1],
        "a row more than columns, of percentages and null, and a last row without null: all tasks are tested",
    ),
    "train_seconds": SECONDS,
    "test_seconds": SECONDS,
    "environment": OBJECT,
    "finished_at": (_is_moment, "a time like 2026-01-31T23:59:59+00:00, in UTC"),
    "diverged": (is_whole, "after how many tasks, or no such field"),
    "confusion": (lambda rows: _is_table(rows, is_whole), "a row of counts per class, or no such field"),
}
VERSION = 3  # of the table; a column that is added gets a new one
SCHEMA = (
    "CREATE TABLE runs (key TEXT PRIMARY KEY, method TEXT NOT NULL, benchmark TEXT NOT NULL, scenario TEXT NOT NULL, "
    "buffer INTEGER, seed INTEGER NOT NULL, configuration TEXT NOT NULL, average_accuracy REAL, forgetting REAL, "
    "backward_transfer REAL, forward_transfer REAL, accuracy_matrix TEXT NOT NULL, seconds REAL NOT NULL, "
    "train_seconds REAL NOT NULL, test_seconds REAL NOT NULL, environment TEXT NOT NULL, finished_at TEXT NOT NULL, "
    "diverged INTEGER, confusion TEXT, checksum TEXT)"
)


def complete(configuration: Configuration, given: Mapping[str, Any]) -> Record:
    """The record of a run, with the fields that are given and all that follow from them and the configuration."""
    values = {
        **given,
        **{name: getattr(configuration, name) for name in ("method", "benchmark", "scenario", "buffer")},
        **{name: measure(given["accuracy_matrix"]) for name, measure in MEASURES.items()},
        "key": configuration.key(given["seed"]),
        "configuration": configuration.to_dict(),
        "seconds": float(given["train_seconds"] + given["test_seconds"]),
    }
    absent = [name for name in OPTIONAL if values.get(name) is None]
    return {name: values[name] for name in FIELDS if name not in absent}  # type: ignore[return-value]


# -- rows of a database -------------------------------------------------------------------------------------------


def to_row(record: Record) -> dict[str, Any]:
    """A record as the values of the table's columns, checksum included."""
    values: dict[str, Any] = {name: json.dumps(v) if name in JSON else v for name, v in record.items()}
    values |= {name: float(values[name]) for name in REAL if values[name] is not None}
    return {**values, "checksum": checksum(values)}


def from_row(values: Mapping[str, Any]) -> Record:
    """The record that a row holds; InputError where the row is damaged or holds no record."""
    if values.get("checksum") != checksum(values):
        raise InputError("it does not match its checksum")
    absent = ["checksum", *(name for name in OPTIONAL if values.get(name) is None)]
    record = {name: value for name, value in values.items() if name not in absent}
    return check_record(record | {name: parse_json(record[name]) for name in JSON if name in record})


def checksum(values: Mapping[str, Any]) -> str:
    """The checksum of a row's values. Nulls are left out, so that a column can be added."""
    stored = {name: value for name, value in values.items() if value is not None and name != "checksum"}
    return hashlib.sha256(json.dumps(stored, sort_keys=True, default=repr).encode()).hexdigest()


# -- lines of JSON ------------------------------------------------------------------------------------------------


def to_line(record: Record) -> bytes:
    return (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode()


def from_line(line: str) -> Record:
    """The record that a line of JSON holds; InputError where it holds none."""
    record = check_record(parse_json(line))
    try:
        to_line(record)
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(str(error)) from error
    return record


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; InputError where the text is not JSON, is nested too deeply or has NaN."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise InputError(f"{constant} is not a number")


# -- checks -------------------------------------------------------------------------------------------------------


def check_record(record: Any) -> Record:
    """The record, if a finished run could have made it; otherwise InputError says what is wrong."""
    if not isinstance(record, dict):
        raise InputError("not a run record: expected a JSON object")
    if missing := [name for name in FIELDS if name not in record and name not in OPTIONAL]:
        raise InputError(f"not a run record: it has no {', '.join(missing)}")
    if strange := [name for name in record if name not in FIELDS]:
        raise InputError(f"not a run record: it has {reprlib.repr(strange[0])}, which is not a field of a record")
    for name, value in record.items():
        if name in CHECKS:
            is_valid, expected = CHECKS[name]
            expect(name, value, is_valid(value), expected)
    for name, value in record["environment"].items():
        fine, expected = _environment_check(name, value)
        expect(f"its environment's {name}", value, fine or value is None, expected)
    configuration = Configuration.from_dict(record["configuration"])
    _check_stream(record, configuration)
    for name, wanted in complete(configuration, record).items():
        if name != "configuration" and not _agree(record[name], wanted):
            expect(name, record[name], False, f"{json.dumps(wanted)}, as its other fields say")
    return record  # type: ignore[return-value]  # checked above


def _environment_check(name: str, value: Any) -> tuple[bool, str]:
    """Whether a field of the environment may have this value, and what was expected."""
    if name in NAMES:
        return value in NAMES[name], f"one of {', '.join(NAMES[name])}"
    if name in ("threads", "together"):
        return is_whole(value), "a whole number"
    return isinstance(value, str), "text"


def _check_stream(record: Mapping[str, Any], configuration: Configuration) -> None:
    """The tasks and classes are those of the configuration's stream."""
    known, tasks, matrix = BENCHMARKS.get(configuration.benchmark), configuration.num_tasks, record["accuracy_matrix"]
    expect("accuracy_matrix", matrix, len(matrix[0]) == tasks, f"{tasks} tasks, as its stream has")
    after, confusion = record.get("diverged", 1), record.get("confusion")
    expect("diverged", after, 1 <= after <= tasks, f"after how many of the {tasks} tasks, or no such field")
    fine = confusion is None or known is None or len(confusion) == known.num_classes
    expect("confusion", confusion, fine, "a row of counts per class of the benchmark")


def _agree(given: Any, wanted: Any) -> bool:
    """Equal; numbers that are not whole, but for rounding."""
    if isinstance(wanted, float):
        return is_number(given) and math.isclose(given, wanted, rel_tol=1e-9, abs_tol=1e-6)
    return type(given) is type(wanted) and bool(given == wanted)
