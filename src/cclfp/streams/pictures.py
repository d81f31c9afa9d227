"""A picture of a stream: example images of each task's classes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cclfp.core.files import write_atomic
from cclfp.errors import InputError
from cclfp.streams import Stream

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

WIDTH = 1500  # approximate width of the page
SIDE, LARGEST = 64, 128  # pixels: smaller images are enlarged by a whole number, larger ones shrunk
GAP, MARGIN, LINE = 4, 24, 22
INK, FAINT, PAPER = "#1d1d1f", "#6e6e73", "#ffffff"


def draw_stream(stream: Stream, classes: Sequence[str], title: str, path: Path) -> None:
    """Write a PNG with one block per task: the names of its classes, and training images of each as they are stored.

    Tasks that share all classes (domains) have one image per class.
    """
    from PIL.PngImagePlugin import PngInfo

    domains = stream.num_tasks > 1 and all(members == stream.classes[0] for members in stream.classes)
    largest = max(map(len, stream.classes))
    each = 1 if domains else 8 if largest <= 4 else 4 if largest <= 10 else 2
    page = _Page(stream, classes, each)
    buffer = io.BytesIO()
    marks = PngInfo()
    marks.add_text("Software", "cclfp")
    page.draw(title).save(buffer, "png", pnginfo=marks)
    try:
        write_atomic(path, lambda file: file.write(buffer.getvalue()))
    except OSError as error:
        raise InputError(f"--images {path}: cannot write it: {error}") from error


def is_picture(head: bytes) -> bool:
    """Whether a file begins as :func:`draw_stream` begins one."""
    return head.startswith(b"\x89PNG") and b"tEXtSoftware\0cclfp" in head


class _Page:
    """The layout of the picture, with ``each`` images per class."""

    def __init__(self, stream: Stream, classes: Sequence[str], each: int) -> None:
        from PIL import ImageFont  # imported only for drawing

        self.stream, self.classes, self.each = stream, classes, each
        height, width = stream.train.x.shape[2:]
        larger = max(height, width)
        zoom = max(1, SIDE // larger) if larger <= LARGEST else LARGEST / larger
        self.image = (max(1, round(width * zoom)), max(1, round(height * zoom)))
        self.cell = each * (self.image[0] + GAP) + GAP * 3
        most = max(map(len, stream.classes))
        fit = max(1, (WIDTH - 2 * MARGIN) // self.cell)
        self.columns = -(-most // -(-most // fit))  # as few rows as possible, of equal length as far as possible
        self.small, self.large = ImageFont.load_default(14), ImageFont.load_default(22)

    def draw(self, title: str) -> Image.Image:
        from PIL import Image, ImageDraw

        rows = [-(-len(members) // self.columns) for members in self.stream.classes]
        block = LINE + self.image[1] + GAP * 2  # height of a row of classes
        height = 2 * MARGIN + 2 * LINE + sum(LINE + GAP + n * block + GAP * 2 for n in rows)
        title = title.replace("×", "x")  # Pillow's default font has no ×
        width = 2 * MARGIN + max(self.columns * self.cell, round(self.large.getlength(title)))
        page = Image.new("RGB", (width, height), PAPER)
        canvas = ImageDraw.Draw(page)
        canvas.text((MARGIN, MARGIN), title, fill=INK, font=self.large)
        top = MARGIN + 2 * LINE
        for task, members in enumerate(self.stream.classes):
            count = f"{len(self.stream.train_rows[task]):,} training and {len(self.stream.test[task].y):,} test images"
            canvas.text((MARGIN, top), f"Task {task + 1}", fill=INK, font=self.small)
            canvas.text((MARGIN + 70, top), count, fill=FAINT, font=self.small)
            top += LINE + GAP
            for place, c in enumerate(members):
                row, column = divmod(place, self.columns)
                corner = (MARGIN + column * self.cell, top + row * block)
                self._draw_class(page, canvas, corner, task, c)
            top += rows[task] * block + GAP * 2
        return page

    def _draw_class(
        self, page: Image.Image, canvas: ImageDraw.ImageDraw, corner: tuple[int, int], task: int, c: int
    ) -> None:
        from PIL import Image

        left, top = corner
        name = self.classes[c]
        while canvas.textlength(name, font=self.small) > self.cell - GAP and len(name) > 2:
            name = name.removesuffix("…")[:-1] + "…"
        canvas.text((left, top), name, fill=INK, font=self.small)
        for i, image in enumerate(self._examples(task, c)):
            pixels = image.permute(1, 2, 0).numpy()
            picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            shrinks = self.image[0] < picture.width
            picture = picture.resize(self.image, Image.Resampling.LANCZOS if shrinks else Image.Resampling.NEAREST)
            page.paste(picture, (left + i * (self.image[0] + GAP), top + LINE))

    def _examples(self, task: int, c: int) -> Tensor:
        train, rows = self.stream.train, self.stream.train_rows[task]
        chosen = rows[train.y[rows] == c][: self.each]
        return train.x[chosen] if len(chosen) else torch.empty(0)
