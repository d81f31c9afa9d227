"""``cclfp runs``: list, check, delete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Cli
from records import flipped, listing, record, write

from cclfp.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Four good runs."""
    made = Store(tmp_path / "store" / "runs.sqlite")
    for seed in range(3):
        made.add(record(seed))
    made.add(record(0, "joint") | {"diverged": 2})
    return made


def spoil(store: Store, seed: int, change: str = "configuration = '{'") -> None:
    write(store.path, f"UPDATE runs SET {change} WHERE seed = {seed} AND method = 'er'")


def test_the_list(store: Store, cli: Cli) -> None:
    for words in (("runs",), ("runs", "list")):
        answer = cli(*words, "--store", store.path)
        assert (answer.code, answer.err) == (0, "")
        (joint,) = [row for row in answer.rows if "joint" in row]
        assert (joint[0], joint[8]) == (record(0, "joint")["key"][:8], "51.85 diverged")
        assert answer.out.count("51.85") == 4
        assert len(cli(*words, "--store", store.path, "--json").json["runs"]) == 4
        assert "no runs in" in cli(*words, "--store", store.path, "--method", "gem").out


def test_a_bad_record_does_not_bring_down_what_only_reads(store: Store, cli: Cli, tmp_path: Path) -> None:
    spoil(store, 1)
    before = listing(store.path.parent)
    warning = f"warning: 1 bad record in {store.path} left out: cclfp runs check --store {store.path} says more\n"
    answer = cli("runs", "--store", store.path, "--json")
    assert (answer.code, answer.err) == (0, warning)
    assert [r["seed"] for r in answer.json["runs"]] == [0, 2, 0]
    answer = cli("runs", "export", tmp_path / "out.jsonl", "--store", store.path)
    assert (answer.code, answer.err) == (0, warning)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    answer = cli("report", "--out", tmp_path / "report", "--store", store.path, "--json")
    assert (answer.code, answer.err, answer.json["runs"] + answer.json["other_runs"]) == (0, warning, 3)
    assert listing(store.path.parent) == before


@pytest.mark.slow
def test_a_run_does_not_use_a_bad_record_nor_train_over_it(small_mnist: Path, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    quick = ("run", "finetune", "split-mnist", "--device", "cpu", "--seeds", "1", "--store", path)
    assert cli(*quick).code == 0
    good = Store(path).records()
    write(path, "UPDATE runs SET average_accuracy = 99.0")
    answer = cli(*quick)
    key = good[0]["key"]
    assert (answer.code, answer.out) == (2, "")
    assert f"bad record (key '{key}'): it does not match its checksum" in answer.err
    delete = f"cclfp runs delete {key} --store {path}"
    assert f"{delete} removes it" in answer.err
    assert cli("study", "accuracy", "--dry-run", "--store", path).code in (0, 2)
    assert cli(*delete.split()[1:], "--yes").code == 0
    assert cli(*quick).code == 0
    assert [r["accuracy_matrix"] for r in Store(path).records()] == [r["accuracy_matrix"] for r in good]


def test_bad_records_are_listed_and_deleted_whatever_they_have(store: Store, cli: Cli, tmp_path: Path) -> None:
    answer = cli("runs", "check", "--store", store.path)
    assert (answer.code, answer.out, answer.err) == (0, f"{store.path}: 4 good records, 0 bad\n", "")
    answer = cli("runs", "check", "--store", tmp_path / "none.sqlite")
    assert (answer.code, answer.out) == (2, "")
    assert "there is no store of runs" in answer.err
    assert "0 good records" in cli("runs", "check").out  # where no run was made yet
    assert not (tmp_path / "none.sqlite").exists()
    spoil(store, 1)
    strange = "configuration = x'00', finished_at = 7, environment = x'ff', scenario = 'a' || char(27) || '[2J'"
    spoil(store, 2, strange)
    answer = cli("runs", "check", "--store", store.path)
    assert answer.code == 1
    first, second, total = answer.out.splitlines()
    run = f"bad: {record(1)['key'][:8]}  er on split-mnist (class), seed 1"
    assert first == f"{run}: it does not match its checksum"
    assert (
        second == f"bad: {record(2)['key'][:8]}  er on split-mnist (a\\x1b[2J), seed 2: it does not match its checksum"
    )
    assert total == f"{store.path}: 2 good records, 2 bad"
    assert answer.err == f"cclfp runs delete --bad --store {store.path} deletes what is bad\n"
    answer = cli("runs", "check", "--store", store.path, "--json")
    assert (answer.code, answer.json["runs"], answer.json["damage"]) == (1, 2, [])
    assert [row["key"] for row in answer.json["bad"]] == [record(1)["key"], record(2)["key"]]
    spoil(store, 2, "key = x'ff00'")
    answer = cli("runs", "delete", "--bad", "--yes", "--store", store.path)
    assert answer.code == 0, answer.err
    assert answer.out.endswith(f"2 runs deleted from {store.path}\n")
    assert store.records() == [record(0), record(0, "joint") | {"diverged": 2}]
    assert cli("runs", "check", "--store", store.path).code == 0
    (tmp_path / "notes.txt").write_text("notes " * 200)
    assert cli("runs", "check", "--store", tmp_path / "notes.txt").code == 2


def test_delete_by_key_and_by_filter(store: Store, cli: Cli) -> None:
    where = ("--store", store.path, "--yes")
    answer = cli("runs", "delete", record(1)["key"][:10], *where)
    assert answer.code == 0, answer.err
    run = "er on split-mnist (class), seed 1, memory=200 lr=0.1: 51.85 %"
    assert answer.out == f"{record(1)['key'][:8]}  {run}\n1 run deleted from {store.path}\n"
    document = cli("runs", "delete", "--method", "er", "--seed", "0", *where, "--json").json
    assert [row["key"] for row in document["deleted"]] == [record(0)["key"]]
    assert cli("runs", "delete", "--scenario", "class", "--benchmark", "split-mnist", *where).code == 0
    assert store.records() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("delete --yes", r"which runs\? Give the beginning of their keys"),
        ("delete --method er", "no terminal to ask on: add --yes"),
        ("delete --method er --json", "no terminal to ask on: add --yes"),
        ("delete --method gem --yes", "nothing to delete"),
        ("delete --bad --yes", "nothing to delete"),
        ("delete zzz --yes", "0 keys in .* begin with 'zzz': expected one"),
        ("--json delete --bad --yes", "No such option: --bad"),  # options come after the command
    ],
)
def test_what_is_not_deleted(arguments: str, message: str, store: Store, cli: Cli) -> None:
    answer = cli("runs", *arguments.split(), "--store", store.path)
    assert (answer.code, answer.out) == (2, "")
    assert re.search(message, answer.err)
    assert "4 keys in" in cli("runs", "delete", "", "--store", store.path, "--yes").err
    assert len(store.records()) == 4


@pytest.mark.parametrize(("answered", "code", "left"), [(True, 0, 3), (False, 1, 4)])
def test_delete_asks(
    answered: bool, code: int, left: int, store: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, err: not asked.append(text) and answered)  # type: ignore[func-returns-value]
    assert cli("runs", "delete", "--method", "joint", "--store", store.path).code == code
    run, question = asked[0].splitlines()
    assert "joint on split-mnist (class), seed 0" in run
    assert question == f"Delete 1 run in {store.path}?"
    assert len(store.records()) == left


def test_a_damaged_index_is_told_and_repaired(store: Store, cli: Cli) -> None:
    key = record(1)["key"].encode()
    content = store.path.read_bytes()
    flipped(store.path, content.index(key), 0)
    for words in (("runs",), ("runs", "export", "a.jsonl"), ("report", "--out", "report")):
        answer = cli(*words, "--store", store.path)
        assert (answer.code, answer.out) == (2, "")
        assert "is damaged (" in answer.err
        assert f"cclfp runs check --store {store.path} says more" in answer.err
    answer = cli("runs", "check", "--store", store.path)
    assert answer.code == 1
    assert answer.out.startswith("damaged: ")
    assert cli("runs", "delete", "--bad", "--yes", "--store", store.path).code == 0
    assert cli("runs", "check", "--store", store.path).code == 0
    assert len(store.records()) in (3, 4)  # the flip may have been in the row


@pytest.mark.slow
def test_versions_of_a_method_are_told_apart(cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    text = "from cclfp.methods.er import ER\nclass Half(ER):\n    name = 'half'\n"
    for version in ("a", "b"):  # two files with one name
        (tmp_path / version).mkdir()
        (tmp_path / version / "half.py").write_text(f"{text}# version {version}\n")
    both = ",".join(f"{tmp_path}/{version}/half.py:Half" for version in ("a", "b"))
    versions = re.findall(r"│ (half@[0-9a-f]{8}) +│", cli("run", f"er,{both}", "split-mnist", "--seed", "0").out)
    assert len(set(versions)) == 2
    listed = cli("runs").out
    assert all(re.search(rf"│ {name} +│", listed) for name in (*versions, "er"))
    count = {name: len(cli("runs", "--method", name, "--json").json["runs"]) for name in ("x/half.py:Half", "half")}
    assert count == {"x/half.py:Half": 2, "half": 2}
    assert "│ half " in cli("runs", "list", "--method", versions[1]).out
    assert "no runs in" in cli("runs", "--method", "half.py:Other").out
    assert "unknown method 'halve'" in cli("runs", "--method", "halve").err
    assert "1 run deleted" in cli("runs", "delete", "--method", versions[0], "--yes").out
    assert "1 run deleted" in cli("runs", "delete", "--method", "half.py:Half", "--yes").out
    assert len(cli("runs", "--json").json["runs"]) == 1
