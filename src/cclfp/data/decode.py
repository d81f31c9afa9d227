"""Image files to pixels, on all cores.

Threads do not help, since Python runs one at a time, and ``multiprocessing`` would run the user's script again in every
process. So the workers are processes of a small script, :mod:`cclfp.data.decoder`, spoken to through pipes.
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
from cclfp.data.decoder import COUNT, ERROR, GREY, LENGTH, REPLY, TOO_LARGE
from cclfp.data.source import Listener
from cclfp.errors import DataError, RunError

SCRIPT = Path(__file__).with_name("decoder.py")
CHUNK_FILES, CHUNK_BYTES = 250, 1 << 22  # what a worker is given at a time, at most
MOST_WORKERS = 16  # more would wait for this process
MOST_PIXELS = 100_000_000  # per image: about 1 GB of memory in a worker


class Image(NamedTuple):
    """Pixels as uint8 (height, width, 3), and whether the file has but one channel."""

    grey: bool
    pixels: np.ndarray


class TooLarge(DataError):
    """An image file that has more pixels than are accepted."""


class Died(NamedTuple):
    """How a worker ended, and the place in its chunk of the file that it was decoding."""

    how: str
    file: int


File = tuple[str, bytes]  # name, content
Answer = list[Image | TooLarge | str] | Died


def decode(
    files: Iterable[File],
    total: int,
    listener: Listener,
    what: str,
    *,
    formats: Sequence[str],
    size: int | None = None,
    most_pixels: int = MOST_PIXELS,
) -> Generator[Image, None, None]:
    """The images of files in the given formats, in their order, turned as their EXIF data says.

    ``files`` gives a name and the content; it is read as the images are taken, a few chunks ahead. ``total`` is their
    number, for the progress. ``formats`` are names of Pillow's; a file's content decides which of them it has, its name
    does not matter, and no other format's reader is tried. With a ``size`` the short side becomes that long, and the
    centre is cut out as a square. Transparency is dropped. Of an animation or a file of several pages only the first
    frame is read, however many there are. A file that cannot be decoded is a DataError that names it; so is one of more
    than ``most_pixels``, which is known from its header. Where not all images are taken, close the iterator
    (``contextlib.closing``) to end the processes at once.
    """
    if importlib.util.find_spec("PIL") is None:
        raise DataError("decoding images needs Pillow: pip install pillow")
    arguments = json.dumps([_path(), list(formats), most_pixels, size or 0])
    with _Workers(max(1, min(cores(), total, MOST_WORKERS)), arguments) as workers:
        chunks = _chunks(files)
        waiting: dict[int, list[str]] = {}  # chunk -> the names in it
        finished: dict[int, list[Image | TooLarge | str]] = {}
        given = done = 0
        listener.progress(what, 0, total, "images")
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
                    raise TooLarge(f"{name} {image}")
                if isinstance(image, str):
                    raise DataError(f"{name} cannot be decoded: {image}")
                yield image
            done += len(names)
            listener.progress(what, done, total, "images")


def _chunks(files: Iterable[File]) -> Iterator[list[File]]:
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
    """What the workers import from: this process's path, without the current folder and what may lie there."""
    return [entry for entry in sys.path if entry]


class _Workers:
    """Processes that decode, each with a thread that speaks to it."""

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
            stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
            start_new_session=True,  # Ctrl-C is for the parent, which ends them
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
                with contextlib.suppress(OSError):  # what it was not sent
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
            except MemoryError:  # here, not in the worker
                process.kill()
                self.answers.put((number, Died("gave an image that does not fit into memory", len(images))))
                return
            except (OSError, EOFError):
                code = process.wait()
                how = f"was killed by signal {-code}, perhaps for memory" if code < 0 else f"ended with code {code}"
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
    return Image(kind == GREY, pixels)


def _exactly(process: subprocess.Popen[bytes], count: int) -> bytes:
    assert process.stdout is not None
    content = process.stdout.read(count)
    if len(content) < count:
        raise EOFError
    return content
