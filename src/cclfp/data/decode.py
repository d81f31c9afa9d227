"""Decodes image files into pixels on all cores, in worker processes: Python's threads would take turns."""

from __future__ import annotations

import contextlib
import io
import itertools
import stat
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cclfp.core.workers import Died, cores, work
from cclfp.errors import DataError, RunError
from cclfp.events import DataProgress, OnEvent

if TYPE_CHECKING:
    import numpy as np

FORMATS = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]  # Pillow's names
CHUNK = 64  # files per message to a worker
MOST_WORKERS = 16  # more workers would wait for this process
MOST_FILE = 1 << 29  # bytes of one image file
MOST_PIXELS = 100_000_000  # per image: about 1 GB of memory in a worker
MOST_TEXT = 1 << 20  # bytes of one compressed text or colour profile in a PNG file, once decompressed
PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG file


class Decoded(NamedTuple):
    """Pixels as uint8 (height, width, 3)."""

    pixels: np.ndarray
    is_grey: bool  # whether the file has only one channel


File = tuple[str, bytes | Path]  # a name for messages, and the content or where it is
Piece = tuple[list[bytes | Path], int, tuple[int, int] | None]  # for a worker: files, MOST_PIXELS, and the size
Answer = str | tuple[Any, ...]  # of a worker: why a file cannot be decoded, or what makes a Decoded


def decode(
    files: Iterable[File],
    total: int,
    on_event: OnEvent,
    what: str,
    size: tuple[int, int] | None = None,
    errors: dict[int, DataError] | None = None,
) -> Generator[tuple[int, Decoded], None, None]:
    """Decode image files, and yield each one's place in ``files`` and its image, in the order in which they are ready.

    ``total`` is the number of files, and ``what`` their description, for the progress report. The content of a file
    decides its format, not its name. Images are rotated as their EXIF data says, and put on white where they are
    transparent. With ``size``, height and width, they are resized to cover that rectangle, and the centre is cropped.
    Of an animation, or a file with several pages, the first one is read.

    The error of a file that cannot be decoded is added to ``errors``, by its place, or raised if there is no such
    dictionary. If you do not consume all images, close the iterator (``contextlib.closing``) to end the processes.
    """
    import numpy as np  # here, because workers need none

    chunks: list[list[str]] = []  # the names of the files of each chunk that was given to a worker
    answered: list[int] = []  # how many files of each chunk a worker has answered for

    def pieces() -> Iterator[Piece]:
        waiting = iter(files)
        while chunk := list(itertools.islice(waiting, CHUNK)):
            chunks.append([name for name, _ in chunk])
            answered.append(0)
            yield [content for _, content in chunk], MOST_PIXELS, size

    done = 0
    environments: list[dict[str, str]] = [{}] * max(1, min(cores(), total, MOST_WORKERS))
    with contextlib.closing(work(__file__, "decode_chunk", environments, pieces())) as answers:
        for number, answer in answers:
            names, row = chunks[number], answered[number]
            if isinstance(answer, Died):
                if row < len(names):
                    raise RunError(f"a process that decodes images {answer.how}, at {names[row]}")
                continue
            answered[number] += 1
            if done % CHUNK == 0:
                on_event(DataProgress(what, done, total, "images"))
            done += 1
            place = number * CHUNK + row
            if not isinstance(answer, str):
                content, height, width, is_grey = answer
                yield place, Decoded(np.frombuffer(content, np.uint8).reshape(height, width, 3), is_grey)
            elif errors is None:
                raise DataError(f"{names[row]} {answer}")
            else:
                errors[place] = DataError(f"{names[row]} {answer}")
    on_event(DataProgress(what, done, total, "images"))


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
