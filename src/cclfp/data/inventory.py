"""What is stored under ``CCLFP_HOME``: lists datasets and removes them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from cclfp.data.cache import dataset_path, is_cached, lock
from cclfp.data.sources import DATASETS, dataset_names, get_dataset
from cclfp.data.stored import arrays_folder
from cclfp.errors import DataError


class StoredDataset(NamedTuple):
    """A dataset: a published one, here or not, or a user's own images."""

    name: str
    own: bool
    here: bool
    bytes: int  # on disk
    description: str
    path: Path


def list_datasets() -> list[StoredDataset]:
    """The published datasets, then the user's own images."""
    return [_look_up(name) for name in dataset_names()]


def _look_up(name: str) -> StoredDataset:
    try:
        description = get_dataset(name).title
    except DataError:
        description = "damaged: its description cannot be read"
    path = dataset_path(name)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.exists() else 0
    return StoredDataset(name, name not in DATASETS, is_cached(name), size, description, path)


def check_stored(name: str) -> None:
    """Raise DataError if nothing is stored of a dataset; what is stored may be damaged."""
    folder = dataset_path(name)
    if not arrays_folder(name).exists():
        raise DataError(f"{name} is not stored (looked in {folder}): there is nothing to remove")


def remove_dataset(name: str) -> int:
    """Remove the stored arrays of a dataset, and return how many bytes they took. Files placed by hand stay."""
    check_stored(name)
    folder, arrays = dataset_path(name), arrays_folder(name)
    size = sum(file.stat().st_size for file in arrays.rglob("*") if file.is_file())
    with lock(name):
        removed = arrays.with_name(".arrays.removed")
        shutil.rmtree(removed, ignore_errors=True)  # left behind by a killed process
        arrays.rename(removed)  # at once, whatever happens next
        shutil.rmtree(removed)
    with contextlib.suppress(OSError):  # it has other files, or another process has just locked it
        (folder / ".lock").unlink(missing_ok=True)
        folder.rmdir()
    return size
