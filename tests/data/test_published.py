"""The published datasets from files: what is not as published, to the byte, is refused and leaves nothing."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little import ARCHIVED, MAKE, Little, Patch, make, string

from cclfp.data import DATASETS, dataset_path, fetch, formats, import_dataset, load_dataset, remove_dataset, verify
from cclfp.data.formats import ANNOTATIONS, ARRAYS
from cclfp.errors import DataError, InputError
from cclfp.events import DataProgress, Note


@pytest.fixture(params=MAKE)
def little(request: pytest.FixtureRequest, monkeypatch: Patch) -> Little:
    return make(request.param, monkeypatch)


def test_import_and_fetch(little: Little, tmp_path: Path) -> None:
    events: list[Any] = []
    import_dataset(little.name, little.place(tmp_path / "mine"), events.append)
    little.check()
    if little.name != "mnist":
        is_tiny, count = little.name == "tiny-imagenet", len(little.files)
        last = ("decoding", count - 1, "images") if is_tiny else ("reading", count, "files")
        assert events[-1] == DataProgress(f"{little.name}: {last[0]}", last[1], last[1], last[2])
    remove_dataset(little.name)
    little.place(dataset_path(little.name))  # by hand
    events.clear()
    fetch(little.name, events.append)
    little.check()
    notes = [event.text for event in events if isinstance(event, Note)]
    assert notes == [f"{little.name}: verified and stored in {dataset_path(little.name)}"]
    fetch(little.name, events.clear)  # type: ignore[arg-type]  # nothing is called, for there is nothing to do


@pytest.mark.parametrize("form", ["{archive}", "renamed", "parent/{archive}", "parent/{folder}"])
@pytest.mark.parametrize("name", ARCHIVED)
def test_forms_of_an_archive(name: str, form: str, tmp_path: Path, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    path = tmp_path / form.format(archive=little.source.archive, folder=little.source.folder)
    path.parent.mkdir(exist_ok=True)
    little.place(path) if "folder" in form else path.write_bytes(little.pack())
    import_dataset(name, path.parent if form.startswith("parent") else path)
    little.check()
    assert not list(tmp_path.rglob("evil"))


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-9],
    "longer": lambda raw: raw + b"\0",
    "one bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("row", [0, 1])
def test_a_wrong_file_is_refused_and_replaces_nothing(little: Little, row: int, how: str, tmp_path: Path) -> None:
    good = little.place(tmp_path / "good")
    file = list(little.files)[row]
    little.files[file] = SPOILT[how](little.files[file])
    bad = little.place(tmp_path / "bad")
    little.refused(bad, "not what was published|cannot be read as an IDX|does not match its checksum")
    import_dataset(little.name, good)
    with pytest.raises(DataError):
        import_dataset(little.name, bad)
    verify(little.name)


def test_wrong_annotations(tmp_path: Path, monkeypatch: Patch) -> None:
    little = make("tiny-imagenet", monkeypatch)
    right, (first, second, _) = little.files[ANNOTATIONS], [wnid.encode() for wnid in little.source.wnids]
    for content, message in (
        (b"\xff\x00rubbish", "does not name the class of each image"),
        (right.replace(first, b"n00000000"), "does not name the class of each image"),
        (right.replace(first, second), "test_labels does not match"),
    ):
        little.files[ANNOTATIONS] = content
        little.refused(little.place(tmp_path / "mine"), message)


def test_missing_files_are_named(little: Little, tmp_path: Path) -> None:
    folder = little.place(tmp_path / "mine")
    gone = list(little.files)[-1]
    (folder / gone).unlink()
    little.refused(folder, Path(gone).name)
    os.mkfifo(folder / gone)
    little.refused(folder, f"there is no file .*{Path(gone).name}")
    little.refused(tmp_path, f"has none of {little.name}'s files: expected the ")
    little.refused(tmp_path / "nowhere", "nowhere does not exist: expected the ")


@pytest.mark.parametrize("name", ARCHIVED)
def test_a_wrong_archive_is_not_opened(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    little, path = make(name, monkeypatch), tmp_path / "mine"
    path.write_bytes(little.pack()[:-100])
    for module, attribute in ((tarfile, "open"), (zipfile, "ZipFile")):
        monkeypatch.setattr(module, attribute, lambda *_, **__: pytest.fail("opened"))
    found = hashlib.md5(path.read_bytes()).hexdigest()
    little.refused(path, f"mine is not the published {little.source.archive}: md5 {found}, published ")


def test_an_archive_that_cannot_be_read(tmp_path: Path, monkeypatch: Patch) -> None:
    """The error does not say that CCLFP_HOME cannot be written to."""
    little = make("cifar10", monkeypatch)
    path = dataset_path("cifar10") / little.source.archive
    path.parent.mkdir(parents=True)
    path.write_bytes(little.pack())

    def refuse(*_: Any) -> str:
        raise PermissionError(f"Permission denied: {path}")

    monkeypatch.setattr(formats, "checksum_of", refuse)
    with pytest.raises(DataError, match=f"^cifar10: Permission denied: {path}$"):
        fetch("cifar10")


def test_an_evil_pickle_does_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    """Even with the right checksum."""
    little = make("cifar10", monkeypatch)
    little.files["test_batch"] = b"\x80\x02cposix\nsystem\n(" + string(f"touch {tmp_path / 'evil'}".encode()) + b"tR."
    little.publish_files()
    little.refused(little.place(tmp_path / "mine"), r"refers to posix\.system, which is refused")
    assert not (tmp_path / "evil").exists()


def test_a_gzip_file_that_unpacks_to_much_is_not_unpacked(tmp_path: Path, monkeypatch: Patch) -> None:
    little = make("mnist", monkeypatch)
    monkeypatch.setattr(formats, "MOST_UNPACKED", 1000)
    little.files = {f"{file}.gz": gzip.compress(raw + bytes(5000)) for file, raw in little.files.items()}
    little.refused(little.place(tmp_path / "mine"), "cannot be read as an IDX file of 6 examples")


def test_verify_finds_a_changed_byte(little: Little, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{little.name} is not stored.*cclfp data fetch {little.name}"):
        verify(little.name)
    import_dataset(little.name, little.place(tmp_path / "mine"))
    for array in ARRAYS:
        path = dataset_path(little.name) / "arrays" / f"{array}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        message = f"{array} does not match.*Remove .*run: cclfp data fetch {little.name}"
        for use in (verify, load_dataset):
            with pytest.raises(DataError, match=message):
                use(little.name)
        path.write_bytes(content)
    np.save(path, np.zeros(2, np.uint8))
    with pytest.raises(DataError, match="should be uint8 of shape"):
        verify(little.name)
    path.unlink()
    little.place(dataset_path(little.name))
    fetch(little.name)  # a missing array is made again
    little.check()


def test_pixels_that_have_no_published_checksum(tmp_path: Path, monkeypatch: Patch) -> None:
    little = make("tiny-imagenet", monkeypatch)
    import_dataset(little.name, little.place(tmp_path / "mine"))
    checksums = dataset_path(little.name) / "arrays" / "sums.json"
    missing = "there is no stored checksum of train_images in sums.json to compare it with"
    for content, why in (("{", "sums.json: "), ("{}", missing), (None, missing)):
        checksums.unlink() if content is None else checksums.write_text(content)
        with pytest.raises(DataError, match=rf"\(.*{why}.*cclfp data fetch tiny-imagenet"):
            verify(little.name)


def test_what_is_known_of_the_datasets() -> None:
    counts = {"mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}
    assert {name: len(DATASETS[name].classes) for name in counts} == counts
    assert all(len(set(source.classes)) == len(source.classes) for source in DATASETS.values())
    assert sum(spec.sha256 is not None for name in counts for spec in DATASETS[name].arrays.values()) == 14
    assert DATASETS["cifar100"].classes[:2] == ("apple", "aquarium_fish")
    assert DATASETS["tiny-imagenet"].classes[0] == "goldfish"


def test_a_home_that_cannot_be(monkeypatch: Patch) -> None:
    monkeypatch.setenv("CCLFP_HOME", "/proc/x")  # not even root may make this
    with pytest.raises(InputError, match="/proc/x.*CCLFP_HOME|CCLFP_HOME='/proc/x'"):  # the second for who is not root
        fetch("mnist")


@pytest.mark.mnist
def test_the_real_mnist() -> None:
    fetch("mnist")
    verify("mnist")
    data = load_dataset("mnist")
    counts = np.bincount(data.train_labels.numpy()).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test_labels.numpy()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
