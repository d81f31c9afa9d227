"""Images for a trained learner: to classify, and to learn from as one more task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cclfp.core.arguments import check_whole
from cclfp.core.randomness import generator
from cclfp.data.folders import find_images, read_images, read_labelled
from cclfp.errors import InputError
from cclfp.events import DataProgress, OnEvent
from cclfp.learner.learner import Learner


def image_shape(learner: Learner) -> list[int]:
    """The shape (channels, height, width) of the images that a learner takes; InputError where it takes others."""
    example = learner.example
    if example is None:
        raise InputError("this learner has not been trained yet")
    shape, dtype = example
    if len(shape) != 3 or dtype != torch.uint8:
        raise InputError(f"this learner takes inputs of shape {tuple(shape)} and {dtype}, not images")
    return list(shape)


def predict_images(
    learner: Learner, paths: Sequence[Path], on_event: OnEvent, *, task: int | None = None, skip_bad: bool = False
) -> list[dict[str, Any]]:
    """For each image file, also those below folders, its most likely class and the probability of each class."""
    files = find_images(paths)
    x, places = read_images(files, image_shape(learner), on_event, skip_bad=skip_bad)
    if not len(x):
        return []
    probabilities, names = learner.predict_proba(torch.from_numpy(x), task).tolist(), learner.classes or ()
    allowed = {names[c] if c < len(names) else str(c): c for c in learner.mask.allowed(task).nonzero()[:, 0].tolist()}
    found = []
    for place, row in zip(places, probabilities, strict=True):
        by_name = {name: row[c] for name, c in allowed.items()}
        best = max(by_name, key=by_name.__getitem__)
        answer = {"class": best, "probability": by_name[best], "probabilities": by_name}
        found.append({"image": str(files[place]), **answer})
    return found


def observe_images(
    learner: Learner,
    path: Path,
    on_event: OnEvent,
    *,
    classes: Sequence[str] | None = None,
    batch: int = 10,
    epochs: int = 1,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Let a learner learn from a folder of class folders as one more task, and return what it has learned.

    Classes match by name; new ones take free rows of the classifier. The order of the images comes from the seed.
    """
    batch, epochs = check_whole("batch", batch, at_least=1), check_whole("epochs", epochs, at_least=1)
    if learner.in_task:
        raise InputError("this learner was saved in the middle of a task: load it, call end_task() and save it again")
    if (known := learner.classes) is None:
        raise InputError("this learner has no class names, which class folders are matched with")
    x, names = read_labelled(path, image_shape(learner), on_event, classes=classes, skip_bad=skip_bad)
    if not names:
        raise InputError(f"--images {path}: expected images, and none could be read")
    seen = dict.fromkeys(names)
    task = learner.add_task(list(seen))
    assert learner.classes is not None
    rows = {name: row for row, name in enumerate(learner.classes)}
    y = torch.tensor([rows[name] for name in names])
    g = generator(learner.seed, "order", learner.tasks_done)
    order = torch.cat([torch.randperm(len(y), generator=g) for _ in range(epochs)])
    for done, part in enumerate(order.split(batch)):
        learner.observe(torch.from_numpy(x[part.numpy()]), y[part], task)
        on_event(DataProgress("learning", batch * done + len(part), len(order), "images"))
    learner.end_task()
    return {
        "images": len(y),
        "classes": list(seen),
        "new_classes": [name for name in seen if name not in known],
        "task": task,
        "free_rows": learner.num_classes - len(learner.classes),
    }
