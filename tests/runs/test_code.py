"""The fingerprint of the code that trains, and what becomes of stored runs of other code."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import made_up, matrix_of

from cclfp.core.files import home
from cclfp.methods import METHODS
from cclfp.paper import cells
from cclfp.runs.code import PACKAGE, TRAINS, fingerprint, is_other_code, made_by, read_code
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store, read_records

RECORDS = Path(__file__).parents[2] / "results"
SOURCE = '''
"""A module."""

class Mean:
    """Of numbers."""

    def take(self, numbers, *, skip=0):
        """The mean of the numbers, without the first ones."""
        chosen = numbers[skip:]
        try:
            return sum(chosen) / len(chosen)
        except ZeroDivisionError:
            return dict(none=1, bytes='')  # there are none
        if skip:
            raise TypeError(f"{skip} is wrong")
'''


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ('"""Of numbers."""\n', "", True),
        ("# there are none", "", True),
        ("\nclass Mean", "\n# A comment above a class.\n\n\nclass Mean", True),
        ("return sum(chosen) / len(chosen)", "return sum(\n                chosen\n            ) / len(chosen)", True),
        ('"""The mean of the numbers, without the first ones."""', '"""Something else."""', True),
        ('f"{skip} is wrong"', '"not " + str(skip)', True),
        ("raise TypeError", "raise KeyError", False),
        ("raise TypeError", "TypeError", False),
        ("skip=0", "skip=1", False),
        ("*, skip", "skip", False),
        ("/ len", "// len", False),
        ("chosen = numbers[skip:]\n        try:\n", "try:\n            chosen = numbers[skip:]\n", False),
        ("ZeroDivisionError", "ValueError", False),
        ("numbers[skip:]", "numbers[:skip]", False),
        ("1,", "1.0,", False),
        ("'')", "b'')", False),
    ],
)
def test_prose_does_not_change_it_and_code_does(old: str, new: str, is_same: bool) -> None:
    assert old in SOURCE
    assert (read_code(SOURCE) == read_code(SOURCE.replace(old, new))) is is_same


def test_it_is_the_same_for_all_versions_of_python() -> None:
    """Python 3.12 gives functions and classes type_params, and f-strings empty pieces and quotes inside quotes."""
    text = (
        "class A:\n    def f(x, *, y=None, **z):\n        return f\"{x:{y}}{z['a']}\\u1c89\", {1.0: '', **z}, -1j\n"
        "raise A(f'{1}') from e\n"
    )
    assert read_code(text) == (
        "Module(body=ClassDef(name='A', body=FunctionDef(name='f', args=arguments(args=arg(arg='x'), "
        "kwonlyargs=arg(arg='y'), kw_defaults=Constant(), kwarg=arg(arg='z')), body=Return(value=Tuple(elts="
        "JoinedStr(values=FormattedValue(value=Name(id='x'), conversion=-1, format_spec=JoinedStr(values="
        "FormattedValue(value=Name(id='y'), conversion=-1))), FormattedValue(value=Subscript(value=Name(id='z'), "
        "slice=Constant(value='a')), conversion=-1), Constant(value='\\u1c89')), Dict(keys=Constant(value=1.0), None, "
        "values=Constant(value=''), Name(id='z')), UnaryOp(op=USub(), operand=Constant(value=1j)))))), "
        "Raise(exc=Name(id='A'), cause=Name(id='e')))"
    )


def test_it_is_kept_for_the_same_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = fingerprint.__wrapped__
    found = compute("er")
    kept = home() / "fingerprints" / "er"
    text = kept.read_text()
    monkeypatch.setattr("cclfp.runs.code.read_code", lambda text: "other code")
    assert compute("er") == found
    for wrong in (f"x{text}", text[:-1], "", found, f"{'0' * 16}{text[16:]}"):
        kept.write_text(wrong)
        assert compute("er") != found
    kept.write_text("notes of somebody")
    compute("er")
    assert kept.read_text() == "notes of somebody"


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    return shutil.copytree(PACKAGE, tmp_path_factory.mktemp("copy") / "cclfp")


def edit(package: Path, tmp_path: Path, name: str, old: str, new: str) -> Path:
    """A copy of a package in which one file is edited."""
    edited = shutil.copytree(package, tmp_path / "edited" / "cclfp")
    text = (edited / name).read_text("utf-8")
    assert old in text
    (edited / name).write_text(text.replace(old, new, 1), "utf-8")
    return edited


@pytest.mark.parametrize(
    ("name", "line", "changed"),
    [
        ("methods/si.py", "X = 1", {"si"}),
        ("methods/si.py", "# A comment.", set()),
        ("methods/qp.py", "X = 1", {"gem", "a-gem"}),
        ("methods/ccl_fp.py", "X = 1", {"ccl-fp", "ccl-fp+"}),
        ("methods/base.py", "X = 1", set(METHODS)),
        ("losses.py", "X = 1", set(METHODS)),
        ("losses.py", "# A comment.", set()),
        ("cli/experiment.py", "X = 1", set()),
        ("runs/store.py", "X = 1", set()),
        ("engine/eager.py", "X = 1", set(METHODS)),
    ],
)
def test_which_methods_an_edit_is_about(name: str, line: str, changed: set[str], copy: Path, tmp_path: Path) -> None:
    first = "from __future__ import annotations\n"
    edited = edit(copy, tmp_path, name, first, f"{first}\n{line}\n")
    assert {method for method in METHODS if fingerprint(method, package=edited) != fingerprint(method)} == changed
    is_changed = fingerprint(None, package=edited) != fingerprint(None)
    assert is_changed is bool(changed)  # a user's method may use any of ours


# -- stored runs --------------------------------------------------------------------------------------------------

RUN = ("run", "er", "split-mnist", "--engine", "eager")


def make_other(store: Path, *seeds: int) -> None:
    """Make stored runs those of another version."""
    opened = Store(store)
    for record in opened.records():
        if record["seed"] in seeds:
            made = {**record["environment"], "cclfp": "0.0.9", "commit": "1234567890abcdef+", "source": "f" * 16}
            other: Any = {**record, "environment": made}
            opened.add(other, replace=True)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_stored_runs_of_other_code_are_marked_and_trained_again_on_request(
    small_mnist: Path, cli: Cli, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    command = (*RUN, "--seeds", "100,101", "--store", store)
    first = cli(*command)
    assert "of other code" not in first.err + first.out
    assert "‡" not in first.out
    make_other(store, 101)
    again = cli(*command)
    what = "1 of 2 runs are of other code (cclfp 0.0.9, commit 12345678+)"
    assert what in again.err
    assert "--other-code retrain" in again.err
    assert f"‡ {what}" in again.out
    assert "‡ 1 of 2 seeds" in again.out
    assert cli(*command, "--json").json["configurations"][0]["other_code"] == {"101": "cclfp 0.0.9, commit 12345678+"}
    listed = cli("runs", "list", "--store", store)
    assert f"‡ {what}" in listed.out
    assert len(cli("runs", "list", "--store", store, "--json").json["other_code"]) == 1
    before = {record["seed"]: record["finished_at"] for record in Store(store).records()}
    retrained = cli(*command, "--other-code", "retrain")
    assert f"{what}: training them again" in retrained.err
    assert "‡" not in retrained.out
    assert not any(map(is_other_code, Store(store).records()))
    assert {r["seed"]: r["finished_at"] for r in Store(store).records()}[100] == before[100]
    assert "‡" not in cli(*command).out


TRAIN = """
import sys
from cclfp.events import Note
from cclfp.runs.run import run

def show(event):
    if isinstance(event, Note):
        print(event.text)

run("er", "split-mnist", seeds=1, engine="eager", store=sys.argv[1], other_code="retrain", on_event=show)
print(*[module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "cclfp"])
"""
UNCOUNTED = ("__init__.py", "_version.py", "errors.py", "events.py", "methods/", "runs/")


@pytest.mark.slow
def test_it_covers_all_that_is_loaded_to_train_and_an_edit_is_noticed(
    small_mnist: Path, copy: Path, tmp_path: Path
) -> None:
    """The whole way: a run is trained, the loss is changed, and the stored run is no result of the new code.

    A file that numbers may depend on cannot be left out: each counts, does not matter, or is a method's.
    """
    edited = edit(copy, tmp_path, "methods/er.py", "return cross_entropy(", "return 3 * cross_entropy(")
    store = tmp_path / "s"

    def train(package: Path) -> tuple[Any, str]:
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONHASHSEED": "1"}
        command = [sys.executable, "-c", TRAIN, str(store)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        (record,) = Store(store).records()
        return record, done.stdout

    first, loaded = train(copy)
    assert not is_other_code(first)  # it is the same in every process and everywhere
    names = [Path(file).relative_to(copy).as_posix() for file in loaded.split()]
    assert {"engine/eager.py", "losses.py"} < {name for name in names if name.startswith(TRAINS)}
    assert [name for name in names if not name.startswith((*TRAINS, *UNCOUNTED))] == []
    again, text = train(edited)
    assert "1 of 1 runs are of other code" in text
    assert again["accuracy_matrix"] != first["accuracy_matrix"]
    assert is_other_code(again)  # than that which is not edited


def test_versions_are_named(small_mnist: Path) -> None:
    (configuration,) = configurations(["er"], "split-mnist")
    matrix = [[None] * 5] * 5 + [[50.0] * 5]
    made = made_up(configuration, 0, matrix)
    assert not is_other_code(made)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"source": "f" * 16, "commit": "1" * 40}, "cclfp 0.1.0, commit 11111111"),
        ({"source": "f" * 16, "cclfp": "0.0.1"}, "cclfp 0.0.1, code ffffffff"),
        ({"source": None, "cclfp": None}, "cclfp of an unknown version"),
        ({"source": "\x1b[31m", "cclfp": "\x1b[31m"}, "cclfp of an unknown version"),
    ]
    for environment, version in cases:
        other = made_up(configuration, 1, matrix, **environment)
        assert is_other_code(other)
        assert made_by(other) == version
        assert Result(configuration, [made, other]).other_code == {1: version}


def test_the_command_of_a_number_names_no_engine_that_is_gone() -> None:
    """The command would refuse it."""
    (cell, *_) = (cell for cell in cells("accuracy") if cell.configuration.method == "er")
    matrix = matrix_of([50.0] * 5, cell.configuration.scenario)
    runs = [made_up(cell.configuration, seed, matrix, engine="compiled", device="cpu") for seed in range(2)]
    command = dataclasses.replace(cell, runs=runs).command()
    assert command.endswith("--seeds 2 --device cpu --fresh")


@pytest.mark.parametrize("file", sorted(RECORDS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_records_that_ship_are_of_other_code(file: Path) -> None:
    records = [record for _, record in read_records(file)]
    assert all(map(is_other_code, records))
    assert {made_by(record).split(",")[0] for record in records} == {"cclfp 0.1.0"}
