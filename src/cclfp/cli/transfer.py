"""``cclfp export`` and ``cclfp import-runs``: run records to and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.output import JsonOption, StoreOption, print_json
from cclfp.cli.runs import BenchmarkOption, MethodOption, stored_runs
from cclfp.errors import InputError


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="The file to write.")],
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    json: JsonOption = False,
) -> None:
    """Write run records to a file, one JSON object a line, for the store of another machine."""
    from cclfp.transfer import export

    path, records = stored_runs(store, method, benchmark)
    if not records:
        wanted = " ".join(name for name in (method, benchmark) if name is not None)
        raise InputError(f"no {wanted} runs in {path}: nothing to export" if wanted else f"no runs in {path}")
    export(records, file)
    if json:
        print_json({"store": str(path), "file": str(file), "runs": len(records)})
    else:
        typer.echo(f"{_runs(len(records))} of {path} written to {file}")


def import_runs(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.jsonl...", help="Files that cclfp export wrote.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Add the run records in files to a store, all or none of them.

    A record that the store has already is left as it is. Refused are lines that are no run records, records whose
    key is not that of their configuration and seed, and records with another result than the same run has already.
    """
    from cclfp.store import Store, default_store
    from cclfp.transfer import import_runs

    path = store or default_store()
    added, known = import_runs(files, Store(path))
    if json:
        print_json({"store": str(path), "added": added, "known": known})
    else:
        typer.echo(f"{_runs(added)} added to {path}" + (f" ({known} there already)" if known else ""))


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
