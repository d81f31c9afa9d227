"""Decodes image files into pixels on all cores.

Threads do not help, because Python runs one at a time, and ``multiprocessing`` would run the user's script again in
every process. So the workers are processes of a small script, :mod:`cclfp.data.decoder`, connected through pipes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cclfp.core.machine import cores
from cclfp.core.orphans import kill
from cclfp.data.decoder import COUNT, ERROR, GREY, LENGTH, REPLY, TOO_LARGE, TRANSPARENT
from cclfp.errors import DataError, RunError
from cclfp.events import DataProgress, OnEvent

SCRIPT = Path(__file__).with_name("decoder.py")
CHUNK_FILES, CHUNK_BYTES = 250, 1 << 22  # at most this much per message to a worker
MOST_WORKERS = 16  # more workers would wait for this process
MOST_PIXELS = 100_000_000  # per image: about 1 GB of memory in a worker


class Image(NamedTuple):
    """Pixels as uint8 (height, width, 3)."""

    grey: bool  # whether the file has only one channel
    pixels: np.ndarray
    transparent: bool = False  # whether pixels of the file are transparent; these pixels are on white


class TooLarge(DataError):
    """An image file with too many pixels."""


class Died(NamedTuple):
    """How a worker ended, and the index in its chunk of the file that it was decoding."""

    how: str
    file: int


File = tuple[str, bytes]  # name, content
Size = int | tuple[int, int] | None  # the side of a square; height and width; None: as they are
Answer = list[Image | TooLarge | str] | Died


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
    box = [size, size] if isinstance(size, int) else size
    arguments = json.dumps([_path(), list(formats), most_pixels, box])
    with _Workers(max(1, min(cores(), total, MOST_WORKERS)), arguments) as workers:
        chunks = _chunks(files)
        waiting: dict[int, list[str]] = {}  # number of a chunk -> the names of its files
        finished: dict[int, list[Image | TooLarge | str]] = {}
        given = done = 0
        on_event(DataProgress(what, 0, total, "images"))
        while True:
            while len(waiting) < 2 * workers.count and (chunk := next(chunks, None)) is not None:
                waiting[given] = [name for name, _ in chunk]
                workers.give(given, [content for _, content in chunk])
                given += 1
            if not waiting:
                return
            first = min(waiting)
            while first not in finished:
                number, images = workers.take()
                if isinstance(images, Died):
                    raise RunError(f"a process that decodes images {images.how}, at {waiting[number][images.file]}")
                finished[number] = images
            names = waiting.pop(first)
            for name, image in zip(names, finished.pop(first), strict=True):
                if isinstance(image, TooLarge):
                    yield TooLarge(f"{name} {image}")
                elif isinstance(image, str):
                    yield DataError(f"{name} cannot be decoded: {image}")
                else:
                    yield image
            done += len(names)
            on_event(DataProgress(what, done, total, "images"))


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


def _path() -> list[str]:
    """The import path of the workers: that of this process without the current folder, which may contain anything."""
    return [entry for entry in sys.path if entry]


class _Workers:
    """Worker processes, each with a thread that communicates with it."""

    def __init__(self, count: int, arguments: str) -> None:
        self.count = count
        self.command = [sys.executable, "-P", str(SCRIPT), arguments]
        self.chunks: queue.SimpleQueue[tuple[int, list[bytes]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> _Workers:
        try:
            for _ in range(self.count):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if sys.stderr else subprocess.DEVNULL,  # stderr may have been closed
            start_new_session=True,  # Ctrl-C goes only to the parent, which ends the workers
        )
        self.processes.append(process)
        thread = threading.Thread(target=self._serve, args=(process,), daemon=True)
        thread.start()
        self.threads.append(thread)

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            kill(process)
        for _ in self.threads:
            self.chunks.put(None)
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # data that was not sent any more
                    assert pipe is not None
                    pipe.close()

    def give(self, number: int, contents: list[bytes]) -> None:
        self.chunks.put((number, contents))

    def take(self) -> tuple[int, Answer]:
        return self.answers.get()

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        while (chunk := self.chunks.get()) is not None:
            number, contents = chunk
            images: list[Image | TooLarge | str] = []
            try:
                _send(process, contents)
                for _ in contents:
                    images.append(_reply(process))
                self.answers.put((number, images))
            except MemoryError:  # in this process, not in the worker
                process.kill()
                self.answers.put((number, Died("returned an image that does not fit into memory", len(images))))
                return
            except (OSError, EOFError):
                code = process.wait()
                how = (
                    f"was killed by signal {-code}, perhaps for lack of memory"
                    if code < 0
                    else f"ended with code {code}"
                )
                self.answers.put((number, Died(how, len(images))))
                return


def _send(process: subprocess.Popen[bytes], contents: list[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(COUNT.pack(len(contents)))
    for content in contents:
        process.stdin.write(LENGTH.pack(len(content)) + content)
    process.stdin.flush()


def _reply(process: subprocess.Popen[bytes]) -> Image | TooLarge | str:
    kind, height, width = REPLY.unpack(_exactly(process, REPLY.size))
    if kind == ERROR:
        return _exactly(process, height).decode()
    if kind == TOO_LARGE:
        return TooLarge(_exactly(process, height).decode())
    pixels = np.frombuffer(_exactly(process, height * width * 3), np.uint8).reshape(height, width, 3)
    return Image(bool(kind & GREY), pixels, bool(kind & TRANSPARENT))


def _exactly(process: subprocess.Popen[bytes], count: int) -> bytes:
    assert process.stdout is not None
    content = process.stdout.read(count)
    if len(content) < count:
        raise EOFError
    return content
