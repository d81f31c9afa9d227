"""The commands of ``cclfp``. One file for each; torch is imported by those that need it, when they run."""

from __future__ import annotations

import inspect

import typer

from cclfp._version import __version__
from cclfp.cli import experiment, look_up, manage_data, manage_runs, use_learner
from cclfp.cli.output import unwrap

app = typer.Typer(
    name="cclfp",
    help="Continual learning with CCL-FP, CCL-FP+ and the methods they are compared with.",
    epilog="Start with: cclfp run ccl-fp+ split-mnist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(experiment.run)
app.command("predict")(use_learner.predict)
app.command("observe")(use_learner.observe)
app.command("study")(experiment.study)
app.command("report")(experiment.report)
app.command("tune")(experiment.tune)
app.add_typer(manage_runs.app, name="runs")
app.command("list")(look_up.list_)
app.command("show")(look_up.show)
app.add_typer(manage_data.app, name="data")


for group in (app, manage_runs.app, manage_data.app):
    for command in group.registered_commands:
        command.help = unwrap(inspect.getdoc(command.callback) or "")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cclfp {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version)) -> None:
    """Options of no command in particular."""
