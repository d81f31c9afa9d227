"""Files that are damaged or made to do harm: they are refused by name, or read right; nothing is started by them."""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import os
import pickle
import struct
import warnings
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

from cclfp.core.workers import Died, Workers
from cclfp.data import datasets, import_dataset, import_images, load_dataset, mnist, own_datasets, verify
from cclfp.data import decode as decoding
from cclfp.data.archives import read_header
from cclfp.data.folders import FORMATS
from cclfp.data.images import NpzFile
from cclfp.data.source import ARRAYS
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


def photos(folder: Path, bad: bytes | None = None, name: str = "bad.png") -> Path:
    """Two classes of two PNG files, and one more file."""
    for c in ("cat", "dog"):
        (folder / c).mkdir(parents=True, exist_ok=True)
        for i in range(2):
            (folder / c / f"{i}.png").write_bytes(encoded("png", RNG.integers(0, 256, (10, 12, 3), np.uint8)))
    if bad is not None:
        (folder / "cat" / name).write_bytes(bad)
    return folder


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        import_images(path, **options)
    assert own_datasets() == []


# Image files


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
    for suffix in FORMATS:
        (folder / "cat" / "bad.png").unlink(missing_ok=True)
        (folder / "cat" / f"bad{suffix}").write_bytes(EPS)
    refused(folder, "cat/bad.* cannot be decoded: not an image")
    assert not mark.exists()


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_file_may_have_the_format_of_another_suffix(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for c in ("cat", "dog"):
        (folder / c).mkdir(parents=True)
        for i in range(2):
            (folder / c / f"{i}.png").write_bytes(encoded(kind))
    assert load_dataset(import_images(folder)).train_images.shape == (2, 3, 10, 12)


@pytest.mark.parametrize("kind", ["gif", "webp", "tiff", "png"])
def test_the_first_of_many_frames_is_taken(kind: str) -> None:
    first = np.full((4, 5, 3), 200, np.uint8)
    others = [Image.fromarray(np.full_like(first, i)) for i in range(100)]
    options = {"lossless": True} if kind == "webp" else {}
    content = encoded(kind, first, save_all=True, append_images=others, **options)
    (image,) = decode([("many", content)], 1, ignore, "")
    assert np.array_equal(image.pixels, first)


def test_a_file_too_large_or_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "cat" / "zero.png").symlink_to("/dev/zero")
    refused(folder, "zero.png is not a regular file")
    (folder / "cat" / "zero.png").unlink()
    os.mkfifo(folder / "cat" / "pipe.png")
    refused(folder, "pipe.png is not a regular file")
    (folder / "cat" / "pipe.png").unlink()
    monkeypatch.setattr("cclfp.data.folders.MOST_FILE", 10)
    refused(folder, "0.png has .* bytes, more than 10 for one image")


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "cat" / "0.png").rename(folder / "cat" / os.fsdecode(b"\xff.png"))
    assert len(load_dataset(import_images(folder)).train_labels) == 2


def test_a_png_whose_pixels_were_changed_is_refused() -> None:
    """Decoding skips checksums: without them some of these are other images."""
    content = encoded("png", np.random.default_rng(0).integers(0, 80, (12, 12, 3)).astype(np.uint8))
    for position in range(content.index(b"IDAT"), len(content) - 12):
        damaged = content[:position] + bytes(16) + content[position + 16 :]
        with pytest.raises((SyntaxError, OSError)):
            decoding._decode(damaged, ["PNG"], None)


def huge_png(side: int) -> bytes:
    """A PNG file that unpacks to far more than it is."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side // 8 + 1) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_of_too_many_pixels(tmp_path: Path) -> None:
    """Without a size, all images have one size: as many pixels as fit into MOST_BYTES. With one, MOST_PIXELS."""
    folder = photos(tmp_path / "photos", huge_png(10_008))
    refused(folder, "cat/bad.png has more than 100,000,000 pixels")
    refused(folder, "cat/bad.png has more than 100,000,000 pixels", size=8)
    refused(folder, "5 images of 30000×30000 take more than 8 GiB of memory", size=30_000)


def test_texts_and_profiles_that_unpack_to_much() -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("bomb", "a" * (1 << 21), zip=True)
    for content in (encoded("png", pnginfo=texts), encoded("png", icc_profile=bytes(1 << 21))):
        assert len(content) < 10_000
        with pytest.raises(DataError, match="mine cannot be decoded: ValueError: Decompressed data too large"):
            list(decode([("mine", content)], 1, ignore, ""))


def test_pixels_of_more_than_16_bits_are_not_cut_off() -> None:
    for values in (np.full((4, 4), 1 << 20, np.int32), np.full((4, 4), -1, np.int32)):
        with pytest.raises(DataError, match="more than 16 bits, or are negative"):
            list(decode([("mine", encoded("tiff", values))], 1, ignore, ""))


decode = functools.partial(decoding.decode, formats=sorted(set(FORMATS.values())))


@pytest.fixture(scope="module")
def worker() -> Iterator[Callable[[bytes], Any]]:
    """Decodes one file after another in one process, which must survive them all."""
    given: list[bytes] = []
    pieces = (([given.pop()], sorted(set(FORMATS.values())), 10_000, None) for _ in itertools.count())
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
        assert worker(encoded(kind))[1].startswith("not an image in the format BMP or GIF")


FILES = [encoded(kind, **options) for kind, options in OPTIONS.items()] + [EPS]
EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 4)), max_size=4)


def edited(content: bytes, edits: list[tuple[int, bytes, int]]) -> bytes:
    """Some bytes replaced by others."""
    for place, new, removed in edits:
        place = place % (len(content) + 1)
        content = content[:place] + new + content[place + removed :]
    return content


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), EDITS, st.none() | st.integers(0, 2000))
def test_any_image_file_is_decoded_or_refused(
    worker: Callable[[bytes], Any], capfd: pytest.CaptureFixture[str], file: bytes, edits: Any, end: int | None
) -> None:
    kind, answer = worker(edited(file, edits)[:end])
    if kind == "image":
        _, _, height, width, pixels = answer
        assert len(pixels) == 3 * height * width
        assert 0 < height * width <= 10_000
    else:
        assert answer
    assert capfd.readouterr() == ("", "")


# .npz files


def arrays() -> dict[str, np.ndarray]:
    return {
        "train_images": RNG.integers(0, 256, (8, 4, 5, 3), np.uint8),
        "train_labels": np.array(["cat", "ox"])[np.arange(8) % 2],
        "test_images": RNG.integers(0, 256, (4, 4, 5, 3), np.uint8),
        "test_labels": np.array(["cat", "ox"])[np.arange(4) % 2],
    }


ORIGINAL = arrays()


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


REFUSED = [
    described("'<U99999999999'", "(8, 4, 5)"),
    described("'|O'", "(8, 4, 5)"),
    described("[('a', '|u1')]", "(8, 4, 5)"),
    described("'|u1'", "(8, 4, -5)"),
    described("'|u1'", "(-2, -4, 20)"),
    header("[" * 5000),
    header("[" * 4000),
    header("-" * 4000 + "1"),
    header("{}", length=4_000_000_000),
    header("{}", length=99),
    header("{}", version=b"\7\0"),
    b"\x93NUMPY\1",
    b"",
    pickle.dumps(ORIGINAL),
]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (described("'|u1'", "(8, 999999999999, 999999999999)"), "holds .* bytes, but uint8 of shape"),
        (described("'|u1'", f"({'9' * 30}, 4, 5)"), "but 8 train_labels"),
        (described("'|V1000000000'", "(8, 4, 5)"), r"is .*V1000000000.* of shape \(8, 4, 5\); expected"),
        (described("'<M8[ns]'", "(8, 4, 5)"), r"is datetime64\[ns\] of shape"),
        (described("'|u1'", "(8, 4, 5)") + b"\0" * 159, "holds .* bytes, but uint8"),
        (described("'|u1'", "(8, 4, 5)") + b"\0" * (1 << 20), "holds .* bytes, but uint8"),
        *((content, "its header is not that of an array of numbers or text") for content in REFUSED),
    ],
    ids=itertools.count(),
)
def test_headers_of_an_npz_that_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    refused(write(tmp_path / "mine.npz", {"train_images": content}), f"mine.npz: .*train_images.*{message}")


def test_texts_that_are_no_text(tmp_path: Path) -> None:
    odd = npy(np.frombuffer(b"\xff\xff\xff\xff" * 8, "<U1"))
    refused(write(tmp_path / "mine.npz", {"train_labels": odd}), "train_labels has text with invalid characters")
    empty = described("'<U0'", "(8,)")
    refused(write(tmp_path / "mine.npz", {"train_labels": empty}), "train_labels is <U0 of shape")
    long = npy(np.array(["a" * 300, "ox"])[np.arange(8) % 2])
    refused(write(tmp_path / "mine.npz", {"train_labels": long}), "has more than 255 characters")


@pytest.mark.parametrize("content", [b"hello, world", pickle.dumps(ORIGINAL), b"\x80\x02]q\0.", b"\0" * 99])
def test_a_file_that_is_no_npz_gets_no_advice_to_load_it_unsafely(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_images(path)
    assert str(caught.value) == f"{path} is not an .npz, which is a zip file of arrays: write it with np.savez"
    path.write_bytes(npy(np.zeros(3)))
    refused(path, "is a single array, expected an .npz of several")


def test_members_that_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.npz")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as file:
        warnings.simplefilter("ignore")  # of zipfile, about the name
        file.writestr("train_images.npy", npy(ORIGINAL["train_images"]))
    refused(path, "has 2 members named train_images.npy: expected one")
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(write(path, compression=compression), "train_images has an unsupported compression")
    content = bytearray(write(path).read_bytes())
    for start, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(start) + flags] |= 1
    path.write_bytes(content)
    refused(path, "train_images is encrypted")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a\x1b[31m.npy", b"")
    refused(path, r"lacks train_images, .*; it has a\?\[31m$")


def test_a_damaged_member(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.npz")
    content = path.read_bytes()
    place = content.index(ORIGINAL["test_images"].tobytes()) + 7
    path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    refused(path, "cannot be read as an .npz of plain arrays: Bad CRC-32 for file 'test_images.npy'")


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
    refused(path, "cannot be read as an .npz of plain arrays: .*EOF: reading array data.*")


def test_an_npz_that_takes_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.data.images.MOST_BYTES", 500)
    refused(write(tmp_path / "mine.npz"), "its arrays take more than")


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
    arrays, classes = NpzFile(path, ignore).read()
    assert classes == ["-1", "0", str(2**63 - 2), str(2**63 - 1), str(2**64 - 1)]
    assert arrays["train_labels"].tolist() == [3, 2, 0, 1] * 2
    assert arrays["test_labels"].tolist() == [3, 2, 4, 1]


WHOLE = [described("'|u1'", "(8, 4, 5)"), npy(ORIGINAL["train_images"]), npy(ORIGINAL["train_labels"])]
WORDS = st.sampled_from(["'descr'", "'shape'", "'fortran_order'", "'<i4'", "'|V9'", "True", "(3, 4)", "()", "9L", "[("])
TEXT = st.lists(WORDS | st.sampled_from(list("{}()[]:, -'\n")) | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.builds(edited, st.sampled_from(WHOLE), EDITS) | TEXT.map(header))
@example(described("'|u1'", "(8L, 4L)"))
@example(described("'|u1'", "(8)"))
def test_any_header_is_refused_or_read_right(content: bytes) -> None:
    try:
        found = read_header(io.BytesIO(content))
    except InputError:
        return
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
        shape, _, dtype = reader(file)
    assert (found.shape, found.dtype, found.offset) == (shape, dtype, file.tell())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EDITS, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.none() | st.integers(0, 4000))
def test_any_npz_is_refused_or_read_right(tmp_path: Path, edits: Any, compression: int, end: int | None) -> None:
    path = write(tmp_path / "mine.npz", compression=compression)
    path.write_bytes(edited(path.read_bytes(), edits)[:end])
    try:
        arrays, classes = NpzFile(path, ignore).read()
    except InputError:
        return
    assert classes == ["cat", "ox"]
    for part in ("train", "test"):
        assert np.array_equal(arrays[f"{part}_images"], ORIGINAL[f"{part}_images"].transpose(0, 3, 1, 2))
        assert arrays[f"{part}_labels"].tolist() == [0, 1] * (len(ORIGINAL[f"{part}_labels"]) // 2)


# Archives of the published datasets


def test_a_gzip_file_that_unpacks_to_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MOST_BYTES", 1000)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for file, *_ in mnist.FILES.values():
        (folder / f"{file}.gz").write_bytes(gzip.compress(bytes(5000)))
    with pytest.raises(DataError, match="is not MNIST's train-images-idx3-ubyte"):
        import_dataset("mnist", folder)


# What is stored of a user's own images


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The folder of arrays of an imported .npz."""
    name = import_images(write(tmp_path / "mine.npz"))
    return tmp_path / "home" / "data" / name / "arrays"


@pytest.mark.parametrize("array", ARRAYS)
def test_a_flipped_bit_is_found_when_the_arrays_are_loaded(array: str, stored: Path, cli: Cli, tmp_path: Path) -> None:
    name, path = stored.parent.name, stored / f"{array}.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=f"{array} does not match its checksum.*Remove .*import the images again with --images PATH"
    ):
        load_dataset(name)
    answer = cli("run", "er", name, "--tasks", "2", "--seeds", "1", "--backbone", "mlp")
    assert answer.code == 2
    assert f"the stored {name} cannot be read ({array} does" in answer.err.replace("\n", " ")
    events: list[Any] = []
    assert import_images(tmp_path / "mine.npz", on_event=events.append) == name
    assert "the stored dataset is damaged, so it is imported again" in events[0].text
    check_loaded(name)


def check_loaded(name: str) -> None:
    datasets._tensors.cache_clear()
    data = load_dataset(name)
    assert data.classes == ("cat", "ox")
    for part in ("train", "test"):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert np.array_equal(images.numpy(), ORIGINAL[f"{part}_images"].transpose(0, 3, 1, 2))
        assert labels.tolist() == [0, 1] * (len(ORIGINAL[f"{part}_labels"]) // 2)
    pixels = ORIGINAL["train_images"] / 255
    assert data.mean == pytest.approx(pixels.mean((0, 1, 2)), abs=1e-4)
    assert data.std == pytest.approx(pixels.std((0, 1, 2)), abs=1e-4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([f"{array}.npy" for array in ARRAYS] + ["about.json", "sums.json"]), EDITS)
def test_stored_files_are_refused_or_read_right(stored: Path, file: str, edits: Any) -> None:
    content = (stored / file).read_bytes()
    (stored / file).write_bytes(edited(content, edits))
    try:
        check_loaded(stored.parent.name)
    except InputError:
        pass
    finally:
        (stored / file).write_bytes(content)


WRONG: list[Callable[[dict[str, Any]], Any]] = [
    lambda about: [],
    lambda about: {},
    lambda about: about | {"name": "other"},
    lambda about: about | {"title": 3},
    lambda about: about | {"title": "\x1b[31m"},
    lambda about: about | {"classes": "co"},
    lambda about: about | {"classes": ["cat", "cat"]},
    lambda about: about | {"classes": ["cat"]},
    lambda about: about | {"classes": ["cat", []]},
    lambda about: about | {"classes": ["cat", 3]},
    lambda about: about | {"mean": [0.5]},
    lambda about: about | {"mean": [0.5, 0.5, "x"]},
    lambda about: about | {"std": [0.5, 0.5, 0.0]},
    lambda about: about | {"std": [0.5, 0.5, float("nan")]},
    lambda about: about | {"std": 3},
    lambda about: about | {"arrays": {}},
    lambda about: about | {"arrays": {"train_images": 3}},
    lambda about: about | {"arrays": {array: [[8, "x"], "0", "uint8"] for array in ARRAYS}},
]


@pytest.mark.parametrize(
    ("change", "has_checksum"), [*((change, True) for change in WRONG), *((change, False) for change in WRONG[:5])]
)
def test_descriptions_that_are_refused(change: Callable[..., Any], has_checksum: bool, stored: Path) -> None:
    """Whether or not a checksum of the description is there: earlier versions stored none."""
    about, name = stored / "about.json", stored.parent.name
    if not has_checksum:
        forget_checksum(stored)
    about.write_text(json.dumps(change(json.loads(about.read_text()))))
    with pytest.raises(DataError, match=r"about.json .*Remove .*import the images again with --images PATH"):
        load_dataset(name)


def test_commands_where_a_description_is_damaged(stored: Path, cli: Cli) -> None:
    (stored / "about.json").write_text("{")
    assert "about.json has changed since it was stored" in cli("list", "benchmarks").err.replace("\n", " ")
    assert cli("data", "verify", stored.parent.name).code == 2
    assert cli("data", "path").code == 0
    assert cli("run", "er", stored.parent.name, "--tasks", "2").code == 2


def forget_checksum(stored: Path) -> None:
    sums = json.loads((stored / "sums.json").read_text())
    del sums["about.json"]
    (stored / "sums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"", b"9" * 5000, b"[]", b'{"train_images": 3}'])
@pytest.mark.parametrize("file", ["about.json", "sums.json"])
def test_json_that_is_refused(content: bytes, file: str, stored: Path) -> None:
    if file == "about.json":
        forget_checksum(stored)
    (stored / file).write_bytes(content)
    with pytest.raises(DataError, match=rf"{file} .*Remove .*import the images again"):
        load_dataset(stored.parent.name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("[" * 4000), "its header is not"),
        (described("'|u1'", "(999999999, 3, 4, 5)"), "does not match"),
        (described("'|O'", "(8, 3, 4, 5)") + b"\0" * 3840, "its header is not"),
        (described("'|u1'", "(0, 3, 4, 5)"), "train_images"),
        (npy(np.zeros((8, 3, 4), np.uint8)), r"train_images is uint8 of shape \(8, 3, 4\)"),
        (npy(np.zeros((8, 3, 4, 5), np.int8)), "train_images is int8"),
        (npy(np.zeros((8, 3, 4, 6), np.uint8)), "images is uint8 of shape"),
        (npy(np.zeros((7, 3, 4, 5), np.uint8)), r"train_labels is uint16 of shape \(8,\)"),
        (pickle.dumps({}), "its header is not"),
        (b"hello", "its header is not"),
    ],
    ids=itertools.count(),
)
def test_arrays_that_are_refused(content: bytes, message: str, stored: Path) -> None:
    (stored / "train_images.npy").write_bytes(content)
    with pytest.raises(DataError, match=f"cannot be read .*{message}.*Remove"):
        load_dataset(stored.parent.name)


def test_labels_of_no_class_are_refused(stored: Path) -> None:
    np.save(stored / "test_labels.npy", np.array([0, 1, 2, 0], np.uint16))
    with pytest.raises(DataError, match="test_labels has labels that are not 0 to 1"):
        load_dataset(stored.parent.name)


def test_what_earlier_versions_stored_is_read(stored: Path) -> None:
    forget_checksum(stored)  # of the description, which version 0.1 did not store
    check_loaded(stored.parent.name)
    verify(stored.parent.name)
    (stored / "sums.json").unlink()  # the very first had none at all
    check_loaded(stored.parent.name)
    content = bytearray((stored / "train_images.npy").read_bytes())
    content[-1] ^= 1
    (stored / "train_images.npy").write_bytes(content)
    with pytest.raises(DataError, match="train_images does not match its checksum"):
        load_dataset(stored.parent.name)


def test_a_name_that_other_images_have(stored: Path, tmp_path: Path) -> None:
    """The name has 32 bits of the digest. Another file with the same ones must not get the first one's images."""
    forget_checksum(stored)
    about = json.loads((stored / "about.json").read_text())
    (stored / "about.json").write_text(json.dumps(about | {"digest": about["digest"][:8] + "0" * 56}))
    with pytest.raises(InputError, match="is already the name of other images"):
        import_images(tmp_path / "mine.npz")
