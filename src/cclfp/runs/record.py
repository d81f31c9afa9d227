"""What a run record is: its fields, their checks, and its forms in a database row and in a line of JSON.

A record is the result of one run, as the store keeps it and as files carry it to other machines.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, NotRequired, TypedDict

from cclfp import metrics
from cclfp.errors import InputError
from cclfp.metrics import Matrix
from cclfp.runs.configuration import Configuration, is_number, is_whole, wrong_value
from cclfp.runs.execution import DEVICES, ENGINES, PRECISIONS
from cclfp.streams.benchmarks import BENCHMARKS


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
    finished_at: str  # UTC
    diverged: NotRequired[int]  # after how many tasks the weights were first not finite; absent in healthy runs
    # How often each class (row) was predicted as each class (column) after the last task. Absent in older records, in
    # runs on held-out images and where there are many classes.
    confusion: NotRequired[list[list[int]]]


FIELDS = tuple(Record.__annotations__)
OPTIONAL = ("diverged", "confusion")

# The same as a table of SQLite. A column that is added gets a new version.
VERSION = 3
SCHEMA = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    method TEXT NOT NULL,
    benchmark TEXT NOT NULL,
    scenario TEXT NOT NULL,
    buffer INTEGER,
    seed INTEGER NOT NULL,
    configuration TEXT NOT NULL,     -- JSON
    average_accuracy REAL,
    forgetting REAL,
    backward_transfer REAL,
    forward_transfer REAL,
    accuracy_matrix TEXT NOT NULL,   -- JSON
    seconds REAL NOT NULL,
    train_seconds REAL NOT NULL,
    test_seconds REAL NOT NULL,
    environment TEXT NOT NULL,       -- JSON
    finished_at TEXT NOT NULL,
    diverged INTEGER,
    checksum TEXT,                   -- of the other columns
    confusion TEXT                   -- JSON
)
"""

JSON_COLUMNS = ("configuration", "accuracy_matrix", "environment", "confusion")
TEXT = ("key", "method", "benchmark", "scenario", "finished_at")
TIMES = ("seconds", "train_seconds", "test_seconds")
MEASURES: dict[str, Callable[[Matrix], float | None]] = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "forward_transfer": metrics.forward_transfer,
}

# What the environment of a record may say.
NAMES = {"engine": tuple(ENGINES), "device": DEVICES, "precision": PRECISIONS}
LONGEST = 500  # characters of a message, which may quote a file


# -- rows of a database -------------------------------------------------------------------------------------------


def columns() -> set[str]:
    """The names of the table's columns."""
    return {line.split()[0] for line in SCHEMA.strip().splitlines()[1:-1]}


def to_row(record: Record) -> dict[str, Any]:
    """A record as the values of the table's columns, checksum included."""
    values: dict[str, Any] = dict(record)
    for name in JSON_COLUMNS:
        if name in values:
            values[name] = json.dumps(values[name])
    for name in (*MEASURES, *TIMES):
        values[name] = None if values[name] is None else float(values[name])
    return {**values, "checksum": checksum(values)}


def from_row(values: Mapping[str, Any]) -> Record:
    """The record that a row holds; InputError where the row is damaged or holds no record."""
    if values.get("checksum") != checksum(values):
        raise InputError("it does not match its checksum")
    record = {name: value for name, value in values.items() if name != "checksum"}
    for name in OPTIONAL:
        if record.get(name) is None:
            record.pop(name, None)
    for name in JSON_COLUMNS:
        if name in OPTIONAL and name not in record:
            continue
        if not isinstance(record.get(name), str):
            raise InputError(f"its {name} is not JSON")
        record[name] = parse_json(record[name])
    return check_record(record)


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
        to_line(record)  # what comes in can go out again
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(str(error)) from error
    return record


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; InputError where the text is not JSON, is nested too deeply or has NaN."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise InputError(f"{constant} is not a number")


# -- checks -------------------------------------------------------------------------------------------------------


def check_record(record: Any) -> Record:
    """The record, if a finished run could have made it; otherwise InputError says what is wrong."""
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
    if missing := [name for name in FIELDS if name not in record and name not in OPTIONAL]:
        raise InputError(f"not a run record: it has no {', '.join(missing)}")
    if strange := [name for name in record if name not in FIELDS]:
        raise InputError(f"not a run record: it has {', '.join(map(repr, strange))}, which is not a field of a record")
    for name in TEXT:
        _expect(record, name, isinstance(record[name], str), "a string")
    for name in ("configuration", "environment"):
        _expect(record, name, isinstance(record[name], dict), "an object")
    _expect(record, "seed", is_whole(record["seed"]), "a whole number, 0 or more")
    _expect(record, "buffer", record["buffer"] is None or is_whole(record["buffer"]), "a whole number or null")
    for name in TIMES:
        _expect(record, name, is_number(record[name]) and 0 <= record[name] < 1e300, "a number of seconds")
    total = record["train_seconds"] + record["test_seconds"]
    _expect(record, "seconds", _agree(record["seconds"], total), f"{total}, those of training and testing")
    _expect(record, "finished_at", _is_moment(record["finished_at"]), "a time like 2026-01-31T23:59:59+00:00, in UTC")
    _check_environment(record["environment"])
    _check_accuracies(record)
    configuration = Configuration.from_dict(record["configuration"])
    for name in ("method", "benchmark", "scenario", "buffer"):
        wanted = getattr(configuration, name)
        _expect(record, name, record[name] == wanted, f"{wanted!r}, as its configuration says")
    _check_tasks(record, configuration)
    _check_confusion(record, configuration)
    if record["key"] != configuration.key(record["seed"]):
        raise InputError(
            f"the key {record['key']!r} is not that of its configuration and seed: it was changed, or written by a "
            "cclfp whose configurations mean something else"
        )
    return record  # type: ignore[return-value]  # checked above


def _check_environment(environment: Mapping[str, Any]) -> None:
    for name, known in NAMES.items():
        value = environment.get(name)
        if value is not None and value not in known:
            raise wrong_value(f"its environment's {name}", value, f"one of {', '.join(known)}")
    for name, value in environment.items():
        is_count = name in ("threads", "together")
        if value is not None and not (is_whole(value) if is_count else isinstance(value, str)):
            raise wrong_value(f"its environment's {name}", value, "a whole number" if is_count else "text")


def _check_accuracies(record: Mapping[str, Any]) -> None:
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


def _check_tasks(record: Mapping[str, Any], configuration: Configuration) -> None:
    """The matrix has the tasks of the configuration's stream."""
    sizes = configuration.tasks
    tasks = BENCHMARKS[configuration.benchmark].num_tasks if sizes is None else len(sizes)
    _expect(record, "accuracy_matrix", len(record["accuracy_matrix"][0]) == tasks, f"{tasks} tasks, as its stream has")
    if "diverged" in record:
        after = record["diverged"]
        fine = is_whole(after) and 1 <= after <= len(record["accuracy_matrix"][0])
        _expect(record, "diverged", fine, f"after how many of the {tasks} tasks, or no such field")


def _check_confusion(record: Mapping[str, Any], configuration: Configuration) -> None:
    """A count per pair of the benchmark's classes."""
    if "confusion" not in record:
        return
    rows, known = record["confusion"], BENCHMARKS.get(configuration.benchmark)
    size = known.num_classes if known is not None else len(rows) if isinstance(rows, list) else 0
    fine = isinstance(rows, list) and len(rows) == size > 1
    fine = fine and all(isinstance(row, list) and len(row) == size and all(map(is_whole, row)) for row in rows)
    _expect(record, "confusion", fine, "a row of counts per class, or no such field")


def _expect(record: Mapping[str, Any], name: str, fine: bool, what: str) -> None:
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


# -- comparison ---------------------------------------------------------------------------------------------------


def difference(record: Record, old: Record, where: str) -> str:
    """How a record differs from another record of the same run, which is in ``where``."""
    run = f"{record['method']} on {record['benchmark']} ({record['scenario']}), seed {record['seed']}"
    new, before = _flat(record), _flat(old)
    names = [name for name in {**new, **before} if name not in new or name not in before or new[name] != before[name]]
    texts = {name: [json.dumps(values.get(name), ensure_ascii=False) for values in (new, before)] for name in names}
    shown = [f"{name} {a} and {b}" if len(a + b) < 80 else name for name, (a, b) in texts.items()]
    return f"{run} (key {record['key']}) has another record in {where}, which differs in {', '.join(shown)}"


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, with nested ones under names such as ``environment.engine``."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat
