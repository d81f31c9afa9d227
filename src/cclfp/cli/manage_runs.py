"""``cclfp runs``: list, check, delete, export and import the records in a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from cclfp.cli.options import FORCE, JSON, STORE, YES, argument, ask, command, flag, option
from cclfp.cli.output import Answer, Table, hyperparameters, print_text, unusual_settings
from cclfp.core.userfiles import is_reference
from cclfp.errors import InputError, unknown
from cclfp.metrics import count_of, number

if TYPE_CHECKING:
    from cclfp.runs.record import Record
    from cclfp.runs.store import StoredRow

METHOD = option(
    None,
    "Only this method; one of your own by its name, by its name and version as listed (half@3fa2b1c0), or by its file "
    "(FILE.py:NAME).",
    "METHOD",
)
BENCHMARK = option(None, "Only this benchmark.")


class ListByDefault(typer.core.TyperGroup):
    """``cclfp runs --method er`` is ``cclfp runs list --method er``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else ["list", *args])


app = typer.Typer(
    cls=ListByDefault,
    help="List the finished runs in a store, the oldest first. Subcommands check, delete, export and import them.",
)


@command(app, "list")
def list_(store: Path = STORE, method: str | None = METHOD, benchmark: str | None = BENCHMARK) -> Answer:
    """List the finished runs, the oldest first, as cclfp runs does. Bad records are left out and counted."""
    from cclfp.runs.code import is_other_code, made_by

    records = stored_runs(store, method, benchmark)
    others = {record["key"]: made_by(record) for record in records if is_other_code(record)}
    parts = describe_records(records, str(store)) if records else [f"no runs in {store}"]
    return Answer({"store": store, "runs": records, "other_code": others}, parts)


@command(app)
def check(store: Path = STORE) -> Answer:
    """Read every record and say which are bad, and why.

    The exit code is 0 where all are good, 1 where one is bad or the file is damaged, 2 where it is no store.
    """
    from cclfp.runs.store import Store, default_store, exists

    rows: list[StoredRow] = []
    damage: list[str] = []
    if exists(store) or store != default_store():  # one that is named must be there
        opened = Store(store, read_only=True, damaged=True)
        damage = opened.damage
        try:
            rows = opened.rows()
        except InputError as error:
            damage = [*damage, str(error)]
    bad = [row for row in rows if row.record is None]
    lines = [*(f"damaged: {text}" for text in damage), *(f"bad: {_name(row)}" for row in bad)]
    good = len(rows) - len(bad)
    document = {"store": store, "runs": good, "bad": [_about(row) for row in bad], "damage": damage}
    if lines:
        print_text(f"{opened.command('delete', '--bad')} deletes what is bad", err=True)
    lines += [f"{store}: {count_of(good, 'good record')}, {len(bad)} bad"]
    return Answer(document, lines, code=int(bool(bad or damage)))


@command(app)
def delete(
    keys: list[str] | None = argument(None, "The beginning of a run's key: exactly one must begin so.", "KEY"),
    store: Path = STORE,
    method: str | None = METHOD,
    benchmark: str | None = BENCHMARK,
    scenario: str | None = option(None, "Only this scenario.", "class|task|domain"),
    seed: int | None = option(None, "Only this seed."),
    bad: bool = flag("--bad", "Only bad records; repairs the file's index too."),
    yes: bool = YES,
    json: bool = JSON,
) -> Answer:
    """Delete runs from a store: those that all the options choose, bad records like good ones.

    It shows them and asks first. Without a terminal to ask on, or with --json, it needs --yes.

    [bold]Examples[/bold]

    cclfp runs delete 2286cda9
    cclfp runs delete --method er --benchmark split-mnist --seed 0
    cclfp runs delete --bad --yes
    """
    filters: dict[str, Any] = {"method": method, "benchmark": benchmark, "scenario": scenario, "seed": seed}
    if not keys and not bad and set(filters.values()) == {None}:
        options = ", ".join(f"--{name}" for name in filters)
        raise InputError(f"which runs? Give the beginning of their keys, {options} or --bad")
    from cclfp.runs.store import Store, exists

    if not exists(store):
        raise InputError(f"no runs in {store}: nothing to delete")
    opened = Store(store, damaged=True)
    rows = opened.rows()
    for key in keys or []:
        found = [row for row in rows if row.key.startswith(key)]
        if len(found) != 1 or not key:
            raise InputError(f"{count_of(len(found), 'key')} in {store} begin with {key!r}: expected one")
    chosen = [row for row in _matching(rows, **filters) if row.key.startswith(tuple(keys or [""]))]
    chosen = [row for row in chosen if not bad or row.record is None]
    if not chosen and not (bad and opened.damage):
        raise InputError(f"no such runs in {store}: nothing to delete")
    lines, runs = [_name(row) for row in chosen], count_of(len(chosen), "run")
    repair = " and repair the index" if opened.damage else ""
    ask("\n".join([*lines, f"Delete {runs}{repair} in {store}?"]), yes, json)
    opened.delete(chosen)
    document = {"store": store, "deleted": [_about(row) for row in chosen]}
    return Answer(document, [*lines, f"{runs} deleted from {store}"])


@command(app, "export")
def export_(
    file: Path = argument(..., "The file to write.", "FILE.jsonl"),
    store: Path = STORE,
    method: str | None = METHOD,
    benchmark: str | None = BENCHMARK,
    force: bool = FORCE,
) -> Answer:
    """Write run records to a file, one JSON object per line, for the store of another machine."""
    from cclfp.runs.store import export, files_of

    records = stored_runs(store, method, benchmark)
    if not records:
        raise InputError(f"no such runs in {store}: nothing to export")
    export(records, file, force=force, inputs=files_of(store))
    document = {"store": store, "file": file, "runs": len(records)}
    return Answer(document, [f"{count_of(len(records), 'run')} of {store} written to {file}"])


@command(app, "import")
def import_(
    files: list[Path] = argument(..., "Stores, or files that cclfp runs export wrote.", "FILE..."),
    store: Path = STORE,
) -> Answer:
    """Add the run records in files to a store. The files are other stores, or what cclfp runs export wrote.

    Every record is checked: its configuration, its key, its numbers and what they must agree with. Code in a file
    that a record names is never run.

    Records that the store has already, word for word, are counted and left out. Nothing is added at all where a line is
    no run record, or differs from another record of the same run: the error names the line and what differs.
    """
    from cclfp.runs.store import import_runs

    added, duplicates = import_runs(files, store)
    lines = [f"{count_of(added, 'run')} added to {store}"]
    if duplicates:
        lines += [f"{count_of(len(duplicates), 'duplicate')} refused: already in the store, word for word"]
    return Answer({"store": store, "added": added, "duplicates": duplicates}, lines)


def _matching(rows: Sequence[StoredRow], method: str | None = None, **wanted: Any) -> list[StoredRow]:
    """The rows with these values, of those that are not None. A bad record has its method in one form only."""
    from cclfp.runs.configuration import Configuration

    def is_of_method(row: StoredRow) -> bool:
        if method is None or method == row.values.get("method"):
            return True
        return row.record is not None and Configuration.from_dict(row.record["configuration"]).is_of_method(method)

    given = {name: value for name, value in wanted.items() if value is not None}
    return [row for row in rows if given.items() <= row.values.items() and is_of_method(row)]


def describe_records(records: Sequence[Record], title: str) -> list[Table | str]:
    """A table with a row per record, with all hyperparameters and what is unusual, and which are of other code."""
    from cclfp.runs.code import OTHER_CODE, describe_other_code, is_other_code
    from cclfp.runs.configuration import Configuration, method_labels
    from cclfp.runs.results import describe_protocol

    made = [Configuration.from_dict(record["configuration"]) for record in records]
    others = describe_other_code(records)
    columns = ["key", "finished (UTC)", "method", "benchmark", "scenario", ">memory", ">seed", "settings"]
    columns += [">accuracy", ">forgetting", ">seconds"]
    rows = []
    for record, c, method in zip(records, made, method_labels(made), strict=True):
        how = " ".join([unusual_settings(c), *["validation"] * c.validation, *describe_protocol(c)])
        accuracy = number(record["average_accuracy"]) + " diverged" * ("diverged" in record)
        accuracy += f" {OTHER_CODE}" * is_other_code(record)
        finished = record["finished_at"].removesuffix("+00:00").replace("T", " ")
        place = (record["benchmark"], record["scenario"], record["buffer"], record["seed"])
        numbers = (accuracy, number(record["forgetting"]), number(record["seconds"], 1))
        rows.append([record["key"][:8], finished, method, *place, how, *numbers])
    return [Table(columns, rows, title), *[f"{OTHER_CODE} {others}"] * bool(others)]


def stored_runs(store: Path, method: str | None, benchmark: str | None) -> list[Record]:
    """The records of a store that match the filters. Bad ones give a warning."""
    from cclfp.methods import METHODS
    from cclfp.runs.store import Store, exists
    from cclfp.streams.benchmarks import get_benchmark

    rows: list[StoredRow] = []
    if exists(store):
        opened = Store(store, read_only=True)
        rows = opened.rows()
        if warning := opened.describe_bad(rows):
            print_text(warning, err=True)
    found = _matching(rows, method=method, benchmark=benchmark)
    records = [row.record for row in found if row.record is not None]
    if not records and method is not None and method not in METHODS and not is_reference(method):
        raise unknown("method", method, METHODS)
    if not records and benchmark is not None:
        get_benchmark(benchmark)  # InputError if it is unknown
    return records


def _about(row: StoredRow) -> dict[str, Any]:
    """A row for ``--json``. In a bad one each value may be anything, so other values than numbers become text."""
    names = ("key", "method", "benchmark", "scenario", "seed")
    about = {name: v if isinstance(v := row.values.get(name), str | int) else repr(v) for name in names}
    return about if row.record is not None else {**about, "reason": row.reason}


def _name(row: StoredRow) -> str:
    """A row in one line, with what is wrong with it."""
    about = {name: str(value).replace("\n", "\\n") for name, value in _about(row).items()}
    run = "{key:.8}  {method} on {benchmark} ({scenario}), seed {seed}".format_map(about)
    if row.record is None:
        return f"{run}: {row.reason}"
    memory = {} if row.record["buffer"] is None else {"memory": row.record["buffer"]}
    settings = hyperparameters(memory | row.record["configuration"]["hyperparameters"])
    return f"{run}, {settings}: {number(row.record['average_accuracy'])} %"
