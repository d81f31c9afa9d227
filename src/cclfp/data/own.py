"""Images of a user's own that are kept under a name, beside the published datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cclfp.data.source import Arrays, ArraySpec, Listener, Origin, Source
from cclfp.errors import DataError
from cclfp.files import home

ABOUT = "about.json"  # in the folder of the arrays


class OwnImages(Source):
    """Images that were imported, as their file of facts tells."""

    expected = "a folder of class folders, or an .npz"
    made = "imported"

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.name, self.title, self.classes = about["name"], about["title"], tuple(about["classes"])
        self.mean, self.std = tuple(about["mean"]), tuple(about["std"])
        self.arrays = {a: ArraySpec(tuple(shape), sha, dtype) for a, (shape, sha, dtype) in about["arrays"].items()}

    def read(self, path: Path, listener: Listener) -> Arrays | None:
        raise DataError(f"{self.name} is a name for images of your own: cclfp run METHOD --images PATH imports them")

    def origins(self, listener: Listener, folder: Path) -> list[Origin]:
        return []


def own_datasets() -> list[str]:
    """The names under which images of a user's own are kept."""
    return sorted(path.parents[1].name for path in (home() / "data").glob(f"*/arrays/{ABOUT}"))


def own_dataset(name: str) -> OwnImages:
    return OwnImages(json.loads((home() / "data" / name / "arrays" / ABOUT).read_text(encoding="utf-8")))
