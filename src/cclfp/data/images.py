"""Images of a user's own, from a folder of class folders or an ``.npz``: made into a dataset with a name."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclfp.checks import check_whole
from cclfp.data.cache import is_cached, store
from cclfp.data.decode import decode
from cclfp.data.own import ABOUT, OwnImages, own_datasets
from cclfp.data.source import ARRAYS, Arrays, Listener, sha256_of, some
from cclfp.errors import DataError, InputError
from cclfp.randomness import generator

TEST_SHARE = 5  # one image in so many of a class folder is for testing
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
PARTS = ("train", "test")
LABELS = np.uint16
MOST_BYTES = 8 << 30  # of decoded images, which are trained on from memory


def import_images(
    path: str | Path, *, size: int | None = None, split_seed: int = 0, listener: Listener | None = None
) -> str:
    """Keep images of your own as a dataset, and give the name it has from now on (the same for the same images).

    ``path`` is a folder with a folder of images for each class, one fifth of which (drawn from ``split_seed``) becomes
    the test set; or a folder with two of those, ``train`` and ``test``; or an ``.npz`` with the arrays
    ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``: images as uint8 (N, height, width) or with
    channels, labels whole numbers or text. ``size`` makes all images of a folder that large, square: the short side is
    resized and the centre cropped.

    >>> name = import_images("photos/", size=64)  # doctest: +SKIP
    >>> cclfp.run("er", name, tasks=5)  # doctest: +SKIP
    """
    path, listener = Path(path).expanduser(), listener or Listener()
    if size is not None:
        size = check_whole("image size", size, at_least=1)
    split_seed = check_whole("split seed", split_seed, at_least=0)
    if path.is_dir():
        found: _Folder | _Npz = _Folder(path, size, split_seed, listener)
    elif path.is_file() and path.suffix == ".npz":
        if size is not None:
            raise InputError("an image size is for a folder of images; those of an .npz stay as they are")
        found = _Npz(path)
    else:
        raise InputError(f"--images {path}: expected a folder of class folders, or an .npz file")
    name = f"{_slug(path)}-{found.digest[:8]}"
    if name in own_datasets() and is_cached(name):
        listener.say(f"{name}: {path} is as it was when it was imported")
        return name
    arrays, classes = found.read()
    _check(path, arrays, classes)
    mean, std = _statistics(arrays["train_images"])
    about = {
        "name": name,
        "title": f"{path.name} ({len(classes)} classes, {len(arrays['train_labels']):,} training and "
        f"{len(arrays['test_labels']):,} test images, {'×'.join(map(str, arrays['train_images'].shape[2:]))})",
        "classes": classes,
        "mean": mean,
        "std": std,
        "arrays": {a: (arrays[a].shape, sha256_of(arrays[a]), str(arrays[a].dtype)) for a in ARRAYS},
        "digest": found.digest,
        **found.facts,
    }
    store(OwnImages(about), arrays, {ABOUT: about})
    listener.say(f"{name}: {found.story(arrays)}")
    return name


class _Folder:
    """Images in class folders. The digest is over their names and contents, so that nothing is decoded in vain."""

    def __init__(self, path: Path, size: int | None, split_seed: int, listener: Listener) -> None:
        self.path, self.size, self.split_seed, self.listener = path, size, split_seed, listener
        folders = _folders(path)
        self.is_split = set(folders) == set(PARTS)
        by_part = {part: _folders(folders[part]) for part in PARTS} if self.is_split else {"": folders}
        self.classes = sorted({name for members in by_part.values() for name in members})
        self.files: list[tuple[str, int, Path]] = []
        other: list[str] = []
        for part, members in by_part.items():
            for name in sorted(members):
                for file in sorted(p for p in members[name].rglob("*") if p.is_file() and not p.name.startswith(".")):
                    if file.suffix.lower() in SUFFIXES:
                        self.files.append((part, self.classes.index(name), file))
                    else:
                        other.append(str(file.relative_to(path)))
        if not self.files:
            raise InputError(f"--images {path}: expected folders of images, one a class, and found none")
        if other:
            listener.say(f"{path}: not images, left out: {some(other)}")
        self.facts = {"split_seed": None if self.is_split else split_seed, "size": size}
        digest = hashlib.sha256(json.dumps([self.classes, self.facts]).encode())
        for number, (_, _, file) in enumerate(self.files):
            content = _content(file)
            digest.update(f"{file.relative_to(path).as_posix()}\0{len(content)}\0".encode() + content)
            if number % 500 == 0:
                listener.progress(f"{path.name}: reading", number, len(self.files), "files")
        self.digest = digest.hexdigest()

    def read(self) -> tuple[Arrays, list[str]]:
        parts = self._parts()
        names = [str(file.relative_to(self.path)) for _, _, file in self.files]
        files = ((name, _content(file)) for name, (_, _, file) in zip(names, self.files, strict=True))
        decoded = decode(files, len(names), self.listener, f"{self.path.name}: decoding", self.size)
        arrays: Arrays = {}
        filled = dict.fromkeys(PARTS, 0)
        colour = False
        for name, part, (grey, picture) in zip(names, parts, decoded, strict=True):
            if not arrays:
                self._check_memory(picture)
                arrays = {f"{p}_images": np.empty((parts.count(p), *picture.shape), np.uint8) for p in PARTS}
            height, width = arrays["train_images"].shape[1:3]
            if picture.shape[:2] != (height, width):
                raise InputError(
                    f"the images have different sizes ({names[0]} is {width}×{height}, {name} is "
                    f"{picture.shape[1]}×{picture.shape[0]}): say how large to make them, for example --image-size 64"
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

    def _check_memory(self, picture: np.ndarray) -> None:
        if picture.nbytes * len(self.files) > MOST_BYTES:
            height, width = picture.shape[:2]
            raise InputError(
                f"{len(self.files):,} images of {width}×{height} take more than {MOST_BYTES >> 30} GiB of memory: "
                "say a smaller size, for example --image-size 64"
            )

    def _parts(self) -> list[str]:
        """Train or test for each file."""
        if self.is_split:
            return [part for part, _, _ in self.files]
        parts = ["train"] * len(self.files)
        for c, name in enumerate(self.classes):
            members = [i for i, (_, of, _) in enumerate(self.files) if of == c]
            if len(members) < 2:
                raise InputError(
                    f"{self.path / name} has {len(members)} image: expected two or more, to train and test"
                )
            order = torch.randperm(len(members), generator=generator(self.split_seed, "test set", c)).tolist()
            for i in order[: max(1, len(members) // TEST_SHARE)]:
                parts[members[i]] = "test"
        return parts

    def story(self, arrays: Arrays) -> str:
        counts = f"{len(arrays['train_labels']):,} images to train and {len(arrays['test_labels']):,} to test on"
        how = "as its folders train and test say" if self.is_split else f"split with seed {self.split_seed}"
        return f"{len(self.classes)} classes, {counts}, {how}"


class _Npz:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.digest = hashlib.sha256(_content(path)).hexdigest()

    def read(self) -> tuple[Arrays, list[str]]:
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                missing = [name for name in ARRAYS if name not in archive.files]
                if missing:
                    found = ", ".join(archive.files) or "nothing"
                    raise InputError(f"{self.path} lacks {', '.join(missing)}; it has {found}")
                loaded = {name: archive[name] for name in ARRAYS}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.path} cannot be read as an .npz of plain arrays: {error}") from error
        arrays = {f"{part}_images": self._images(f"{part}_images", loaded) for part in PARTS}
        labels = {part: self._labels(f"{part}_labels", loaded) for part in PARTS}
        values = sorted(set(labels["train"].tolist()) | set(labels["test"].tolist()))
        for part in PARTS:
            if len(labels[part]) != len(arrays[f"{part}_images"]):
                raise InputError(
                    f"{self.path}: {len(arrays[f'{part}_images'])} {part}_images, but {len(labels[part])} {part}_labels"
                )
            arrays[f"{part}_labels"] = np.searchsorted(np.array(values), labels[part]).astype(LABELS)
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            shapes = " and ".join(str(arrays[f"{part}_images"].shape[1:]) for part in PARTS)
            raise InputError(f"{self.path}: training and test images have different shapes, {shapes}")
        return arrays, [str(value) for value in values]

    def _images(self, name: str, loaded: Arrays) -> np.ndarray:
        images = loaded[name]
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
            raise InputError(
                f"{self.path}: {name} is {images.dtype} of shape {images.shape}; "
                "expected uint8, (N, height, width) or (N, height, width, channels)"
            )
        if images.ndim == 3:
            return images[:, None]
        if images.shape[3] in (1, 3):
            return images.transpose(0, 3, 1, 2)
        if images.shape[1] in (1, 3):
            return images
        raise InputError(f"{self.path}: {name} of shape {images.shape} has neither 1 nor 3 channels")

    def _labels(self, name: str, loaded: Arrays) -> np.ndarray:
        labels = loaded[name]
        if labels.ndim != 1 or labels.dtype.kind not in "iuU":
            raise InputError(
                f"{self.path}: {name} is {labels.dtype} of shape {labels.shape}; "
                "expected whole numbers or text, one an image"
            )
        return labels

    def story(self, arrays: Arrays) -> str:
        counts = " and ".join(f"{len(arrays[f'{part}_labels']):,} {part}" for part in PARTS)
        return f"{counts} images"


def _folders(path: Path) -> dict[str, Path]:
    return {p.name: p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _slug(path: Path) -> str:
    """A name for files and commands: ``My Photos.npz`` becomes ``my-photos``."""
    return re.sub(r"[^a-z0-9]+", "-", path.resolve().stem.casefold()).strip("-") or "images"


def _check(path: Path, arrays: Arrays, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise InputError(f"--images {path}: expected two classes or more, and found {', '.join(classes)} alone")
    for part in PARTS:
        present = set(arrays[f"{part}_labels"].tolist())
        if without := [name for c, name in enumerate(classes) if c not in present]:
            raise InputError(f"--images {path}: no {part} images of {some(without)}")


def _statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of each channel of pixels over 255, to four digits."""
    counts = [np.bincount(images[:, c].reshape(-1), minlength=256) for c in range(images.shape[1])]
    values = np.arange(256) / 255
    means = [float((n * values).sum() / n.sum()) for n in counts]
    variances = [float((n * (values - m) ** 2).sum() / n.sum()) for n, m in zip(counts, means, strict=True)]
    return [round(m, 4) for m in means], [round(max(v**0.5, 0.01), 4) for v in variances]
