"""``cclfp runs``: list, check, delete, export and import the records in a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.options import ForceOption, JsonOption, StoreOption
from cclfp.cli.output import OTHER_CODE, hyperparameters, number, print_json, print_table, print_text
from cclfp.errors import InputError, unknown
from cclfp.metrics import count_of

if TYPE_CHECKING:
    from cclfp.runs.record import Record
    from cclfp.runs.store import Store, StoredRow

app = typer.Typer()

SHOWN_KEY = 8  # characters that tell a run from others
MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Only this method; one of your own by its name, by its name and version as listed (half@3fa2b1c0), or by "
        "its file (FILE.py:NAME).",
        show_default=False,
    ),
]
BenchmarkOption = Annotated[str | None, typer.Option(help="Only this benchmark.", show_default=False)]
ScenarioOption = Annotated[
    str | None, typer.Option(metavar="class|task|domain", help="Only this scenario.", show_default=False)
]
SeedOption = Annotated[int | None, typer.Option(help="Only this seed.", show_default=False)]


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    json: JsonOption = False,
) -> None:
    """List the finished runs in a store, the oldest first. Subcommands check, delete, export and import them."""
    if context.invoked_subcommand is None:
        list_(store, method, benchmark, json)
    elif store or method or benchmark or json:
        raise InputError(f"options come after the command: cclfp runs {context.invoked_subcommand} [OPTIONS]")


@app.command("list")
def list_(
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    json: JsonOption = False,
) -> None:
    """List the finished runs, the oldest first, as cclfp runs does. Bad records are left out and counted."""
    path, records = stored_runs(store, method, benchmark)
    if json:
        from cclfp.runs.code import is_other_code, made_by

        others = {record["key"]: made_by(record) for record in records if is_other_code(record)}
        print_json({"store": str(path), "runs": records, "other_code": others})
    elif records:
        _print_records(records, str(path))
    else:
        typer.echo(f"no runs in {path}")


@app.command()
def check(store: StoreOption = None, json: JsonOption = False) -> None:
    """Read every record and say which are bad, and why.

    The exit code is 0 where all are good, 1 where one is bad or the file is damaged, 2 where it is no store.
    """
    from cclfp.runs.store import Store, default_store, exists

    path = store or default_store()
    if store is not None and not exists(store):
        raise InputError(f"{store}: there is no store of runs")
    rows: list[StoredRow] = []
    damage: list[str] = []
    if exists(path):
        opened = Store(path, read_only=True, damaged=True)
        damage = opened.damage
        try:
            rows = opened.rows()
        except InputError as error:
            damage = [*damage, str(error)]
    bad = [row for row in rows if row.record is None]
    if json:
        listed = [{**_about(row), "reason": row.reason} for row in bad]
        print_json({"store": str(path), "runs": len(rows) - len(bad), "bad": listed, "damage": damage})
    else:
        for text in damage:
            typer.echo(f"damaged: {text}")
        for row in bad:
            print_text(f"bad: {_name(row)}: {row.reason}")
        typer.echo(f"{path}: {count_of(len(rows) - len(bad), 'good record')}, {len(bad)} bad")
    if (bad or damage) and not json:
        typer.echo(f"{opened.command('delete', '--bad')} deletes what is bad", err=True)
    if bad or damage:
        raise typer.Exit(1)


@app.command()
def delete(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY", help="The beginning of a run's key: exactly one must begin so.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    scenario: ScenarioOption = None,
    seed: SeedOption = None,
    bad: Annotated[bool, typer.Option("--bad", help="Only bad records; repairs the file's index too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete runs from a store: those that all the options choose. Shows them and asks first.

    Without a terminal to ask on, or with --json, it needs --yes. Bad records are deleted like good ones.

    A record that cannot be read is chosen by --bad.

    [bold]Examples[/bold]

    cclfp runs delete 2286cda9

    cclfp runs delete --method er --benchmark split-mnist --seed 0

    cclfp runs delete --bad --yes
    """
    filters = {"method": method, "benchmark": benchmark, "scenario": scenario, "seed": seed}
    filters = {name: value for name, value in filters.items() if value is not None}
    if not (keys or filters or bad):
        raise InputError(
            "which runs? Give the beginning of their keys, --method, --benchmark, --scenario, --seed or --bad"
        )
    if not yes and (json or not sys.stdin.isatty()):
        raise InputError("deleting asks first, and there is no terminal to ask on: add --yes")
    from cclfp.runs.store import Store, default_store, exists  # takes seconds, so after the checks

    path = store or default_store()
    if not exists(path):
        raise InputError(f"no runs in {path}: nothing to delete")
    opened = Store(path, damaged=True)
    chosen = _choose(opened, keys or [], filters, bad)
    if not json:
        for row in chosen:
            print_text(_name(row) + (f" (bad: {row.reason})" if row.record is None else ""))
        what = count_of(len(chosen), "run") + (" and repair the index" if opened.damage else "")
        if not yes and not typer.confirm(f"Delete {what} in {path}?", err=True):
            typer.echo("nothing was deleted")
            raise typer.Exit(1)
    opened.delete(chosen)
    if json:
        print_json({"store": str(path), "deleted": [_about(row) for row in chosen]})
    else:
        typer.echo(f"{count_of(len(chosen), 'run')} deleted from {path}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="The file to write.")],
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write run records to a file, one JSON object per line, for the store of another machine."""
    from cclfp.runs.store import export, files_of

    path, records = stored_runs(store, method, benchmark)
    if not records:
        wanted = " ".join(name for name in (method, benchmark) if name is not None)
        raise InputError(f"no {wanted} runs in {path}: nothing to export" if wanted else f"no runs in {path}")
    export(records, file, force=force, inputs=files_of(path))
    if json:
        print_json({"store": str(path), "file": str(file), "runs": len(records)})
    else:
        typer.echo(f"{count_of(len(records), 'run')} of {path} written to {file}")


@app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Stores, or files that cclfp runs export wrote.")
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Add the run records in files to a store. The files are other stores, or what cclfp runs export wrote.

    Every record is checked: its configuration, its key, its numbers and what they must agree with. Code in a file
    that a record names is never run.

    Duplicates are refused one by one and counted: records that the store, or a line before, has word for word. So a
    file that was imported in part, or has grown since, can be imported again.

    Nothing is added at all where a line is no run record, or differs from the record that the store or another line
    has of the same run: the error names the line, the run's key and what differs.
    """
    from cclfp.runs.store import default_store, import_runs

    path = store or default_store()
    added, duplicates = import_runs(files, path)
    if json:
        print_json({"store": str(path), "added": added, "duplicates": duplicates})
        return
    typer.echo(f"{count_of(added, 'run')} added to {path}")
    if duplicates:
        typer.echo(f"{count_of(len(duplicates), 'duplicate')} refused: already in the store, word for word")


def _choose(store: Store, keys: Sequence[str], filters: dict[str, Any], bad: bool) -> list[StoredRow]:
    rows = store.rows()
    for key in keys:
        found = [row for row in rows if row.key.startswith(key)]
        if len(found) != 1 or not key:
            raise InputError(f"{count_of(len(found), 'key')} in {store.path} begin with {key!r}: expected one")
    chosen = [
        row
        for row in rows
        if (not keys or row.key.startswith(tuple(keys)))
        and all(_matches(row, name, value) for name, value in filters.items())
        and (not bad or row.record is None)
    ]
    if not chosen and not (bad and store.damage):
        raise InputError(f"no such runs in {store.path}: nothing to delete")
    return chosen


def _matches(row: StoredRow, name: str, value: Any) -> bool:
    """Whether a row has a value; a method may be given in other forms, for which a bad record says too little."""
    if name != "method" or row.record is None:
        return bool(row.values.get(name) == value)
    from cclfp.runs.configuration import is_of_method

    return is_of_method(row.record["configuration"], value)


def _print_records(records: Sequence[Record], title: str) -> None:
    from cclfp.nets.backbones import show_backbone
    from cclfp.runs.code import describe_other_code, is_other_code
    from cclfp.runs.configuration import PROTOCOL, USUAL, method_labels
    from cclfp.streams.benchmarks import show_order

    columns = ["key", "finished (UTC)", "method", "benchmark", "scenario", ">memory", ">seed", "settings"]
    columns += [">accuracy", ">forgetting", ">seconds"]
    rows = []
    methods = method_labels([record["configuration"] for record in records])
    for record, method in zip(records, methods, strict=True):
        configuration = {**USUAL, **record["configuration"]}  # a record may be older than a setting
        unusual = {name: configuration[name] for name in PROTOCOL if configuration[name] not in (None, PROTOCOL[name])}
        unusual |= {"augment": True} if configuration["augment"] else {}
        order = show_order(configuration["benchmark"], configuration["class_order"])
        other = f" {order}" if order else ""
        other += " validation" if configuration["validation"] else ""
        other += "" if configuration["max_classes"] is None else f" room for {configuration['max_classes']} classes"
        other += "" if configuration["tasks"] is None else f" {len(configuration['tasks'])} tasks"
        other += "" if configuration["backbone"] is None else f" {show_backbone(configuration['backbone'])}"
        rows.append(
            [
                record["key"][:SHOWN_KEY],
                record["finished_at"].removesuffix("+00:00").replace("T", " "),
                method,
                record["benchmark"],
                record["scenario"],
                "–" if record["buffer"] is None else str(record["buffer"]),
                str(record["seed"]),
                hyperparameters(configuration["hyperparameters"] | unusual) + other,
                number(record["average_accuracy"])
                + (" diverged" if "diverged" in record else "")
                + f" {OTHER_CODE}" * is_other_code(record),
                number(record["forgetting"]),
                number(record["seconds"], 1),
            ]
        )
    print_table(columns, rows, title, drop=("finished (UTC)", "forgetting", "seconds", "memory", "settings"))
    if others := [record for record in records if is_other_code(record)]:
        print_text(f"{OTHER_CODE} {describe_other_code(others, len(records))}")


def stored_runs(store: Path | None, method: str | None, benchmark: str | None) -> tuple[Path, list[Record]]:
    """The path of the store, and its records that match the filters. Bad ones give a warning."""
    from cclfp.core.userfiles import is_reference
    from cclfp.methods import METHODS
    from cclfp.runs.configuration import is_of_method
    from cclfp.runs.store import Store, default_store, exists
    from cclfp.streams.benchmarks import benchmark_names, unknown_benchmark

    path = store or default_store()
    records: list[Record] = []
    bad: list[StoredRow] = []
    if exists(path):
        opened = Store(path, read_only=True, on_bad=bad.append)
        records = [one for one in opened.records() if benchmark in (None, one["benchmark"])]
        records = [one for one in records if method is None or is_of_method(one["configuration"], method)]
        warn_of_bad(opened, bad)
    if method is not None and not records and method not in METHODS and not is_reference(method):
        raise unknown("method", method, METHODS)
    if benchmark is not None and not records and benchmark not in benchmark_names():
        raise unknown_benchmark(benchmark)
    return path, records


def warn_of_bad(store: Store, bad: Sequence[StoredRow]) -> None:
    """Warn on stderr of bad records that were left out."""
    if count := len({row.number for row in bad}):
        text = f"warning: {count_of(count, 'bad record')} in {store.path} left out"
        typer.echo(f"{text}: {store.command('check')} says more", err=True)


def _about(row: StoredRow) -> dict[str, Any]:
    """What a row says about itself. In a bad row that may be anything, so other values than numbers become text."""
    names = ("key", "method", "benchmark", "scenario", "seed")
    return {name: v if isinstance(v := row.values.get(name), str | int) else repr(v) for name in names}


def _name(row: StoredRow) -> str:
    """A row in one line. Control characters in bad rows are escaped."""
    about = {name: "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(v)) for name, v in _about(row).items()}
    run = f"{about['method']} on {about['benchmark']} ({about['scenario']}), seed {about['seed']}"
    if row.record is None:
        return f"{about['key']}  {run}"
    memory = "" if row.record["buffer"] is None else f"memory {row.record['buffer']}, "
    settings = hyperparameters(row.record["configuration"]["hyperparameters"])
    return f"{row.key[:SHOWN_KEY]}  {run}, {memory}{settings}: {number(row.record['average_accuracy'])} %"
