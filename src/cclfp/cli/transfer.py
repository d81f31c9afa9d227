"""``cclfp runs export`` and ``cclfp runs import``: run records to and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.options import JsonOption, StoreOption
from cclfp.cli.output import print_json
from cclfp.cli.runs import BenchmarkOption, MethodOption, stored_runs
from cclfp.errors import InputError


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="The file to write.")],
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    json: JsonOption = False,
) -> None:
    """Write run records to a file, one JSON object per line, for the store of another machine."""
    from cclfp.runs.transfer import export

    path, records = stored_runs(store, method, benchmark)
    if not records:
        wanted = " ".join(name for name in (method, benchmark) if name is not None)
        raise InputError(f"no {wanted} runs in {path}: nothing to export" if wanted else f"no runs in {path}")
    export(records, file)
    if json:
        print_json({"store": str(path), "file": str(file), "runs": len(records)})
    else:
        typer.echo(f"{_count(len(records), 'run')} of {path} written to {file}")


def import_runs(
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
    from cclfp.runs.store import default_store
    from cclfp.runs.transfer import import_runs

    path = store or default_store()
    added, duplicates = import_runs(files, path)
    if json:
        print_json({"store": str(path), "added": added, "duplicates": duplicates})
        return
    typer.echo(f"{_count(added, 'run')} added to {path}")
    if duplicates:
        typer.echo(f"{_count(len(duplicates), 'duplicate')} refused: already in the store, word for word")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
