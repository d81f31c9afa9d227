"""The image files of a folder that has one folder per class."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cclfp.data.source import abbreviate
from cclfp.errors import DataError, InputError, unknown
from cclfp.events import Note, OnEvent

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
        number = {name: c for c, name in enumerate(self.classes)}
        self.files: list[ImageFile] = []
        other: list[str] = []
        for part, members in by_part.items():
            for name in sorted(members.keys() & number.keys()):
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


def numeric_order(name: str) -> tuple[bool, int, str]:
    """A sort key for class names: numbers by value, so 2 before 10, and before other names."""
    is_number = name.isascii() and name.isdecimal()
    return not is_number, int(name) if is_number else 0, name


def read_file(path: Path) -> bytes:
    """The content of an image file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise InputError(f"{path} is not a regular file")
        if found.st_size > MOST_FILE:
            raise InputError(f"{path} has {found.st_size:,} bytes, more than {MOST_FILE:,} for one image")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
