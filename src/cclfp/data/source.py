"""What a dataset is: where it comes from, and how to tell that it is what was published."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from cclfp.errors import DataError

Arrays = dict[str, np.ndarray]  # train_images, train_labels, test_images, test_labels
Origin = tuple[str, Callable[[], Arrays]]  # a place on the network, in words, and how to get the arrays from there

Item = TypeVar("Item")

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
CHUNK = 1 << 24  # bytes hashed at a time


class Listener:
    """Told what happens to a dataset. This one shows nothing."""

    def say(self, line: str) -> None:
        """Something worth a line."""

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        """How far a long step is; ``total`` is 0 where it is not known."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape of an array, and its sum where all machines have the same bytes."""

    shape: tuple[int, ...]
    sha256: str | None
    dtype: str = "uint8"


class Source(abc.ABC):
    """One dataset. ``mean`` and ``std`` are those of the training pixels over 255, a channel each."""

    name: str
    title: str
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    expected: str  # the files to place by hand, in words
    made = "published"  # what the sums tell of
    arrays: Mapping[str, ArraySpec]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @abc.abstractmethod
    def read(self, path: Path, listener: Listener) -> Arrays | None:
        """The arrays from a folder or an archive, verified; None where a folder has none of the dataset's files."""

    @abc.abstractmethod
    def origins(self, listener: Listener, folder: Path) -> list[Origin]:
        """The places on the network, the best first. What must outlive a broken download goes into ``folder``."""

    def download(self, listener: Listener, folder: Path) -> Arrays:
        """The arrays from the first place that gives all of them, verified."""
        tried = []
        for place, get in self.origins(listener, folder):
            listener.say(f"{self.name}: trying {place}")
            try:
                return get()
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # no network, no file or a wrong one
                tried.append(f"  - {place}: {first_line(error)}")
        raise DataError(f"{self.name} could not be had. Tried:\n" + "\n".join(tried))

    def check(self, arrays: Arrays) -> dict[str, str]:
        """The sums of the arrays; DataError unless these are the published arrays."""
        sums = {}
        for array, spec in self.arrays.items():
            values = arrays[array]
            if values.dtype != spec.dtype or values.shape != spec.shape:
                raise DataError(
                    f"{self.name}: {array} should be {spec.dtype} of shape {spec.shape}, "
                    f"not {values.dtype} of {values.shape}"
                )
            sums[array] = sha256_of(values)
            if spec.sha256 is not None and sums[array] != spec.sha256:
                raise DataError(
                    f"{self.name}: {array} is not what was {self.made} (sha256 {sums[array]}, not {spec.sha256})"
                )
        return sums


def sha256_of(values: np.ndarray) -> str:
    """The sum of an array's bytes."""
    digest = hashlib.sha256()
    flat = np.ascontiguousarray(values).reshape(-1)
    for start in range(0, len(flat), CHUNK):
        digest.update(flat[start : start + CHUNK].data)
    return digest.hexdigest()


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def some(names: list[str]) -> str:
    """The first three of many names.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def with_progress(
    items: Iterable[Item], total: int, listener: Listener, what: str, unit: str, every: int = 500
) -> Iterator[Item]:
    """The items, one by one, and word to the listener now and then."""
    done = 0
    for item in items:
        if done % every == 0:
            listener.progress(what, done, total, unit)
        yield item
        done += 1
    listener.progress(what, done, total, unit)
