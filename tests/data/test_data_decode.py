"""Image files of every kind to pixels, by processes that may fail."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.data import decode as module
from cclfp.data.decode import Image, decode
from cclfp.errors import DataError, RunError
from cclfp.events import ignore

pil = pytest.importorskip("PIL.Image")


def encoded(pixels: np.ndarray, kind: str = "png", **options: Any) -> bytes:
    buffer = io.BytesIO()
    pil.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def one(content: bytes, size: tuple[int, int] | None = None) -> Image:
    ((place, image),) = decode([("mine", content)], 1, ignore, "decoding", size)
    assert place == 0
    return image


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm"])
def test_formats(kind: str) -> None:
    image = one(encoded(PIXELS, kind))
    assert not image.is_grey
    assert np.array_equal(image.pixels, PIXELS)


@pytest.mark.parametrize("kind", ["gif", "webp", "tiff", "png"])
def test_the_first_of_many_frames_is_taken(kind: str) -> None:
    first = np.full((4, 5, 3), 200, np.uint8)
    others = [pil.fromarray(np.full_like(first, i)) for i in range(100)]
    options = {"lossless": True} if kind == "webp" else {}
    assert np.array_equal(one(encoded(first, kind, save_all=True, append_images=others, **options)).pixels, first)


def test_kinds_of_pixels() -> None:
    channel = PIXELS[:, :, 0]
    for values in (channel, channel.astype(np.uint16) * 256 + 200):
        grey = one(encoded(values))
        assert grey.is_grey
        assert np.array_equal(grey.pixels, np.stack([channel] * 3, axis=2))
    for values, message in (
        (channel.astype(np.float32), "floating-point"),
        (np.full((4, 4), 1 << 20, np.int32), "more than 16 bits, or are negative"),
        (np.full((4, 4), -1, np.int32), "more than 16 bits, or are negative"),
    ):
        with pytest.raises(DataError, match=message):
            one(encoded(values, "tiff"))


def test_transparent_images_are_put_on_white() -> None:
    alpha = PIXELS[:, :, :1].astype(float) / 255
    white = np.rint(PIXELS * alpha + 255 * (1 - alpha))
    opaque = np.full_like(PIXELS[:, :, 0], 255)
    for pixels, is_transparent, is_grey, expected in (
        (np.dstack([PIXELS, PIXELS[:, :, 0]]), True, False, white),
        (np.dstack([PIXELS, opaque]), False, False, PIXELS),
        (np.dstack([PIXELS[:, :, 0]] * 2), True, True, white[:, :, :1]),  # grey and alpha
    ):
        image = one(encoded(pixels))
        assert (image.is_transparent, image.is_grey) == (is_transparent, is_grey)
        assert np.abs(image.pixels - expected).max() <= 1


@pytest.mark.parametrize(("mode", "key"), [("L", 0), ("P", 0), ("RGB", (0, 0, 0)), ("1", 0), ("I;16", 512)])
def test_one_colour_may_be_transparent(mode: str, key: Any) -> None:
    buffer = io.BytesIO()
    image = pil.fromarray(np.full((2, 2), 512, np.uint16)) if mode == "I;16" else pil.new(mode, (2, 2))
    image.save(buffer, "png", transparency=key)
    found = one(buffer.getvalue())
    assert found.is_transparent == (mode != "I;16")  # sixteen bits have no transparency
    assert (found.pixels == (2 if mode == "I;16" else 255)).all()


def test_exif_orientation() -> None:
    exif = pil.Exif()
    exif[0x0112] = 6  # the camera was turned
    assert np.array_equal(one(encoded(PIXELS, exif=exif)).pixels, np.rot90(PIXELS, -1))


def test_size_takes_the_centre() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (8, 24, 3), np.uint8)
    smaller = np.asarray(pil.fromarray(wide).resize((12, 4), pil.Resampling.BILINEAR))
    tall = wide.transpose(1, 0, 2).copy()
    assert np.array_equal(one(encoded(wide), (4, 4)).pixels, smaller[:, 4:8])
    assert np.array_equal(one(encoded(tall), (4, 4)).pixels, smaller[:, 4:8].transpose(1, 0, 2))
    assert np.array_equal(one(encoded(wide), (8, 12)).pixels, wide[:, 6:18])
    for pixels, size in ((wide, (9, 9)), (wide, (2, 3)), (PIXELS[:, :1].copy(), (3, 3))):
        assert one(encoded(pixels), size).pixels.shape == (*size, 3)


def test_many_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "cores", lambda: 3)
    taken = []

    def files() -> Any:
        for number in range(100):
            taken.append(number)
            yield f"{number}.png", encoded(np.full((1 + number % 5, 2, 3), number, np.uint8))

    events: list[Any] = []
    found = []
    with contextlib.closing(decode(files(), 100, events.append, "decoding")) as images:
        for image in images:
            found.append(image)
            assert len(taken) <= len(found) + (2 * 3 + 1) * 3  # no more than a few chunks are held
    assert [place for place, _ in found] == [int(image.pixels[0, 0, 0]) for _, image in found] == list(range(100))
    assert [len(image.pixels) for _, image in found] == [1 + number % 5 for number in range(100)]
    done = [event.done for event in events]
    assert done == [*range(0, 100, 3), 100]


def test_nothing_to_decode() -> None:
    assert list(decode([], 0, ignore, "decoding")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be decoded: not an image"),
        (b"rubbish", "cannot be decoded: not an image"),
        (encoded(PIXELS)[:-40], "cannot be decoded: (OSError|SyntaxError)"),
        (
            encoded(np.zeros((300, 300, 3), np.uint8), "jpeg")[:-300],
            "cannot be decoded: OSError: image file is truncated",
        ),
        (Path("nowhere.png"), "cannot be read: .*No such file"),
        (Path(), "is not a regular file"),
    ],
)
def test_what_cannot_be_decoded_is_named(content: Any, message: str) -> None:
    files = [(f"{number}.png", encoded(PIXELS)) for number in range(5)]
    files = [*files, ("bad.png", content), *files]
    with pytest.raises(DataError, match=rf"^bad\.png {message}"):
        list(decode(files, 11, ignore, "decoding"))
    errors: list[DataError] = []
    assert [place for place, _ in decode(files, 11, ignore, "decoding", errors=errors)] == [
        0,
        1,
        2,
        3,
        4,
        6,
        7,
        8,
        9,
        10,
    ]
    assert len(errors) == 1


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the one and refuses the other
def test_a_huge_image_is_refused(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PIXELS", 99_000_000)
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    content = b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big")
    content += b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    with pytest.raises(DataError, match="mine has more than 99,000,000 pixels"):
        one(content)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    processes = []
    real = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        processes.append(real(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


def test_a_worker_that_is_killed_is_an_error_and_not_a_wait(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores", lambda: 1)
    large = encoded(np.zeros((3000, 3000), np.uint8))

    def files() -> Iterator[tuple[str, bytes]]:
        yield from ((str(number), large) for number in range(module.CHUNK - 1))
        threading.Timer(0.3, lambda: started[0].kill()).start()  # in the middle of these files, which take 2 s
        yield "last", large

    with pytest.raises(RunError, match=r"a process that decodes images was killed by signal 9, .*, at \d+"):
        list(decode(files(), module.CHUNK, ignore, ""))
    assert all(process.poll() is not None for process in started)


def test_a_worker_that_dies_between_two_chunks_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, death = (b"\0\0\0", 1, 1, True, False), module.Died("was killed", has_started=True)

    def work(self: object, pieces: Iterable[Any], ahead: int) -> Iterator[tuple[int, Any]]:
        assert len(list(pieces)) == 2
        yield from ((number, found) for number in (1, 0) for found in (answer, answer, death))

    monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(module.Workers, "work", work)
    assert [place for place, _ in decode([(str(number), b"") for number in range(4)], 4, ignore, "")] == [0, 1, 2, 3]


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
        "for _, image in decode(files, 1, ignore, ''): print(image.pixels.sum())\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{PIXELS.sum()}\n", done.stderr
