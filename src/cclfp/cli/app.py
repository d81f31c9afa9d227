"""The commands of ``cclfp``. One file for each; torch is imported by those that need it, when they run."""

from __future__ import annotations

import typer

from cclfp._version import __version__
from cclfp.cli import experiment, look_up, manage_data, manage_runs, use_learner
from cclfp.cli.options import command

app = typer.Typer(
    name="cclfp",
    help="Continual learning with CCL-FP, CCL-FP+ and the methods they are compared with.",
    epilog="Start with: cclfp run ccl-fp+ split-mnist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command(app)(experiment.run)
command(app)(use_learner.predict)
command(app)(use_learner.observe)
command(app)(experiment.study)
command(app)(experiment.report)
command(app)(experiment.tune)
app.add_typer(manage_runs.app, name="runs")
command(app, "list")(look_up.list_)
command(app)(look_up.show)
app.add_typer(manage_data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cclfp {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version)) -> None:
    """Options of no command in particular."""
