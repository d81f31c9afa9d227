"""A user's own images in an ``.npz`` file, already divided into training and test sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.data.folders import choose_classes
from cclfp.data.npy import Header, Npz, open_npz
from cclfp.data.reading import MOST_BYTES, say_transparent
from cclfp.data.source import ARRAYS, Arrays
from cclfp.errors import DataError, InputError
from cclfp.events import Note, OnEvent

PARTS = ("train", "test")
LABELS = np.uint16


class NpzFile:
    """Arrays in a file. With ``classes``, only the images of these classes."""

    def __init__(self, path: Path, on_event: OnEvent, wanted: Sequence[str] | None = None) -> None:
        self.path, self.on_event, self.wanted = path, on_event, wanted
        self.facts: dict[str, Any] = {}
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if wanted is not None:
            digest = hashlib.sha256(json.dumps([digest, sorted(wanted)]).encode()).hexdigest()
        self.digest = digest

    def read(self) -> tuple[Arrays, list[str]]:
        with open_npz(self.path, ARRAYS) as file:
            self._check(file)
            loaded = {name: file.read(name) for name in ARRAYS}
        values = {part: loaded[f"{part}_labels"].tolist() for part in PARTS}
        found = sorted(set(values["train"]) | set(values["test"]))
        check_count(self.path, len(found))
        classes = choose_classes(self.path.name, [str(value) for value in found], self.wanted)
        row = {name: c for c, name in enumerate(classes)}
        number = {value: row[str(value)] for value in found if str(value) in row}
        arrays: Arrays = {}
        for part in PARTS:
            kept = [i for i, value in enumerate(values[part]) if value in number]
            images = loaded[f"{part}_images"] if self.wanted is None else loaded[f"{part}_images"][kept]
            arrays[f"{part}_images"] = self._without_alpha(channels_first(self._to_uint8(f"{part}_images", images)))
            arrays[f"{part}_labels"] = np.array([number[values[part][i]] for i in kept], LABELS)
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            shapes = " and ".join(str(arrays[f"{part}_images"].shape[1:]) for part in PARTS)
            raise InputError(f"{self.path}: training and test images have different shapes, {shapes}")
        return arrays, classes

    def _check(self, file: Npz) -> None:
        """Raise InputError if the headers show that the file is invalid, before anything else is read."""
        for part in PARTS:
            self._check_images(f"{part}_images", file.headers[f"{part}_images"])
            self._check_labels(f"{part}_labels", file.headers[f"{part}_labels"])
            images, labels = (file.headers[f"{part}_{kind}"].shape[0] for kind in ("images", "labels"))
            if images != labels:
                raise InputError(f"{self.path}: {images} {part}_images, but {labels} {part}_labels")
        dtypes = {part: file.headers[f"{part}_labels"].dtype for part in PARTS}
        if (dtypes["train"].kind == "U") != (dtypes["test"].kind == "U"):
            kinds = " and ".join(f"{part}_labels {dtypes[part]}" for part in PARTS)
            raise InputError(f"{self.path}: {kinds}: expected whole numbers in both, or text in both")
        for name in ARRAYS:
            file.check_size(name)
        if sum(header.nbytes for header in file.headers.values()) > MOST_BYTES:
            raise InputError(f"{self.path}: its arrays take more than {MOST_BYTES >> 30} GiB of memory")

    def _check_images(self, name: str, images: Header) -> None:
        is_number = images.dtype == np.uint8 or images.dtype.kind == "f"
        if not is_number or len(images.shape) not in (3, 4) or 0 in images.shape:
            raise InputError(
                f"{self.path}: {name} is {images.dtype} of shape {images.shape}; "
                "expected uint8 or floats from 0 to 1, (N, height, width) or (N, height, width, channels)"
            )
        if len(images.shape) == 4 and images.shape[3] not in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
            raise InputError(f"{self.path}: {name} of shape {images.shape} has neither 1, 3 nor 4 channels")

    def _check_labels(self, name: str, labels: Header) -> None:
        if len(labels.shape) != 1 or labels.dtype.kind not in "iuU" or not labels.dtype.itemsize:
            raise InputError(
                f"{self.path}: {name} is {labels.dtype} of shape {labels.shape}; "
                "expected whole numbers or text, one per image"
            )

    def _to_uint8(self, name: str, images: np.ndarray) -> np.ndarray:
        """Floats from 0 to 1 as whole numbers from 0 to 255."""
        if images.dtype == np.uint8:
            return images
        low, high = float(images.min()), float(images.max())
        if not 0 <= low <= high <= 1:  # NaN is refused too
            raise InputError(f"{self.path}: {name} has floats from {low:g} to {high:g}; expected 0 to 1, or uint8")
        self.on_event(Note(f"{self.path.name}: {name} has floats, which are stored as whole numbers from 0 to 255"))
        whole: np.ndarray = np.rint(images * 255).astype(np.uint8)
        return whole

    def _without_alpha(self, images: np.ndarray) -> np.ndarray:
        """Images of four channels put on white, as those in files are."""
        if images.shape[1] != 4:
            return images
        alpha = images[:, 3:].astype(np.uint32)
        say_transparent(self.path.name, int((alpha < 255).any(axis=(1, 2, 3)).sum()), self.on_event)
        return ((images[:, :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)

    def summary(self, arrays: Arrays) -> str:
        counts = " and ".join(f"{len(arrays[f'{part}_labels']):,} {part}" for part in PARTS)
        return f"{counts} images"


def channels_first(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    last, first = images.shape[3], images.shape[1]
    is_last = last in (1, 3) or (first not in (1, 3) and last == 4)
    return images.transpose(0, 3, 1, 2) if is_last else images


def check_count(path: Path, classes: int) -> None:
    if classes > np.iinfo(LABELS).max:
        raise InputError(f"--images {path}: it has {classes:,} classes, expected at most {np.iinfo(LABELS).max:,}")
