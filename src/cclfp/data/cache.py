"""Verified arrays on disk: one folder a dataset, written whole, memory-mapped on load."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from cclfp.data.sources import Arrays, Source, get_dataset
from cclfp.errors import DataError
from cclfp.files import home, sync_directory, write_atomic

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images as uint8 (N, channels, height, width), labels as int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int


def dataset_path(name: str) -> Path:
    """The folder of a dataset under ``CCLFP_HOME``; raw files placed there by hand are found by :func:`fetch`."""
    get_dataset(name)
    return home() / "data" / name


def is_cached(name: str) -> bool:
    return all((_arrays_path(name) / f"{array}.npy").is_file() for array in ARRAYS)


def load_dataset(name: str) -> Dataset:
    """A dataset as tensors, got first where it is not here yet."""
    fetch(name)
    arrays = _read(name)
    return Dataset(
        train_images=torch.from_numpy(arrays["train_images"]),
        train_labels=torch.from_numpy(arrays["train_labels"].astype(np.int64)),
        test_images=torch.from_numpy(arrays["test_images"]),
        test_labels=torch.from_numpy(arrays["test_labels"].astype(np.int64)),
        num_classes=get_dataset(name).NUM_CLASSES,
    )


def fetch(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """Get a dataset, unless it is here: from raw files in its folder, else from the network."""
    source, folder = get_dataset(name), dataset_path(name)
    if is_cached(name):
        return folder
    with _lock(name):
        if is_cached(name):  # another process was faster
            return folder
        arrays = source.read_folder(folder)
        if arrays is None:
            try:
                arrays = source.download(say)
            except DataError as error:
                raise DataError(
                    f"{error}\nTo place it by hand: put {source.PLACE_BY_HAND} into {folder}, "
                    f"or run: cclfp data import {name} FOLDER"
                ) from error
        _write(source, arrays)
    say(f"{name}: verified and stored in {folder}")
    return folder


def import_dataset(name: str, path: Path) -> Path:
    """Take a dataset from raw files in a folder of yours, which is left as it is."""
    source = get_dataset(name)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: expected one with {source.PLACE_BY_HAND}")
    arrays = source.read_folder(path)
    if arrays is None:
        raise DataError(f"{path} has none of {name}'s files: expected {source.PLACE_BY_HAND}")
    with _lock(name):
        _write(source, arrays)
    return dataset_path(name)


def verify(name: str) -> Path:
    """Check the arrays on disk against the published sums, to the byte."""
    if not is_cached(name):
        raise DataError(f"{name} is not here (looked in {dataset_path(name)}). To get it: cclfp data fetch {name}")
    get_dataset(name).check(_read(name))
    return dataset_path(name)


def _arrays_path(name: str) -> Path:
    return dataset_path(name) / "arrays"


def _lock(name: str) -> FileLock:
    folder = dataset_path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"datasets cannot be kept in {folder}: {error}. CCLFP_HOME says where they go") from error
    return FileLock(folder / ".lock")


def _read(name: str) -> Arrays:
    try:
        # "c": pages are read when touched, and a write would stay in this process.
        return {array: np.load(_arrays_path(name) / f"{array}.npy", mmap_mode="c") for array in ARRAYS}
    except (OSError, ValueError) as error:
        raise DataError(
            f"the stored {name} cannot be read ({error}). Remove {_arrays_path(name)} and run: cclfp data fetch {name}"
        ) from error


def _write(source: Source, arrays: Arrays) -> None:
    source.check(arrays)
    target = _arrays_path(source.NAME)
    for half_written in target.parent.glob(".arrays.*"):  # by a process that was killed
        shutil.rmtree(half_written, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".arrays."))
    try:
        for array in ARRAYS:
            values = np.ascontiguousarray(arrays[array])
            write_atomic(temporary / f"{array}.npy", functools.partial(np.save, arr=values))
        temporary.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
