"""Options that say what is trained on, as ``cclfp run`` has them: own images, tasks, class order, backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ImagesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|FILE.npz", help="Images of your own in place of a benchmark (cclfp run -h).", show_default=False
    ),
]
ImageSizeOption = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Make all of --images this large, square.", show_default=False)
]
SplitSeedOption = Annotated[
    int | None, typer.Option(help="Draws the test set of --images; 0 by default.", show_default=False)
]
TasksOption = Annotated[int | None, typer.Option(help="How many tasks the classes are split into.", show_default=False)]
ClassOrderOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...|random", help="The order of the classes; A,B/C,D gives each task's.", show_default=False
    ),
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        metavar="mlp|resnet18|FILE.py:NAME", help="The network; by default the benchmark's.", show_default=False
    ),
]
