"""Tables on terminals of any width."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cclfp.cli.app import app
from cclfp.cli.output import print_table, print_text

NAMES = ["key", "method", ">seed", "settings", ">average accuracy"]
WORDS = st.text("abcdefgh=0.1-", min_size=1, max_size=18)
CELLS = st.lists(WORDS, min_size=1, max_size=9).map(" ".join)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stdout for a terminal
    return monkeypatch


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.integers(20, 160),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    data=st.data(),
)
def test_tables_fit_and_break_no_word(
    width: int,
    names: list[str],
    data: st.DataObject,
    terminal: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.setenv("COLUMNS", str(width))
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(names), max_size=len(names)), min_size=1, max_size=4))
    print_table(names, rows, drop=("settings", "average accuracy"))
    out = plain(capsys.readouterr().out)
    if "╭" in out:
        assert all(len(line) <= width for line in out.splitlines())
    shown = [i for i, name in enumerate(names) if name.removeprefix(">").split()[0] in out.split("without ")[0]]
    assert shown
    words = set(re.split(r"[│\s]+", out))
    assert {word for row in rows for i in shown for word in row[i].split()} <= words


def test_columns_are_left_out_only_where_they_must_be_and_that_is_said(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns, row = ["method", "long", ">a", ">b"], ["er", "x" * 60, "1", "2"]
    for width, missing in ((100, ""), (81, ""), (80, "a"), (70, "long"), (10, None)):
        terminal.setenv("COLUMNS", str(width))
        print_table(columns, [row], drop=("a", "long"))
        out = plain(capsys.readouterr().out)
        if missing is None:
            assert out.splitlines()[0].split() == ["method", "er"]
            assert "x" * 60 in out
        else:
            assert ("without " in out) == bool(missing)
            assert (f"without {missing}, for which" in out) or not missing


def test_where_stdout_is_no_terminal_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["x" * 300, "y z"]], drop=("a",))
    assert "x" * 300 in capsys.readouterr().out


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(width=st.integers(20, 160), text=CELLS, indent=st.integers(0, 2))
def test_texts_are_wrapped_between_words(
    width: int, text: str, indent: int, terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", str(width))
    print_text(" " * indent + text + "\n")
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == ""
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= max(width, 22) for line in lines)  # a word of 18 and its indent
    assert all(line.startswith(" " * (indent + 2)) for line in lines[1:])
    assert lines[0].startswith(" " * indent + text.split()[0])


def test_paragraphs_are_not_indented(terminal: pytest.MonkeyPatch, cli: Cli) -> None:
    terminal.setenv("COLUMNS", "60")
    lines = plain(cli("show", "hal").out).splitlines()
    paragraph = lines[lines.index("") + 1 :]
    assert paragraph[0].startswith("Hindsight anchor learning.")
    assert len(paragraph[0]) <= 60
    assert paragraph[1][:1].strip()


def test_texts_are_whole_where_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("  word" * 60)
    assert capsys.readouterr().out == "  word" * 60 + "\n"


def test_errors_are_wrapped_between_words(terminal: pytest.MonkeyPatch, cli: Cli) -> None:
    terminal.setenv("COLUMNS", "40")
    first, *others = cli("run", "er", "split-mnist", "w=0.1").err.splitlines()
    assert first.startswith("error: unknown setting of er 'w'")
    assert others
    assert all(line.startswith("  ") and len(line) <= 40 for line in others)


def every_command(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, *names, name)


@pytest.mark.parametrize(("names", "command"), list(every_command(typer.main.get_command(app))))
def test_help_fits_80_columns_and_breaks_no_placeholder(
    names: tuple[str, ...], command: Any, terminal: pytest.MonkeyPatch, cli: Cli
) -> None:
    terminal.setenv("COLUMNS", "80")
    terminal.setenv("TERMINAL_WIDTH", "80")
    shown = plain(cli(*names, "--help").out)
    assert all(len(line) <= 80 for line in shown.splitlines())
    for parameter in command.params:
        if parameter.metavar is not None:
            assert parameter.metavar in shown
    prose = [line.rstrip() for line in shown[: shown.index("╭")].splitlines()]
    for line, below in itertools.pairwise(prose):
        if line and below and not below.startswith(" cclfp "):  # the line is full
            assert len(line) + 1 + len(below.split()[0]) > 79, line
