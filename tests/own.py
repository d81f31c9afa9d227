"""Images and methods of a user, for tests: quick to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SHADES = {"cat": 40, "bird": 80, "dog": 120, "fish": 160, "ox": 200, "horse": 220, "black, white": 250}
CLASSES = ("cat", "dog", "fish", "owl")
HALF = '''
import dataclasses

from cclfp.methods import Hyperparameters, setting
from cclfp.methods.er import ER


@dataclasses.dataclass(frozen=True)
class HalfHyper(Hyperparameters):
    """Hyperparameters."""

    half: float = setting(0.5, "does nothing", low=0, high=1, search=(0.25, 0.5))
    other: float = setting(1.0, "is not searched", low=0)


class Half(ER):
    """ER by another name."""

    name = "half"
    Hyper = HalfHyper
'''


def write_images(path: Path) -> Path:
    """An .npz of four classes that a network can tell apart."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", 80), ("test", 20)):
        labels = np.repeat(np.arange(len(CLASSES)), count)
        images = rng.integers(0, 60, (len(labels), 8, 8))
        for row, label in enumerate(labels):
            images[row, 2 * label : 2 * label + 2] += 120
        arrays[f"{part}_images"] = images.astype(np.uint8)
        arrays[f"{part}_labels"] = np.array(CLASSES)[labels]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def write_folders(folder: Path, names: tuple[str, ...], each: int = 6, size: tuple[int, int] = (12, 10)) -> Path:
    """Class folders of images; those of a class have about the same shade."""
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(SHADES[name] - 30, min(256, SHADES[name] + 30), (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def write_method(path: Path) -> str:
    """A method's file; returns FILE.py:NAME."""
    path.write_text(HALF)
    return f"{path}:Half"
