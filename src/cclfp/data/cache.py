"""Verified arrays on disk: one folder per dataset, written completely or not at all, memory-mapped when loaded."""

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
from cclfp.data.own import own_datasets
from cclfp.data.source import ARRAYS, Arrays, Source, sha256_of
from cclfp.data.sources import DATASETS, dataset_names, get_dataset
from cclfp.data.stored import CHECKSUMS, arrays_folder, damaged, dataset_folder, map_arrays, read_checksums
from cclfp.errors import DataError, unknown
from cclfp.events import Note, OnEvent, ignore


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images as uint8 (N, channels, height, width), labels as int64.

    ``mean`` and ``std`` are those of the training pixels divided by 255, one number per channel; None: only divide
    by 255.
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
    """The folder of a dataset under ``CCLFP_HOME``. :func:`fetch` finds raw files that were placed there by hand."""
    if name not in dataset_names():
        raise unknown("dataset", str(name), DATASETS, own_datasets())
    return dataset_folder(name)


def is_cached(name: str) -> bool:
    """Whether all arrays of a dataset are stored."""
    return all((arrays_folder(name) / f"{array}.npy").is_file() for array in ARRAYS)


def load_dataset(name: str) -> Dataset:
    """A dataset as tensors. It is downloaded first if it is not stored yet.

    The stored arrays are compared with their checksums. As long as the files do not change, every call returns the same
    tensors: do not write to them.
    """
    fetch(name)
    source = get_dataset(name)
    return Dataset(**_tensors(name, _fingerprint(name)), classes=source.classes, mean=source.mean, std=source.std)


def fetch(name: str, on_event: OnEvent = ignore) -> Path:
    """Store a dataset, unless it is stored: from raw files in its folder, otherwise from the network."""
    source, folder = get_dataset(name), dataset_path(name)
    if is_cached(name):
        return folder
    with lock(name), _os_error_as_data_error(name):
        if is_cached(name):  # another process has stored it in the meantime
            return folder
        arrays = source.read(folder, on_event)
        if arrays is None:
            try:
                arrays = source.download(on_event, folder)
            except DataError as error:
                raise DataError(
                    f"{error}\nTo place it by hand: put {source.expected} into {folder}, "
                    f"or run: cclfp data import {name} PATH"
                ) from error
        _write(source, arrays, {})
        discard(folder)
    on_event(Note(f"{name}: verified and stored in {folder}"))
    return folder


def import_dataset(name: str, path: Path, on_event: OnEvent = ignore) -> Path:
    """Store a dataset from a folder or an archive, which is left unchanged."""
    source = get_dataset(name)
    if not path.exists():
        raise DataError(f"{path} does not exist: expected {source.expected}")
    with _os_error_as_data_error(name):
        arrays = source.read(path, on_event)
    if arrays is None:
        raise DataError(f"{path} has none of {name}'s files: expected {source.expected}")
    store(source, arrays, {})
    return dataset_path(name)


def store(source: Source, arrays: Arrays, more: dict[str, Any], *, replace: bool = True) -> None:
    """Check the arrays of a dataset and store them, with additional JSON files next to them.

    Without ``replace``, arrays that another process has stored in the meantime are kept: runs may be reading them.
    """
    with lock(source.name), _os_error_as_data_error(source.name):
        there = is_cached(source.name) and all((arrays_folder(source.name) / name).exists() for name in more)
        if replace or not there:
            _write(source, arrays, more)


def verify(name: str) -> Path:
    """Check the arrays on disk against the published checksums, or against the stored ones where none are published."""
    if not is_cached(name):
        raise DataError(
            f"{name} is not stored (looked in {dataset_path(name)}). To download it: cclfp data fetch {name}"
        )
    source = get_dataset(name)
    checksums = source.check(map_arrays(name))
    unpublished = [array for array, spec in source.arrays.items() if spec.sha256 is None]
    stored = read_checksums(name) or {}
    if unpublished and not stored:
        raise damaged(name, f"it cannot be verified without {CHECKSUMS}")
    for array in unpublished:
        if checksums[array] != stored.get(array):
            raise DataError(
                f"{name}: {array} is not what was stored (sha256 {checksums[array]}, not {stored.get(array)}). "
                f"Remove {arrays_folder(name)} and run: cclfp data fetch {name}"
            )
    return dataset_path(name)


def lock(name: str) -> FileLock:
    """The lock that a process holds while it changes what is stored of a dataset."""
    folder = dataset_folder(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"datasets cannot be stored in {folder}: {error}. Choose another folder with CCLFP_HOME"
        ) from error
    return FileLock(folder / ".lock")


@contextlib.contextmanager
def _os_error_as_data_error(name: str) -> Iterator[None]:
    """Turn an OSError into a DataError, since the user can fix a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


Fingerprint = tuple[tuple[Path, int, int, int], ...]


def _fingerprint(name: str) -> Fingerprint:
    """A value that changes when the files of a dataset are replaced or modified."""
    with _os_error_as_data_error(name):
        paths = [arrays_folder(name).absolute() / f"{array}.npy" for array in ARRAYS]
        return tuple((path, (at := path.stat()).st_ino, at.st_size, at.st_mtime_ns) for path in paths)


@functools.lru_cache(maxsize=4)  # one per dataset that ships with the package
def _tensors(name: str, fingerprint: Fingerprint) -> dict[str, Tensor]:
    """The stored arrays as tensors: memory-mapped images, and labels as int64."""
    source, arrays = get_dataset(name), map_arrays(name)
    _check_shapes(source, arrays)
    _check_contents(source, arrays)
    return {
        array: torch.from_numpy(values.astype(np.int64) if array.endswith("labels") else values)
        for array, values in arrays.items()
    }


def _check_shapes(source: Source, arrays: Arrays) -> None:
    """Raise DataError if no stream can be made of the arrays, whatever their checksums say."""
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
    """Raise DataError if an array has changed since it was stored.

    The first version stored no checksums; the published ones are used then.
    """
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
    """Check arrays and write them, with more JSON files and all checksums, in the place of any old ones."""
    texts = {file_name: json.dumps(fact, indent=1).encode() for file_name, fact in more.items()}
    checksums = source.check(arrays) | {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    texts[CHECKSUMS] = json.dumps(checksums, indent=1).encode()
    target = arrays_folder(source.name)
    for half_written in target.parent.glob(".arrays.*"):  # left behind by a killed process
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
