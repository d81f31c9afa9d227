"""Run records to and from JSON Lines."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from records import made_up, matrix_of
from torture.damage import forge_value

from cclfp import metrics
from cclfp.cli.manage_runs import describe_records
from cclfp.cli.output import Answer, print_answer
from cclfp.errors import InputError
from cclfp.runs.configuration import Configuration
from cclfp.runs.record import MEASURES, from_line, to_line
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store, export, import_runs

Record = Any  # tests make others of them that are none

COUNTS = [[7 * (i == j) + (i < j) for j in range(10)] for i in range(10)]
OWN = {"file": "/home/me/mine.py", "object": "Mine", "sha256": "0" * 64}
LAST = [70.0, 75.0, 80.0, 85.0, 90.0]
RUNS: list[dict[str, Any]] = [
    {"scenario": "class"},
    {"scenario": "task"},
    {"class_order": "9,8,7,6,5,4,3,2,1,0"},
    {"validation": True, "tasks": 2},
]


@functools.cache
def made(method: str) -> list[str]:
    """Lines with four runs: class and task scenario, another class order, two tasks tested on held-out data."""
    lines = []
    for seed, extra in enumerate(RUNS):
        (c,) = configurations([method], "split-mnist", **extra)
        record = made_up(c, seed, matrix_of(LAST[: extra.get("tasks")], c.scenario), engine="eager", platform="\u2028")
        lines.append(to_line(record).decode())
    return lines


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with four runs of ER."""
    store = Store(tmp_path / "there.sqlite")
    for line in made("er"):
        store.add(from_line(line))
    path = tmp_path / "runs.jsonl"
    export(store.records(), path)
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_text().removesuffix("\n").split("\n")


def change(path: Path, line: int, how: Callable[[Record], object]) -> None:
    lines = lines_of(path)
    record = json.loads(lines[line - 1])
    how(record)
    lines[line - 1] = json.dumps(record)
    path.write_text("\n".join(lines))


def another_result(record: Record) -> None:
    record["accuracy_matrix"][-1][-1] = 95.0
    record["average_accuracy"] = metrics.average_accuracy(record["accuracy_matrix"])


def another(**changed: Any) -> Callable[[Record], None]:
    """A record of another configuration, which all its fields agree with."""

    def how(record: Record) -> None:
        configuration = Configuration.from_dict({**record["configuration"], **changed})
        record.update(made_up(configuration, record["seed"], matrix_of(LAST, configuration.scenario)))

    return how


def test_duplicates_are_refused_one_by_one(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    first, grown, lines = tmp_path / "first.jsonl", tmp_path / "grown.jsonl", lines_of(exported)
    first.write_text("\n".join(lines[:2]))
    assert import_runs([first], store) == (2, [])
    grown.write_text("\n".join([*lines, lines[2]]))  # what is there, what is not, and one of these twice
    assert import_runs([grown], store) == (2, [f"{grown}, line {n}" for n in (1, 2, 5)])
    assert store.records() == Store(tmp_path / "there.sqlite").records()
    again = [f"{first}, line {n}" for n in (1, 2)] + [f"{exported}, line {n}" for n in (1, 2, 3, 4)]
    assert import_runs([first, exported], store) == (0, again)


@pytest.mark.parametrize(
    "how",
    [
        lambda record: None,
        lambda record: record["configuration"].pop("validation"),  # older than a setting
        lambda record: record.update(forgetting=18.0000001, seconds=3.0000001),  # rounding is no difference
        lambda record: record.update(diverged=3),
        lambda record: record.update(confusion=COUNTS),
        another(benchmark="birds", tasks=(3, 3, 3, 3, 2)),  # images that are not here
    ],
)
def test_records_come_back_as_they_were(how: Callable[[Record], object], exported: Path, tmp_path: Path) -> None:
    change(exported, 2, how)
    store, again = Store(tmp_path / "here.sqlite"), tmp_path / "again.jsonl"
    assert import_runs([exported], store) == (4, [])
    export(store.records(), again)
    assert [json.loads(line) for line in lines_of(again)] == [json.loads(line) for line in lines_of(exported)]
    assert [lines_of(again)[n] for n in (0, 2, 3)] == [lines_of(exported)[n] for n in (0, 2, 3)]
    assert import_runs([exported], store)[0] == 0


def test_a_run_of_a_method_that_is_not_here_is_taken_and_its_file_not_run(exported: Path, tmp_path: Path) -> None:
    file, ran = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'w')")
    here = {**OWN, "file": str(file)}
    change(exported, 1, another(method="mine", method_file=OWN, hyperparameters={"own": 3.0}, buffer=None, replay=None))
    change(exported, 2, another(method="mine", method_file=here, hyperparameters={}, backbone=here))
    store = Store(tmp_path / "here.sqlite")
    assert import_runs([exported], store) == (4, [])
    assert sorted(r["method"] for r in store.records()) == ["er", "er", "mine", "mine"]
    assert not ran.exists()


GONE = object()  # takes the field away
FIELDS: list[tuple[str, Any, str]] = [
    ("seed", 7, 'key is "25e0'),
    ("seed", -1, "seed is -1: expected a whole number, 0 or more"),
    ("seed", 2**63, "seed is 9223372036854775808: expected a whole number"),
    ("seed", GONE, "not a run record: it has no seed"),
    ("colour", 1, "not a run record: it has 'colour'"),
    ("key", "0", 'key is "0": expected "25e0'),
    ("method", "gem", 'method is "gem": expected "er", as its other fields say'),
    ("buffer", 200.0, "buffer is 200.0: expected 200"),
    ("configuration", {}, "its configuration was written by another cclfp: missing 5 required"),
    (
        "configuration.colour",
        1,
        "its configuration was written by another cclfp: got an unexpected keyword argument 'colour'",
    ),
    ("configuration.backbone", "mlp", 'backbone is "mlp": expected null, a name and a width'),
    ("configuration.hyperparameters.lr", 5.0, 'key is "25e0'),
    ("diverged", 6, "diverged is 6: expected after how many of the 5 tasks"),
    ("diverged", True, "diverged is true: expected after how many"),
    *(("confusion", c, "confusion is ") for c in (None, [], [[1]], COUNTS[:9], [[-1] * 10] * 10, [[0.5] * 10] * 10)),
    ("average_accuracy", 99.0, "average_accuracy is 99.0: expected 80.0, as its other fields say"),
    ("forward_transfer", "5.0", 'forward_transfer is "5.0": expected 5.0'),
    ("forward_transfer", None, "forward_transfer is null: expected 5.0"),
    ("accuracy_matrix.5", GONE, "accuracy_matrix is "),
    ("accuracy_matrix.2.0", 101.0, "accuracy_matrix is "),
    ("accuracy_matrix.5.1", None, "a last row without null"),
    ("accuracy_matrix", [[90.0] * 4] * 5, "expected 5 tasks, as its stream has"),
    ("seconds", -1, "seconds is -1: expected 3.0"),
    ("seconds", float("nan"), "NaN is not a number"),
    ("seconds", 10**400, "seconds is 1000"),
    ("train_seconds", -1, "train_seconds is -1: expected a number of seconds"),
    ("train_seconds", 2.1, "seconds is 3.0: expected 3.1"),
    *(
        ("finished_at", moment, f"finished_at is {json.dumps(moment)}: expected a time like")
        for moment in ("yesterday", "2026-01-01T00:00:00", "2026-01-01T01:00:00+01:00", 20260101)
    ),
    ("environment", "cpu", 'environment is "cpu": expected an object'),
    ("environment.engine", "eager; rm x", 'engine is "eager; rm x": expected one'),
    ("environment.threads", True, "its environment's threads is true: expected a whole number"),
    ("environment.torch", 2, "its environment's torch is 2: expected text"),
    ("environment.device", ["cpu"], 'device is ["cpu"]: expected one of cpu, cuda'),
    ("environment.platform", "\ud800", "surrogates not allowed"),
]


@pytest.mark.parametrize(("name", "value", "message"), FIELDS)
def test_another_field_is_refused(name: str, value: Any, message: str) -> None:
    record = json.loads(made("er")[1])
    *way, last = (int(part) if part.isdigit() else part for part in name.split("."))
    inside = functools.reduce(operator.getitem, way, record)
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    with pytest.raises(InputError, match=re.escape(message)):
        from_line(json.dumps(record))


@given(number=st.integers(0, 3), random=st.randoms(use_true_random=False))
def test_a_mutated_record_is_refused_or_the_same(number: int, random: Random) -> None:
    """What nothing depends on may be another; the rest agrees with the key and with itself, and can be shown."""
    original = json.loads(made("ccl-fp+")[number])
    _, record = forge_value(random, original)
    try:
        found: dict[str, Any] = dict(from_line(json.dumps(record)))
    except InputError:
        return
    free = ("environment", "finished_at", "diverged", "train_seconds", "test_seconds", "seconds", "accuracy_matrix")
    for name in original:
        assert name in (*free, *MEASURES, "configuration") or found[name] == original[name]
    assert Configuration.from_dict(found["configuration"]) == Configuration.from_dict(original["configuration"])
    for name, measure in MEASURES.items():
        assert found[name] == pytest.approx(measure(found["accuracy_matrix"]))
    with contextlib.redirect_stdout(io.StringIO()):
        print_answer(Answer({}, describe_records([record], "")), False)


WRONG = [
    *((line, "line 5: ") for line in ("\n", "{", "[1, 2]", "null", '"text"', "[" * 100_000)),
    ("\ud800", "cannot be read"),
    (None, "is empty"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_a_file_with_a_line_that_is_no_record_is_refused(
    content: str | None, message: str, exported: Path, tmp_path: Path
) -> None:
    lines = "" if content is None else exported.read_text() + content
    exported.write_bytes(lines.encode(errors="surrogatepass"))
    with pytest.raises(InputError, match=message):
        import_runs([exported], tmp_path / "new" / "here.sqlite")
    assert not (tmp_path / "new").exists()


CONFLICTS: list[tuple[Callable[[Record], object], str]] = [
    (another_result, "average_accuracy, accuracy_matrix: nothing was added;"),
    (lambda r: r["environment"].update(device="cuda"), "environment: nothing"),
    (lambda r: r.update(finished_at="2026-01-01T00:00:01+00:00"), "finished_at: nothing"),
]


@pytest.mark.parametrize(("how", "message"), CONFLICTS)
def test_another_record_of_a_run_is_refused_with_all_others(
    how: Callable[[Record], object], message: str, exported: Path, tmp_path: Path
) -> None:
    """Whether the store has the first, another file or another line."""
    store, first, new = Store(tmp_path / "here.sqlite"), tmp_path / "first.jsonl", tmp_path / "new" / "here.sqlite"
    change(exported, 1, lambda r: r["environment"].update(device="cpu"))
    first.write_text(lines_of(exported)[0])
    assert import_runs([first], store) == (1, [])
    before = store.records()
    change(exported, 1, how)
    both = tmp_path / "both.jsonl"
    both.write_text("\n".join([*lines_of(first), *lines_of(exported)]))
    run = f"er on split-mnist (class), seed 0 (key {before[0]['key']}) has another record in"
    for files, into, place, known in (
        ([exported], store, f"{exported}, line 1", store.path),
        ([first, exported], new, f"{exported}, line 1", f"{first}, line 1"),
        ([both], new, f"{both}, line 2", f"{both}, line 1"),
    ):
        with pytest.raises(InputError, match=re.escape(f"{place}: {run} {known}, which differs in {message}")):
            import_runs(files, into)
    assert store.records() == before
    assert Store(new).records() == []


def test_the_commands(exported: Path, cli: Cli, tmp_path: Path) -> None:
    there, here, file = tmp_path / "there.sqlite", tmp_path / "here.sqlite", tmp_path / "er.jsonl"
    written = cli("runs", "export", file, "--store", there, "--method", "er")
    assert written.out == f"4 runs of {there} written to {file}\n"
    assert "nothing to export" in cli("runs", "export", file, "--store", there, "--method", "gem").err
    file.write_text(lines_of(file)[0])
    assert cli("runs", "import", file, "--store", here).out == f"1 run added to {here}\n"
    again = cli("runs", "import", exported, "--store", here)
    refused = "1 duplicate refused: already in the store, word for word\n"
    assert (again.code, again.out) == (0, f"3 runs added to {here}\n{refused}")
    document = cli("runs", "import", exported, "--store", here, "--json").json
    duplicates = [f"{exported}, line {n}" for n in (1, 2, 3, 4)]
    assert document == {"store": str(here), "added": 0, "duplicates": duplicates}
    assert cli("runs", "export", file, "--store", there, "--json").json["runs"] == 4
    change(file, 1, another_result)
    conflict = cli("runs", "import", file, "--store", here)
    assert (conflict.code, conflict.out) == (2, "")
    assert conflict.err.startswith(f"error: {file}, line 1: er on split-mnist (class), seed 0 (key ")


def test_an_export_never_replaces_its_store_nor_another_file(exported: Path, cli: Cli, tmp_path: Path) -> None:
    there, foreign = tmp_path / "there.sqlite", tmp_path / "uv.lock"
    foreign.write_text("version = 1")
    for file, more, message in ((there, ["--force"], "is read by this command"), (foreign, [], "did not write it")):
        before = file.read_bytes()
        answer = cli("runs", "export", file, "--store", there, *more)
        assert (answer.code, answer.out, file.read_bytes()) == (2, "", before)
        assert message in answer.err
    for more in (["--force"], []):  # then it is ours
        assert cli("runs", "export", foreign, "--store", there, *more).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("import /dev/zero", "/dev/zero is a device, a pipe or a socket"),
        ("import .", " is a folder"),
        ("import nowhere.jsonl", "nowhere.jsonl cannot be read"),
        ("export a.jsonl", "nothing to export"),
        ("export a.jsonl --method erx", "unknown method 'erx'. Did you mean 'er'?"),
    ],
)
def test_refusals(arguments: str, message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli("runs", *arguments.split())
    assert answer.code == 2
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []  # no empty store is left behind


@pytest.mark.slow
def test_the_records_that_ship_are_taken_as_they_are(tmp_path: Path) -> None:
    """Every tenth of them; tests/test_results.py imports them all."""
    files = sorted(Path(__file__).parents[2].joinpath("results").glob("**/*.jsonl"))
    lines = [line for file in files if file.parent.name != "earlier" for line in lines_of(file)[::10]]
    store, given, again = Store(tmp_path / "here.sqlite"), tmp_path / "given.jsonl", tmp_path / "again.jsonl"
    given.write_text("\n".join(lines))
    assert import_runs([given], store) == (len(lines), [])
    export(store.records(), again)
    assert sorted(lines_of(again)) == sorted(lines)


def test_values_nested_as_deeply_as_json_allows_are_refused() -> None:
    """Deeper ones are no JSON for Python; these can be read, but not written again for a message."""
    first = json.loads(made("ccl-fp+")[0])
    for depth in range(850, 1000):
        line = json.dumps({**first, "configuration": {**first["configuration"], "tasks": "DEEP"}})
        with pytest.raises(InputError):
            from_line(line.replace('"DEEP"', "[" * depth + "]" * depth))
