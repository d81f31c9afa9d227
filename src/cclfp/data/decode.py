"""Decodes image files into pixels on all cores, in worker processes: Python's threads would take turns."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cclfp.core.workers import Died, Workers, cores
from cclfp.errors import DataError, RunError
from cclfp.events import DataProgress, OnEvent

if TYPE_CHECKING:
    import numpy as np

CHUNK_FILES, CHUNK_BYTES = 250, 1 << 22  # at most this much per message to a worker
MOST_WORKERS = 16  # more workers would wait for this process
MOST_PIXELS = 100_000_000  # per image: about 1 GB of memory in a worker
MOST_TEXT = 1 << 20  # bytes of one compressed text or colour profile in a PNG file, once decompressed
PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG file


class Image(NamedTuple):
    """Pixels as uint8 (height, width, 3)."""

    grey: bool  # whether the file has only one channel
    pixels: np.ndarray
    transparent: bool = False  # whether pixels of the file are transparent; these pixels are on white


class TooLarge(DataError):
    """An image file with too many pixels."""


File = tuple[str, bytes]  # name, content
Size = int | tuple[int, int] | None  # the side of a square; height and width; None: as they are
Answer = tuple[str, Any]  # of a worker: "image", "error" or "too large", and what belongs to it


def decode(
    files: Iterable[File],
    total: int,
    on_event: OnEvent,
    what: str,
    *,
    formats: Sequence[str],
    size: Size = None,
    most_pixels: int = MOST_PIXELS,
) -> Generator[Image, None, None]:
    """Decode image files, in order, rotated as their EXIF data says.

    ``files`` yields names and contents; it is read a few chunks ahead of the images. ``total`` is the number of files,
    for the progress report. ``formats`` are Pillow's names of the formats to accept; the content of a file decides
    which one it has, not its name. With ``size``, images are resized to cover a square of that side, or a rectangle
    (height, width), and the centre is cropped. Transparent images are put on white. Only the first frame of an
    animation or a file with several pages is read.

    Raises a DataError that names the file if it cannot be decoded, or if its header says that it has more than
    ``most_pixels``. If you do not consume all images, close the iterator (``contextlib.closing``) to end the processes.
    """
    each = decode_each(files, total, on_event, what, formats=formats, size=size, most_pixels=most_pixels)
    with contextlib.closing(each) as images:
        for image in images:
            if isinstance(image, DataError):
                raise image
            yield image


def decode_each(
    files: Iterable[File],
    total: int,
    on_event: OnEvent,
    what: str,
    *,
    formats: Sequence[str],
    size: Size = None,
    most_pixels: int = MOST_PIXELS,
) -> Generator[Image | DataError, None, None]:
    """As :func:`decode`, with the error in the place of an image that cannot be decoded."""
    if importlib.util.find_spec("PIL") is None:
        raise DataError("decoding images needs Pillow: pip install pillow")
    count = max(1, min(cores(), total, MOST_WORKERS))
    names: dict[int, list[str]] = {}  # of the files of each chunk, by its number
    answers: dict[int, list[Answer]] = defaultdict(list)
    box = (size, size) if isinstance(size, int) else size

    def chunks() -> Iterator[tuple[Any, ...]]:
        for number, chunk in enumerate(_chunks(files)):
            names[number] = [name for name, _ in chunk]
            yield [content for _, content in chunk], list(formats), most_pixels, box

    on_event(DataProgress(what, 0, total, "images"))
    first = done = 0
    with Workers(__file__, "decode_chunk", [{}] * count) as workers:
        for number, answer in workers.work(chunks(), ahead=2 * count):
            if isinstance(answer, Died):
                at = f", at {names[number][len(answers[number])]}" if number in names else ""
                raise RunError(f"a process that decodes images {answer.how}{at}")
            answers[number].append(answer)
            while first in names and len(answers[first]) == len(names[first]):
                yield from map(_image, names[first], answers.pop(first))
                done += len(names.pop(first))
                on_event(DataProgress(what, done, total, "images"))
                first += 1


def _chunks(files: Iterable[File]) -> Iterator[list[File]]:
    """The files in chunks that are limited in number and size."""
    chunk: list[File] = []
    held = 0
    for file in files:
        chunk.append(file)
        held += len(file[1])
        if len(chunk) == CHUNK_FILES or held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _image(name: str, answer: Answer) -> Image | DataError:
    import numpy as np  # here, because workers need none

    kind, content = answer
    if kind == "image":
        grey, transparent, height, width, pixels = content
        return Image(grey, np.frombuffer(pixels, np.uint8).reshape(height, width, 3), transparent)
    return TooLarge(f"{name} {content}") if kind == "too large" else DataError(f"{name} cannot be decoded: {content}")


# What follows runs in the workers.


def decode_chunk(piece: Any, answer: Callable[[Answer], None]) -> None:
    """Decode the files of a chunk and answer for one after the other, so that it is known which one ends a worker."""
    from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

    contents, formats, most_pixels, size = piece
    warnings.simplefilter("ignore")
    # Pillow checks the size in the header before it decodes: it warns above this limit, and raises above twice as much.
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = MOST_TEXT, 8 * MOST_TEXT
    for content in contents:
        try:
            answer(_decode(content, formats, size))
        except UnidentifiedImageError:
            answer(("error", f"not an image in the format {' or '.join(formats)}" if content else "empty"))
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            answer(("too large", f"has more than {most_pixels:,} pixels"))
        except Exception as error:  # noqa: BLE001  each format's reader raises its own errors
            answer(("error", f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace").decode()))


def _decode(content: bytes, formats: list[str], size: tuple[int, int] | None) -> Answer:
    from PIL import Image, ImageOps

    if content.startswith(PNG):
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            png.verify()  # the checksums of all chunks, some of which decoding skips
    # Without formats, Image.open would start Ghostscript for an EPS file, whatever the name of the file.
    with Image.open(io.BytesIO(content), formats=formats) as opened:
        image: Any = ImageOps.exif_transpose(opened)
        grey = image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16")
        if image.mode == "F":
            raise ValueError("its pixels are floating-point numbers")
        if image.mode.startswith("I"):  # 16 bits
            image = image.convert("I")
            lowest, highest = image.getextrema()
            if lowest < 0 or highest >= 1 << 16:
                raise ValueError("its pixels have more than 16 bits, or are negative")
            image = image.point(lambda value: value * (1 / 256)).convert("L")
            image.info.pop("transparency", None)  # a value of 16 bits
        image, transparent = _on_white(image)
        if size:
            image = _cover(image, *size)
        return "image", (grey, transparent, image.height, image.width, image.tobytes())


def _on_white(image: Any) -> tuple[Any, bool]:
    """The image in RGB, and whether pixels of it are transparent; these let white through."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        if image.getextrema()[3][0] < 255:
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"), True
    return image.convert("RGB"), False


def _cover(image: Any, height: int, width: int) -> Any:
    """The largest part in the centre that has the proportions of height and width, resized to these."""
    from PIL import Image

    across, down = min(image.width, image.height * width / height), min(image.height, image.width * height / width)
    left, top = (image.width - across) / 2, (image.height - down) / 2
    return image.resize((width, height), Image.Resampling.BILINEAR, box=(left, top, left + across, top + down))
