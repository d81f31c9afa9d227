"""The datasets by name, and what each module must offer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from cclfp.data import mnist
from cclfp.errors import unknown

Arrays = dict[str, np.ndarray]  # train_images, train_labels, test_images, test_labels


class Source(Protocol):
    """One dataset: where it comes from, and how to tell that it is what was published."""

    NAME: str
    TITLE: str
    NUM_CLASSES: int
    PLACE_BY_HAND: str

    def read_folder(self, folder: Path) -> Arrays | None:
        """The arrays from raw files in a folder, verified; None where the folder holds none of them."""

    def download(self, say: Callable[[str], None]) -> Arrays:
        """The arrays from the network, verified."""

    def check(self, arrays: Arrays) -> None:
        """Raise DataError unless these are the published arrays, to the byte."""


DATASETS: dict[str, Source] = {source.NAME: source for source in (mnist,)}


def get_dataset(name: str) -> Source:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]
