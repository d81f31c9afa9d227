"""Image files: those of a folder that has one folder per class, and those that a learner is given."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from cclfp.data.decode import Image, decode_each
from cclfp.data.source import abbreviate
from cclfp.errors import DataError, InputError, unknown, visible
from cclfp.events import Note, OnEvent

T = TypeVar("T")

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
TEST_FOLDERS = {"test", "val", "valid", "validation"}  # the folder of test images, next to train
MOST_FILE = 1 << 29  # bytes of one image file
MOST_BYTES = 8 << 30  # of all decoded images, which stay in memory
MOST_LISTED = 20  # images in an error
LUMINANCE = (19595, 38470, 7471)  # of red, green and blue, in 1 / 65536, as Pillow weighs them


class ImageFile(NamedTuple):
    """An image file: whether it is for "train" or "test" ("" where that is not decided), its class, its path."""

    part: str
    label: int
    path: Path


class ClassFolders:
    """The image files in class folders, or in two folders of class folders: ``train``, and ``test`` or ``val``.

    With ``classes``, only those with these names. Other files, hidden folders and ``__MACOSX`` are left out;
    ``on_event`` learns which.
    """

    def __init__(self, path: Path, on_event: OnEvent, classes: Sequence[str] | None = None) -> None:
        self.path, self._ignored = path, list[str]()
        by_part, self.test_folder = self._find_parts()
        found = sorted({name for members in by_part.values() for name in members}, key=numeric_order)
        self.classes = choose_classes(path.name, found, classes)
        warn_of_similar(path.name, self.classes, on_event)
        number = {name: c for c, name in enumerate(self.classes)}
        self.files: list[ImageFile] = []
        other: list[str] = []
        for part, members in by_part.items():
            for name in sorted(members.keys() & number.keys()):
                if members[name].parent.is_relative_to(members[name].resolve()):
                    on_event(Note(f"{path.name}: the class {visible(name)} is a link to the whole folder"))
                for file in self._walk(members[name]):
                    if file.suffix.lower() in FORMATS:
                        self.files.append(ImageFile(part, number[name], file))
                    else:
                        other.append(str(file.relative_to(path)))
        if not self.files:
            raise InputError(f"--images {path}: expected folders of images, one per class, and found none")
        if other:
            on_event(Note(f"{path.name}: skipped files that are not images: {abbreviate(other)}"))
        if self._ignored:
            on_event(Note(f"{path.name}: ignored folders: {abbreviate(self._ignored)}"))

    @property
    def is_split(self) -> bool:
        """Whether there are separate folders for training and testing."""
        return self.test_folder is not None

    def _find_parts(self) -> tuple[dict[str, dict[str, Path]], str | None]:
        """The folder of each class, for train and test or under "", and the name of the folder of test images."""
        folders = self._folders(self.path)
        tests = [name for name in folders if name.casefold() in TEST_FOLDERS]
        if "train" not in folders or not tests:
            return {"": folders}, None
        if len(folders) > 2:
            raise InputError(
                f"--images {self.path} has {', '.join(sorted(folders))}: expected class folders, or only train and test"
            )
        return {"train": self._folders(folders["train"]), "test": self._folders(folders[tests[0]])}, tests[0]

    def _folders(self, path: Path) -> dict[str, Path]:
        try:
            found = sorted(p for p in path.iterdir() if p.is_dir())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        self._ignored += [str(p.relative_to(self.path)) for p in found if is_ignored(p.name)]
        return {p.name: p for p in found if not is_ignored(p.name)}

    def _walk(self, folder: Path) -> Iterator[Path]:
        return walk(folder, lambda ignored: self._ignored.append(str(ignored.relative_to(self.path))))


def walk(folder: Path, on_ignored: Callable[[Path], None] = lambda path: None) -> Iterator[Path]:
    """The files below a folder in the order of their names, except hidden ones and those in ignored folders."""

    def fail(error: OSError) -> None:
        raise DataError(f"{folder} cannot be read: {error}") from error

    for below, folders, files in os.walk(folder, onerror=fail):
        for name in sorted(filter(is_ignored, folders)):
            on_ignored(Path(below, name))
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        yield from (Path(below, name) for name in sorted(files) if not name.startswith("."))


def is_ignored(folder: str) -> bool:
    """Whether a folder with this name holds no images: hidden, or what macOS adds to archives."""
    return folder.startswith(".") or folder == "__MACOSX"


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The given files, and the image files below the given folders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = [file for file in walk(path) if file.suffix.lower() in FORMATS]
            if not below:
                raise InputError(f"{path}: expected images, and found none")
            found += below
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path} does not exist")
    return found


def choose_classes(what: str, known: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """The known classes that are wanted, in their order; InputError for one that is not known."""
    for name in wanted or ():
        if name not in known:
            raise unknown(f"class of {what}", name, known)
    return [name for name in known if wanted is None or name in wanted]


def warn_of_similar(what: str, classes: Sequence[str], on_event: OnEvent) -> None:
    """Say which classes are probably the same by mistake."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[unicodedata.normalize("NFKC", name).casefold()].append(name)
    if several := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        on_event(Note(f"{what}: these classes differ only by case or Unicode form: {abbreviate(several)}"))


def numeric_order(name: str) -> tuple[bool, int, str]:
    """A sort key for class names: numbers by value, so 2 before 10, and before other names."""
    is_number = name.isascii() and name.isdecimal()
    return not is_number, int(name) if is_number else 0, name


def check_file(path: Path) -> None:
    """Raise DataError unless an image file can be read."""
    try:
        found = path.stat()
    except OSError as error:  # a link to nothing, or to itself
        raise DataError(f"{path} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
        raise DataError(f"{path} is not a regular file")
    if found.st_size > MOST_FILE:
        raise DataError(f"{path} has {found.st_size:,} bytes, more than {MOST_FILE:,} for one image")


def read_file(path: Path) -> bytes:
    """The content of an image file."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


class Undecoded:
    """The images that cannot be read or decoded. They are reported together: left out, or in one error."""

    def __init__(self, what: str, on_event: OnEvent, *, skip: bool) -> None:
        self.what, self.on_event, self.skip = what, on_event, skip
        self.errors: list[DataError] = []

    def without_unreadable(self, files: Sequence[T], path_of: Callable[[T], Path]) -> list[T]:
        """The files that can be read; the others are reported now."""
        found = []
        for file in files:
            try:
                check_file(path_of(file))
                found.append(file)
            except DataError as error:
                self.errors.append(error)
        self.report()
        return found

    def report(self) -> None:
        """Say which images are left out or, unless they may be skipped, raise the error for all of them."""
        if not self.errors:
            return
        errors, self.errors = self.errors, []
        lines = [f"\n  {visible(str(error))}" for error in errors]
        if self.skip:
            count = f"{len(lines)} image{'s' if len(lines) > 1 else ''}"
            self.on_event(Note(f"{self.what}: left out {count} that cannot be decoded:{''.join(lines)}"))
            return
        hint = "--skip-bad leaves such images out"
        if len(lines) == 1:
            raise DataError(f"{visible(str(errors[0]))}; {hint}")
        more = f"\n  and {len(lines) - MOST_LISTED:,} more" if len(lines) > MOST_LISTED else ""
        listed = "".join(lines[:MOST_LISTED]) + more
        raise DataError(f"{self.what}: {len(lines):,} images cannot be decoded ({hint}):{listed}")


def read_images(
    files: Sequence[Path], shape: Sequence[int], on_event: OnEvent, *, skip_bad: bool = False
) -> tuple[np.ndarray, list[int]]:
    """Images as uint8 of a shape (channels, height, width), and for each its place in ``files``.

    They are prepared as imported images are: resized to cover that size, and cropped to the centre.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"images have 1 or 3 channels, and inputs of shape {tuple(shape)} have {channels}")
    if len(files) * math.prod(shape) > MOST_BYTES:
        raise InputError(f"{len(files):,} images take more than {MOST_BYTES >> 30} GiB of memory: give fewer at a time")
    bad = Undecoded("images", on_event, skip=skip_bad)
    rows = bad.without_unreadable(range(len(files)), files.__getitem__)
    images, places, transparent = np.empty((len(rows), *shape), np.uint8), list[int](), 0
    contents = ((str(files[row]), read_file(files[row])) for row in rows)
    formats = sorted(set(FORMATS.values()))
    each = decode_each(contents, len(rows), on_event, "decoding", formats=formats, size=(height, width))
    with contextlib.closing(each) as decoded:
        for place, image in zip(rows, decoded, strict=True):
            if isinstance(image, DataError):
                bad.errors.append(image)
                continue
            images[len(places)] = image.pixels.transpose(2, 0, 1) if channels == 3 else _grey(image)
            places.append(place)
            transparent += image.transparent
    bad.report()
    say_transparent("images", transparent, on_event)
    return images[: len(places)], places


def read_labelled(
    path: Path,
    shape: Sequence[int],
    on_event: OnEvent,
    *,
    classes: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> tuple[np.ndarray, list[str]]:
    """The images in class folders, as :func:`read_images` gives them, and the name of the class of each.

    Where there are separate folders for training and testing, those for training.
    """
    path = path.expanduser().resolve()
    if not path.is_dir():
        raise InputError(
            f"--images {path}{'' if path.exists() else ' does not exist'}: expected a folder of class folders"
        )
    folders = ClassFolders(path, on_event, classes)
    files = [file for file in folders.files if file.part != "test"]
    if folders.is_split:
        on_event(Note(f"{path.name}: only the images in train are used"))
    images, places = read_images([file.path for file in files], shape, on_event, skip_bad=skip_bad)
    return images, [folders.classes[files[place].label] for place in places]


def say_transparent(what: str, count: int, on_event: OnEvent) -> None:
    """Say how many images were transparent."""
    if count:
        which = "1 image has" if count == 1 else f"{count:,} images have"
        on_event(Note(f"{what}: {which} transparent pixels, which are made white"))


def _grey(image: Image) -> np.ndarray:
    if image.grey:
        return image.pixels[:, :, 0]
    return ((image.pixels.astype(np.uint32) @ np.array(LUMINANCE, np.uint32) + 0x8000) >> 16).astype(np.uint8)
