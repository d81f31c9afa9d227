"""``cclfp predict`` and ``cclfp observe``: classify images with a saved learner, and let it learn more."""

from __future__ import annotations

import csv as spreadsheet
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cclfp.cli.options import JSON, app, argument, command, flag, option, parse_names
from cclfp.cli.output import Answer, Table
from cclfp.cli.progress import Progress
from cclfp.core.arguments import check_whole
from cclfp.errors import InputError, reason_of, visible
from cclfp.metrics import count_of

if TYPE_CHECKING:
    from cclfp.learner import Learner

LEARNER = argument(..., "A learner that cclfp run --save or Learner.save wrote.", "LEARNER")
BACKBONE = option(None, "The backbone, where it is your own: its code is not in the learner's file.", "FILE.py:NAME")
METHOD = option(None, "The method, where it is your own.", "FILE.py:NAME")
DEVICE = option("auto", "Where to compute.", "auto|cpu|cuda|cuda:I")
SKIP_BAD = flag("--skip-bad", "Leave out the images that cannot be decoded, and list them.")


@command(app)
def predict(
    learner: Path = LEARNER,
    images: list[Path] = argument(..., "Image files, or folders of images.", "IMAGES"),
    task: int | None = option(
        None, "Choose among the classes of this task, counted from 0; needed in the task scenario.", "N"
    ),
    skip_bad: bool = SKIP_BAD,
    backbone: str | None = BACKBONE,
    method: str | None = METHOD,
    device: str = DEVICE,
    json: bool = JSON,
    csv: bool = flag("--csv", "Print CSV with one row per image and one column per class."),
) -> Answer | None:
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
    with Progress() as shown:
        found = predict_images(loaded, images, shown.update, task=task, skip_bad=skip_bad)
    if csv:
        _print_csv(found)
        return None
    document = {"learner": learner, "named": loaded.classes is not None, "predictions": found}
    rows = [[one["image"], one["class"], f"{100 * one['probability']:.1f} %"] for one in found]
    return Answer(document, [Table(["image", "class", ">probability"], rows)])


@command(app)
def observe(
    learner: Path = LEARNER,
    images: Path = option(..., "A folder with one folder of images per class.", "FOLDER"),
    classes: str | None = option(None, "Only these classes of the folder.", "A,B,..."),
    batch: int = option(10, "How many new images each step has."),
    epochs: int = option(1, "How often each image is used."),
    skip_bad: bool = SKIP_BAD,
    backbone: str | None = BACKBONE,
    method: str | None = METHOD,
    device: str = DEVICE,
    threads: int = option(1, "CPU threads."),
) -> Answer:
    """Continue the training of a saved learner: the images are one more task. The learner's file is replaced.

    Class folders match the learner's classes by name. New classes need room, which cclfp run --max-classes reserves.
    If anything fails, the file stays as it was.

    [bold]Example[/bold]

    cclfp observe learners/pets.ckpt --images new/
    """
    from cclfp.engine.replica import computing_threads
    from cclfp.learner.use_images import observe_images

    threads = check_whole("threads", threads, at_least=1)
    loaded = load_learner(learner, backbone, method, device)
    how: dict[str, Any] = {"batch": batch, "epochs": epochs, "skip_bad": skip_bad}
    how["classes"] = parse_names("--classes", classes) or None
    with computing_threads(threads), Progress() as shown:
        answer = observe_images(loaded, images, shown.update, **how)
    try:
        loaded.save(learner)
    except OSError as error:
        raise InputError(f"{learner} cannot be replaced, and stays as it was: {reason_of(error)}") from error
    text = f"{learner}: learned {answer['images']:,} images of {count_of(len(answer['classes']), 'class')}"
    text += f", new: {', '.join(answer['new_classes'])}" * bool(answer["new_classes"])
    room = f"room for {count_of(free, 'more class')}" if (free := answer["free_rows"]) else "no room for more classes"
    return Answer({"learner": learner, **answer}, [f"{text}; {room}"])


def load_learner(path: Path, backbone: str | None, method: str | None, device: str) -> Learner:
    """The learner in a file."""
    from cclfp.learner import load
    from cclfp.runs.execution import pick_device

    return load(path, psi=backbone, method=method, device=pick_device(device) if device == "auto" else device)


def _print_csv(found: list[dict[str, Any]]) -> None:
    writer = spreadsheet.writer(sys.stdout, lineterminator="\n")
    names = list(found[0]["probabilities"]) if found else []
    writer.writerow(["image", "class", "probability", *(f"p({visible(name)})" for name in names)])
    for one in found:
        numbers = [one["probability"], *one["probabilities"].values()]
        writer.writerow([_cell(one["image"]), _cell(one["class"]), *(f"{number:.6g}" for number in numbers)])


def _cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula, and a terminal not for a command."""
    return ("'" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else "") + visible(text)
