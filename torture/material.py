"""The material of the campaign: small datasets, images and stores of runs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from cclfp.data import DATASETS
from cclfp.data.formats import IDX_FILES, ArraySpec

# Files of other programs beside every output. No command may change or remove them, however old they are.
CANARIES = ("uv.lock", "poetry.lock", ".x.tmp", ".runs.sqlite.backup.tmp", ".index.html.1-0.tmp", "notes.txt", "index")
RECORDS = Path(__file__).parents[1] / "results" / "mnist.jsonl"  # of real runs


def write_little_dataset(home: Path, name: str, classes: int, shape: tuple[int, ...], train: int, test: int) -> None:
    """Write a small dataset in place of a published one: noisy images whose classes can be distinguished."""
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 256, (classes, *shape))
    folder = home / "data" / name / "arrays"
    folder.mkdir(parents=True)
    for part, size in (("train", train), ("test", test)):
        labels = np.arange(size) % classes
        noise = rng.integers(0, 256, (size, *shape))
        np.save(folder / f"{part}_images.npy", ((prototypes[labels] + noise) // 2).astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels.astype(np.uint8))


def put_mnist(place: Path) -> None:
    write_little_dataset(place / "home", "mnist", 10, (1, 28, 28), train=400, test=100)


def idx_header(shape: tuple[int, ...]) -> bytes:
    """An IDX header: two zero bytes, the type (8: unsigned byte), the number of dimensions, each one big-endian."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


@functools.cache
def raw_mnist() -> dict[str, tuple[tuple[int, ...], bytes, bytes]]:
    """The shape, header and values of small files in MNIST's format, for each array."""
    rng = np.random.default_rng(0)
    shapes = {"train_images": (60, 28, 28), "train_labels": (60,), "test_images": (20, 28, 28), "test_labels": (20,)}
    return {
        array: (shape, idx_header(shape), rng.integers(0, 10, shape).astype(np.uint8).tobytes())
        for array, shape in shapes.items()
    }


def put_raw_mnist(place: Path) -> None:
    """Write a folder of these files, as ``cclfp data import`` reads it."""
    (place / "home").mkdir(parents=True)
    (place / "raw").mkdir()
    for array, (_, header, values) in raw_mnist().items():
        (place / "raw" / IDX_FILES[array]).write_bytes(header + values)


def accept_raw_mnist() -> None:
    """Replace the published checksums by those of these files, in this process."""
    arrays = {
        array: ArraySpec((shape[0], 1, *shape[1:]) if len(shape) == 3 else shape, hashlib.sha256(values).hexdigest())
        for array, (shape, _, values) in raw_mnist().items()
    }
    DATASETS["mnist"] = dataclasses.replace(DATASETS["mnist"], arrays=arrays)


def put_canaries(place: Path) -> None:
    for folder in ("", "learners", "report", "report/tables", "runs.sqlite.checkpoints", "home"):
        (place / folder).mkdir(parents=True, exist_ok=True)
        for name in CANARIES:
            (place / folder / name).write_text(f"{name} of another program")
            os.utime(place / folder / name, (0, 0))


def put_images(place: Path) -> None:
    """Write a folder with three classes of images in several formats."""
    rng = np.random.default_rng(0)
    for c, name in enumerate(("ant", "bee", "cat")):
        folder = place / "photos" / name
        folder.mkdir(parents=True)
        for i, suffix in enumerate(("png", "jpg", "gif", "bmp", "png", "tif")):
            pixels = ((80 * c + rng.integers(0, 80, (12, 12, 3))) % 256).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.{suffix}")


def put_arrays(place: Path) -> None:
    """Write an ``.npz`` of images."""
    rng = np.random.default_rng(0)
    labels: np.ndarray = np.arange(30) % 3
    images: np.ndarray = ((80 * labels)[:, None, None] + rng.integers(0, 80, (30, 6, 6))).astype(np.uint8)
    place.mkdir(parents=True, exist_ok=True)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:9], "test_labels": labels[:9]}
    np.savez(place / "pets.npz", allow_pickle=False, **arrays)


@functools.cache
def record_lines() -> list[str]:
    """Run records as ``cclfp runs export`` writes them, one per line."""
    return RECORDS.read_text(encoding="utf-8").splitlines()


def put_records(place: Path, step: int = 4) -> None:
    """Write a file with every ``step``-th record."""
    (place / "home").mkdir(parents=True)
    lines = record_lines()[::step]
    (place / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def put_store(place: Path, step: int = 4) -> None:
    """Write a store with these records."""
    from cclfp.runs.store import Store, import_runs

    put_records(place, step)
    import_runs([place / "records.jsonl"], Store(place / "runs.sqlite"))


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
