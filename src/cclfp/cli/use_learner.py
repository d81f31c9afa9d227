"""``cclfp predict`` and ``cclfp observe``: classify images with a saved learner, and let it learn more."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.options import JsonOption, parse_classes
from cclfp.cli.output import print_json, print_table, print_text
from cclfp.cli.progress import progress
from cclfp.errors import InputError, visible

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
    from cclfp.learner.use_images import predict_images

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


def observe(
    learner: LearnerArgument,
    images: Annotated[Path, typer.Option(metavar="FOLDER", help="A folder with one folder of images per class.")],
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these classes of the folder.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="How many new images each step has.")] = 10,
    epochs: Annotated[int, typer.Option(help="How often each image is used.")] = 1,
    skip_bad: SkipBadOption = False,
    backbone: BackboneOption = None,
    method: MethodOption = None,
    device: WhereOption = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    json: JsonOption = False,
) -> None:
    """Continue the training of a saved learner: the images are one more task. The learner's file is replaced.

    Class folders match the learner's classes by name. New classes need room, which cclfp run --max-classes reserves.
    If anything fails, the file stays as it was.

    [bold]Example[/bold]

    cclfp observe learners/pets.ckpt --images new/
    """
    from cclfp.engine.replica import computing_threads
    from cclfp.learner.use_images import observe_images

    loaded = load_learner(learner, backbone, method, device)
    with computing_threads(threads), progress() as shown:
        answer = observe_images(
            loaded,
            images,
            shown.update,
            classes=parse_classes("--classes", classes),
            batch=batch,
            epochs=epochs,
            skip_bad=skip_bad,
        )
    try:
        loaded.save(learner)
    except OSError as error:
        raise InputError(f"{learner} cannot be replaced, and stays as it was: {error.strerror or error}") from error
    if json:
        print_json({"learner": str(learner), **answer})
        return
    new = f", new: {', '.join(answer['new_classes'])}" if answer["new_classes"] else ""
    classes_learned = f"{len(answer['classes'])} class{'es' if len(answer['classes']) > 1 else ''}{new}"
    free = answer["free_rows"]
    room = f"room for {free} more class{'es' if free > 1 else ''}" if free else "no room for more classes"
    print_text(f"{learner}: learned {answer['images']:,} images of {classes_learned}; {room}")


def load_learner(path: Path, backbone: str | None, method: str | None, device: str) -> Learner:
    """The learner in a file. Where it has no names of classes, a line on stderr says so."""
    from cclfp.learner import load
    from cclfp.runs.execution import pick_device

    device = pick_device(device) if device == "auto" else device
    learner = load(path, psi=backbone, method=method, device=device)
    if learner.classes is None:
        typer.echo(f"{path} has no class names, so classes are shown by number", err=True)
    return learner


def _print_csv(found: list[dict[str, Any]]) -> None:
    names = list(found[0]["probabilities"]) if found else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "probability", *(f"p({visible(name)})" for name in names)])
    for one in found:
        numbers = [one["probability"], *one["probabilities"].values()]
        writer.writerow([_cell(one["image"]), _cell(one["class"]), *(f"{number:.6g}" for number in numbers)])
    typer.echo(text.getvalue(), nl=False)


def _cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula, and a terminal not for a command."""
    return ("'" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else "") + visible(text)
