"""Reads image files for a learner, and reports those that cannot be decoded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cclfp.data.decode import Image, decode_each
from cclfp.data.folders import FORMATS, ClassFolders, read_file
from cclfp.errors import DataError, InputError
from cclfp.events import Note, OnEvent

MOST_BYTES = 8 << 30  # of all decoded images, which stay in memory
MOST_LISTED = 20  # images in an error
LUMINANCE = (19595, 38470, 7471)  # of red, green and blue, in 1 / 65536, as Pillow weighs them


class Undecoded:
    """The images that cannot be decoded. They are reported together: left out, or in one error."""

    def __init__(self, what: str, on_event: OnEvent, *, skip: bool) -> None:
        self.what, self.on_event, self.skip = what, on_event, skip
        self.errors: list[DataError] = []

    def report(self) -> None:
        """Say which images are left out or, unless they may be skipped, raise the error for all of them."""
        if not self.errors:
            return
        lines = [f"\n  {error}" for error in self.errors]
        if self.skip:
            count = f"{len(lines)} image{'s' if len(lines) > 1 else ''}"
            self.on_event(Note(f"{self.what}: left out {count} that cannot be decoded:{''.join(lines)}"))
            return
        hint = "--skip-bad leaves such images out"
        if len(lines) == 1:
            raise DataError(f"{self.errors[0]}; {hint}")
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
    images, places, transparent = np.empty((len(files), *shape), np.uint8), list[int](), 0
    contents = ((str(file), read_file(file)) for file in files)
    formats = sorted(set(FORMATS.values()))
    each = decode_each(contents, len(files), on_event, "decoding", formats=formats, size=(height, width))
    with contextlib.closing(each) as decoded:
        for place, image in enumerate(decoded):
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
