"""``cclfp predict``: classify images with a saved learner."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.options import JsonOption
from cclfp.cli.output import print_json, print_table
from cclfp.cli.progress import progress
from cclfp.errors import InputError

if TYPE_CHECKING:
    from cclfp.learner import Learner

LearnerArgument = Annotated[
    Path, typer.Argument(metavar="LEARNER", help="A learner that cclfp run --save or Learner.save wrote.")
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:NAME",
        help="The backbone, where it is your own: its code is not in the learner's file.",
        show_default=False,
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:NAME", help="The method, where it is your own.", show_default=False),
]
WhereOption = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda|cuda:I", help="Where to compute.")]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out the images that cannot be decoded, and list them.")
]


def predict(
    learner: LearnerArgument,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES", help="Image files, or folders of images.", show_default=False)
    ],
    task: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Choose among the classes of this task, counted from 0; needed in the task scenario.",
            show_default=False,
        ),
    ] = None,
    skip_bad: SkipBadOption = False,
    backbone: BackboneOption = None,
    method: MethodOption = None,
    device: WhereOption = "auto",
    json: JsonOption = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with one row per image and one column per class.")
    ] = False,
) -> None:
    """Classify images with a saved learner: the most likely class of each image, and its probability.

    Images are resized to cover the size that the learner was trained on, and cropped to the centre.

    [bold]Examples[/bold]

    cclfp predict learners/pets.ckpt new/cat.jpg

    cclfp predict learners/pets.ckpt new/ --csv
    """
    if json and csv:
        raise InputError("--json and --csv: expected one of the two")
    from cclfp.learner.continuing import predict_images

    loaded = load_learner(learner, backbone, method, device)
    with progress() as shown:
        found = predict_images(loaded, images, shown.update, task=task, skip_bad=skip_bad)
    if json:
        print_json({"learner": str(learner), "named": loaded.classes is not None, "predictions": found})
    elif csv:
        _print_csv(found)
    else:
        rows = [[one["image"], one["class"], f"{100 * one['probability']:.1f} %"] for one in found]
        print_table(["image", "class", ">probability"], rows)


def load_learner(path: Path, backbone: str | None, method: str | None, device: str) -> Learner:
    """The learner in a file. Where it has no names of classes, a line on stderr says so."""
    from cclfp.learner import load
    from cclfp.runs.execution import pick_one_device

    learner = load(path, psi=backbone, method=method, device=pick_one_device(device))
    if learner.classes is None:
        typer.echo(f"{path} has no class names, so classes are shown by number", err=True)
    return learner


def _print_csv(found: list[dict[str, Any]]) -> None:
    names = list(found[0]["probabilities"]) if found else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "probability", *(f"p({name})" for name in names)])
    for one in found:
        numbers = [one["probability"], *one["probabilities"].values()]
        writer.writerow([one["image"], one["class"], *(f"{number:.6g}" for number in numbers)])
    typer.echo(text.getvalue(), nl=False)
