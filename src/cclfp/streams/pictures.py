"""A picture of a stream: example images of each task's classes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from cclfp.core.files import write_file
from cclfp.streams import Stream

SIDE, EACH, COLUMNS = 64, 4, 5  # pixels of an image, images of a class, classes in a row
GAP, MARGIN, LINE = 4, 24, 22
CELL, ROW = EACH * (SIDE + GAP) + 3 * GAP, LINE + SIDE + 2 * GAP  # the width and height of a class
LONGEST = 36  # characters of the name of a class
INK = "#1d1d1f"


def draw_stream(stream: Stream, classes: Sequence[str], title: str, path: Path) -> None:
    """Write a PNG with one block per task: the names of its classes, and training images of each as they are stored."""
    from PIL import Image, ImageDraw, ImageFont  # imported only for drawing
    from PIL.PngImagePlugin import PngInfo

    small, large = ImageFont.load_default(14), ImageFont.load_default(22)
    width = max(CELL * min(COLUMNS, max(map(len, stream.classes))), round(large.getlength(title)))
    rows = [-(-len(members) // COLUMNS) for members in stream.classes]
    height = 2 * LINE + sum(2 * LINE + n * ROW for n in rows)
    page = Image.new("RGB", (2 * MARGIN + width, 2 * MARGIN + height), "white")
    canvas = ImageDraw.Draw(page)
    canvas.text((MARGIN, MARGIN), title, fill=INK, font=large)
    top = MARGIN + 2 * LINE
    for task, members in enumerate(stream.classes):
        of_task = stream.train_rows[task]
        count = f"{len(of_task):,} training and {len(stream.test[task].y):,} test images"
        canvas.text((MARGIN, top), f"Task {task + 1}: {count}", fill=INK, font=small)
        top += 2 * LINE
        for place, c in enumerate(members):
            left, above = MARGIN + place % COLUMNS * CELL, top + place // COLUMNS * ROW
            name = classes[c] if len(classes[c]) <= LONGEST else f"{classes[c][: LONGEST - 1]}…"
            canvas.text((left, above), name, fill=INK, font=small)
            for number, row in enumerate(of_task[stream.train.y[of_task] == c][:EACH]):
                page.paste(_thumbnail(stream.train.x[row]), (left + number * (SIDE + GAP), above + LINE))
        top += rows[task] * ROW
    buffer, marks = io.BytesIO(), PngInfo()
    marks.add_text("Software", "cclfp")
    page.save(buffer, "png", pnginfo=marks)
    write_file(path, buffer.getvalue())


def _thumbnail(image: Tensor) -> Any:
    from PIL import Image, ImageOps

    pixels = image.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy()
    return ImageOps.contain(Image.fromarray(pixels), (SIDE, SIDE), Image.Resampling.BOX)


def is_picture(head: bytes) -> bool:
    """Whether a file begins as :func:`draw_stream` begins one."""
    return head.startswith(b"\x89PNG") and b"tEXtSoftware\0cclfp" in head
