"""Options of ``run``, ``tune`` and ``study`` that say what is trained on: own images, tasks, class order, backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ImagesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|FILE.npz",
        help="Images of your own in place of a benchmark: a folder of class folders, or arrays train_images, "
        "train_labels, test_images, test_labels.",
        show_default=False,
    ),
]
ImageSizeOption = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Make all of --images this large, square.", show_default=False)
]
SplitSeedOption = Annotated[
    int | None,
    typer.Option(
        help="Draws which fifth of each class folder of --images becomes the test set; 0 by default.",
        show_default=False,
    ),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...", help='Only these classes of --images; "A,B" is one with a comma.', show_default=False
    ),
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out the --images that cannot be decoded, and list them.")
]
TasksOption = Annotated[int | None, typer.Option(help="How many tasks the classes are split into.", show_default=False)]
ClassOrderOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...|random",
        help="The order classes come in, by name or number; A,B/C,D says which classes each task has. Quotes keep "
        "a comma or a slash inside a name. By default that of the labels (labels), but on Split Tiny "
        "ImageNet that of its file wnids.txt (wnids).",
        show_default=False,
    ),
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.py:NAME",
        help="The network: mlp, resnet18, or resnet18:width=16, a narrow one; a function of your own, in a file that "
        "stands alone, takes an image's shape and gives a module. By default the benchmark's.",
        show_default=False,
    ),
]
MemoryOption = Annotated[int, typer.Option("--memory", "--buffer", help="How many examples the memory holds.")]
