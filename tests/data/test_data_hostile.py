"""Files that are damaged or made to do harm: they are refused by name, or read right; nothing is started by them."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from test_stored import EDITS, ORIGINAL, edited

from cclfp.core.workers import Died, Workers
from cclfp.data import decode as decoding
from cclfp.data import import_images, load_dataset, own_datasets
from cclfp.data.folders import SUFFIXES
from cclfp.data.images import _read_npz
from cclfp.errors import DataError, InputError
from cclfp.events import ignore

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 12 10
%%EndComments
0 0 12 10 rectfill
showpage
%%EOF
"""
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (10, 12, 3), np.uint8)
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {},
    "jpeg": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    "gif": {"save_all": True, "append_images": [Image.fromarray(255 - PIXELS)]},
    "webp": {"lossless": True},
    "bmp": {},
    "tiff": {"compression": "tiff_lzw"},
    "ppm": {},
}


def encoded(kind: str, pixels: np.ndarray = PIXELS, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def photos(folder: Path, bad: bytes | None = None, content: Callable[[], bytes] = lambda: encoded("png")) -> Path:
    """Two classes of two files, and a bad one."""
    for c, i in itertools.product(("cat", "dog"), range(2)):
        (folder / c).mkdir(parents=True, exist_ok=True)
        (folder / c / f"{i}.png").write_bytes(content())
    if bad is not None:
        (folder / "cat" / "bad.png").write_bytes(bad)
    return folder


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        import_images(path, **options)
    assert own_datasets() == []


# -- image files --------------------------------------------------------------------------------------------------


def test_an_eps_file_named_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    mark, programs = tmp_path / "started", tmp_path / "programs"
    programs.mkdir()
    for name in ("gs", "gswin32c", "gswin64c", "djpeg", "ppmtogif", "xv", "sh"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> '{mark}'\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = photos(tmp_path / "photos", EPS)
    answer = cli("run", "er", "--images", folder, "--tasks", "2")
    assert answer.code == 2
    assert "cat/bad.png cannot be decoded: not an image in the format BMP or GIF or JPEG or PNG or PPM" in answer.err
    for suffix in SUFFIXES:
        (folder / "cat" / f"bad{suffix}").write_bytes(EPS)
    refused(folder, "cat/bad.webp cannot be decoded: not an image")
    assert not mark.exists()


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_file_may_have_the_format_of_another_suffix(kind: str, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", content=lambda: encoded(kind))
    (folder / "cat" / "0.png").rename(folder / "cat" / os.fsdecode(b"\xff.png"))  # and a name that is no UTF-8
    assert load_dataset(import_images(folder)).train_images.shape == (2, 3, 10, 12)


def test_a_file_too_large_or_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "cat" / "zero.png").symlink_to("/dev/zero")
    os.mkfifo(folder / "cat" / "pipe.png")
    monkeypatch.setattr(decoding, "MOST_FILE", 10)
    with pytest.raises(DataError) as caught:
        import_images(folder)
    lines = str(caught.value).splitlines()
    assert "  cat/pipe.png is not a regular file" in lines
    assert "  cat/zero.png is not a regular file" in lines
    assert any(line.startswith("  cat/0.png has ") and line.endswith("more than 10 for one image") for line in lines)


def test_a_png_whose_pixels_were_changed_is_refused() -> None:
    """Decoding skips checksums: without them some of these are other images."""
    content = encoded("png", np.random.default_rng(0).integers(0, 80, (12, 12, 3)).astype(np.uint8))
    for position in range(content.index(b"IDAT"), len(content) - 12):
        damaged = content[:position] + bytes(16) + content[position + 16 :]
        with pytest.raises((SyntaxError, OSError)):
            decoding._decode(damaged, None)


def huge_png(side: int) -> bytes:
    """A PNG file that unpacks to far more than it is."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side // 8 + 1) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos", huge_png(10_008))
    for size in (None, 8):
        refused(folder, "cat/bad.png has more than 100,000,000 pixels", size=size)
    refused(folder, "5 images of 30000×30000 take more than 8 GiB of memory", size=30_000)
    monkeypatch.setattr("cclfp.data.folders.MOST_BYTES", 1000)
    refused(folder, "5 images of 12×10 take more than .*--image-size 64")


def test_texts_and_profiles_that_unpack_to_much() -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("bomb", "a" * (1 << 21), zip=True)
    for content in (encoded("png", pnginfo=texts), encoded("png", icc_profile=bytes(1 << 21))):
        assert len(content) < 10_000
        with pytest.raises(DataError, match="mine cannot be decoded: ValueError: Decompressed data too large"):
            list(decoding.decode([("mine", content)], 1, ignore, ""))


@pytest.fixture(scope="module")
def worker() -> Iterator[Callable[[bytes], Any]]:
    """Decodes one file after another in one process, which must survive them all."""
    given: list[bytes] = []
    pieces = (([given.pop()], 10_000, None) for _ in itertools.count())
    with Workers(decoding.__file__, "decode_chunk", [{}]) as workers:
        answers = workers.work(pieces)

        def answer(content: bytes) -> Any:
            given.append(content)
            _, found = next(answers)
            assert not isinstance(found, Died), found
            return found

        yield answer


def test_formats_that_no_suffix_promises_are_not_read(worker: Callable[[bytes], Any]) -> None:
    for kind in ("ico", "pcx", "tga", "dds", "pdf", "icns"):
        assert worker(encoded(kind)).startswith("cannot be decoded: not an image in the format BMP or GIF")


FILES = [encoded(kind, **options) for kind, options in OPTIONS.items()] + [EPS]


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


# -- .npz files ---------------------------------------------------------------------------------------------------


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def header(text: str, length: int | None = None, version: bytes = b"\2\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<I", len(text) if length is None else length) + text.encode()


def described(descr: str, shape: str) -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def write(path: Path, change: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, values in ORIGINAL.items():
            file.writestr(f"{name}.npy", (change or {}).get(name, npy(values)))
    return path


@pytest.mark.parametrize(
    "content",
    [
        described("'|u1'", "(8, 999999999999, 999999999999)"),
        described("'|u1'", f"({'9' * 30}, 4, 5)"),
        described("'|V1000000000'", "(8, 4, 5)"),
        described("'<M8[ns]'", "(8, 4, 5)") + bytes(8 * 160),
        described("'|u1'", "(8, 4, 5)") + bytes(159),
        described("'|u1'", "(8, 4, 5)") + bytes(1 << 20),
        described("'<U99999999999'", "(8, 4, 5)"),
        described("'|O'", "(8, 4, 5)"),
        described("[('a', '|u1')]", "(8, 4, 5)") + bytes(160),
        described("'|u1'", "(8, 4, -5)"),
        described("'|u1'", "(-2, -4, 20)") + bytes(160),
        header("[" * 5000),
        header("[" * 4000),
        header("-" * 4000 + "1"),
        header("{}", length=4_000_000_000),
        header("{}", length=99),
        header("{}", version=b"\7\0"),
        b"\x93NUMPY\1",
        b"",
        pickle.dumps(ORIGINAL),
    ],
    ids=itertools.count(),
)
def test_headers_of_an_npz_that_are_refused(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.npz", {"train_images": content})
    refused(path, r"mine.npz(: train_images is .*; expected uint8| cannot be read \(.*\): expected an .npz of numbers)")


def test_texts_that_are_no_text(tmp_path: Path) -> None:
    odd = npy(np.frombuffer(b"\xff\xff\xff\xff" * 8, "<U1"))
    refused(write(tmp_path / "mine.npz", {"train_labels": odd}), "cannot be read .*: expected an .npz of numbers")


@pytest.mark.parametrize("content", [b"hello, world", pickle.dumps(ORIGINAL), b"\0" * 99, npy(np.zeros(3)), b""])
def test_a_file_that_is_no_npz_gets_no_advice_to_load_it_unsafely(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_images(path)
    expected = "(File is not a zip file): expected an .npz of numbers or text, as np.savez writes it"
    assert str(caught.value) == f"{path} cannot be read {expected}"


def test_members_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "mine.npz")
    content = bytearray(path.read_bytes())
    place = content.index(ORIGINAL["test_images"].tobytes()) + 7
    content[place] ^= 4
    path.write_bytes(content)
    refused(path, "cannot be read .Bad CRC-32 for file 'test_images.npy'")
    content = bytearray(write(path).read_bytes())
    for start, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(start) + flags] |= 1
    path.write_bytes(content)
    refused(path, "cannot be read .*is encrypted")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a\x1b[31m.npy", b"")
    refused(path, r"lacks train_images, .*; it has a\\x1b\[31m$")
    monkeypatch.setattr("cclfp.data.images.MOST_BYTES", 500)
    refused(write(path), "its arrays take more than")


@pytest.mark.parametrize("there", [0, 1, 100])
def test_a_member_that_is_shorter_than_the_directory_says(there: int, tmp_path: Path) -> None:
    """The sizes are those of the whole array, and the checksum is right for the part that is there."""
    whole = npy(ORIGINAL["train_images"])
    part = whole[: len(whole) - ORIGINAL["train_images"].size + there]
    path = write(tmp_path / "mine.npz", {"train_images": part}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    for start, size in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        place = content.index(start) + size
        assert struct.unpack_from("<I", content, place)[0] == len(part)
        struct.pack_into("<I", content, place, len(whole))
    path.write_bytes(content)
    refused(path, "cannot be read .*EOF: reading array data.*")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["U3", "i2", "u8"])
def test_byte_orders_and_fortran_order(order: str, kind: str, tmp_path: Path) -> None:
    texts = ["cat", "ox"] if kind == "U3" else [7, 300]
    labels = {part: np.array(texts, order + kind)[np.arange(n) % 2] for part, n in (("train", 8), ("test", 4))}
    changed = {f"{part}_labels": npy(values) for part, values in labels.items()}
    images = {name: npy(np.asfortranarray(ORIGINAL[name])) for name in ("train_images", "test_images")}
    data = load_dataset(import_images(write(tmp_path / "mine.npz", changed | images, zipfile.ZIP_DEFLATED)))
    assert data.classes == tuple(map(str, texts))
    assert data.train_labels.tolist() == [0, 1] * 4
    assert np.array_equal(data.train_images.numpy(), ORIGINAL["train_images"].transpose(0, 3, 1, 2))


def test_labels_that_no_one_type_holds(tmp_path: Path) -> None:
    """Found by value: as float64, which int64 and uint64 have in common, two of them would be the same class."""
    train = np.array([2**63 - 1, 2**63 - 2, -1, 0], np.int64)[np.arange(8) % 4]
    test = np.array([2**63 - 1, 2**63 - 2, 2**64 - 1, 0], np.uint64)
    path = write(tmp_path / "mine.npz", {"train_labels": npy(train), "test_labels": npy(test)})
    arrays, classes = _read_npz(path, None, ignore)
    assert classes == ["-1", "0", str(2**63 - 2), str(2**63 - 1), str(2**64 - 1)]
    assert arrays["train_labels"].tolist() == [3, 2, 0, 1] * 2
    assert arrays["test_labels"].tolist() == [3, 2, 4, 1]


WORDS = st.sampled_from(["'descr'", "'shape'", "'fortran_order'", "'<i4'", "'|V9'", "True", "(3, 4)", "()", "9L", "[("])
TEXT = st.lists(WORDS | st.sampled_from(list("{}()[]:, -'\n")) | st.text(max_size=3), max_size=30).map("".join)
ARCHIVES = st.builds(
    lambda edits, compression, end: ("archive", edits, compression, end),
    EDITS,
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.none() | st.integers(0, 4000),
)
ARRAYS_IN_IT = st.builds(edited, st.sampled_from([npy(values) for values in ORIGINAL.values()]), EDITS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ARCHIVES | ARRAYS_IN_IT | TEXT.map(header))
@example(described("'|u1'", "(8L, 4L)"))
@example(described("'|u1'", "(8)"))
def test_any_npz_is_refused_or_read_right(tmp_path: Path, case: Any) -> None:
    """Archives with edits, which their checksums find, and archives with edited arrays, whose values may be others."""
    path, is_array = tmp_path / "mine.npz", isinstance(case, bytes)
    if is_array:
        write(path, {"train_images": case})
    else:
        _, edits, compression, end = case
        path.write_bytes(edited(write(path, compression=compression).read_bytes(), edits)[:end])
    try:
        arrays, classes = _read_npz(path, None, ignore)
    except InputError:
        return
    assert classes == ["cat", "ox"]
    for part in ("test",) if is_array else ("train", "test"):
        assert np.array_equal(arrays[f"{part}_images"], ORIGINAL[f"{part}_images"].transpose(0, 3, 1, 2))
        assert arrays[f"{part}_labels"].tolist() == [0, 1] * (len(ORIGINAL[f"{part}_labels"]) // 2)
