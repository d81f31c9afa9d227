"""Run records to and from JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

import cclfp
from cclfp.configuration import configurations
from cclfp.errors import InputError
from cclfp.store import Store
from cclfp.transfer import export, import_runs

MATRIX = [[None, None], [90.0, None], [80.0, 70.0]]
EXTRA: list[dict[str, Any]] = [{}, {"class_order": "9,8,7,6,5,4,3,2,1,0"}, {"validation": True}]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with four runs of ER: the usual with two seeds, with another class order, on held-out data."""
    store = Store(tmp_path / "there.sqlite")
    usual, *others = [configurations(["er"], "split-mnist", **extra)[0] for extra in EXTRA]
    for seed, configuration in enumerate([usual, usual, *others]):
        store.add(
            {
                "key": configuration.key(seed),
                "method": "er",
                "benchmark": "split-mnist",
                "scenario": "class",
                "buffer": 200,
                "seed": seed,
                "configuration": configuration.to_dict(),
                "average_accuracy": 75.0,
                "forgetting": 10.0,
                "backward_transfer": -10.0,
                "forward_transfer": None,
                "accuracy_matrix": MATRIX,
                "seconds": 3.0,
                "train_seconds": 2.0,
                "test_seconds": 1.0,
                "environment": {"platform": "a \u2028 line"},
                "finished_at": "2026-01-01T00:00:00+00:00",
            }
        )
    path = tmp_path / "runs.jsonl"
    export(store.records(), path)
    return path


def test_records_come_back_as_they_were(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    assert import_runs([exported], store) == (4, 0)
    assert store.records() == Store(tmp_path / "there.sqlite").records()
    again = tmp_path / "again.jsonl"
    again.write_text(exported.read_text() + exported.read_text())
    assert import_runs([again, exported], store) == (0, 12)  # the same again is no error


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
    assert import_runs([tmp_path / "runs.jsonl"], here) == (3, 0)
    events: list[str] = []
    for arguments in trainings:
        report = lambda number, event: events.append(event["event"])  # noqa: E731
        cclfp.run(benchmark="split-mnist", seeds=1, store=here.path, report=report, **arguments)
    assert events == ["jobs", "stored"] * 3


def test_a_record_older_than_a_setting_is_taken(exported: Path, tmp_path: Path) -> None:
    def forget(record: dict[str, Any]) -> None:
        del record["configuration"]["validation"]

    store = Store(tmp_path / "here.sqlite")
    change(exported, 1, forget)
    assert import_runs([exported], store) == (4, 0)


def change(path: Path, line: int, how: Callable[[dict[str, Any]], object]) -> None:
    lines = path.read_text().split("\n")
    record = json.loads(lines[line - 1])
    how(record)
    lines[line - 1] = json.dumps(record)
    path.write_text("\n".join(lines))


def another_result(record: dict[str, Any]) -> None:
    record["accuracy_matrix"] = [[None, None], [90.0, None], [80.0, 71.0]]
    record["average_accuracy"] = 75.5


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "seed": (lambda r: r.update(seed=7), "is not that of its configuration and seed"),
    "lr": (lambda r: r["configuration"]["hyperparameters"].update(lr=5.0), "is not that of its configuration and seed"),
    "key": (lambda r: r.update(key="0"), "the key '0' is not that of its configuration and seed"),
    "method": (lambda r: r.update(method="gem"), "method is \"gem\": expected 'er', as its configuration says"),
    "buffer": (lambda r: r.update(buffer=500), "buffer is 500: expected 200"),
    "accuracy": (lambda r: r.update(average_accuracy=99.0), "average_accuracy is 99.0: expected "),
    "forgetting": (lambda r: r.update(forgetting=None), "forgetting is null: expected "),
    "matrix": (lambda r: r["accuracy_matrix"].pop(), "accuracy_matrix is "),
    "percent": (lambda r: r["accuracy_matrix"][2].__setitem__(0, 101.0), "accuracy_matrix is "),
    "text": (lambda r: r["accuracy_matrix"][2].__setitem__(0, "90"), "accuracy_matrix is "),
    "seconds": (lambda r: r.update(seconds=-1), "seconds is -1: expected a number of seconds"),
    "nan": (lambda r: r.update(seconds=float("nan")), "NaN is not a number"),
    "environment": (lambda r: r.update(environment="cpu"), 'environment is "cpu": expected an object'),
    "engine": (
        lambda r: r["environment"].update(engine="eager; rm x"),
        'engine is "eager; rm x": expected one',
    ),
    "list": (lambda r: r["environment"].update(device=["cpu"]), 'device is ["cpu"]: expected one of cpu, cuda'),
    "unfinished": (lambda r: r["accuracy_matrix"][2].__setitem__(1, None), "a last row without null"),
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


def test_another_result_than_the_stores_is_refused(exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "here.sqlite")
    first = tmp_path / "first.jsonl"
    first.write_text(exported.read_text().split("\n")[0] + "\n")
    assert import_runs([first], store) == (1, 0)
    before = store.records()
    change(exported, 1, another_result)
    with pytest.raises(
        InputError, match=f"line 1: er on split-mnist .class., seed 0, gave 75.5 % .* gave 75.0 % .*{store.path}"
    ):
        import_runs([exported], store)
    assert store.records() == before


def test_two_results_of_one_run_in_the_files_are_refused(exported: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(exported.read_text())
    change(other, 1, another_result)
    store = Store(tmp_path / "here.sqlite")
    with pytest.raises(InputError, match=f"other.jsonl, line 1: .* gave 75.0 % .*in {exported}, line 1"):
        import_runs([exported, other], store)
    assert store.records() == []


def test_the_commands(exported: Path, cli: Cli, tmp_path: Path) -> None:
    there, here, file = tmp_path / "there.sqlite", tmp_path / "here.sqlite", tmp_path / "er.jsonl"
    assert cli("export", file, "--store", there, "--method", "er").out == f"4 runs of {there} written to {file}\n"
    assert "no gem runs in" in cli("export", file, "--store", there, "--method", "gem").err
    file.write_text(file.read_text().split("\n")[0])
    assert cli("import-runs", file, "--store", here).out == f"1 run added to {here}\n"
    assert cli("import-runs", exported, "--store", here).out == f"3 runs added to {here} (1 there already)\n"
    assert cli("import-runs", exported, "--store", here, "--json").json["known"] == 4
    assert cli("export", file, "--store", there, "--json").json["runs"] == 4
    change(file, 1, another_result)
    refused = cli("import-runs", file, "--store", here)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {file}, line 1: er on split-mnist (class), seed 0, gave 75.5 %")


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
