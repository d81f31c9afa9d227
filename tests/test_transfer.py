"""Run records to and from JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import made_up

import cclfp
from cclfp import metrics
from cclfp.configuration import Configuration, configurations
from cclfp.errors import InputError
from cclfp.store import Record, Store
from cclfp.transfer import export, import_runs

Matrix = list[list[float | None]]


def matrix_of(last: Sequence[float], scenario: str) -> Matrix:
    """As a run leaves it: tasks are learned at 95 %, and the first gets 2 % better before it gets worse.

    What comes next was at 40 % and is at 45 %, where it is tested.
    """
    tasks = len(last)
    matrix: Matrix = [[None] * tasks for _ in range(tasks + 1)]
    for t in range(1, tasks + 1):
        matrix[t][:t] = [95.0] * t
        matrix[t][0] = 97.0 if t > 1 else 95.0
    if scenario != "class":
        matrix[0] = [40.0] * tasks
        for t in range(1, tasks):
            matrix[t][t] = 45.0
    matrix[-1] = list(last)
    return matrix


LAST = [70.0, 75.0, 80.0, 85.0, 90.0]
RUNS: list[dict[str, Any]] = [
    {"scenario": "class"},
    {"scenario": "task"},
    {"class_order": "9,8,7,6,5,4,3,2,1,0"},
    {"validation": True, "tasks": 2},
]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with four runs of ER: class and task scenario, another class order, two tasks tested on held-out data."""
    store = Store(tmp_path / "there.sqlite")
    for seed, extra in enumerate(RUNS):
        (configuration,) = configurations(["er"], "split-mnist", **extra)
        matrix = matrix_of(LAST[: extra.get("tasks")], configuration.scenario)
        store.add(made_up(configuration, seed, matrix, platform="a \u2028 line"))
    path = tmp_path / "runs.jsonl"
    export(store.records(), path)
    return path


def test_records_come_back_as_they_were(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    assert import_runs([exported], store) == (4, [])
    assert store.records() == Store(tmp_path / "there.sqlite").records()


def test_the_second_record_is_what_the_changes_below_say(exported: Path) -> None:
    record = json.loads(exported.read_text().split("\n")[1])
    given = [record[name] for name in ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer")]
    assert given == [80.0, 18.0, -17.5, 5.0]


def lines_of(path: Path) -> list[str]:
    return path.read_text().removesuffix("\n").split("\n")


def test_duplicates_are_refused_one_by_one(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    first, grown, lines = tmp_path / "first.jsonl", tmp_path / "grown.jsonl", lines_of(exported)
    first.write_text("\n".join(lines[:2]))
    assert import_runs([first], store) == (2, [])
    grown.write_text("\n".join([*lines, lines[2]]))  # what is there, what is not, and one of these twice
    assert import_runs([grown], store) == (2, [f"{grown}, line {n}" for n in (1, 2, 5)])
    assert store.records() == Store(tmp_path / "there.sqlite").records()
    assert import_runs([first, exported], store) == (
        0,
        [f"{first}, line 1", f"{first}, line 2", *(f"{exported}, line {n}" for n in (1, 2, 3, 4))],
    )


def test_real_runs_are_not_trained_again_where_they_are_imported(small_mnist: Path, tmp_path: Path) -> None:
    there, here = Store(tmp_path / "there.sqlite"), Store(tmp_path / "here.sqlite")
    file = tmp_path / "nets.py"
    file.write_text("from torch import nn\ndef flat(): return nn.Flatten()\n")
    trainings: list[dict[str, Any]] = [
        {"methods": "er"},
        {"methods": "joint", "class_order": "9,8,7,6,5,4,3,2,1,0", "backbone": f"{file}:flat"},
        {"methods": "finetune", "scenario": "task", "tasks": 2, "validation": True},
    ]
    for arguments in trainings:
        cclfp.run(benchmark="split-mnist", seeds=1, store=there.path, **arguments)
    export(there.records(), tmp_path / "runs.jsonl")
    assert import_runs([tmp_path / "runs.jsonl"], here) == (3, [])
    events: list[str] = []
    for arguments in trainings:
        report = lambda number, event: events.append(event["event"])  # noqa: E731
        cclfp.run(benchmark="split-mnist", seeds=1, store=here.path, report=report, **arguments)
    assert events == ["jobs", "stored"] * 3


def test_a_record_older_than_a_setting_is_taken(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    change(exported, 1, lambda record: record["configuration"].pop("validation"))
    assert import_runs([exported], store) == (4, [])
    assert import_runs([exported], store)[0] == 0


def test_rounding_is_no_difference(exported: Path, tmp_path: Path) -> None:
    change(exported, 2, lambda r: r.update(forgetting=18.0000001, seconds=3.0000001))
    assert import_runs([exported], Store(tmp_path / "here.sqlite")) == (4, [])


def change(path: Path, line: int, how: Callable[[Record], object]) -> None:
    lines = lines_of(path)
    record = json.loads(lines[line - 1])
    how(record)
    lines[line - 1] = json.dumps(record)
    path.write_text("\n".join(lines))


def another_result(record: Record) -> None:
    record["accuracy_matrix"][-1][-1] = 95.0
    record["average_accuracy"] = metrics.average_accuracy(record["accuracy_matrix"])


def another_matrix(last: Sequence[float], **changed: object) -> Callable[[Record], None]:
    """All that the matrix gives agrees with it."""

    def how(record: Record) -> None:
        configuration = Configuration.from_dict({**record["configuration"], **changed})
        record.update(made_up(configuration, record["seed"], matrix_of(last, configuration.scenario)))

    return how


def moment(text: object) -> tuple[Callable[[Record], object], str]:
    return lambda r: r.update(finished_at=text), f"finished_at is {json.dumps(text)}: expected a "


CHANGES: dict[str, tuple[Callable[[Record], object], str]] = {
    "seed": (lambda r: r.update(seed=7), "is not that of its configuration and seed"),
    "negative seed": (lambda r: r.update(seed=-1), "seed is -1: expected a whole number, 0 or more"),
    "true seed": (lambda r: r.update(seed=True), "seed is true: expected a whole number"),
    "broken seed": (lambda r: r.update(seed=1.0), "seed is 1.0: expected a whole number"),
    "large seed": (lambda r: r.update(seed=2**63), "seed is 9223372036854775808: expected a whole number"),
    "lr": (lambda r: r["configuration"]["hyperparameters"].update(lr=5.0), "is not that of its configuration and seed"),
    "key": (lambda r: r.update(key="0"), "the key '0' is not that of its configuration and seed"),
    "method": (lambda r: r.update(method="gem"), "method is \"gem\": expected 'er', as its configuration says"),
    "benchmark": (
        lambda r: r.update(benchmark="rotated-mnist"),
        "benchmark is \"rotated-mnist\": expected 'split-mnist', as its configuration says",
    ),
    "scenario": (lambda r: r.update(scenario="class"), "scenario is \"class\": expected 'task', as its configuration"),
    "buffer": (lambda r: r.update(buffer=500), "buffer is 500: expected 200"),
    "broken buffer": (lambda r: r.update(buffer=200.0), "buffer is 200.0: expected a whole number or null"),
    "no buffer": (lambda r: r.update(buffer=None), "buffer is null: expected 200"),
    "accuracy": (lambda r: r.update(average_accuracy=99.0), "average_accuracy is 99.0: expected 80.0, as the accuracy"),
    "no accuracy": (lambda r: r.update(average_accuracy=None), "average_accuracy is null: expected 80.0"),
    "forgetting": (lambda r: r.update(forgetting=17.5), "forgetting is 17.5: expected 18.0"),
    "no forgetting": (lambda r: r.update(forgetting=None), "forgetting is null: expected 18.0"),
    "backward": (lambda r: r.update(backward_transfer=-17.4999), "backward_transfer is -17.4999: expected -17.5"),
    "no backward": (lambda r: r.update(backward_transfer=None), "backward_transfer is null: expected -17.5"),
    "forward": (lambda r: r.update(forward_transfer=5.0001), "forward_transfer is 5.0001: expected 5.0"),
    "no forward": (lambda r: r.update(forward_transfer=None), "forward_transfer is null: expected 5.0"),
    "text forward": (lambda r: r.update(forward_transfer="5.0"), 'forward_transfer is "5.0": expected 5.0'),
    "matrix": (lambda r: r["accuracy_matrix"].pop(), "accuracy_matrix is "),
    "percent": (lambda r: r["accuracy_matrix"][2].__setitem__(0, 101.0), "accuracy_matrix is "),
    "text": (lambda r: r["accuracy_matrix"][2].__setitem__(0, "90"), "accuracy_matrix is "),
    "unfinished": (lambda r: r["accuracy_matrix"][-1].__setitem__(1, None), "a last row without null"),
    "four tasks": (another_matrix(LAST[:4]), "expected 5 tasks, as its stream has"),
    "six tasks": (another_matrix([*LAST, 90.0]), "expected 5 tasks, as its stream has"),
    "other tasks": (another_matrix(LAST, tasks=(5, 5)), "expected 2 tasks, as its stream has"),
    "twenty tasks": (
        another_matrix(LAST, benchmark="rotated-mnist", scenario="domain"),
        "expected 20 tasks, as its stream has",
    ),
    "classes": (
        another_matrix(LAST, tasks=(2, 2, 2, 2, 1)),
        "tasks is [2, 2, 2, 2, 1]: expected how many classes each task has, 10 in all",
    ),
    "no class": (another_matrix(LAST, tasks=(0, 2, 2, 2, 4)), "tasks is [0, 2, 2, 2, 4]: expected how many classes"),
    "tasks as text": (another_matrix(LAST, tasks="22222"), 'tasks is "22222": expected how many classes'),
    "a number of tasks": (
        another_matrix(LAST, tasks=5),
        "tasks is 5: expected how many classes each task has, 10 in all",
    ),
    "domains": (
        another_matrix(LAST, benchmark="rotated-mnist", scenario="domain", tasks=(2, 2, 2, 2, 2)),
        "tasks is [2, 2, 2, 2, 2]: expected null: all tasks of rotated-mnist have all classes",
    ),
    "own images, no tasks": (
        another_matrix(LAST, benchmark="birds"),
        "its configuration says no tasks, and birds is no benchmark of this cclfp",
    ),
    "own images, other tasks": (another_matrix(LAST, benchmark="birds", tasks=(3, 3)), "expected 2 tasks, as its"),
    "negative": (lambda r: r.update(seconds=-1), "seconds is -1: expected a number of seconds"),
    "seconds": (lambda r: r.update(seconds=3.1), "seconds is 3.1: expected 3.0, those of training and testing"),
    "train": (lambda r: r.update(train_seconds=2.1), "seconds is 3.0: expected 3.1, those of training and testing"),
    "test": (lambda r: r.update(test_seconds=0), "seconds is 3.0: expected 2.0, those of training and testing"),
    "nan": (lambda r: r.update(seconds=float("nan")), "NaN is not a number"),
    "endless": (lambda r: r.update(seconds=10**400), "seconds is 1000"),
    "no date": moment("yesterday"),
    "no time": moment("2026-01-01"),
    "no zone": moment("2026-01-01T00:00:00"),
    "another zone": moment("2026-01-01T01:00:00+01:00"),
    "another form": moment("20260101T000000Z"),
    "no such day": moment("2026-02-30T00:00:00+00:00"),
    "a number": moment(20260101),
    "environment": (lambda r: r.update(environment="cpu"), 'environment is "cpu": expected an object'),
    "engine": (
        lambda r: r["environment"].update(engine="eager; rm x"),
        'engine is "eager; rm x": expected one',
    ),
    "a number as a name": (lambda r: r["environment"].update(device_name=5), "device_name is 5: expected text"),
    "truth as a number": (lambda r: r["environment"].update(threads=True), "threads is true: expected a whole number"),
    "list": (lambda r: r["environment"].update(device=["cpu"]), 'device is ["cpu"]: expected one of cpu, cuda'),
    "half a letter": (lambda r: r["environment"].update(platform="\ud800"), "surrogates not allowed"),
    "missing": (lambda r: r.pop("seed"), "not a run record: it has no seed"),
    "more": (lambda r: r.update(colour=1), "not a run record: it has 'colour'"),
    "configuration": (lambda r: r["configuration"].update(colour=1), "its configuration has colour too much"),
    "bare": (lambda r: r.update(configuration={}), "its configuration has benchmark, "),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_is_refused_with_all_others(what: str, exported: Path, tmp_path: Path) -> None:
    how, message = CHANGES[what]
    change(exported, 2, how)
    store = Store(tmp_path / "here.sqlite")
    with pytest.raises(InputError) as refused:
        import_runs([exported], store)
    assert str(refused.value).startswith(f"{exported}, line 2: ")
    assert message in str(refused.value)
    assert store.records() == []


def test_what_is_undefined_is_null(exported: Path, tmp_path: Path) -> None:
    change(exported, 1, lambda r: r.update(forward_transfer=0.0))  # of a class-incremental run
    with pytest.raises(InputError, match="line 1: forward_transfer is 0.0: expected null, as the accuracy matrix"):
        import_runs([exported], Store(tmp_path / "here.sqlite"))


def test_a_run_on_images_that_are_not_here_is_taken(exported: Path, tmp_path: Path) -> None:
    change(exported, 2, another_matrix(LAST, benchmark="birds", tasks=(3, 3, 3, 3, 2)))
    assert import_runs([exported], Store(tmp_path / "here.sqlite")) == (4, [])


@pytest.mark.parametrize("line", ["", "{", "[1, 2]", "null", '"text"', "[" * 100_000])
def test_a_line_that_is_no_record_is_refused(line: str, exported: Path, tmp_path: Path) -> None:
    exported.write_text(exported.read_text() + line + "\n")
    store = Store(tmp_path / "here.sqlite")
    with pytest.raises(InputError, match="line 5: "):
        import_runs([exported], store)
    assert store.records() == []


@pytest.mark.parametrize(("content", "message"), [(b"", "is empty"), (b"\xff", "cannot be read")])
def test_a_file_that_is_none_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message):
        import_runs([tmp_path / "runs.jsonl"], Store(tmp_path / "here.sqlite"))


def test_another_record_than_the_stores_is_refused_with_all_others(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    first = tmp_path / "first.jsonl"
    first.write_text(lines_of(exported)[0])
    assert import_runs([first], store) == (1, [])
    before = store.records()
    change(exported, 1, another_result)
    with pytest.raises(InputError) as refused:
        import_runs([exported], store)
    assert str(refused.value) == (
        f"{exported}, line 1: er on split-mnist (class), seed 0 (key {before[0]['key']}) has another record in "
        f"{store.path}, which differs in average_accuracy 81.0 and 80.0, accuracy_matrix: nothing was added; leave out "
        "one of the two"
    )
    assert store.records() == before


CONFLICTS: dict[str, tuple[Callable[[Record], object], str]] = {
    "the device": (
        lambda r: r["environment"].update(device="cuda"),
        'differs in environment.device "cuda" and "cpu":',
    ),
    "what is not said": (lambda r: r["environment"].pop("device"), 'differs in environment.device null and "cpu":'),
    "the time": (
        lambda r: r.update(finished_at="2026-01-01T00:00:01+00:00"),
        'differs in finished_at "2026-01-01T00:00:01+00:00" and "2026-01-01T00:00:00+00:00":',
    ),
}


@pytest.mark.parametrize("what", CONFLICTS)
def test_the_same_result_in_another_record_is_a_conflict_too(what: str, exported: Path, tmp_path: Path) -> None:
    how, message = CONFLICTS[what]
    change(exported, 2, lambda r: r["environment"].update(device="cpu"))
    store = Store(tmp_path / "here.sqlite")
    import_runs([exported], store)
    before = store.records()
    change(exported, 2, how)
    with pytest.raises(InputError) as refused:
        import_runs([exported], store)
    assert message in str(refused.value)
    assert store.records() == before


def test_two_records_of_one_run_in_the_files_are_refused(exported: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(exported.read_text())
    for line in (1, 3, 4):
        change(other, line, another_result)
    store = Store(tmp_path / "here.sqlite")
    with pytest.raises(InputError, match=f"other.jsonl, line 1: .* record in {exported}, line 1, which .*2 more lines"):
        import_runs([exported, other], store)
    assert store.records() == []
    exported.write_text("\n".join([lines_of(exported)[0], lines_of(other)[0]]))
    with pytest.raises(InputError, match="runs.jsonl, line 2: .* record in .*runs.jsonl, line 1, which differs in"):
        import_runs([exported], store)
    assert store.records() == []


def test_the_commands(exported: Path, cli: Cli, tmp_path: Path) -> None:
    there, here, file = tmp_path / "there.sqlite", tmp_path / "here.sqlite", tmp_path / "er.jsonl"
    assert cli("export", file, "--store", there, "--method", "er").out == f"4 runs of {there} written to {file}\n"
    assert "no gem runs in" in cli("export", file, "--store", there, "--method", "gem").err
    file.write_text(lines_of(file)[0])
    assert cli("import-runs", file, "--store", here).out == f"1 run added to {here}\n"
    again = cli("import-runs", exported, "--store", here)
    refused = "1 duplicate refused: already in the store, word for word\n"
    assert (again.code, again.out) == (0, f"3 runs added to {here}\n{refused}")
    assert "0 runs added" in cli("import-runs", exported, "--store", here).out
    document = cli("import-runs", exported, "--store", here, "--json").json
    duplicates = [f"{exported}, line {n}" for n in (1, 2, 3, 4)]
    assert document == {"store": str(here), "added": 0, "duplicates": duplicates}
    assert cli("export", file, "--store", there, "--json").json["runs"] == 4
    change(file, 1, another_result)
    conflict = cli("import-runs", file, "--store", here)
    assert (conflict.code, conflict.out) == (2, "")
    assert conflict.err.startswith(f"error: {file}, line 1: er on split-mnist (class), seed 0 (key ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "a.jsonl"], "no runs in "),
        (["export", "a.jsonl", "--method", "er"], "no er runs in "),
        (["export", "a.jsonl", "--method", "erx"], "unknown method 'erx'. Did you mean 'er'?"),
        (["import-runs", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert message in answer.err
    assert not Path("a.jsonl").exists()
