"""A worker of :mod:`cclfp.data.decode`: image files come in on stdin in chunks, pixels go out on stdout.

It runs as a script and imports next to nothing of this package, so that it starts at once and needs little memory.
Arguments: the parent's ``sys.path`` as JSON, and the size (0: as the image is).
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import sys
import warnings
from typing import Any, BinaryIO

COUNT = struct.Struct("<I")  # of the files in a chunk
LENGTH = struct.Struct("<Q")  # of a file
REPLY = struct.Struct("<BII")  # what follows; height and width of the pixels, or the length of the error and 0
COLOUR, GREY, ERROR = range(3)


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    size = int(sys.argv[2])
    from cclfp.orphans import end_now, end_with_parent

    end_with_parent()
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent is gone
        _serve(sys.stdin.buffer, sys.stdout.buffer, size)
    end_now()


def _serve(files: BinaryIO, replies: BinaryIO, size: int) -> None:
    from PIL import Image, UnidentifiedImageError

    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    while True:
        (count,) = COUNT.unpack(_exactly(files, COUNT.size))
        chunk = [_read(files) for _ in range(count)]  # all of it, so that neither side waits
        for content in chunk:
            try:
                grey, height, width, pixels = _decode(content, size)
                replies.write(REPLY.pack(GREY if grey else COLOUR, height, width) + pixels)
            except UnidentifiedImageError:
                _fail(replies, "not an image" if content else "empty")
            except Exception as error:  # noqa: BLE001  each format's reader has its own
                _fail(replies, f"{type(error).__name__}: {error}")
        replies.flush()


def _read(files: BinaryIO) -> bytes:
    return _exactly(files, LENGTH.unpack(_exactly(files, LENGTH.size))[0])


def _exactly(files: BinaryIO, count: int) -> bytes:
    content = files.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _fail(replies: BinaryIO, error: str) -> None:
    text = error.encode()
    replies.write(REPLY.pack(ERROR, len(text), 0) + text)


def _decode(content: bytes, size: int) -> tuple[bool, int, int, bytes]:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(content)) as opened:
        image: Any = ImageOps.exif_transpose(opened)
        grey = image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16")
        if image.mode == "F":
            raise ValueError("its pixels are floating-point numbers")
        if image.mode.startswith("I"):  # 16 bits
            image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
        image = image.convert("RGB")
        if size:
            side = min(image.size)
            left, top = ((length - side) / 2 for length in image.size)
            image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        return grey, image.height, image.width, image.tobytes()


if __name__ == "__main__":
    main()
