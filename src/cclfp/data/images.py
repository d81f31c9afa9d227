"""Imports a user's own images, from a folder of class folders or an ``.npz``, as a dataset with a name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclfp.core.checks import check_whole
from cclfp.core.randomness import generator
from cclfp.data.cache import is_cached, store, verify
from cclfp.data.decode import MOST_PIXELS, Image, TooLarge, decode
from cclfp.data.npy import Header, Npz, open_npz
from cclfp.data.own import OwnImages, own_dataset, own_datasets
from cclfp.data.source import ARRAYS, Arrays, Listener, abbreviate, first_line, sha256_of, with_progress
from cclfp.data.stored import ABOUT
from cclfp.errors import DataError, InputError

TEST_SHARE = 5  # one of this many images in a class folder is for testing
FORMATS = {  # suffix -> Pillow's name for the format
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".ppm": "PPM",
    ".pgm": "PPM",
}
PARTS = ("train", "test")
TEST_FOLDERS = {"test", "val", "valid", "validation"}  # the folder of test images, next to train
LABELS = np.uint16
MOST_NAME = 255  # characters of a class's name
MOST_BYTES = 8 << 30  # of all decoded images, which stay in memory during training
MOST_FILE = 1 << 29  # bytes of one image file
_TOO_MUCH = f"take more than {MOST_BYTES >> 30} GiB of memory: choose a smaller size, for example --image-size 64"


def import_images(
    path: str | Path, *, size: int | None = None, split_seed: int | None = None, listener: Listener | None = None
) -> str:
    """Store your own images as a dataset, and return its name.

    ``path`` is one of:

    - a folder with one folder of images per class. One fifth of each class, drawn from ``split_seed`` (default 0),
      becomes the test set;
    - a folder with two such folders, ``train`` and ``test`` (or ``val``);
    - an ``.npz`` file with the arrays ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``. Images
      are uint8 of shape (N, height, width), optionally with channels; labels are whole numbers or text.

    ``size`` resizes the images of a folder to squares: the short side is resized and the centre is cropped. The name
    depends only on the folder's name, the images, the size and the seed.

    The content of an image file may be in any of the ``FORMATS``, whatever its suffix, so a JPEG file named ``.png`` is
    read. InputError names the file if its content is anything else. Only the first frame of an animation or a file with
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
    given, path, listener = path, Path(path).expanduser().resolve(), listener or Listener()
    size = None if size is None else check_whole("image size", size, at_least=1)
    split_seed = None if split_seed is None else check_whole("split seed", split_seed, at_least=0)
    if path.is_dir():
        found: _Folder | _Npz = _Folder(path, size, split_seed, listener)
    elif path.is_file() and path.suffix == ".npz":
        if size is not None or split_seed is not None:
            raise InputError(f"{path} is an .npz: size and split seed do not apply to it")
        found = _Npz(path)
    else:
        raise InputError(f"--images {given}: expected a folder of class folders, or an .npz file")
    slug = re.sub(r"[^a-z0-9]+", "-", (path.name if path.is_dir() else path.stem).casefold()).strip("-") or "images"
    name = f"{slug}-{found.digest[:8]}"
    is_stored = name in own_datasets() and is_cached(name)
    if is_stored and _is_intact(name, found.digest, listener):
        listener.say(f"{name}: {path.name} has not changed since it was imported")
        return name
    arrays, classes = found.read()
    _check(path, arrays, classes)
    arrays = {array: np.ascontiguousarray(values) for array, values in arrays.items()}
    mean, std = _statistics(arrays["train_images"])
    about = {
        "name": name,
        "title": f"{path.name}: {len(classes)} classes, {len(arrays['train_labels']):,} training and "
        f"{len(arrays['test_labels']):,} test images, {'×'.join(map(str, arrays['train_images'].shape[2:]))}",
        "classes": classes,
        "mean": mean,
        "std": std,
        "arrays": {a: (arrays[a].shape, sha256_of(arrays[a]), str(arrays[a].dtype)) for a in ARRAYS},
        "digest": found.digest,
        **found.facts,
    }
    store(OwnImages(about), arrays, {ABOUT: about}, replace=is_stored)
    listener.say(f"{name}: {found.summary(arrays)}")
    return name


def _is_intact(name: str, digest: str, listener: Listener) -> bool:
    """Whether the stored dataset is undamaged; InputError if it comes from files with another digest."""
    try:
        verify(name)
        stored = own_dataset(name).about["digest"]
    except (DataError, KeyError) as error:
        listener.say(f"{name}: the stored dataset is damaged, so it is imported again ({first_line(error)})")
        return False
    if stored != digest:
        raise InputError(f"{name} is already the name of other images: rename the folder or file")
    return True


class _Folder:
    """Images in class folders. The digest covers names and contents, so that unchanged images are not decoded again."""

    def __init__(self, path: Path, size: int | None, split_seed: int | None, listener: Listener) -> None:
        self.path, self.size, self.split_seed, self.listener = path, size, split_seed or 0, listener
        by_part = self._class_folders()
        self.is_split = len(by_part) > 1
        if self.is_split and split_seed is not None:
            raise InputError(f"{path} has separate folders for training and testing: a split seed does not apply to it")
        self.classes = sorted({name for members in by_part.values() for name in members}, key=_numeric_order)
        number = {name: c for c, name in enumerate(self.classes)}
        self.files: list[tuple[str, int, Path]] = []
        other: list[str] = []
        for part, members in by_part.items():
            for name in sorted(members):
                for file in _walk(members[name]):
                    if file.suffix.lower() in FORMATS:
                        self.files.append((part, number[name], file))
                    else:
                        other.append(str(file.relative_to(path)))
        if not self.files:
            raise InputError(f"--images {path}: expected folders of images, one per class, and found none")
        if other:
            listener.say(f"{path.name}: skipped files that are not images: {abbreviate(other)}")
        self.facts = {"split_seed": None if self.is_split else self.split_seed, "size": size}
        digest = hashlib.sha256(json.dumps([self.classes, self.facts]).encode())
        files = with_progress(self.files, len(self.files), listener, f"{path.name}: reading", "files")
        for _, _, file in files:
            content = _read_file(file)
            relative = os.fsencode(file.relative_to(path).as_posix())  # it need not be UTF-8
            digest.update(relative + f"\0{len(content)}\0".encode() + content)
        self.digest = digest.hexdigest()

    def _class_folders(self) -> dict[str, dict[str, Path]]:
        """The folder of each class, for train and test, or under "" if they are not separate."""
        folders = _folders(self.path)
        tests = [name for name in folders if name.casefold() in TEST_FOLDERS]
        if "train" not in folders or not tests:
            return {"": folders}
        if len(folders) > 2:
            raise InputError(
                f"--images {self.path} has {', '.join(sorted(folders))}: expected class folders, or only train and test"
            )
        return {"train": _folders(folders["train"]), "test": _folders(folders[tests[0]])}

    def read(self) -> tuple[Arrays, list[str]]:
        parts = self._parts()
        names = [str(file.relative_to(self.path)) for _, _, file in self.files]
        arrays: Arrays = {}
        filled = dict.fromkeys(PARTS, 0)
        colour = False
        with contextlib.closing(self._decode(names)) as decoded:
            for name, part, (grey, picture) in zip(names, parts, decoded, strict=True):
                if not arrays:
                    arrays = {f"{p}_images": np.empty((parts.count(p), *picture.shape), np.uint8) for p in PARTS}
                height, width = arrays["train_images"].shape[1:3]
                if picture.shape[:2] != (height, width):
                    raise InputError(
                        f"the images have different sizes ({names[0]} is {width}×{height}, {name} is "
                        f"{picture.shape[1]}×{picture.shape[0]}): choose one size for all, for example "
                        "--image-size 64"
                    )
                arrays[f"{part}_images"][filled[part]] = picture
                filled[part] += 1
                colour = colour or not grey
        for part in PARTS:
            channels = 3 if colour else 1
            arrays[f"{part}_images"] = arrays[f"{part}_images"][..., :channels].transpose(0, 3, 1, 2)
            labels = [c for of, (_, c, _) in zip(parts, self.files, strict=True) if of == part]
            arrays[f"{part}_labels"] = np.array(labels, LABELS)
        return arrays, self.classes

    def _decode(self, names: list[str]) -> Generator[Image, None, None]:
        """The decoded images. They all have the same size, so the limit for all of them also limits each one."""
        files = ((name, _read_file(file)) for name, (_, _, file) in zip(names, self.files, strict=True))
        each = MOST_BYTES // 3 // len(names)  # pixels per image
        if self.size is not None and self.size**2 > each:
            raise InputError(f"{len(names):,} images of {self.size}×{self.size} {_TOO_MUCH}")
        what, formats = f"{self.path.name}: decoding", sorted(set(FORMATS.values()))
        most_pixels = MOST_PIXELS if self.size is not None else min(MOST_PIXELS, each)
        try:
            yield from decode(
                files, len(names), self.listener, what, formats=formats, size=self.size, most_pixels=most_pixels
            )
        except TooLarge as error:
            if most_pixels == MOST_PIXELS:
                raise
            raise InputError(f"{error}, and {len(names):,} images of that size {_TOO_MUCH}") from error

    def _parts(self) -> list[str]:
        """For each file, whether it is for "train" or "test"."""
        if self.is_split:
            return [part for part, _, _ in self.files]
        parts = ["train"] * len(self.files)
        members: list[list[int]] = [[] for _ in self.classes]
        for i, (_, c, _) in enumerate(self.files):
            members[c].append(i)
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
        how = "in separate folders" if self.is_split else f"split with seed {self.split_seed}"
        return f"{len(self.classes)} classes, {counts}, {how}"


class _Npz:
    """Arrays in a file, already divided into training and test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        try:
            with path.open("rb") as file:
                self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error

    def read(self) -> tuple[Arrays, list[str]]:
        with open_npz(self.path, ARRAYS) as file:
            self._check(file)
            loaded = {name: file.read(name) for name in ARRAYS}
        values = {part: loaded[f"{part}_labels"].tolist() for part in PARTS}
        classes = sorted(set(values["train"]) | set(values["test"]))
        _check_count(self.path, len(classes))
        number = {value: c for c, value in enumerate(classes)}
        arrays: Arrays = {}
        for part in PARTS:
            arrays[f"{part}_images"] = _channels_first(loaded[f"{part}_images"])
            arrays[f"{part}_labels"] = np.array([number[value] for value in values[part]], LABELS)
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            shapes = " and ".join(str(arrays[f"{part}_images"].shape[1:]) for part in PARTS)
            raise InputError(f"{self.path}: training and test images have different shapes, {shapes}")
        return arrays, [str(value) for value in classes]

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
        if images.dtype != np.uint8 or len(images.shape) not in (3, 4) or 0 in images.shape:
            raise InputError(
                f"{self.path}: {name} is {images.dtype} of shape {images.shape}; "
                "expected uint8, (N, height, width) or (N, height, width, channels)"
            )
        if len(images.shape) == 4 and images.shape[3] not in (1, 3) and images.shape[1] not in (1, 3):
            raise InputError(f"{self.path}: {name} of shape {images.shape} has neither 1 nor 3 channels")

    def _check_labels(self, name: str, labels: Header) -> None:
        if len(labels.shape) != 1 or labels.dtype.kind not in "iuU" or not labels.dtype.itemsize:
            raise InputError(
                f"{self.path}: {name} is {labels.dtype} of shape {labels.shape}; "
                "expected whole numbers or text, one per image"
            )

    def summary(self, arrays: Arrays) -> str:
        counts = " and ".join(f"{len(arrays[f'{part}_labels']):,} {part}" for part in PARTS)
        return f"{counts} images"


def _channels_first(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[3] in (1, 3) else images


def _folders(path: Path) -> dict[str, Path]:
    try:
        return {p.name: p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder in the order of their names, except hidden ones."""

    def fail(error: OSError) -> None:
        raise DataError(f"{folder} cannot be read: {error}") from error

    for below, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(below, name) for name in sorted(files) if not name.startswith("."))


def _read_file(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise InputError(f"{path} is not a regular file")
        if found.st_size > MOST_FILE:
            raise InputError(f"{path} has {found.st_size:,} bytes, more than {MOST_FILE:,} for one image")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _numeric_order(name: str) -> tuple[bool, int, str]:
    """A sort key for class names: numbers by value, so 2 before 10, and before other names."""
    is_number = name.isascii() and name.isdecimal()
    return not is_number, int(name) if is_number else 0, name


def _check_count(path: Path, classes: int) -> None:
    if classes > np.iinfo(LABELS).max:
        raise InputError(f"--images {path}: it has {classes:,} classes, expected at most {np.iinfo(LABELS).max:,}")


def _check(path: Path, arrays: Arrays, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise InputError(f"--images {path}: expected at least two classes, and found only {', '.join(classes)}")
    _check_count(path, len(classes))
    if odd := [name for name in classes if not name.isprintable()]:
        raise InputError(f"--images {path}: the class {odd[0]!r} has a name that cannot be printed")
    if long := [name for name in classes if len(name) > MOST_NAME]:
        raise InputError(f"--images {path}: the class {long[0][:40]!r}... has more than {MOST_NAME} characters")
    for part in PARTS:
        present = set(arrays[f"{part}_labels"].tolist())
        if without := [name for c, name in enumerate(classes) if c not in present]:
            raise InputError(f"--images {path}: no {part} images of {abbreviate(without)}")


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
