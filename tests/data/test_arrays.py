"""Images of a user's own from .npz files: read right or refused, whatever the file holds."""

from __future__ import annotations

import itertools
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from samples import EDITS, ORIGINAL, arrays, edited, imported, npy, npz, refused
from training import texts

from cclfp.data.images import _read_npz
from cclfp.errors import InputError
from cclfp.events import Event, ignore


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((8, 8, 3), (3, 8, 8)),
        ((8, 8, 1), (1, 8, 8)),
        ((8, 9), (1, 8, 9)),
        ((3, 8, 8), (3, 8, 8)),
        ((3, 8, 3), (3, 3, 8)),
    ],
)
def test_an_npz(shape: tuple[int, ...], stored: tuple[int, ...], tmp_path: Path) -> None:
    given = arrays(shape)
    data = imported(npz(tmp_path / "mine.npz", **given))
    assert data.train_images.shape[1:] == stored
    assert data.classes == ("3", "5", "7", "9")
    assert data.train_labels.tolist() == [0, 1, 2, 3] * 10
    wanted = given["train_images"]
    wanted = wanted[:, None] if wanted.ndim == 3 else wanted
    wanted = wanted if wanted.shape[1:] == stored else wanted.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train_images.numpy(), wanted)
    one_colour = {f"{part}_images": np.full_like(given[f"{part}_images"], 51) for part in ("train", "test")}
    data = imported(npz(tmp_path / "mine.npz", **given | one_colour))
    assert (data.mean, data.std) == ((0.2,) * stored[0], (0.01,) * stored[0])  # no division by zero


def test_floats_and_texts(tmp_path: Path) -> None:
    given, events = arrays(labels=["d", "a", "c", "[/b]"]), list[Event]()
    for dtype in (np.float32, np.float64):
        floats = {part: (given[part] / 255).astype(dtype) for part in ("train_images", "test_images")}
        data = imported(npz(tmp_path / "mine.npz", **given | floats), on_event=events.append)
        assert np.array_equal(data.train_images.numpy().transpose(0, 2, 3, 1), given["train_images"])
        assert "mine.npz: train_images has floats, which are stored as whole numbers from 0 to 255" in texts(events)
        assert data.classes == ("[/b]", "a", "c", "d")
        assert data.train_labels[:4].tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_labels": None}, "lacks test_labels$"),
        ({"train_images": np.zeros((40, 8, 8, 3), np.int32)}, "train_images is int32 .*; expected uint8 or floats"),
        ({"train_images": np.full((40, 8, 8, 3), 1.5)}, "train_images is float64 .*; expected uint8 or floats"),
        ({"test_images": np.full((12, 8, 8, 3), np.nan)}, "test_images is float64 .*; expected uint8 or floats"),
        ({"train_images": np.zeros((40, 8), np.uint8)}, r"uint8 of shape \(40, 8\); expected uint8 .* \(N, height"),
        ({"train_images": np.zeros((0, 8, 8), np.uint8)}, "expected uint8"),
        ({"train_images": np.zeros((40, 8, 8, 4), np.uint8)}, "with 1 or 3 channels"),
        ({"train_images": np.zeros((39, 8, 8, 3), np.uint8)}, r"int64 of shape \(40,\); .* each of the 39 images"),
        ({"train_images": np.zeros((40, 9, 8, 3), np.uint8)}, "different shapes"),
        ({"train_labels": np.zeros(40)}, "train_labels is float64 .*expected whole numbers or text"),
        ({"train_labels": np.zeros((40, 2), int)}, "expected whole numbers or text"),
        ({"test_labels": np.full(12, 3)}, "no test images of 5, 7, 9"),
        ({"train_images": np.zeros((70_000, 2, 2), np.uint8), "train_labels": np.arange(70_000)}, "has 70,000 classes"),
        ({"train_labels": np.full(40, 3), "test_labels": np.full(12, 3)}, "at least two classes"),
        ({"train_labels": np.array([{}] * 40)}, "cannot be read .Object arrays cannot be loaded"),
        ({"test_labels": np.array(list("abcdabcdabcd"))}, "in train_labels and test_labels, or text in both"),
        (arrays(labels=["a", "b", "c", "d\ne"]), "has a name that cannot be printed"),
    ],
)
def test_npz_files_that_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(npz(tmp_path / "mine.npz", **change), message)


# -- damaged and harmful files ------------------------------------------------------------------------------------


def header(text: str) -> bytes:
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text.encode()


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
        described("'|V1000000000'", "(8, 4, 5)"),
        described("'<M8[ns]'", "(8, 4, 5)") + bytes(8 * 160),
        described("'|u1'", "(8, 4, 5)") + bytes(159),
        described("'|u1'", "(8, 4, 5)") + bytes(1 << 20),
        described("'|O'", "(8, 4, 5)"),
        described("'|u1'", "(-2, -4, 20)") + bytes(160),
        header("[" * 4000),
        b"\x93NUMPY\2\0\xff\xff\xff\xff{}",
        pickle.dumps(ORIGINAL),
    ],
    ids=itertools.count(),
)
def test_arrays_of_an_npz_that_are_refused(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.npz", {"train_images": content})
    refused(path, r"mine.npz(: train_images is .*; expected uint8| cannot be read \(.*\): expected an .npz of numbers)")


def test_members_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.npz"
    for rubbish in (b"hello, world", pickle.dumps(ORIGINAL), npy(np.zeros(3)), b""):  # no advice to load it unsafely
        path.write_bytes(rubbish)
        refused(path, "cannot be read .File is not a zip file.: expected an .npz of .*, as np.savez writes it$")
    content = bytearray(write(path).read_bytes())
    content[content.index(ORIGINAL["test_images"].tobytes()) + 7] ^= 4
    path.write_bytes(content)
    refused(path, "cannot be read .Bad CRC-32 for file 'test_images.npy'")
    content = bytearray(write(path).read_bytes())
    for start, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(start) + flags] |= 1
    path.write_bytes(content)
    refused(path, "cannot be read .*is encrypted")
    no_text = npy(np.frombuffer(b"\xff\xff\xff\xff" * 8, "<U1"))
    refused(write(path, {"train_labels": no_text}), "cannot be read .*: expected an .npz of numbers")
    monkeypatch.setattr("cclfp.data.images.MOST_BYTES", 500)
    refused(write(path), "its arrays take more than")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["U3", "i2", "u8"])
def test_byte_orders_and_fortran_order(order: str, kind: str, tmp_path: Path) -> None:
    texts = ["cat", "ox"] if kind == "U3" else [7, 300]
    labels = {part: np.array(texts, order + kind)[np.arange(n) % 2] for part, n in (("train", 8), ("test", 4))}
    changed = {f"{part}_labels": npy(values) for part, values in labels.items()}
    images = {name: npy(np.asfortranarray(ORIGINAL[name])) for name in ("train_images", "test_images")}
    data = imported(write(tmp_path / "mine.npz", changed | images, zipfile.ZIP_DEFLATED))
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
COMPRESSIONS = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
ARCHIVES = st.tuples(EDITS, COMPRESSIONS, st.none() | st.integers(0, 4000))
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
        edits, compression, end = case
        path.write_bytes(edited(write(path, compression=compression).read_bytes(), edits)[:end])
    try:
        arrays, classes = _read_npz(path, None, ignore)
    except InputError:
        return
    assert classes == ["cat", "ox"]
    for part in ("test",) if is_array else ("train", "test"):
        assert np.array_equal(arrays[f"{part}_images"], ORIGINAL[f"{part}_images"].transpose(0, 3, 1, 2))
        assert arrays[f"{part}_labels"].tolist() == [0, 1] * (len(ORIGINAL[f"{part}_labels"]) // 2)
