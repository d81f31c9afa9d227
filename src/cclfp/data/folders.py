"""Image files: those of a folder that has one folder per class, and those that a learner is given."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cclfp.data.decode import decode
from cclfp.errors import DataError, InputError, reason_of, unknown
from cclfp.events import Note, OnEvent

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TEST_FOLDERS = {"test", "val", "valid", "validation"}  # the folder of test images, next to train
MOST_CLASSES = 65_535  # labels are stored in two bytes
MOST_LISTED = 20  # classes in an error


class ImageFile(NamedTuple):
    """An image file, its name for messages, its class, and whether it is for "train" or "test": "" if not decided."""

    path: Path
    name: str
    label: int
    part: str


def find_classes(
    path: Path, on_event: OnEvent, wanted: Sequence[str] | None = None
) -> tuple[list[str], list[ImageFile]]:
    """The ``wanted`` classes of a folder, and their image files.

    The class folders are in it, or in its two folders for training and testing. Other files, hidden folders and
    ``__MACOSX`` are left out; ``on_event`` learns which.
    """
    left_out = list[Path]()
    top = _folders(path, left_out)
    parts = {"": top}
    tests = [name for name in top if name.casefold() in TEST_FOLDERS]
    if "train" in top and tests:
        if len(top) > 2:
            raise InputError(f"--images {path} has {', '.join(top)}: expected class folders, or only train and test")
        parts = {part: _folders(top[name], left_out) for part, name in (("train", "train"), ("test", tests[0]))}
    names = sorted({name for folders in parts.values() for name in folders}, key=numeric_order)
    classes = choose_classes(path.name, names, wanted, on_event)
    labels = {name: label for label, name in enumerate(classes)}
    for folder in (folder for folders in parts.values() for name, folder in folders.items() if name in labels):
        if folder.parent.is_relative_to(folder.resolve()):
            on_event(Note(f"{path.name}: the class {folder.name} is a link to the whole folder"))
    files = [
        ImageFile(file, file.relative_to(path).as_posix(), labels[name], part)
        for part, folders in parts.items()
        for name in sorted(folders.keys() & labels.keys())
        for file in _images(folders[name], left_out)
    ]
    if not files:
        raise InputError(f"--images {path}: expected folders of images, one per class, and found none")
    if left_out:
        on_event(Note(f"{path.name}: left out {abbreviate([str(p.relative_to(path)) for p in left_out])}"))
    return classes, files


def _walk(top: Path, left_out: list[Path]) -> Iterator[tuple[list[str], list[Path]]]:
    """The folders and the image files in a folder and in each folder below, by name.

    Hidden files are ignored. Other files, hidden folders and those that macOS adds to archives are ``left_out``.
    """
    for below, folders, files in os.walk(top, onerror=_refuse):
        kept = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
        visible_files = sorted(name for name in files if not name.startswith("."))
        images = [name for name in visible_files if Path(name).suffix.lower() in SUFFIXES]
        left_out += [Path(below, name) for name in sorted({*folders, *visible_files} - {*kept, *images})]
        folders[:] = kept
        yield kept, [Path(below, name) for name in images]


def _folders(path: Path, left_out: list[Path]) -> dict[str, Path]:
    """The folders in a folder, by name; the images beside them are left out."""
    names, images = next(_walk(path, left_out))
    left_out += images
    return {name: path / name for name in names}


def _images(path: Path, left_out: list[Path]) -> Iterator[Path]:
    return (image for _, images in _walk(path, left_out) for image in images)


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read: {reason_of(error)}") from error


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The given files, and the image files below the given folders."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        below = [*_images(path, [])] if path.is_dir() else [path]
        if not below:
            raise InputError(f"{path}: expected images, and found none")
        found += below
    return found


def choose_classes(what: str, known: Sequence[str], wanted: Sequence[str] | None, on_event: OnEvent) -> list[str]:
    """The known classes that are wanted, in their order; ``on_event`` learns of those that seem to be the same."""
    if len(known) > MOST_CLASSES:
        raise InputError(f"{what} has {len(known):,} classes, expected at most {MOST_CLASSES:,}")
    for name in wanted or ():
        if name not in known:
            raise unknown(f"class of {what}", name, known[:MOST_LISTED], known)
    chosen = [name for name in known if wanted is None or name in wanted]
    alike: dict[str, list[str]] = {}
    for name in chosen:
        alike.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    if several := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        on_event(Note(f"{what}: these classes differ only by case or Unicode form: {abbreviate(several)}"))
    return chosen


def numeric_order(name: str) -> tuple[bool, int, str]:
    """A sort key for class names: numbers by value, so 2 before 10, and before other names."""
    is_number = name.isascii() and name.isdecimal()
    return not is_number, int(name) if is_number else 0, name


def abbreviate(names: list[str]) -> str:
    """The first three names and the number of the others.

    >>> abbreviate(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def read_images(
    files: Sequence[Path], shape: Sequence[int], on_event: OnEvent, *, skip_bad: bool = False
) -> tuple[np.ndarray, list[int]]:
    """Images as uint8 of a shape (channels, height, width), and for each its place in ``files``.

    They are prepared as imported images are: resized to cover that size, and cropped to the centre.
    """
    from PIL import Image

    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"images have 1 or 3 channels, and inputs of shape {tuple(shape)} have {channels}")
    named = [(str(file), file) for file in files]
    pixels, places, _ = decode(named, "images", on_event, (height, width), skip_bad)
    if channels == 3:
        return pixels[places].transpose(0, 3, 1, 2), places
    grey = np.empty((len(places), 1, height, width), np.uint8)
    for row, place in enumerate(places):
        grey[row] = np.asarray(Image.fromarray(pixels[place]).convert("L"))
    return grey, places


def read_labelled(
    path: Path, shape: Sequence[int], on_event: OnEvent, *, classes: Sequence[str] | None = None, skip_bad: bool = False
) -> tuple[np.ndarray, list[str]]:
    """The images in class folders for training, as :func:`read_images` gives them, and the class of each by name."""
    path = path.expanduser().resolve()
    names, files = find_classes(path, on_event, classes)
    if files[0].part:
        files = [file for file in files if file.part == "train"]
        on_event(Note(f"{path.name}: only the images in train are used"))
    images, places = read_images([file.path for file in files], shape, on_event, skip_bad=skip_bad)
    return images, [names[files[place].label] for place in places]
