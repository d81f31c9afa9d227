"""``cclfp observe``: continue the training of a saved learner with more images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.options import JsonOption, parse_classes
from cclfp.cli.output import print_json, print_text
from cclfp.cli.predict import BackboneOption, LearnerArgument, MethodOption, SkipBadOption, WhereOption, load_learner
from cclfp.cli.progress import progress
from cclfp.errors import InputError


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
    from cclfp.learner.continuing import observe_images
    from cclfp.runs.starting import computing_threads

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
