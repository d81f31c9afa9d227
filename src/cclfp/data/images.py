"""Imports a user's own images, from a folder of class folders or an ``.npz``, as a dataset with a name."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from cclfp.core.arguments import check_whole
from cclfp.core.randomness import generator
from cclfp.data.datasets import ABOUT, MOST_HEADER, is_intact, read_json, store
from cclfp.data.decode import MOST_BYTES, decode, read_file, report_bad
from cclfp.data.download import checksum_of
from cclfp.data.folders import ImageFile, abbreviate, choose_classes, find_classes
from cclfp.data.formats import ARRAYS, Arrays, Source, os_error_as_data_error, sha256_of
from cclfp.errors import DataError, InputError, first_line
from cclfp.events import Note, OnEvent, ignore, with_progress

PARTS = ("train", "test")
LABELS = np.uint16
TEST_SHARE = 5  # one of this many images in a class folder is for testing
EXPECTED = "expected a folder of class folders, or an .npz file"


# What is found before images are read: a digest of all that the arrays depend on, how they are read (for the stored
# description), and a function that gives the arrays and the names of the classes.
Found = tuple[str, dict[str, int | None], Callable[[], tuple[Arrays, list[str]]]]


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
    which. Transparent images are put on white. The limits are 100 million pixels per image, 512 MiB per file and
    8 GiB for all images. Pickles in an ``.npz`` are never loaded.

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
        raise InputError(f"--images {path!r}: {EXPECTED}")
    if isinstance(classes, str):
        raise InputError(f"classes={classes!r}: expected the names of several classes, such as ['cat', 'dog']")
    path = Path(path).expanduser().resolve()
    size = None if size is None else check_whole("image size", size, at_least=1)
    split_seed = None if split_seed is None else check_whole("split seed", split_seed, at_least=0)
    if path.is_dir():
        digest, facts, read = _find_in_folder(path, size, split_seed, classes, skip_bad, on_event)
    elif path.is_file() and path.suffix == ".npz":
        if size is not None or split_seed is not None:
            raise InputError(f"{path} is an .npz: size and split seed do not apply to it")
        digest, facts, read = _find_in_npz(path, classes, on_event)
    else:
        raise InputError(f"--images {path}{'' if path.exists() else ' does not exist'}: {EXPECTED}")
    slug = re.sub(r"[^a-z0-9]+", "-", (path.name if path.is_dir() else path.stem).casefold()).strip("-") or "images"
    name = f"{slug}-{digest[:8]}"
    if is_intact(name):
        if read_json(name, ABOUT).get("digest") != digest:
            raise InputError(f"{name} is already the name of other images: rename the folder or file")
        on_event(Note(f"{name}: {path.name} has not changed since it was imported"))
        return name
    arrays, names = read()
    _check(path, arrays, names)
    counts = f"{len(arrays['train_labels']):,} training and {len(arrays['test_labels']):,} test images"
    summary, side = f"{len(names)} classes, {counts}", "×".join(map(str, arrays["train_images"].shape[2:]))
    mean, std = _statistics(arrays["train_images"])
    about = {
        "name": name,
        "title": f"{path.name}: {summary}, {side}",
        "classes": names,
        "mean": mean,
        "std": std,
        "arrays": {a: (arrays[a].shape, sha256_of(arrays[a]), str(arrays[a].dtype)) for a in ARRAYS},
        "digest": digest,
        **facts,
    }
    store(Source.described(name, about), arrays, about)
    seed = facts.get("split_seed")
    on_event(Note(f"{name}: {summary}{'' if seed is None else f', split with seed {seed}'}"))
    return name


# -- from a folder ------------------------------------------------------------------------------------------------


def _find_in_folder(
    path: Path,
    size: int | None,
    split_seed: int | None,
    classes: Sequence[str] | None,
    skip_bad: bool,
    on_event: OnEvent,
) -> Found:
    """Images in class folders. The digest covers names and contents, so that unchanged images are not decoded again."""
    names, found = find_classes(path, on_event, classes)
    are_divided = bool(found[0].part)
    if are_divided and split_seed is not None:
        raise InputError(f"{path} has separate folders for training and testing: a split seed does not apply to it")
    seed = None if are_divided else split_seed or 0
    facts = {"split_seed": seed, "size": size}
    digest = hashlib.sha256(json.dumps([names, facts]).encode())
    files, errors = list[ImageFile](), list[DataError]()
    for file in with_progress(found, len(found), on_event, f"{path.name}: reading", "files"):
        try:
            content = read_file(file.path)
        except DataError as error:
            errors.append(DataError(f"{file.name} {error}"))
            continue
        digest.update(os.fsencode(file.name) + f"\0{len(content)}\0".encode() + content)
        files.append(file)
    report_bad(errors, path.name, on_event, skip_bad)
    if seed is not None:
        files = _divide(files, path, names, seed)

    def read() -> tuple[Arrays, list[str]]:
        named = [(file.name, file.path) for file in files]
        square = None if size is None else (size, size)
        pixels, places, are_grey = decode(named, path.name, on_event, square, skip_bad)
        arrays: Arrays = {}
        for part in PARTS:
            chosen = [place for place in places if files[place].part == part]
            images = pixels[chosen, :, :, : 1 if are_grey else 3]
            arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
            arrays[f"{part}_labels"] = np.array([files[place].label for place in chosen], LABELS)
        return arrays, names

    return digest.hexdigest(), facts, read


def _divide(files: Sequence[ImageFile], path: Path, classes: Sequence[str], seed: int) -> list[ImageFile]:
    """The files, each for "train" or "test": a part of every class is for testing."""
    divided: list[ImageFile] = []
    for c, group in itertools.groupby(files, key=lambda file: file.label):
        members = list(group)
        if len(members) < 2:
            raise InputError(f"{path / classes[c]} has 1 image: expected at least two, for training and testing")
        order = torch.randperm(len(members), generator=generator(seed, "test set", c)).tolist()
        test = set(order[: max(1, len(members) // TEST_SHARE)])
        divided += [file._replace(part="test" if row in test else "train") for row, file in enumerate(members)]
    return divided


# -- from arrays --------------------------------------------------------------------------------------------------


def _find_in_npz(path: Path, classes: Sequence[str] | None, on_event: OnEvent) -> Found:
    with os_error_as_data_error(path.name):
        digest = checksum_of(path, "sha256")
    if classes is not None:
        digest = hashlib.sha256(json.dumps([digest, sorted(classes)]).encode()).hexdigest()
    return digest, {}, lambda: _read_npz(path, classes, on_event)


def _read_npz(path: Path, wanted: Sequence[str] | None, on_event: OnEvent) -> tuple[Arrays, list[str]]:
    loaded = _load_npz(path)
    images = {part: _to_pixels(f"{path.name}: {part}_images", loaded[f"{part}_images"], on_event) for part in PARTS}
    labels = {part: loaded[f"{part}_labels"] for part in PARTS}
    for part, values in labels.items():
        count = len(images[part])
        if values.dtype.kind not in "iuU" or values.shape != (count,):
            raise InputError(
                f"{path}: {part}_labels is {values.dtype} of shape {values.shape}; expected whole numbers or text, one "
                f"for each of the {count:,} images"
            )
    if len({values.dtype.kind == "U" for values in labels.values()}) > 1:
        raise InputError(f"{path}: expected whole numbers in train_labels and test_labels, or text in both")
    known = [str(value) for value in sorted({value for values in labels.values() for value in values.tolist()})]
    classes = choose_classes(path.name, known, wanted, on_event)
    number = {name: c for c, name in enumerate(classes)}
    arrays: Arrays = {}
    for part in PARTS:
        names = [str(value) for value in labels[part].tolist()]
        is_wanted = slice(None) if wanted is None else [name in number for name in names]
        arrays[f"{part}_images"] = images[part][is_wanted]
        arrays[f"{part}_labels"] = np.array([number[name] for name in names if name in number], LABELS)
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        shapes = " and ".join(str(arrays[f"{part}_images"].shape[1:]) for part in PARTS)
        raise InputError(f"{path}: training and test images have different shapes, {shapes}")
    return arrays, classes


def _to_pixels(what: str, images: np.ndarray, on_event: OnEvent) -> np.ndarray:
    """Images as uint8 (N, channels, height, width). Where both axes can be the channels, the last one is."""
    whole = images[..., None] if images.ndim == 3 else images
    channels = [axis for axis in (3, 1) if whole.ndim == 4 and whole.shape[axis] in (1, 3)]
    are_floats = images.dtype.kind == "f" and bool(((images >= 0) & (images <= 1)).all())  # none is NaN
    if not images.size or not channels or not (are_floats or images.dtype == np.uint8):
        raise InputError(
            f"{what} is {images.dtype} of shape {images.shape}; expected uint8 or floats from 0 to 1, "
            "(N, height, width) or (N, height, width, channels), with 1 or 3 channels"
        )
    if are_floats:
        on_event(Note(f"{what} has floats, which are stored as whole numbers from 0 to 255"))
        whole = np.rint(whole * 255).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(whole, channels[0], 1))


def _load_npz(path: Path) -> Arrays:
    """The arrays of an ``.npz``; InputError if they are not plain, damaged or too large."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = archive.namelist()
            if missing := [name for name in ARRAYS if f"{name}.npy" not in there]:
                raise InputError(f"{path} lacks {', '.join(missing)}")
            members = {name: archive.getinfo(f"{name}.npy") for name in ARRAYS}
            if sum(member.file_size for member in members.values()) > MOST_BYTES:
                raise InputError(f"{path}: its arrays take more than {MOST_BYTES >> 30} GiB of memory")
            return {name: _read_array(archive, member) for name, member in members.items()}
    except InputError:
        raise
    except Exception as error:
        expected = "an .npz of numbers or text, as np.savez writes it"
        raise InputError(f"{path} cannot be read ({first_line(error)}): expected {expected}") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 2 wrote headers that numpy warns of
        values: np.ndarray = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER)
        if file.read(1):  # the end, where zipfile verifies the checksum
            raise ValueError(f"{member.filename} is longer than its header says")
    if values.dtype.kind == "U":
        values.tolist()  # ValueError for invalid characters
    return values


# -- both ---------------------------------------------------------------------------------------------------------


def _check(path: Path, arrays: Arrays, classes: Sequence[str]) -> None:
    """Raise InputError unless there are several classes, with names that can be shown, and images of each."""
    if len(classes) < 2:
        raise InputError(f"--images {path}: expected at least two classes, and found only {', '.join(classes)}")
    if odd := [name for name in classes if not name.isprintable()]:
        raise InputError(f"--images {path}: the class {odd[0][:40]!r} has a name that cannot be printed")
    present = {part: set(arrays[f"{part}_labels"].tolist()) for part in PARTS}
    without = {part: [name for c, name in enumerate(classes) if c not in present[part]] for part in PARTS}
    if missing := [f"no {part} images of {abbreviate(names)}" for part, names in without.items() if names]:
        raise InputError(f"--images {path}: {' and '.join(missing)}; --classes A,B,... takes only some of the classes")


def _statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of the pixels divided by 255, per channel, rounded to four digits."""
    count = images.size // images.shape[1]
    means = images.sum((0, 2, 3), dtype=np.int64) / count
    variances = np.einsum("nchw,nchw->c", images, images, dtype=np.int64) / count - means**2
    spread = np.sqrt(np.maximum(variances, 0)) / 255
    return [round(float(m) / 255, 4) for m in means], [round(max(float(s), 0.01), 4) for s in spread]
