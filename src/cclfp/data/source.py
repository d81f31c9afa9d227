"""The base class of datasets: where they come from, and how they are verified."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cclfp.errors import DataError, visible
from cclfp.events import Note, OnEvent

Arrays = dict[str, np.ndarray]  # train_images, train_labels, test_images, test_labels
Origin = tuple[str, Callable[[], Arrays]]  # a place on the network, and a function that downloads the arrays from there

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
# The names of the classes of each dataset.
CLASSES: dict[str, Any] = json.loads(resources.files("cclfp.data").joinpath("classes.json").read_text(encoding="utf-8"))
CHUNK = 1 << 24  # bytes hashed at a time


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array, and its checksum if it is the same on all machines."""

    shape: tuple[int, ...]
    sha256: str | None
    dtype: str = "uint8"


class Source(abc.ABC):
    """A dataset. ``mean`` and ``std`` are those of the training pixels divided by 255, one number per channel."""

    name: str
    title: str
    classes: tuple[str, ...]  # in the order of the labels
    class_orders: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # other orders of the classes, by name
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    expected: str  # describes the files to place by hand
    provenance = "published"  # what was done to the arrays that the checksums belong to
    arrays: Mapping[str, ArraySpec]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @abc.abstractmethod
    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        """Read and verify the arrays from a folder or an archive; None if a folder has none of the dataset's files."""

    @abc.abstractmethod
    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        """The places on the network, best first. ``folder`` keeps incomplete downloads, so that they can be resumed."""

    def download(self, on_event: OnEvent, folder: Path) -> Arrays:
        """Download and verify the arrays from the first place that has all of them."""
        tried = []
        for place, download in self.origins(on_event, folder):
            on_event(Note(f"{self.name}: trying {place}"))
            try:
                return download()
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # no network, or a missing or wrong file
                tried.append(f"  - {place}: {first_line(error)}")
        raise DataError(f"{self.name} could not be downloaded. Tried:\n" + "\n".join(tried))

    def check(self, arrays: Arrays) -> dict[str, str]:
        """The checksums of the arrays; DataError unless they match the published ones."""
        checksums = {}
        for array, spec in self.arrays.items():
            values = arrays[array]
            if values.dtype != spec.dtype or values.shape != spec.shape:
                raise DataError(
                    f"{self.name}: {array} should be {spec.dtype} of shape {spec.shape}, "
                    f"not {values.dtype} of {values.shape}"
                )
            checksums[array] = sha256_of(values)
            if spec.sha256 is not None and checksums[array] != spec.sha256:
                raise DataError(
                    f"{self.name}: {array} is not what was {self.provenance} "
                    f"(sha256 {checksums[array]}, not {spec.sha256})"
                )
        return checksums


def sha256_of(values: np.ndarray) -> str:
    """The SHA-256 checksum of an array's bytes."""
    digest = hashlib.sha256()
    flat = np.ascontiguousarray(values).reshape(-1)
    for start in range(0, len(flat), CHUNK):
        digest.update(flat[start : start + CHUNK].data)
    return digest.hexdigest()


def md5_of(path: Path) -> str:
    """The MD5 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def first_line(error: Exception) -> str:
    """The first line of an error's message, shortened; its type if the message is empty."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def abbreviate(names: list[str]) -> str:
    """The first three names and the number of the others.

    >>> abbreviate(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(map(visible, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
