"""``cclfp show``: all about one method."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated

import typer

from cclfp.cli.output import JsonOption, hyperparameters, number, plus_minus, print_json, print_table


def show(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method (cclfp list methods).")],
    json: JsonOption = False,
) -> None:
    """Show a method: what it does, its hyperparameters with their ranges, its presets, its reference."""
    from cclfp.methods import get_method
    from cclfp.methods.base import interval
    from cclfp.presets import presets
    from cclfp.study import published

    kind = get_method(method)
    knobs = [
        {"name": field.name, "default": field.default, "range": interval(field), "description": field.metadata["doc"]}
        for field in dataclasses.fields(kind.Hyper)
    ]
    ready = []
    for preset in presets():
        if preset.method == kind.name:
            paper = published(preset.method, preset.benchmark, preset.scenario, 200)
            shown = dataclasses.asdict(preset) | {"command": preset.command}
            ready.append(shown | {"published": None if paper is None else paper._asdict()})
    description = inspect.cleandoc(kind.__doc__ or "")
    if json:
        print_json(
            {
                "name": kind.name,
                "reference": kind.reference,
                "description": description,
                "scenarios": kind.scenarios(),
                "memory": kind.schedule is not None,
                "hyperparameters": knobs,
                "presets": ready,
            }
        )
        return
    typer.echo(f"{kind.name}: {kind.reference}\n\n{description}\n")
    typer.echo(f"scenarios: {', '.join(kind.scenarios())}   memory: {'yes' if kind.schedule is not None else 'no'}\n")
    rows = [[str(k["name"]), f"{k['default']:g}", str(k["range"]), str(k["description"])] for k in knobs]
    print_table(["hyperparameter", ">default", "range", "what it is"], rows)
    if ready:
        rows = [
            [
                p["benchmark"],
                p["scenario"],
                hyperparameters(p["hyperparameters"]),
                plus_minus(p["accuracy"], p["std"]),
                "–" if p["published"] is None else plus_minus(**p["published"]),
                number(p["seconds"], 1),
            ]
            for p in ready
        ]
        title = f"Presets, and the average accuracy (%) they gave over {ready[0]['seeds']} seeds"
        print_table(["benchmark", "scenario", "hyperparameters", ">measured", ">paper", ">seconds a run"], rows, title)
        for p in ready:
            typer.echo(f"{p['command']}  # on {p['hardware']}; chosen {p['chosen']}")
