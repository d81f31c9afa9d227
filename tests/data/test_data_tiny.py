"""Tiny ImageNet from a little copy in the official format: good ones are read, all others are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.data import (
    DATASETS,
    dataset_path,
    fetch,
    import_dataset,
    is_cached,
    load_dataset,
    tiny_imagenet,
    verify,
)
from cclfp.data.source import ArraySpec
from cclfp.errors import DataError
from cclfp.events import DataProgress

pil = pytest.importorskip("PIL.Image")

NAME = "tiny-imagenet"
SOURCE: Any = DATASETS[NAME]
WNIDS = tiny_imagenet.WNIDS[:3]
LABELS = [2, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1]  # of val_0 to val_10
GREY = f"train/{WNIDS[1]}/images/{WNIDS[1]}_2.JPEG"

Files = dict[str, bytes]


def jpeg(number: int, grey: bool = False, size: tuple[int, int] = (64, 64)) -> bytes:
    """An image of one colour, which a JPEG file keeps but for rounding."""
    buffer = io.BytesIO()
    colour = 10 * number if grey else (10 * number, 255 - 10 * number, 77)
    pil.new("L" if grey else "RGB", size, colour).save(buffer, "jpeg", quality=95)
    return buffer.getvalue()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Three classes of four images and eleven for testing: the tables are changed to theirs."""
    monkeypatch.setattr(tiny_imagenet, "WNIDS", WNIDS)
    monkeypatch.setattr(tiny_imagenet, "TRAIN_PER_CLASS", 4)
    monkeypatch.setattr(tiny_imagenet, "TEST", len(LABELS))
    made: Files = {}
    for row in range(12):
        name = f"train/{WNIDS[row // 4]}/images/{WNIDS[row // 4]}_{row % 4}.JPEG"
        made[name] = jpeg(row, grey=name == GREY)
    for row in range(len(LABELS)):
        made[f"val/images/val_{row}.JPEG"] = jpeg(row + 12)
    publish(made, monkeypatch)
    made["val/val_annotations.txt"] = annotated(LABELS)
    made["wnids.txt"] = "\n".join(reversed(WNIDS)).encode()
    made["test/images/test_0.JPEG"] = b"is not looked at"
    made[f"train/{WNIDS[0]}/{WNIDS[0]}_boxes.txt"] = b""
    sums = {
        "train_labels": hashlib.sha256(bytes(row // 4 for row in range(12))).hexdigest(),
        "test_labels": hashlib.sha256(bytes(LABELS)).hexdigest(),
    }
    arrays = {array: ArraySpec(_shape(array), sums.get(array)) for array in SOURCE.arrays}
    monkeypatch.setattr(SOURCE, "arrays", arrays)
    return made


def _shape(array: str) -> tuple[int, ...]:
    count = 12 if array.startswith("train") else len(LABELS)
    return (count, 3, 64, 64) if array.endswith("images") else (count,)


def publish(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256()
    for name in sorted(name for name in files if name.endswith(".JPEG") and not name.startswith("test/")):
        digest.update(name.encode() + b"\0" + files[name])
    monkeypatch.setattr(tiny_imagenet, "SHA256", digest.hexdigest())


def annotated(labels: list[int]) -> bytes:
    lines = [f"val_{row}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62\n" for row, label in enumerate(labels)]
    return "".join(reversed(lines)).encode()  # their order does not matter


def folder(files: Files, path: Path) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def archive(files: Files, path: Path, monkeypatch: pytest.MonkeyPatch | None) -> Path:
    """A zip file; with a monkeypatch its sum becomes the published one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.mkdir("tiny-imagenet-200")
        for name, content in files.items():
            file.writestr(f"tiny-imagenet-200/{name}", content)
    if monkeypatch is not None:
        publish_archive(path, monkeypatch)
    return path


def publish_archive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    published = dataclasses.replace(SOURCE.archive, md5=md5, size=path.stat().st_size)
    monkeypatch.setattr(SOURCE, "archive", published)


def refused(path: Path, match: str) -> str:
    """Refused with such a message, and nothing is left behind."""
    with pytest.raises(DataError, match=match) as caught:
        import_dataset(NAME, path)
    assert not is_cached(NAME)
    assert not dataset_path(NAME).exists()
    return str(caught.value)


def check_stored() -> None:
    verify(NAME)
    data = load_dataset(NAME)
    assert data.train_labels.tolist() == [row // 4 for row in range(12)]
    assert data.test_labels.tolist() == LABELS
    for row, image in enumerate([*data.train_images.float(), *data.test_images.float()]):
        colour = [10 * row] * 3 if row == 6 else [10 * row, 255 - 10 * row, 77]
        assert np.abs(image.mean((1, 2)).numpy() - colour).max() < 3
    assert data.classes[:2] == ("goldfish", "European fire salamander")
    assert data.num_classes == 200


@pytest.mark.parametrize("form", ["folder", "parent", "archive", "renamed archive", "parent of archive"])
def test_import(form: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "archive" in form:
        name = "mine" if form.startswith("renamed") else "tiny-imagenet-200.zip"
        path = archive(files, tmp_path / "mine" / name, monkeypatch)
    else:
        path = folder(files, tmp_path / "mine" / "tiny-imagenet-200")
    events: list[Any] = []
    import_dataset(NAME, path.parent if form.startswith("parent") else path, events.append)
    check_stored()
    assert events[-1] == DataProgress(f"{NAME}: decoding", 23, 23, "images")
    assert DataProgress(f"{NAME}: reading", 24, 24, "files") in events


def test_fetch_finds_files_placed_by_hand(files: Files) -> None:
    folder(files, dataset_path(NAME) / "tiny-imagenet-200")
    fetch(NAME)
    check_stored()


def test_a_folder_that_lacks_files(files: Files, tmp_path: Path) -> None:
    place = folder(files, tmp_path / "mine")
    for row in (1, 2, 4, 10):
        (place / f"val/images/val_{row}.JPEG").unlink()
    refused(place, "it lacks val/images/val_1.JPEG, val/images/val_2.JPEG, val/images/val_4.JPEG and 1 more")
    refused(tmp_path, "has none of tiny-imagenet's files: expected the archive tiny-imagenet-200.zip, or the folder")


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize("content", [b"", jpeg(6, grey=True)[:-40], jpeg(7)])
def test_an_image_that_differs(
    form: str, content: bytes, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_imagenet, "decode", lambda *_: pytest.fail("decoded what was not verified"))
    files[GREY] = content
    path = folder(files, tmp_path / "x") if form == "folder" else archive(files, tmp_path / "x", monkeypatch)
    refused(path, r"images are not what was published: sha256 .*, not .*\. Nothing of it was kept")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jpeg(6)[:-200] + b"\xff\xd9", f"{GREY} cannot be decoded: "),
        (b"rubbish", f"{GREY} cannot be decoded: not an image"),
        (jpeg(6, size=(64, 32)), f"{GREY} is 64×32, not 64×64"),
    ],
)
def test_an_image_whose_sum_is_right_but_not_its_content(
    content: bytes, message: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files[GREY] = content
    publish(files, monkeypatch)
    refused(folder(files, tmp_path / "mine"), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (annotated(LABELS[:-1]), "has no known class for val_10.JPEG"),
        (annotated(LABELS).replace(WNIDS[0].encode(), b"n00000000"), "no known class for val_1.JPEG, val_4.JPEG"),
        (b"\xff\x00rubbish", "no known class for val_0.JPEG, val_1.JPEG, val_2.JPEG and 8 more"),
        (b"", "no known class for"),
    ],
)
def test_wrong_annotations(content: bytes, message: str, files: Files, tmp_path: Path) -> None:
    files["val/val_annotations.txt"] = content
    refused(folder(files, tmp_path / "mine"), message)


def test_other_labels(files: Files, tmp_path: Path) -> None:
    files["val/val_annotations.txt"] = annotated(LABELS[::-1])
    with pytest.raises(DataError, match="test_labels is not what was published"):
        import_dataset(NAME, folder(files, tmp_path / "mine"))
    assert not is_cached(NAME)


def test_other_members_are_not_read(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(files, tmp_path / "mine.zip", None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("tiny-imagenet-200/../evil", b"")
        file.writestr("/etc/evil", b"")
    publish_archive(path, monkeypatch)
    import_dataset(NAME, path)
    check_stored()


def test_a_wrong_archive_is_not_opened_for_its_contents(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("read what was not verified"))
    path = archive(files, tmp_path / "mine.zip", monkeypatch)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refused(path, rf"\({len(whole) - 100:,} bytes, published {len(whole):,}\). Nothing of it was kept")


def test_a_broken_archive_whose_sum_is_right(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(files, tmp_path / "mine.zip", None)
    content = bytearray(path.read_bytes())
    content[content.index(b"\x50\x4b\x03\x04", 100) + 200] ^= 1  # inside a file
    path.write_bytes(content)
    publish_archive(path, monkeypatch)
    refused(path, "mine.zip is broken: ")


def test_verify_finds_a_changed_pixel(files: Files, tmp_path: Path) -> None:
    import_dataset(NAME, folder(files, tmp_path / "mine"))
    path = dataset_path(NAME) / "arrays" / "train_images.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="train_images is not what was stored.*cclfp data fetch tiny-imagenet"):
        verify(NAME)
    path.write_bytes(content)
    verify(NAME)
    path.with_name("sums.json").write_text("{")
    with pytest.raises(DataError, match="sums.json is not JSON.*cclfp data fetch tiny-imagenet"):
        verify(NAME)
    path.with_name("sums.json").unlink()
    with pytest.raises(DataError, match="cannot be verified without sums.json.*cclfp data fetch tiny-imagenet"):
        verify(NAME)


def test_a_wrong_one_does_not_replace_a_good_one(files: Files, tmp_path: Path) -> None:
    import_dataset(NAME, folder(files, tmp_path / "good"))
    with pytest.raises(DataError):
        import_dataset(NAME, folder({**files, GREY: b""}, tmp_path / "bad"))
    check_stored()


def test_without_pillow(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(folder(files, tmp_path / "mine"), "decoding images needs Pillow: pip install pillow")
