"""Imports a user's own images, from a folder of class folders or an ``.npz``, as a dataset with a name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclfp.core.arguments import check_whole
from cclfp.core.randomness import generator
from cclfp.data.archives import Header, Npz, open_npz
from cclfp.data.datasets import OwnImages, is_cached, own_datasets, store, verify
from cclfp.data.decode import MOST_PIXELS, Image, TooLarge, decode_each
from cclfp.data.folders import (
    FORMATS,
    MOST_BYTES,
    ClassFolders,
    Undecoded,
    choose_classes,
    read_file,
    say_transparent,
    warn_of_similar,
)
from cclfp.data.source import ARRAYS, Arrays, abbreviate, first_line, sha256_of
from cclfp.data.stored import ABOUT, read_json
from cclfp.errors import DataError, InputError
from cclfp.events import Note, OnEvent, ignore, with_progress

PARTS = ("train", "test")
LABELS = np.uint16
TEST_SHARE = 5  # one of this many images in a class folder is for testing
MOST_NAME = 255  # characters of a class's name
_TOO_MUCH = f"take more than {MOST_BYTES >> 30} GiB of memory: choose a smaller size, for example --image-size 64"


def import_images(
    path: str | Path,
    *,
    size: int | None = None,
    split_seed: int | None = None,
    classes: Sequence[str] | None = None,
    skip_bad: bool = False,
    on_event: OnEvent = ignore,
) -> str:
    """Store your own images as a dataset, and return its name.

    ``path`` is one of:

    - a folder with one folder of images per class. One fifth of each class, drawn from ``split_seed`` (default 0),
      becomes the test set;
    - a folder with two such folders, ``train`` and ``test`` (or ``val``);
    - an ``.npz`` file with the arrays ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``. Images
      are uint8, or floats from 0 to 1, of shape (N, height, width), optionally with channels; labels are whole numbers
      or text.

    ``size`` resizes the images of a folder to squares: the short side is resized and the centre is cropped.
    ``classes`` names the classes to import, all by default. The name depends only on the folder's name, the images, the
    classes, the size and the seed. With ``skip_bad``, images that cannot be decoded are left out; ``on_event`` learns
    which. Transparent images are put on white.

    The content of an image file may be in any of the ``FORMATS``, whatever its suffix, so a JPEG file named ``.png`` is
    read. DataError names the files whose content is anything else. Only the first frame of an animation or a file with
    several pages is used. The limits are ``MOST_PIXELS`` per image, ``MOST_FILE`` bytes per file and ``MOST_BYTES`` for
    all images. Pickles in an ``.npz`` are never loaded.

    >>> import tempfile
    >>> images, labels = np.zeros((4, 8, 8), np.uint8), np.array(["cat", "cat", "dog", "dog"])
    >>> file = Path(tempfile.mkdtemp()) / "pets.npz"
    >>> np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    >>> name = import_images(file)  # for example pets-1f0c2a9b
    >>> from cclfp.data import load_dataset
    >>> load_dataset(name).classes
    ('cat', 'dog')
    """
    if not isinstance(path, str | Path) or not str(path):
        raise InputError(f"images={path!r}: expected a folder of class folders, or an .npz file")
    given, path = path, Path(path).expanduser().resolve()
    size = None if size is None else check_whole("image size", size, at_least=1)
    split_seed = None if split_seed is None else check_whole("split seed", split_seed, at_least=0)
    if isinstance(classes, str):
        raise InputError(f"classes={classes!r}: expected the names of several classes, such as ['cat', 'dog']")
    if not path.exists():
        raise InputError(f"--images {path} does not exist: expected a folder of class folders, or an .npz file")
    if path.is_dir():
        found: _Folder | NpzFile = _Folder(path, size, split_seed, classes, skip_bad, on_event)
    elif path.is_file() and path.suffix == ".npz":
        if size is not None or split_seed is not None:
            raise InputError(f"{path} is an .npz: size and split seed do not apply to it")
        found = NpzFile(path, on_event, classes)
    else:
        raise InputError(f"--images {given}: expected a folder of class folders, or an .npz file")
    slug = re.sub(r"[^a-z0-9]+", "-", (path.name if path.is_dir() else path.stem).casefold()).strip("-") or "images"
    name = f"{slug}-{found.digest[:8]}"
    is_stored = name in own_datasets() and is_cached(name)
    if is_stored and _is_intact(name, found.digest, on_event):
        on_event(Note(f"{name}: {path.name} has not changed since it was imported"))
        return name
    arrays, names = found.read()
    _check(path, arrays, names)
    arrays = {array: np.ascontiguousarray(values) for array, values in arrays.items()}
    mean, std = _statistics(arrays["train_images"])
    about = {
        "name": name,
        "title": f"{path.name}: {len(names)} classes, {len(arrays['train_labels']):,} training and "
        f"{len(arrays['test_labels']):,} test images, {'×'.join(map(str, arrays['train_images'].shape[2:]))}",
        "classes": names,
        "mean": mean,
        "std": std,
        "arrays": {a: (arrays[a].shape, sha256_of(arrays[a]), str(arrays[a].dtype)) for a in ARRAYS},
        "digest": found.digest,
        **found.facts,
    }
    store(OwnImages(about), arrays, {ABOUT: about}, replace=is_stored)
    on_event(Note(f"{name}: {found.summary(arrays)}"))
    return name


def _is_intact(name: str, digest: str, on_event: OnEvent) -> bool:
    """Whether the stored dataset is undamaged; InputError if it comes from files with another digest."""
    try:
        verify(name)
        stored = OwnImages(read_json(name, ABOUT)).about["digest"]
    except (DataError, KeyError) as error:
        on_event(Note(f"{name}: the stored dataset is damaged, so it is imported again ({first_line(error)})"))
        return False
    if stored != digest:
        raise InputError(f"{name} is already the name of other images: rename the folder or file")
    return True


class _Folder:
    """Images in class folders. The digest covers names and contents, so that unchanged images are not decoded again."""

    def __init__(
        self,
        path: Path,
        size: int | None,
        split_seed: int | None,
        classes: Sequence[str] | None,
        skip_bad: bool,
        on_event: OnEvent,
    ) -> None:
        self.path, self.size, self.split_seed, self.on_event = path, size, split_seed or 0, on_event
        self.folders = ClassFolders(path, on_event, classes)
        self.bad = Undecoded(path.name, on_event, skip=skip_bad)
        self.files = self.bad.without_unreadable(self.folders.files, lambda file: file.path)
        self.classes = self.folders.classes
        is_split = self.folders.is_split
        if is_split and split_seed is not None:
            raise InputError(f"{path} has separate folders for training and testing: a split seed does not apply to it")
        self.facts = {"split_seed": None if is_split else self.split_seed, "size": size}
        digest = hashlib.sha256(json.dumps([self.classes, self.facts]).encode())
        files = with_progress(self.files, len(self.files), on_event, f"{path.name}: reading", "files")
        for file in files:
            content = read_file(file.path)
            relative = os.fsencode(file.path.relative_to(path).as_posix())  # it need not be UTF-8
            digest.update(relative + f"\0{len(content)}\0".encode() + content)
        self.digest = digest.hexdigest()

    def read(self) -> tuple[Arrays, list[str]]:
        parts = self._parts()
        names = [str(file.path.relative_to(self.path)) for file in self.files]
        images: dict[str, np.ndarray] = {}
        labels: dict[str, list[int]] = {part: [] for part in PARTS}
        first, colour, transparent = "", False, 0
        with contextlib.closing(self._decode(names)) as decoded:
            for name, part, file, image in zip(names, parts, self.files, decoded, strict=True):
                if isinstance(image, DataError):
                    self.bad.errors.append(image)
                    continue
                if not images:
                    first = name
                    images = {p: np.empty((parts.count(p), *image.pixels.shape), np.uint8) for p in PARTS}
                _check_size(first, images["train"], name, image.pixels)
                images[part][len(labels[part])] = image.pixels
                labels[part].append(file.label)
                colour = colour or not image.grey
                transparent += image.transparent
        self.bad.report()
        say_transparent(self.path.name, transparent, self.on_event)
        arrays: Arrays = {}
        for part in PARTS:
            kept = images[part][: len(labels[part])] if images else np.empty((0, 1, 1, 1), np.uint8)
            arrays[f"{part}_images"] = kept[..., : 3 if colour else 1].transpose(0, 3, 1, 2)
            arrays[f"{part}_labels"] = np.array(labels[part], LABELS)
        return arrays, self.classes

    def _decode(self, names: list[str]) -> Generator[Image | DataError, None, None]:
        """The decoded images. They all have the same size, so the limit for all of them also limits each one."""
        files = ((name, read_file(file.path)) for name, file in zip(names, self.files, strict=True))
        each = MOST_BYTES // 3 // len(names)  # pixels per image
        if self.size is not None and self.size**2 > each:
            raise InputError(f"{len(names):,} images of {self.size}×{self.size} {_TOO_MUCH}")
        what, formats = f"{self.path.name}: decoding", sorted(set(FORMATS.values()))
        most_pixels = MOST_PIXELS if self.size is not None else min(MOST_PIXELS, each)
        for image in decode_each(
            files, len(names), self.on_event, what, formats=formats, size=self.size, most_pixels=most_pixels
        ):
            if isinstance(image, TooLarge) and most_pixels < MOST_PIXELS:
                raise InputError(f"{image}, and {len(names):,} images of that size {_TOO_MUCH}")
            yield image

    def _parts(self) -> list[str]:
        """For each file, whether it is for "train" or "test"."""
        if self.folders.is_split:
            return [file.part for file in self.files]
        parts = ["train"] * len(self.files)
        members: list[list[int]] = [[] for _ in self.classes]
        for i, file in enumerate(self.files):
            members[file.label].append(i)
        for c, of_class in enumerate(members):
            if len(of_class) < 2:
                raise InputError(
                    f"{self.path / self.classes[c]} has {len(of_class)} image(s): "
                    "expected at least two, for training and testing"
                )
            order = torch.randperm(len(of_class), generator=generator(self.split_seed, "test set", c)).tolist()
            for i in order[: max(1, len(of_class) // TEST_SHARE)]:
                parts[of_class[i]] = "test"
        return parts

    def summary(self, arrays: Arrays) -> str:
        counts = f"{len(arrays['train_labels']):,} training and {len(arrays['test_labels']):,} test images"
        how = f"split with seed {self.split_seed}"
        if self.folders.is_split:
            how = f"trained on the folder train, tested on the folder {self.folders.test_folder}"
        return f"{len(self.classes)} classes, {counts}, {how}"


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
        warn_of_similar(self.path.name, classes, self.on_event)
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


def _check_size(first: str, images: np.ndarray, name: str, pixels: np.ndarray) -> None:
    """Raise InputError if an image has another size than the first."""
    height, width = images.shape[1:3]
    if pixels.shape[:2] != (height, width):
        raise InputError(
            f"the images have different sizes ({first} is {width}×{height}, {name} is "
            f"{pixels.shape[1]}×{pixels.shape[0]}): choose one size for all, for example --image-size 64"
        )


def _check(path: Path, arrays: Arrays, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise InputError(f"--images {path}: expected at least two classes, and found only {', '.join(classes)}")
    check_count(path, len(classes))
    if odd := [name for name in classes if not name.isprintable()]:
        raise InputError(f"--images {path}: the class {odd[0]!r} has a name that cannot be printed")
    if long := [name for name in classes if len(name) > MOST_NAME]:
        raise InputError(f"--images {path}: the class {long[0][:40]!r}... has more than {MOST_NAME} characters")
    present = {part: set(arrays[f"{part}_labels"].tolist()) for part in PARTS}
    without = {part: [name for c, name in enumerate(classes) if c not in present[part]] for part in PARTS}
    if missing := [f"no {part} images of {abbreviate(names)}" for part, names in without.items() if names]:
        raise InputError(f"--images {path}: {' and '.join(missing)}; --classes A,B,... takes only some of the classes")


def _statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of the pixels divided by 255, per channel, rounded to four digits."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(images), 1000):
        for c in range(images.shape[1]):
            counts[c] += np.bincount(images[start : start + 1000, c].reshape(-1), minlength=256)
    values, shares = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    means = shares @ values
    variances = (shares * (values - means[:, None]) ** 2).sum(1)
    return [round(float(m), 4) for m in means], [round(max(float(v) ** 0.5, 0.01), 4) for v in variances]
