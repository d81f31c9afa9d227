"""Datasets by name: fetched or imported, verified when they are loaded, listed and removed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cclfp.core.files import home, remove_stale, temporary_name
from cclfp.data.cifar import Cifar10, Cifar100
from cclfp.data.download import discard
from cclfp.data.mnist import Mnist
from cclfp.data.source import ARRAYS, Arrays, ArraySpec, Origin, Source, sha256_of
from cclfp.data.stored import (
    ABOUT,
    CHECKSUMS,
    OLD,
    arrays_folder,
    damaged,
    lock,
    map_arrays,
    os_error_as_data_error,
    read_checksums,
    read_json,
    restore,
    write,
)
from cclfp.data.tiny_imagenet import TinyImageNet
from cclfp.errors import DataError, unknown
from cclfp.events import Note, OnEvent, ignore

DATASETS: dict[str, Source] = {source.name: source for source in (Mnist(), Cifar10(), Cifar100(), TinyImageNet())}


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


class OwnImages(Source):
    """Imported images, as described by their file ``about.json``."""

    expected = "a folder of class folders, or an .npz"
    provenance = "imported"

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.name, self.title, self.classes = about["name"], about["title"], tuple(about["classes"])
        self.mean, self.std = tuple(about["mean"]), tuple(about["std"])
        self.arrays = {a: ArraySpec(tuple(shape), sha, dtype) for a, (shape, sha, dtype) in about["arrays"].items()}

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        raise DataError(f"{self.name} is the name of your own images: import them with cclfp run METHOD --images PATH")

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        return []


# -- by name ------------------------------------------------------------------------------------------------------


def get_dataset(name: str) -> Source:
    """A dataset by name: one of DATASETS, or the user's own images with that name."""
    if name in DATASETS:
        return DATASETS[name]
    if name not in own_datasets():
        raise unknown("dataset", str(name), DATASETS, own_datasets())
    try:
        source = OwnImages(read_json(name, ABOUT))
        names = [source.name, source.title, *source.classes]
        is_right = source.name == name and all(text.isprintable() for text in names) and set(ARRAYS) == {*source.arrays}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise damaged(name, f"{ABOUT} is incomplete or invalid: {type(error).__name__}: {error}") from error
    if not is_right:
        raise damaged(name, f"{ABOUT} is not the description of these images")
    return source


def own_datasets() -> list[str]:
    """The names of the user's own images."""
    folder = home() / "data"
    for old in folder.glob(f"*/{OLD}*"):
        restore(old.parent.name)
    return sorted(path.parents[1].name for path in folder.glob(f"*/arrays/{ABOUT}"))


def dataset_names() -> list[str]:
    """The names of all datasets: the published ones, then the user's own images."""
    return [*DATASETS, *own_datasets()]


def dataset_path(name: str) -> Path:
    """The folder of a dataset under ``CCLFP_HOME``. :func:`fetch` finds raw files that were placed there by hand."""
    if name not in DATASETS and name not in own_datasets():
        raise unknown("dataset", str(name), DATASETS, own_datasets())
    return home() / "data" / name


def is_cached(name: str) -> bool:
    """Whether all arrays of a dataset are stored."""
    restore(name)
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
    return [_look_up(name) for name in dataset_names()]


def _look_up(name: str) -> StoredDataset:
    try:
        description = get_dataset(name).title
    except DataError:
        description = "damaged: its description cannot be read"
    path = dataset_path(name)
    return StoredDataset(name, name not in DATASETS, is_cached(name), _size(path), description, path)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# -- getting and storing ------------------------------------------------------------------------------------------


def fetch(name: str, on_event: OnEvent = ignore) -> Path:
    """Store a dataset, unless it is stored: from raw files in its folder, otherwise from the network."""
    source, folder = get_dataset(name), dataset_path(name)
    if is_cached(name):
        return folder
    with lock(name):
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
        write(source, arrays, {})
        discard(folder)
    on_event(Note(f"{name}: verified and stored in {folder}"))
    return folder


def import_dataset(name: str, path: Path, on_event: OnEvent = ignore) -> Path:
    """Store a dataset from a folder or an archive, which is left unchanged."""
    source = get_dataset(name)
    if not path.exists():
        raise DataError(f"{path} does not exist: expected {source.expected}")
    with os_error_as_data_error(name):
        arrays = source.read(path, on_event)
    if arrays is None:
        raise DataError(f"{path} has none of {name}'s files: expected {source.expected}")
    store(source, arrays, {})
    return dataset_path(name)


def store(source: Source, arrays: Arrays, more: dict[str, Any], *, replace: bool = True) -> None:
    """Check the arrays of a dataset and store them, with additional JSON files next to them.

    Without ``replace``, arrays that another process has stored in the meantime are kept: runs may be reading them.
    """
    with lock(source.name):
        there = is_cached(source.name) and all((arrays_folder(source.name) / name).exists() for name in more)
        if replace or not there:
            write(source, arrays, more)


def check_stored(name: str) -> None:
    """Raise DataError if nothing is stored of a dataset; what is stored may be damaged."""
    if not arrays_folder(name).exists():
        raise DataError(f"{name} is not stored (looked in {dataset_path(name)}): there is nothing to remove")


def remove_dataset(name: str) -> int:
    """Remove the stored arrays of a dataset, and return how many bytes they took. Files placed by hand stay."""
    folder, arrays = dataset_path(name), arrays_folder(name)
    check_stored(name)
    size = _size(arrays)
    with lock(name):
        remove_stale(folder, r"arrays\.removed", folders=True)
        removed = arrays.with_name(temporary_name("arrays.removed"))
        arrays.rename(removed)  # at once, whatever happens next
        shutil.rmtree(removed)
    with contextlib.suppress(OSError):  # it has other files, or another process has just locked it
        (folder / ".lock").unlink(missing_ok=True)
        folder.rmdir()
    return size


# -- reading what is stored ---------------------------------------------------------------------------------------


def load_dataset(name: str) -> Dataset:
    """A dataset as tensors. It is downloaded first if it is not stored yet.

    The stored arrays are compared with their checksums. As long as the files do not change, every call returns the same
    tensors: do not write to them.
    """
    fetch(name)
    source = get_dataset(name)
    return Dataset(**_tensors(name, _fingerprint(name)), classes=source.classes, mean=source.mean, std=source.std)


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


Fingerprint = tuple[tuple[Path, int, int, int], ...]


def _fingerprint(name: str) -> Fingerprint:
    """A value that changes when the files of a dataset are replaced or modified."""
    with os_error_as_data_error(name):
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


# -- on the way to another machine --------------------------------------------------------------------------------


class Parcel(NamedTuple):
    """A stored dataset; ``about`` describes a user's own images, which other machines know nothing of."""

    name: str
    arrays: Arrays
    checksums: dict[str, str]
    about: dict[str, Any] | None


def pack(name: str) -> Parcel:
    """The dataset as this machine stores it, with the checksums of the time when it was stored."""
    fetch(name)
    stored = read_checksums(name) or {}
    arrays = {array: np.array(values, order="C") for array, values in map_arrays(name).items()}  # no memory maps
    checksums = {array: stored.get(array) or sha256_of(values) for array, values in arrays.items()}
    return Parcel(name, arrays, checksums, None if name in DATASETS else read_json(name, ABOUT))


def unpack(parcel: Parcel) -> None:
    """Store a dataset that has arrived, unless another process has stored it in the meantime.

    The arrays may be read-only. They are compared with their checksums, and with the published ones where there are
    any.
    """
    for array, values in parcel.arrays.items():
        if sha256_of(values) != parcel.checksums[array]:
            text = f"{parcel.name}: {array} does not match its checksum"
            raise DataError(f"{text}: it was damaged on the driver's machine or on its way from there")
    source = DATASETS[parcel.name] if parcel.about is None else OwnImages(parcel.about)
    store(source, parcel.arrays, {} if parcel.about is None else {ABOUT: parcel.about}, replace=False)
