"""The README and docs/ tell the truth: their Python runs, their commands parse, their numbers are in the records."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from own import write_folders

from cclfp.cli.app import app
from cclfp.cli.options import parse_names, parse_settings
from cclfp.methods import METHODS
from cclfp.paper import cells
from cclfp.paper.study import plan
from cclfp.runs.settings import check_values, configurations
from cclfp.runs.store import Store, import_runs
from cclfp.streams import BENCHMARKS

ROOT = Path(__file__).parents[1]
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = PAGES["README.md"]
RESULTS = (ROOT / "RESULTS.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of all pages, each with the page it is on."""
    found = [(page, re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)) for page, text in PAGES.items()]
    return [(page, code) for page, several in found for code in several]


def python_blocks() -> list[Any]:
    found = []
    for page, code in blocks("python"):
        trains = [pytest.mark.slow] if "cclfp.run(" in code or "check_method" in code or "-mnist" in code else []
        found.append(pytest.param(page, code, marks=trains, id=f"{page}: {code.strip().splitlines()[-1]}"))
    return found


@pytest.fixture
def photos(tmp_path: Path) -> None:
    """A folder of images for the examples that train on one."""
    write_folders(tmp_path / "photos", ("bird", "cat", "dog", "fish", "horse"), each=10)


@pytest.mark.parametrize(("page", "code"), python_blocks())
@pytest.mark.usefixtures("photos", "small_mnist")
def test_python_runs(
    page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for promised in re.findall(r"print\(.*\)  # (tensor\(.*?\)|None):", code):
        assert promised in printed


# -- commands -----------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every command line of cclfp on the pages: in blocks, and inline."""
    codes = [code.replace("\\\n", " ") for _, code in blocks("sh")]
    lines = [line for code in codes for line in code.splitlines() if line.startswith("cclfp ")]
    inline = [match for text in PAGES.values() for match in re.findall(r"(?<!`)`(cclfp [^`]+)`(?!`)", text)]
    return sorted({shlex.join(shlex.split(line, comments=True)) for line in [*lines, *inline]})


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The subcommand that the arguments name, and the values of its parameters; an error if they do not parse."""
    command: Any = typer.main.get_command(app)
    names: list[str] = []
    while arguments and arguments[0] in getattr(command, "commands", {}):
        name, *arguments = arguments
        command, names = command.commands[name], [*names, name]
    assert not hasattr(command, "commands") or not arguments or arguments[0].startswith("-"), arguments
    given = {} if arguments in ([], ["--help"]) else command.make_context(" ".join(names), list(arguments)).params
    return " ".join(names), given


def test_every_subcommand_has_an_example() -> None:
    shown = {parse(shlex.split(line)[1:])[0].partition(" ")[0] for line in commands()}
    known: Any = typer.main.get_command(app)
    assert shown >= {name for name, command in known.commands.items() if not command.hidden}


@pytest.mark.parametrize("line", commands())
def test_the_command_parses(line: str) -> None:
    name, given = parse(shlex.split(line)[1:])
    if not given:  # only the name of a command, or its help
        return
    if name == "run" and given["benchmark"] in BENCHMARKS and ".py:" not in line:
        values = parse_settings(given["settings"] or [])
        names = ("scenario", "memory", "class_order", "tasks", "backbone")
        found = configurations(
            given["method"].split(","),
            given["benchmark"],
            settings={setting: check_values(setting, several) for setting, several in values.items()},
            **{option: given[option] for option in names},
        )
        assert found
    elif name in ("study", "tune") and (".py:" in line or "photos-" in line):  # of files that are not here
        parse_settings(given.get("settings") or [])
    elif name == "study":
        kinds = ("benchmark", "method", "scenario")
        chosen: dict[str, Any] = {f"{kind}s": parse_names(f"--{kind}", given[kind]) for kind in kinds}
        assert plan(given["table"], **chosen).results
    elif name == "tune":
        assert given["method"] in [*METHODS, "METHOD"]
        assert given["benchmark"] in [*BENCHMARKS, "BENCHMARK"]
    elif name == "show":
        assert given["name"] in [*METHODS, *BENCHMARKS, "METHOD", "NAME"]


# -- numbers ------------------------------------------------------------------------------------------------------


def test_the_table_shows_what_the_records_have(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    import_runs([ROOT / "results" / "mnist.jsonl"], store)
    shown = [cell for cell in cells("accuracy") if cell.column == ("split-mnist", "class")]
    found = {cell.configuration.method: cell.find_runs(store.find, range(5)) for cell in shown}
    rows = re.findall(r"^│ (\S+) +│ +(\S+) ± (\S+) │ +(\S+) ± (\S+) │", README, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["finetune", "er", "ccl-fp", "ccl-fp+", "joint"]
    for method, *numbers in rows:
        ours = found[method]
        assert len(ours.runs) == 5
        assert ours.published is not None
        assert numbers == [f"{number:.2f}" for number in (ours.mean, ours.std, *ours.published)]


def test_the_sentences_about_results_are_those_of_the_records() -> None:
    (mnist,) = re.findall(r"^\d+ of the 80 MNIST numbers [^.]+\.", README, flags=re.MULTILINE)
    assert " ".join(mnist.split()) in RESULTS
    counts = {
        name: [int(number) for number in numbers.split("|")]
        for name, numbers in re.findall(r"^\| \**([\w ]+?)\** \|((?: \d+ \|){4} \d+) \|$", RESULTS, flags=re.MULTILINE)
    }
    pairs = zip(counts["All three tables"], counts["MNIST"], strict=True)
    numbers, within, above, below, missing = (a - b for a, b in pairs)
    resnet = f"{numbers - missing} of the {numbers} ResNet18 numbers have runs so far"
    verdict = f"{within + above} are within that range or above it, and {below} are below it."
    assert f"{resnet}: {verdict}" in " ".join(README.split())


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_the_targets_links_and_files_named_exist(page: str) -> None:
    text, makefile = PAGES[page], (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, flags=re.MULTILINE), f"make {target}"
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
    for name in re.findall(r"`((?:src|tests|bench|results|docs|torture)/[\w/.-]+)`", text):
        assert "NAME" in name or (ROOT / name).exists(), name


def test_the_methods_are_listed() -> None:
    (methods,) = re.findall(r"^\| methods[^|]*\|(.*)\|$", PAGES["docs/commands.md"], flags=re.MULTILINE)
    assert re.findall(r"`([^`]+)`", methods.split("(")[0]) == list(METHODS)
