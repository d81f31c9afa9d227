"""Images and arrays for the tests of data, and edits that damage files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from cclfp.data import Dataset, import_images, load_dataset, own_datasets
from cclfp.errors import InputError

CLASSES = ("Bird", "cat", "dog", "ox")
PIXELS = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 4)), max_size=4)


def edited(content: bytes, edits: list[tuple[int, bytes, int]]) -> bytes:
    """Some bytes replaced by others."""
    for place, new, removed in edits:
        place = place % (len(content) + 1)
        content = content[:place] + new + content[place + removed :]
    return content


def encoded(pixels: np.ndarray = PIXELS, kind: str = "png", **options: Any) -> bytes:
    """An image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def picture(seed: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def photos(folder: Path, each: int = 10, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> Path:
    """A folder of class folders with PNG files."""
    for c, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            picture(100 * c + i, size, mode).save(folder / name / f"{i}.png")
    return folder


def arrays(
    shape: tuple[int, ...] = (8, 8, 3), labels: Any = (3, 5, 7, 9), train: int = 40, test: int = 12
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
        "train_labels": np.array(labels)[np.arange(train) % len(labels)],
        "test_images": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        "test_labels": np.array(labels)[np.arange(test) % len(labels)],
    }


ORIGINAL = arrays((4, 5, 3), ("cat", "ox"), train=8, test=4)


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def npz(path: Path, **change: Any) -> Path:
    """A file of arrays, without those that are None."""
    contents = {**arrays(), **change}
    np.savez(path, **{name: value for name, value in contents.items() if value is not None})
    return path


def imported(path: Path, **options: Any) -> Dataset:
    return load_dataset(import_images(path, **options))


def refused(path: Path, message: str, **options: Any) -> None:
    before = own_datasets()
    with pytest.raises(InputError, match=message):
        import_images(path, **options)
    assert own_datasets() == before
