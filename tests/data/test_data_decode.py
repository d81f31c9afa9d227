"""Image files of every kind to pixels, by processes that may fail."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.data import decode as module
from cclfp.data.decode import Image, TooLarge
from cclfp.data.folders import FORMATS
from cclfp.errors import DataError, RunError
from cclfp.events import ignore

pil = pytest.importorskip("PIL.Image")


def encoded(pixels: np.ndarray, kind: str = "png", **options: Any) -> bytes:
    buffer = io.BytesIO()
    pil.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


decode = functools.partial(module.decode, formats=sorted(set(FORMATS.values())))


def one(content: bytes, size: int | None = None) -> Image:
    (image,) = decode([("mine", content)], 1, ignore, "decoding", size=size)
    return image


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm"])
def test_formats(kind: str) -> None:
    image = one(encoded(PIXELS, kind))
    assert not image.grey
    assert np.array_equal(image.pixels, PIXELS)


def test_kinds_of_pixels() -> None:
    channel = PIXELS[:, :, 0]
    three = np.stack([channel] * 3, axis=2)
    grey = one(encoded(channel))
    assert grey.grey
    assert np.array_equal(grey.pixels, three)
    sixteen = one(encoded(channel.astype(np.uint16) * 256 + 200))
    assert sixteen.grey
    assert np.array_equal(sixteen.pixels, three)
    with pytest.raises(DataError, match="floating-point"):
        one(encoded(channel.astype(np.float32), "tiff"))


def test_transparent_images_are_put_on_white() -> None:
    alpha = PIXELS[:, :, :1].astype(float) / 255
    white = np.rint(PIXELS * alpha + 255 * (1 - alpha))
    clear = one(encoded(np.dstack([PIXELS, PIXELS[:, :, 0]])))
    assert clear.transparent
    assert not clear.grey
    assert np.abs(clear.pixels - white).max() <= 1
    opaque = one(encoded(np.dstack([PIXELS, np.full_like(PIXELS[:, :, 0], 255)])))
    assert not opaque.transparent
    assert np.array_equal(opaque.pixels, PIXELS)
    grey = one(encoded(np.dstack([PIXELS[:, :, 0], PIXELS[:, :, 0]])))  # grey and alpha
    assert grey.transparent
    assert grey.grey
    assert np.abs(grey.pixels - np.rint(PIXELS[:, :, :1] * alpha + 255 * (1 - alpha))).max() <= 1


@pytest.mark.parametrize(("mode", "key"), [("L", 0), ("P", 0), ("RGB", (0, 0, 0)), ("1", 0)])
def test_one_colour_may_be_transparent(mode: str, key: Any) -> None:
    buffer = io.BytesIO()
    pil.new(mode, (2, 2)).save(buffer, "png", transparency=key)
    image = one(buffer.getvalue())
    assert image.transparent
    assert (image.pixels == 255).all()


def test_sixteen_bits_have_no_transparency() -> None:
    buffer = io.BytesIO()
    pil.fromarray(np.full((2, 2), 512, np.uint16)).save(buffer, "png", transparency=512)
    assert (one(buffer.getvalue()).pixels == 2).all()


def test_a_rectangle_takes_the_centre() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (8, 24, 3), np.uint8)
    (image,) = decode([("mine", encoded(wide))], 1, ignore, "decoding", size=(8, 12))
    assert np.array_equal(image.pixels, wide[:, 6:18])
    (image,) = decode([("mine", encoded(wide))], 1, ignore, "decoding", size=(2, 3))
    assert image.pixels.shape == (2, 3, 3)


def test_exif_orientation() -> None:
    exif = pil.Exif()
    exif[0x0112] = 6  # the camera was turned
    assert np.array_equal(one(encoded(PIXELS, exif=exif)).pixels, np.rot90(PIXELS, -1))


def test_size_takes_the_centre() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (8, 24, 3), np.uint8)
    smaller = pil.fromarray(wide).resize((12, 4), pil.Resampling.BILINEAR)
    assert np.array_equal(one(encoded(wide), size=4).pixels, np.asarray(smaller)[:, 4:8])
    tall = wide.transpose(1, 0, 2).copy()
    assert np.array_equal(one(encoded(tall), size=4).pixels, np.asarray(smaller)[:, 4:8].transpose(1, 0, 2))
    assert one(encoded(wide), size=9).pixels.shape == (9, 9, 3)
    assert one(encoded(PIXELS[:, :1].copy()), size=3).pixels.shape == (3, 3, 3)


def test_many_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_FILES", 3)
    monkeypatch.setattr(module, "cores", lambda: 3)
    taken = []

    def files() -> Any:
        for number in range(100):
            taken.append(number)
            yield f"{number}.png", encoded(np.full((1 + number % 5, 2, 3), number, np.uint8))

    events: list[Any] = []
    with contextlib.closing(decode(files(), 100, events.append, "decoding")) as images:
        first = next(images)
        assert len(taken) <= 2 * 3 * 3  # no more than a few chunks are held
        rest = list(images)
    assert [int(image.pixels[0, 0, 0]) for image in (first, *rest)] == list(range(100))
    assert [len(image.pixels) for image in (first, *rest)] == [1 + number % 5 for number in range(100)]
    done = [event.done for event in events]
    assert done == [*range(0, 100, 3), 100]


def test_nothing_to_decode() -> None:
    assert list(decode([], 0, ignore, "decoding")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"rubbish", "not an image"),
        (encoded(PIXELS)[:-40], "truncated|broken|OSError|SyntaxError"),
        (encoded(np.zeros((300, 300, 3), np.uint8), "jpeg")[:-300], "OSError: image file is truncated"),
    ],
)
def test_what_cannot_be_decoded_is_named(content: bytes, message: str) -> None:
    files = [(f"{number}.png", encoded(PIXELS)) for number in range(5)]
    with pytest.raises(DataError, match=rf"bad\.png cannot be decoded: .*({message})"):
        list(decode([*files, ("bad.png", content), *files], 11, ignore, "decoding"))


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the one and refuses the other
def test_a_huge_image_is_refused(side: int) -> None:
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    content = b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big")
    content += b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    with pytest.raises(TooLarge, match="mine has more than 99,000,000 pixels"):
        list(decode([("mine", content)], 1, ignore, "decoding", most_pixels=99_000_000))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    processes = []
    real = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        processes.append(real(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


def test_a_worker_that_is_killed_is_an_error_and_not_a_wait(started: list[subprocess.Popen[bytes]]) -> None:
    images = decode(((str(number), encoded(PIXELS)) for number in range(10_000)), 10_000, ignore, "decoding")
    next(images)
    os.kill(started[0].pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"a process that decodes images was killed by signal 9, .* at \d+"):
        list(images)
    assert all(process.poll() is not None for process in started)


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.core.workers._command", lambda *_: [sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(RunError, match="ended with code 7"):
        one(encoded(PIXELS))


def test_workers_end_with_an_error_or_when_closed(started: list[subprocess.Popen[bytes]]) -> None:
    def files() -> Any:
        yield "good", encoded(PIXELS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(decode(files(), 2, ignore, "decoding"))
    with contextlib.closing(decode([("good", encoded(PIXELS))] * 2, 2, ignore, "decoding")) as images:
        next(images)
    assert len(started) >= 2
    assert all(process.poll() is not None for process in started)


@pytest.mark.slow
def test_in_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Where it has a folder and modules of its own that shadow others."""
    (tmp_path / "PIL.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "mine.png").write_bytes(encoded(PIXELS))
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "from pathlib import Path\n"
        "from cclfp.events import ignore\n"
        "from cclfp.data.decode import decode\n"
        "files = [('mine', Path('mine.png').read_bytes())]\n"
        "for image in decode(files, 1, ignore, '', formats=['PNG']): print(image.pixels.sum())\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{PIXELS.sum()}\n", done.stderr
