"""A user's own images, which are stored under a name like the published datasets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cclfp.core.files import home
from cclfp.data.source import ARRAYS, Arrays, ArraySpec, Origin, Source
from cclfp.data.stored import ABOUT, damaged, read_json
from cclfp.errors import DataError
from cclfp.events import OnEvent


class OwnImages(Source):
    """Imported images, as described by their file ``about.json``."""

    expected = "a folder of class folders, or an .npz"
    provenance = "imported"

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.name, self.title, self.classes = about["name"], about["title"], tuple(about["classes"])
        self.mean, self.std = tuple(about["mean"]), tuple(about["std"])
        self.arrays = {a: ArraySpec(tuple(shape), sha, dtype) for a, (shape, sha, dtype) in about["arrays"].items()}

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        raise DataError(f"{self.name} is the name of your own images: import them with cclfp run METHOD --images PATH")

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        return []


def own_datasets() -> list[str]:
    """The names of the user's own images."""
    return sorted(path.parents[1].name for path in (home() / "data").glob(f"*/arrays/{ABOUT}"))


def own_dataset(name: str) -> OwnImages:
    """The user's own images with this name; DataError if their description is damaged."""
    about = read_json(name, ABOUT)
    try:
        source = OwnImages(about)
        wrong = [field for field, right in _fields(source, name).items() if not right]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise damaged(name, f"{ABOUT} is incomplete or invalid: {type(error).__name__}: {error}") from error
    if wrong:
        raise damaged(name, f"{ABOUT} has an invalid {wrong[0]}")
    return source


def _fields(source: OwnImages, name: str) -> dict[str, bool]:
    """For each field of the description, whether it is plausible. A wrong type may also raise an exception."""
    channels = source.arrays["train_images"].shape[1]
    mean, std = source.about["mean"], source.about["std"]
    sizes = [size for spec in source.arrays.values() for size in spec.shape]
    texts = [source.title, *source.classes, *(spec.sha256 for spec in source.arrays.values())]
    return {
        "name": source.name == name,
        "title": isinstance(source.title, str) and source.title.isprintable(),
        "classes": isinstance(source.about["classes"], list) and len(set(source.classes)) == len(source.classes) > 1,
        "text": all(isinstance(text, str) and text.isprintable() for text in texts),
        "arrays": source.arrays.keys() == set(ARRAYS) and all(type(size) is int and size > 0 for size in sizes),
        "mean or std": len(mean) == len(std) == channels
        and all(type(number) in (int, float) and math.isfinite(number) for number in (*mean, *std))
        and min(std) > 0,
    }
