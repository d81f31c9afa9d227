"""All commands of ``cclfp``. torch is imported by those that need it, when they run."""

from __future__ import annotations

import typer

from cclfp._version import __version__
from cclfp.cli import experiment, look_up, manage_data, manage_runs, use_learner  # noqa: F401  they add commands
from cclfp.cli.options import app

__all__ = ["app"]

app.add_typer(manage_runs.app, name="runs")
app.add_typer(manage_data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cclfp {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version)) -> None:
    """Options of no command in particular."""
