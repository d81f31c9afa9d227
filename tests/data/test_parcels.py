"""Datasets that travel to another machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cclfp.data import import_images, load_dataset
from cclfp.data.datasets import Parcel, pack, unpack
from cclfp.errors import DataError


@pytest.fixture
def parcel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    """Images of the user's own; this machine then has another home, without them. The arrays are read-only."""
    labels = np.arange(20) % 4
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    packed = pack(import_images(tmp_path / "mine.npz"))
    for values in packed.arrays.values():
        values.flags.writeable = False  # as from Ray's object store
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "other"))
    return packed


def test_a_dataset_arrives(parcel: Parcel, tmp_path: Path) -> None:
    assert all(type(values) is np.ndarray for values in parcel.arrays.values())
    unpack(parcel)
    there = load_dataset(parcel.name)
    assert (there.train_images.numpy() == parcel.arrays["train_images"]).all()
    assert there.classes == ("0", "1", "2", "3")
    assert load_dataset(parcel.name).train_images.data_ptr() == there.train_images.data_ptr()  # no copy per cohort
    folder = tmp_path / "other" / "data" / parcel.name / "arrays"
    before = folder.stat().st_ino
    unpack(parcel)  # another cohort was faster
    assert folder.stat().st_ino == before


def test_a_damaged_array_is_not_stored(parcel: Parcel, tmp_path: Path) -> None:
    images = parcel.arrays["test_images"].copy()
    images[3, 0, 0, 0] ^= 1
    with pytest.raises(DataError, match="test_images does not match its checksum"):
        unpack(parcel._replace(arrays={**parcel.arrays, "test_images": images}))
    assert not (tmp_path / "other" / "data" / parcel.name / "arrays").exists()


def test_a_published_dataset_must_be_the_published_one(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcel = pack("mnist")
    assert parcel.about is None
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "other"))
    with pytest.raises(DataError, match="mnist: train_images should be uint8 of shape"):
        unpack(parcel)
