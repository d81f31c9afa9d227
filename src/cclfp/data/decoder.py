"""A worker of :mod:`cclfp.data.decode`: reads chunks of image files from stdin and writes pixels to stdout.

It runs as a script and imports very little of this package, so that it starts quickly and needs little memory. It takes
one argument, as JSON: the parent's ``sys.path``, the formats to accept, the maximum number of pixels per image, and the
height and width of the images (null: unchanged).
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import sys
import warnings
from typing import Any, BinaryIO

COUNT = struct.Struct("<I")  # the number of files in a chunk
LENGTH = struct.Struct("<Q")  # the length of a file
REPLY = struct.Struct("<BII")  # the kind of reply; the image's height and width, or the message's length and 0
MOST_TEXT = 1 << 20  # bytes of one compressed text or colour profile in a PNG file, once decompressed
PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG file
ERROR, TOO_LARGE = 16, 17  # kinds of replies without an image
GREY, TRANSPARENT = 1, 2  # bits of the kind of a reply with an image


def main() -> None:
    sys.path[:], *limits = json.loads(sys.argv[1])
    from cclfp.core.orphans import end_now, end_with_parent

    end_with_parent()
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent is gone
        _serve(sys.stdin.buffer, sys.stdout.buffer, *limits)
    end_now()


def _serve(
    files: BinaryIO, replies: BinaryIO, formats: list[str], most_pixels: int, size: tuple[int, int] | None
) -> None:
    from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

    warnings.simplefilter("ignore")
    # Pillow checks the size in the header before it decodes: it warns above this limit, and raises above twice as much.
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    too_large = (Image.DecompressionBombWarning, Image.DecompressionBombError)
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = MOST_TEXT, 8 * MOST_TEXT
    while True:
        (count,) = COUNT.unpack(_exactly(files, COUNT.size))
        chunk = [_read(files) for _ in range(count)]  # the whole chunk, so that neither side blocks
        for content in chunk:
            try:
                kind, height, width, pixels = _decode(content, formats, size)
                replies.write(REPLY.pack(kind, height, width) + pixels)
            except UnidentifiedImageError:
                _fail(replies, f"not an image in the format {' or '.join(formats)}" if content else "empty")
            except too_large:
                _fail(replies, f"has more than {most_pixels:,} pixels", TOO_LARGE)
            except Exception as error:  # noqa: BLE001  each format's reader raises its own errors
                _fail(replies, f"{type(error).__name__}: {error}")
            replies.flush()  # so that the parent knows the current file if this worker dies


def _read(files: BinaryIO) -> bytes:
    return _exactly(files, LENGTH.unpack(_exactly(files, LENGTH.size))[0])


def _exactly(files: BinaryIO, count: int) -> bytes:
    content = files.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _fail(replies: BinaryIO, error: str, kind: int = ERROR) -> None:
    text = error[:300].encode("utf-8", "replace")
    replies.write(REPLY.pack(kind, len(text), 0) + text)


def _decode(content: bytes, formats: list[str], size: tuple[int, int] | None) -> tuple[int, int, int, bytes]:
    """The kind of an image, its height and width, and its pixels."""
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
        return GREY * grey + TRANSPARENT * transparent, image.height, image.width, image.tobytes()


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


if __name__ == "__main__":
    main()
