"""Image files of every kind to pixels, by processes that may fail. Harmful files are refused and start nothing."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as pil
from PIL import PngImagePlugin
from samples import EDITS, PIXELS, edited, encoded, imported, photos, refused

from cclfp.core.workers import Died, work
from cclfp.data import decode as module
from cclfp.data.decode import decode
from cclfp.data.folders import SUFFIXES
from cclfp.errors import DataError, RunError
from cclfp.events import ignore

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 12 10
%%EndComments
0 0 12 10 rectfill
showpage
%%EOF
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {},
    "jpeg": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    "gif": {"save_all": True, "append_images": [pil.fromarray(255 - PIXELS)]},
    "webp": {"lossless": True},
    "bmp": {},
    "tiff": {"compression": "tiff_lzw"},
    "ppm": {},
}


def one(content: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    (pixels,) = decode([("mine", content)], "mine", ignore, size).pixels
    return np.asarray(pixels)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm", "gif", "webp"])
def test_formats(kind: str) -> None:
    """The first frame is taken, in formats that have several."""
    pixels = PIXELS if kind != "gif" else np.full_like(PIXELS, 200)
    others = {} if kind in ("bmp", "ppm") else {"append_images": [pil.fromarray(255 - pixels)] * 9, "save_all": True}
    found = decode([("mine", encoded(pixels, kind, **OPTIONS[kind] | others))], "mine", ignore)
    assert not found.are_grey
    assert np.array_equal(found.pixels, pixels[None])


def test_kinds_of_pixels() -> None:
    channel = PIXELS[:, :, 0]
    for values in (channel, channel.astype(np.uint16) * 256 + 200):
        found = decode([("mine", encoded(values))] * 2, "mine", ignore)
        assert found.are_grey
        assert np.array_equal(found.pixels, np.stack([np.stack([channel] * 3, axis=2)] * 2))
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
    for pixels, are_grey, expected in (
        (np.dstack([PIXELS, PIXELS[:, :, 0]]), False, white),
        (np.dstack([PIXELS, opaque]), False, PIXELS),
        (np.dstack([PIXELS[:, :, 0]] * 2), True, white[:, :, :1]),  # grey and alpha
    ):
        found = decode([("mine", encoded(pixels))], "mine", ignore)
        assert found.are_grey == are_grey
        assert np.abs(found.pixels - expected).max() <= (0 if expected is PIXELS else 1)


@pytest.mark.parametrize(("mode", "key"), [("L", 0), ("P", 0), ("RGB", (0, 0, 0)), ("1", 0), ("I;16", 512)])
def test_one_colour_may_be_transparent(mode: str, key: Any) -> None:
    buffer = io.BytesIO()
    image = pil.fromarray(np.full((2, 2), 512, np.uint16)) if mode == "I;16" else pil.new(mode, (2, 2))
    image.save(buffer, "png", transparency=key)
    assert (one(buffer.getvalue()) == (2 if mode == "I;16" else 255)).all()  # 16 bits have no transparency


def test_exif_orientation() -> None:
    exif = pil.Exif()
    exif[0x0112] = 6  # the camera was turned
    assert np.array_equal(one(encoded(PIXELS, exif=exif)), np.rot90(PIXELS, -1))


def test_size_takes_the_centre() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (8, 24, 3), np.uint8)
    smaller = np.asarray(pil.fromarray(wide).resize((12, 4), pil.Resampling.BILINEAR))
    tall = wide.transpose(1, 0, 2).copy()
    assert np.array_equal(one(encoded(wide), (4, 4)), smaller[:, 4:8])
    assert np.array_equal(one(encoded(tall), (4, 4)), smaller[:, 4:8].transpose(1, 0, 2))
    assert np.array_equal(one(encoded(wide), (8, 12)), wide[:, 6:18])
    for pixels, size in ((wide, (9, 9)), (wide, (2, 3)), (PIXELS[:, :1].copy(), (3, 3))):
        assert one(encoded(pixels), size).shape == (*size, 3)


def test_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "cores", lambda: 3)
    files = [(f"{number}.png", encoded(np.full((2, 2, 3), number, np.uint8))) for number in range(100)]
    events: list[Any] = []
    found = decode(files, "mine", events.append)
    assert found.places == found.pixels[:, 0, 0, 0].tolist() == list(range(100))
    assert [event.done for event in events] == [*range(0, 100, 3), 100]
    assert decode([], "mine", ignore).places == []


JPEG = encoded(np.zeros((300, 300, 3), np.uint8), "jpeg")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be decoded: not an image"),
        (b"rubbish", "cannot be decoded: not an image"),
        (encoded()[:-40], "cannot be decoded: (OSError|SyntaxError)"),
        (JPEG[:-300], "cannot be decoded: OSError: image file is truncated"),
        (Path("nowhere.png"), "cannot be read: .*No such file"),
        (Path(), "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
    ],
)
def test_what_cannot_be_decoded_is_named(content: Any, message: str) -> None:
    files = [(f"{number}.png", encoded()) for number in range(5)]
    files = [*files, ("bad.png", content), *files]
    with pytest.raises(DataError, match=rf"mine: 1 image cannot be decoded .*\n  bad\.png {message}"):
        decode(files, "mine", ignore)
    assert decode(files, "mine", ignore, skip_bad=True).places == [place for place in range(11) if place != 5]


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_worker_that_dies(answered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses the files of its chunk for which it has not answered."""
    answer, death = (b"\0\0\0", 1, 1, True), Died("was killed")

    def answers(*arguments: Any) -> Iterator[tuple[int, Any]]:
        assert len(list(arguments[-1])) == 2
        yield from ((number, found) for number in (1, 0) for found in [*[answer] * answered, death])

    monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(module, "work", answers)
    files = [(f"{number}.png", b"") for number in range(4)]
    if answered == 2:
        assert decode(files, "mine", ignore).places == [0, 1, 2, 3]
    else:
        with pytest.raises(RunError, match=f"a process that decodes images was killed, at {2 + answered}.png"):
            decode(files, "mine", ignore)


@pytest.mark.slow
def test_in_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Where it has a folder and modules of its own that shadow others."""
    (tmp_path / "PIL.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "mine.png").write_bytes(encoded())
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "from pathlib import Path\n"
        "from cclfp.events import ignore\n"
        "from cclfp.data.decode import decode\n"
        "files = [('mine', Path('mine.png').read_bytes())]\n"
        "print(decode(files, '', ignore).pixels.sum())\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{PIXELS.sum()}\n", done.stderr


# -- harmful files ------------------------------------------------------------------------------------------------


def test_an_eps_file_named_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    mark, programs = tmp_path / "started", tmp_path / "programs"
    programs.mkdir()
    for name in ("gs", "gswin32c", "gswin64c", "djpeg", "ppmtogif", "xv", "sh"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> '{mark}'\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = photos(tmp_path / "photos", each=2)
    (folder / "cat" / "bad.png").write_bytes(EPS)
    answer = cli("run", "er", "--images", folder, "--tasks", "2")
    assert answer.code == 2
    assert "cat/bad.png cannot be decoded: not an image (expected one of BMP, GIF, JPEG, PNG, PPM" in answer.err
    for suffix in SUFFIXES:
        (folder / "cat" / f"bad{suffix}").write_bytes(EPS)
    refused(folder, "cat/bad.webp cannot be decoded: not an image")
    assert not mark.exists()


def test_a_file_may_have_the_format_of_another_suffix(tmp_path: Path) -> None:
    for name, kind in itertools.product(("cat", "dog"), OPTIONS):
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        file = os.fsdecode(b"\xff.png") if kind == "ppm" else f"{kind}.png"  # and a name that is no UTF-8
        (tmp_path / "photos" / name / file).write_bytes(encoded(kind=kind))
    assert imported(tmp_path / "photos").train_images.shape == (12, 3, 10, 12)


def test_a_png_whose_pixels_were_changed_is_refused() -> None:
    """Decoding skips checksums: without them some of these are other images."""
    content = encoded(np.random.default_rng(0).integers(0, 80, (12, 12, 3)).astype(np.uint8))
    for position in range(content.index(b"IDAT"), len(content) - 12):
        damaged = content[:position] + bytes(16) + content[position + 16 :]
        with pytest.raises((SyntaxError, OSError)):
            module._decode(damaged, None)


def png(side: int) -> bytes:
    """The beginning of a PNG file of that many black and white pixels in a row."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunks + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def test_what_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("bomb", "a" * (1 << 21), zip=True)
    for content, message in (
        (png(10_008), "has more than 100,000,000 pixels"),  # Pillow warns of this one
        (png(20_000), "has more than 100,000,000 pixels"),
        (encoded(pnginfo=text), "cannot be decoded: ValueError: Decompressed data too large"),
        (encoded(icc_profile=bytes(1 << 21)), "cannot be decoded: ValueError: Decompressed data too large"),
    ):
        assert len(content) < 10_000
        with pytest.raises(DataError, match=f"mine {message}"):
            one(content, size=(8, 8))
    folder = photos(tmp_path / "photos", each=2)
    refused(folder, "8 images of 30000×30000 take more than 8 GiB of memory", size=30_000)
    monkeypatch.setattr("cclfp.data.decode.MOST_BYTES", 1000)
    refused(folder, "8 images of 12×10 take more than .*--image-size 64")
    monkeypatch.setattr(module, "MOST_FILE", 10)
    refused(folder, "cat/0.png has .* bytes, more than 10 for one image")


@pytest.fixture(scope="module")
def worker() -> Iterator[Callable[[bytes], Any]]:
    """Decodes one file after another in one process, which must survive them all."""
    given: list[bytes] = []
    pieces = (([given.pop()], 10_000, None) for _ in itertools.count())
    with contextlib.closing(work(module.__file__, "decode_chunk", [{}], pieces)) as answers:

        def answer(content: bytes) -> Any:
            given.append(content)
            _, found = next(answers)
            assert not isinstance(found, Died), found
            return found

        yield answer


def test_formats_that_no_suffix_promises_are_not_read(worker: Callable[[bytes], Any]) -> None:
    for kind in ("ico", "pcx", "tga", "dds", "pdf", "icns"):
        assert worker(encoded(kind=kind)).startswith("cannot be decoded: not an image (expected one of BMP, GIF")


FILES = [encoded(kind=kind, **options) for kind, options in OPTIONS.items()] + [EPS]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), EDITS, st.none() | st.integers(0, 2000))
def test_any_image_file_is_decoded_or_refused(
    worker: Callable[[bytes], Any], capfd: pytest.CaptureFixture[str], file: bytes, edits: Any, end: int | None
) -> None:
    answer = worker(edited(file, edits)[:end])
    if not isinstance(answer, str):
        pixels, height, width, *_ = answer
        assert len(pixels) == 3 * height * width
        assert 0 < height * width <= 10_000
    assert answer
    assert capfd.readouterr() == ("", "")
