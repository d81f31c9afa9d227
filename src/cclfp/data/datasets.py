"""Datasets by name: fetched or imported, verified when they are loaded, listed and removed.

What is stored of a dataset is the folder ``data/NAME/arrays`` under ``CCLFP_HOME``: an ``.npy`` file per array, their
checksums, and ``about.json`` for a user's own images. It is written completely or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from cclfp.core.files import home, remove_stale, sync_directory, temporary_name
from cclfp.data.download import checksum_of
from cclfp.data.formats import ARRAYS, DATASETS, Arrays, Published, Source, os_error_as_data_error
from cclfp.errors import DataError, InputError, first_line, named, unknown
from cclfp.events import Note, OnEvent, ignore

CHECKSUMS = "sums.json"  # array or other file -> sha256 at the time it was stored
ABOUT = "about.json"  # the description of a user's own images
MOST_HEADER = 4096  # bytes of an array's header; numpy writes 118 for an array of images


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


# -- by name ------------------------------------------------------------------------------------------------------


def get_dataset(name: str) -> Source:
    """A dataset by name: one of DATASETS, or the user's own images with that name."""
    if name in DATASETS:
        return DATASETS[name]
    dataset_path(name)
    about = read_json(name, ABOUT)
    try:
        return Source.described(name, {field: about[field] for field in ("title", "classes", "mean", "std", "arrays")})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(name, f"{ABOUT} is incomplete or invalid: {named(error)}") from error


def own_datasets() -> list[str]:
    """The names of the user's own images."""
    return sorted(path.parents[1].name for path in (home() / "data").glob(f"*/arrays/{ABOUT}"))


def dataset_path(name: str) -> Path:
    """The folder of a dataset under ``CCLFP_HOME``. :func:`fetch` finds raw files that were placed there by hand."""
    if name not in DATASETS and name not in own_datasets():
        raise unknown("dataset", str(name), DATASETS, own_datasets())
    return home() / "data" / name


def arrays_folder(name: str) -> Path:
    return home() / "data" / name / "arrays"


def is_cached(name: str) -> bool:
    """Whether all arrays of a dataset are stored."""
    return all((arrays_folder(name) / f"{array}.npy").is_file() for array in ARRAYS)


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
    return [look_up(name) for name in (*DATASETS, *own_datasets())]


def look_up(name: str) -> StoredDataset:
    """What is known of a dataset, whose description may be damaged."""
    try:
        description = get_dataset(name).title
    except DataError:
        description = "damaged: its description cannot be read"
    path = dataset_path(name)
    return StoredDataset(name, name not in DATASETS, is_cached(name), _size(path), description, path)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# -- getting, storing, removing -----------------------------------------------------------------------------------


def fetch(name: str, on_event: OnEvent = ignore) -> Path:
    """Store a dataset, unless it is stored: from raw files in its folder, otherwise from the network."""
    folder = dataset_path(name)
    if is_cached(name):
        return folder
    with _lock(name):
        if not is_cached(name):  # no other process has stored it in the meantime
            source = _published(name)
            store(source, source.read(folder, on_event) or source.download(on_event))
    on_event(Note(f"{name}: verified and stored in {folder}"))
    return folder


def import_dataset(name: str, path: Path, on_event: OnEvent = ignore) -> Path:
    """Store a dataset from a folder or an archive, which is left unchanged."""
    source = _published(name)
    arrays = source.read(path, on_event)
    if arrays is None:
        why = f"has none of {name}'s files" if path.exists() else "does not exist"
        raise DataError(f"{path} {why}: expected {source.expected}")
    store(source, arrays)
    return dataset_path(name)


def _published(name: str) -> Published:
    source = get_dataset(name)
    if not isinstance(source, Published):
        raise DataError(f"{name} is the name of your own images: import them with cclfp run METHOD --images PATH")
    return source


def store(source: Source, arrays: Arrays, about: dict[str, Any] | None = None) -> None:
    """Check the arrays of a dataset and store them, unless they are there intact: runs may be reading them.

    ``about`` is the description of a user's own images.
    """
    checksums = source.check(arrays)
    with _lock(source.name):
        if is_intact(source.name):
            return
        with _new_folder(source.name) as folder:
            for array in ARRAYS:
                np.save(folder / f"{array}.npy", arrays[array])
            if about is not None:
                (folder / ABOUT).write_text(json.dumps(about, indent=1))
                checksums[ABOUT] = checksum_of(folder / ABOUT, "sha256")
            (folder / CHECKSUMS).write_text(json.dumps(checksums, indent=1))


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """Hold the lock of a dataset while its stored files are changed."""
    folder = arrays_folder(name).parent
    with os_error_as_data_error(f"{name} cannot be stored in {folder}, which CCLFP_HOME can change"):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", is_singleton=True):  # who has it may take it again
            remove_stale(folder, r"arrays(\.removed)?", folders=True)
            yield


@contextlib.contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    """A folder that takes the place of the stored arrays once its files are written; the caller has the lock."""
    target = arrays_folder(name)
    temporary = target.with_name(temporary_name("arrays"))
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if target.exists():
            _remove(target)
        temporary.replace(target)
        sync_directory(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove(target: Path) -> None:
    removed = target.with_name(temporary_name("arrays.removed"))
    target.rename(removed)  # at once, whatever happens next
    shutil.rmtree(removed)


def check_stored(name: str) -> None:
    """Raise DataError if nothing is stored of a dataset; what is stored may be damaged."""
    folder = dataset_path(name)
    if not arrays_folder(name).exists():
        raise DataError(f"{name} is not stored (looked in {folder}). To download it: cclfp data fetch {name}")


def remove_dataset(name: str) -> int:
    """Remove the stored arrays of a dataset, and return how many bytes they took. Files placed by hand stay."""
    check_stored(name)
    with _lock(name):
        size = _size(arrays_folder(name))
        _remove(arrays_folder(name))
    return size


# -- reading what is stored ---------------------------------------------------------------------------------------


def load_dataset(name: str) -> Dataset:
    """A dataset as tensors. It is downloaded first if it is not stored yet.

    The stored arrays are compared with their checksums. Later calls return the same tensors, as long as the files do
    not change and fewer than four other datasets were loaded since: do not write to them.
    """
    fetch(name)
    source = get_dataset(name)
    paths = [arrays_folder(name).absolute() / f"{array}.npy" for array in ARRAYS]
    found = tuple((path, (at := path.stat()).st_ino, at.st_size, at.st_mtime_ns) for path in paths)
    return Dataset(**_tensors(name, found), classes=source.classes, mean=source.mean, std=source.std)


@functools.lru_cache(maxsize=4)
def _tensors(name: str, found: tuple[Any, ...]) -> dict[str, Tensor]:
    """The stored arrays as tensors: memory-mapped images, and labels as int64. ``found`` tells files from others."""
    return {
        array: torch.from_numpy(values.astype(np.int64) if array.endswith("labels") else values)
        for array, values in _read_arrays(name).items()
    }


def verify(name: str) -> Path:
    """Check the arrays on disk against the published checksums, or against the stored ones where none are published."""
    check_stored(name)
    _read_arrays(name, always_check=True)
    return dataset_path(name)


def _read_arrays(name: str, always_check: bool = False) -> Arrays:
    """The stored arrays, mapped into memory copy-on-write: pages are read when accessed, and files never change.

    They are compared with their checksums where some are stored; the first version stored none.
    """
    arrays: Arrays = {}
    for array in ARRAYS:
        path = arrays_folder(name) / f"{array}.npy"
        try:
            arrays[array] = np.asarray(np.lib.format.open_memmap(path, mode="c", max_header_size=MOST_HEADER))
        except Exception as error:
            raise damaged(name, f"{path.name}: {first_line(error)}") from error
    if always_check or (arrays_folder(name) / CHECKSUMS).exists():
        source, stored = get_dataset(name), _stored_checksums(name)
        try:
            source.check(arrays, stored)
        except DataError as error:
            raise damaged(name, error) from error
    return arrays


def is_intact(name: str) -> bool:
    """Whether a dataset is stored, and undamaged."""
    try:
        verify(name)
    except InputError:
        return False
    return True


def damaged(name: str, why: object) -> DataError:
    """The error for stored files that cannot be used. Its message says what to do."""
    again = f"run: cclfp data fetch {name}" if name in DATASETS else "import the images again with --images PATH"
    return DataError(f"the stored {name} cannot be read ({why}). Remove {arrays_folder(name)} and {again}")


def read_json(name: str, file: str) -> dict[str, Any]:
    """Read a JSON file next to the arrays, and compare it with its checksum, which earlier versions did not store."""
    path = arrays_folder(name) / file
    try:
        found, checksum = json.loads(path.read_bytes()), checksum_of(path, "sha256")
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(name, f"{file}: {first_line(error)}") from error
    stored = None if file == CHECKSUMS else _stored_checksums(name).get(file)
    if not isinstance(found, dict) or stored not in (None, checksum):
        raise damaged(name, f"{file} has changed since it was stored")
    return found


def _stored_checksums(name: str) -> dict[str, str]:
    return read_json(name, CHECKSUMS) if (arrays_folder(name) / CHECKSUMS).exists() else {}


# -- on the way to another machine --------------------------------------------------------------------------------


def pack(name: str) -> dict[str, np.ndarray]:
    """The stored files of a dataset, after they have been compared with their checksums."""
    load_dataset(name)
    return {path.name: np.fromfile(path, np.uint8) for path in sorted(arrays_folder(name).iterdir())}


def unpack(name: str, files: Mapping[str, np.ndarray]) -> None:
    """Store files that have arrived, unless another process has stored the dataset in the meantime."""
    with _lock(name):
        if not is_cached(name):
            with _new_folder(name) as folder:
                for file, content in files.items():
                    content.tofile(folder / file)
