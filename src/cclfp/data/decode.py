"""Decodes image files into pixels on all cores, in worker processes: Python's threads would take turns."""

from __future__ import annotations

import contextlib
import io
import stat
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cclfp.core.workers import Died, cores, work
from cclfp.errors import DataError, InputError, RunError, visible
from cclfp.events import Note, OnEvent, with_progress
from cclfp.metrics import count_of

if TYPE_CHECKING:
    import numpy as np

FORMATS = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]  # Pillow's names
CHUNK = 64  # files per message to a worker
MOST_WORKERS = 16  # more workers would wait for this process
MOST_FILE = 1 << 29  # bytes of one image file
MOST_BYTES = 8 << 30  # of all decoded images, which stay in memory
MOST_LISTED = 20  # images in an error
MOST_PIXELS = 100_000_000  # per image: about 1 GB of memory in a worker
MOST_TEXT = 1 << 20  # bytes of one compressed text or colour profile in a PNG file, once decompressed
PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG file


File = tuple[str, bytes | Path]  # a name for messages, and the content or where it is
Piece = tuple[list[bytes | Path], int, tuple[int, int] | None]  # for a worker: files, MOST_PIXELS, and the size
Answer = str | tuple[bytes, int, int, bool]  # why a file cannot be decoded, or its pixels, height, width, is it grey


class Decoded(NamedTuple):
    """Images as uint8 (N, height, width, 3); those that could not be decoded are zeros."""

    pixels: np.ndarray
    places: list[int]  # of the images that were decoded
    are_grey: bool  # whether all of them have only one channel in their files


def decode(
    files: Sequence[File], what: str, on_event: OnEvent, size: tuple[int, int] | None = None, skip_bad: bool = False
) -> Decoded:
    """Decode image files of one size. ``what`` describes them, for the progress report.

    The content of a file decides its format, not its name. Images are rotated as their EXIF data says, and put on white
    where they are transparent. With ``size``, height and width, they are resized to cover that rectangle, and the
    centre is cropped. Of an animation, or a file with several pages, the first one is read.
    """
    import numpy as np  # here, because workers need none

    pixels, first, are_grey = _empty(len(files), *(size or (1, 1))), "", True
    errors: dict[int, DataError] = {}
    with contextlib.closing(_answers(files, size)) as answers:
        for place, answer in with_progress(answers, len(files), on_event, f"{what}: decoding", "images", CHUNK):
            name = files[place][0]
            if isinstance(answer, str):
                errors[place] = DataError(f"{name} {answer}")
                continue
            content, height, width, is_grey = answer
            if not first:
                first = f"{name} is {width}×{height}"
                pixels = _empty(len(files), height, width)
            if (height, width) != pixels.shape[1:3]:
                raise InputError(
                    f"the images have different sizes ({first}, {name} is {width}×{height}): choose one size for all, "
                    "for example --image-size 64"
                )
            pixels[place] = np.frombuffer(content, np.uint8).reshape(height, width, 3)
            are_grey = are_grey and is_grey
    report_bad([errors[place] for place in sorted(errors)], what, on_event, skip_bad)
    return Decoded(pixels, [place for place in range(len(files)) if place not in errors], are_grey)


def _empty(count: int, height: int, width: int) -> np.ndarray:
    """Room for images of a size."""
    import numpy as np

    if 3 * count * height * width > MOST_BYTES:
        raise InputError(
            f"{count:,} images of {width}×{height} take more than {MOST_BYTES >> 30} GiB of memory: choose a smaller "
            "size, for example --image-size 64, or fewer at a time"
        )
    return np.zeros((count, height, width, 3), np.uint8)


def report_bad(errors: Sequence[DataError], what: str, on_event: OnEvent, skip_bad: bool) -> None:
    """List the images that cannot be read or decoded: in a note with ``skip_bad``, otherwise in one error."""
    lines = [visible(str(error)) for error in errors]
    count = count_of(len(lines), "image")
    if lines and skip_bad:
        on_event(Note("\n  ".join([f"{what}: left out {count} that cannot be decoded:", *lines])))
    elif lines:
        more = [f"and {len(lines) - MOST_LISTED:,} more"] if len(lines) > MOST_LISTED else []
        title = f"{what}: {count} cannot be decoded (--skip-bad leaves such images out):"
        raise DataError("\n  ".join([title, *lines[:MOST_LISTED], *more]))


def _answers(files: Sequence[File], size: tuple[int, int] | None) -> Generator[tuple[int, Answer], None, None]:
    """The place of each file and a worker's answer for it, as the answers come."""
    starts = range(0, len(files), CHUNK)
    pieces = (([content for _, content in files[start : start + CHUNK]], MOST_PIXELS, size) for start in starts)
    environments: list[dict[str, str]] = [{}] * max(1, min(cores(), len(starts), MOST_WORKERS))
    answered = [0] * len(starts)  # files of each chunk
    with contextlib.closing(work(__file__, "decode_chunk", environments, pieces)) as answers:
        for number, answer in answers:
            place = starts[number] + answered[number]
            answered[number] += 1
            if not isinstance(answer, Died):
                yield place, answer
            elif place < min(starts[number] + CHUNK, len(files)):
                raise RunError(f"a process that decodes images {answer.how}, at {files[place][0]}")


def read_file(path: Path) -> bytes:
    """The content of an image file; DataError, with the reason, unless it is a regular file that can be read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise DataError("is not a regular file")
        if found.st_size > MOST_FILE:
            raise DataError(f"has {found.st_size:,} bytes, more than {MOST_FILE:,} for one image")
        return path.read_bytes()
    except OSError as error:  # such as a link to nothing, or to itself
        raise DataError(f"cannot be read: {error}") from error


# What follows runs in the workers.


def decode_chunk(piece: Piece, answer: Callable[[Answer], None]) -> None:
    """Decode the files of a chunk and answer for one after the other, so that it is known which one ends a worker."""
    from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

    contents, most_pixels, size = piece
    warnings.simplefilter("ignore")
    # Pillow checks the size in the header before it decodes: it warns above this limit, and raises above twice as much.
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = MOST_TEXT, 8 * MOST_TEXT
    for content in contents:
        try:
            answer(_decode(read_file(content) if isinstance(content, Path) else content, size))
        except DataError as error:
            answer(str(error))
        except UnidentifiedImageError:
            answer(f"cannot be decoded: not an image (expected one of {', '.join(FORMATS)})")
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            answer(f"has more than {most_pixels:,} pixels")
        except Exception as error:  # noqa: BLE001  each format's reader raises its own errors
            text = f"cannot be decoded: {type(error).__name__}: {error}"[:300]
            answer(text.encode("utf-8", "replace").decode())


def _decode(content: bytes, size: tuple[int, int] | None) -> Answer:
    from PIL import Image, ImageOps

    if content.startswith(PNG):
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            png.verify()  # the checksums of all chunks, some of which decoding skips
    # Without formats, Image.open would start Ghostscript for an EPS file, whatever the name of the file.
    with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        image: Any = ImageOps.exif_transpose(opened)
        is_grey = image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16")
        if image.mode == "F":
            raise ValueError("its pixels are floating-point numbers")
        if image.mode.startswith("I"):  # 16 bits
            image = image.convert("I")
            lowest, highest = image.getextrema()
            if lowest < 0 or highest >= 1 << 16:
                raise ValueError("its pixels have more than 16 bits, or are negative")
            image = image.point(lambda value: value * (1 / 256)).convert("L")
            image.info.pop("transparency", None)  # a value of 16 bits
        if "A" in image.getbands() or "transparency" in image.info:  # the latter is one colour
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
        if size:
            height, width = size
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        return image.tobytes(), image.height, image.width, is_grey
