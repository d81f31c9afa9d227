"""What is printed fits terminals of any width, and any encoding."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
import typer.rich_utils  # reads FORCE_COLOR when it is imported, once
from conftest import Cli

from cclfp.cli.app import app
from cclfp.cli.output import Table, print_json, print_table, print_text

TEXT = "lr=0.1 w=0.3 beta=0.01 --store /a/path/that/is/longer/than/the/terminal/is/wide.sqlite half=[red]:smile:"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stdout for a terminal
    return monkeypatch


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("width", [40, 60, 160])
def test_tables_fit_a_terminal_and_leave_nothing_out(
    width: int, terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", str(width))
    print_table(Table(["key [a]", "settings", ">accuracy"], [["0a48a9a5", TEXT, "79.47 ± 1.49"]], "a title"))
    title, *lines = plain(capsys.readouterr().out).splitlines()
    assert title == "a title"
    assert all(len(line) <= width for line in lines)
    cells = zip(*([cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:-1]), strict=True)
    shown = ["".join(parts).replace(" ", "") for parts in cells]
    assert shown == ["0a48a9a5", TEXT.replace(" ", ""), "79.47±1.49"]


def test_where_stdout_is_no_terminal_nothing_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(["a", "b"], [["x" * 300, "y z"]]))
    print_text("  word" * 60)
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "  word" * 60 in out


def test_texts_are_wrapped_between_words(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "30")
    print_text(f"{TEXT}\n")
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == ""
    assert " ".join(lines).split() == TEXT.split()
    assert all(len(line) <= 30 or line == TEXT.split()[4] for line in lines)
    print_text(f"to use it: cclfp run {TEXT}")
    assert capsys.readouterr().out == f"to use it: cclfp run {TEXT}\n"  # to be copied


def test_errors_are_wrapped(terminal: pytest.MonkeyPatch, cli: Cli) -> None:
    terminal.setenv("COLUMNS", "40")
    first, *others = cli("run", "er", "split-mnist", "w=0.1").err.splitlines()
    assert first.startswith("error: unknown setting of er 'w'")
    assert others
    assert all(len(line) <= 40 for line in others)


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
        if line.startswith(" cclfp "):  # an example, which is copied as one line
            assert not below or below.startswith(" cclfp ")
        elif line and below and not below.startswith(" cclfp "):  # the line is full
            assert len(line) + 1 + len(below.split()[0]) > 79, line


def test_in_ascii_a_table_can_be_printed_and_json_is_json() -> None:
    document, written = {"class": "Körding ± 中", "path": "\udcff"}, io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written, "ascii", "backslashreplace")) as stdout:
        print_table(Table(["method ψ", ">accuracy"], [["er", "19.50 ± 13.44"]]))
        stdout.flush()
        table = written.getvalue().decode("ascii")
        print_json(document)
        stdout.detach()
    assert "| er" in table
    assert "19.50 \\xb1 13.44" in table
    assert json.loads(written.getvalue().decode("ascii")[len(table) :]) == document
