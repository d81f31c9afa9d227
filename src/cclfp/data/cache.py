"""Verified arrays on disk: one folder a dataset, written whole, memory-mapped on load."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from cclfp.core.files import sync_directory, write_atomic
from cclfp.data.download import discard
from cclfp.data.source import ARRAYS, Arrays, Listener, Source, sha256_of
from cclfp.data.sources import dataset_names, get_dataset
from cclfp.data.stored import SUMS, arrays_folder, damaged, dataset_folder, map_arrays, read_checksums
from cclfp.errors import DataError, unknown


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images as uint8 (N, channels, height, width), labels as int64.

    ``mean`` and ``std`` are those of the training pixels over 255, a channel each; None: just divide by 255.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def dataset_path(name: str) -> Path:
    """The folder of a dataset under ``CCLFP_HOME``; raw files placed there by hand are found by :func:`fetch`."""
    if name not in dataset_names():
        raise unknown("dataset", str(name), dataset_names())
    return dataset_folder(name)


def is_cached(name: str) -> bool:
    return all((arrays_folder(name) / f"{array}.npy").is_file() for array in ARRAYS)


def load_dataset(name: str) -> Dataset:
    """A dataset as tensors, got first where it is not here yet.

    The stored arrays are compared with their checksums first. They are the same tensors every time, for as long as the
    files are the same: write to none of them.
    """
    fetch(name)
    source = get_dataset(name)
    return Dataset(**_tensors(name, _stamp(name)), classes=source.classes, mean=source.mean, std=source.std)


def fetch(name: str, listener: Listener | None = None) -> Path:
    """Get a dataset, unless it is here: from raw files in its folder, else from the network."""
    source, folder, listener = get_dataset(name), dataset_path(name), listener or Listener()
    if is_cached(name):
        return folder
    with _lock(name), _readable(name):
        if is_cached(name):  # another process was faster
            return folder
        arrays = source.read(folder, listener)
        if arrays is None:
            try:
                arrays = source.download(listener, folder)
            except DataError as error:
                raise DataError(
                    f"{error}\nTo place it by hand: put {source.expected} into {folder}, "
                    f"or run: cclfp data import {name} PATH"
                ) from error
        _write(source, arrays, {})
        discard(folder)
    listener.say(f"{name}: verified and stored in {folder}")
    return folder


def import_dataset(name: str, path: Path, listener: Listener | None = None) -> Path:
    """Take a dataset from a folder or an archive of yours, which is left as it is."""
    source, listener = get_dataset(name), listener or Listener()
    if not path.exists():
        raise DataError(f"there is no {path}: expected {source.expected}")
    with _readable(name):
        arrays = source.read(path, listener)
    if arrays is None:
        raise DataError(f"{path} has none of {name}'s files: expected {source.expected}")
    store(source, arrays, {})
    return dataset_path(name)


def store(source: Source, arrays: Arrays, more: dict[str, Any], *, replace: bool = True) -> None:
    """Check arrays and keep them as a dataset's, with more files of JSON beside them.

    Without ``replace`` what another process has stored meanwhile stays: runs may be reading it.
    """
    with _lock(source.name), _readable(source.name):
        there = is_cached(source.name) and all((arrays_folder(source.name) / name).exists() for name in more)
        if replace or not there:
            _write(source, arrays, more)


def verify(name: str) -> Path:
    """Check the arrays on disk: against the published sums, or those of the day they were stored where none are."""
    if not is_cached(name):
        raise DataError(f"{name} is not here (looked in {dataset_path(name)}). To get it: cclfp data fetch {name}")
    source = get_dataset(name)
    sums = source.check(map_arrays(name))
    unpublished = [array for array, spec in source.arrays.items() if spec.sha256 is None]
    stored = read_checksums(name) or {}
    if unpublished and not stored:
        raise damaged(name, f"it cannot be verified without {SUMS}")
    for array in unpublished:
        if sums[array] != stored.get(array):
            raise DataError(
                f"{name}: {array} is not what was stored (sha256 {sums[array]}, not {stored.get(array)}). "
                f"Remove {arrays_folder(name)} and run: cclfp data fetch {name}"
            )
    return dataset_path(name)


def _lock(name: str) -> FileLock:
    folder = dataset_folder(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"datasets cannot be kept in {folder}: {error}. CCLFP_HOME says where they go") from error
    return FileLock(folder / ".lock")


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """A file that cannot be read or written is a user's to mend."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


Stamp = tuple[tuple[Path, int, int, int], ...]


def _stamp(name: str) -> Stamp:
    """What tells the files of a dataset from others that were in their place."""
    with _readable(name):
        paths = [arrays_folder(name).absolute() / f"{array}.npy" for array in ARRAYS]
        return tuple((path, (at := path.stat()).st_ino, at.st_size, at.st_mtime_ns) for path in paths)


@functools.lru_cache(maxsize=4)  # one a dataset that ships with the package
def _tensors(name: str, stamp: Stamp) -> dict[str, Tensor]:
    """The stored arrays as tensors: images as they are mapped, labels as int64."""
    source, arrays = get_dataset(name), map_arrays(name)
    _check_shapes(source, arrays)
    _check_contents(source, arrays)
    return {
        array: torch.from_numpy(values.astype(np.int64) if array.endswith("labels") else values)
        for array, values in arrays.items()
    }


def _check_shapes(source: Source, arrays: Arrays) -> None:
    """That a stream can be made of the arrays, whatever their checksums say."""
    size = arrays["train_images"].shape[1:]
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.ndim != 4 or not images.size or images.shape[1:] != size:
            raise damaged(source.name, f"{part}_images is {images.dtype} of shape {images.shape}")
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
            raise damaged(source.name, f"{part}_labels is {labels.dtype} of shape {labels.shape}")
        if not 0 <= labels.min() <= labels.max() < source.num_classes:
            raise damaged(source.name, f"{part}_labels has labels that are not 0 to {source.num_classes - 1}")
    if source.mean is not None and len(source.mean) != size[0]:
        raise damaged(source.name, f"the images have {size[0]} channels, not {len(source.mean)}")


def _check_contents(source: Source, arrays: Arrays) -> None:
    """That the arrays are what was stored. The first version stored no checksums: then the published ones are used."""
    stored = read_checksums(source.name)
    for array, values in arrays.items():
        if stored is None:
            spec = source.arrays[array]
            expected = spec.sha256 if values.shape == spec.shape and values.dtype == spec.dtype else None
        else:
            expected = stored.get(array, "none")
        if expected is not None and sha256_of(values) != expected:
            raise damaged(source.name, f"{array} does not match its checksum")


def _write(source: Source, arrays: Arrays, more: dict[str, Any]) -> None:
    texts = {file_name: json.dumps(fact, indent=1).encode() for file_name, fact in more.items()}
    checksums = source.check(arrays) | {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    texts[SUMS] = json.dumps(checksums, indent=1).encode()
    target = arrays_folder(source.name)
    for half_written in target.parent.glob(".arrays.*"):  # by a process that was killed
        shutil.rmtree(half_written, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".arrays."))
    try:
        for array in ARRAYS:
            values = np.ascontiguousarray(arrays[array])
            write_atomic(temporary / f"{array}.npy", functools.partial(np.save, arr=values))
        for file_name, text in texts.items():
            write_atomic(temporary / file_name, lambda file, text=text: file.write(text))  # type: ignore[misc]
        temporary.chmod(0o755)
        old = target.with_name(f".arrays.old.{temporary.name.rpartition('.')[2]}")
        if target.exists():
            target.replace(old)
        temporary.replace(target)
        sync_directory(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
