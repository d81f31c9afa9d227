"""What is stored of a user's own images: damage is found, a kill loses nothing, and it reaches other machines whole."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import flipped
from samples import CLASSES, EDITS, ORIGINAL, edited, npz, photos

from cclfp.data import datasets, import_images, is_cached, list_datasets, load_dataset, own_datasets, remove_dataset
from cclfp.data.datasets import get_dataset, pack, store, unpack, verify
from cclfp.data.formats import ARRAYS
from cclfp.errors import DataError, InputError


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The folder of arrays of an imported .npz."""
    return tmp_path / "home" / "data" / import_images(npz(tmp_path / "mine.npz", **ORIGINAL)) / "arrays"


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


@pytest.mark.parametrize("array", ARRAYS)
def test_a_flipped_bit_is_found_when_the_arrays_are_loaded(array: str, stored: Path, cli: Cli, tmp_path: Path) -> None:
    name = stored.parent.name
    flipped(stored / f"{array}.npy", -2, 0)
    for use in (load_dataset, verify):
        with pytest.raises(DataError, match=f"{array} does not match .*Remove .*import the images again with --images"):
            use(name)
    answer = cli("run", "er", name, "--tasks", "2", "--seeds", "1", "--backbone", "mlp")
    assert answer.code == 2
    assert f"the stored {name} cannot be read" in answer.err.replace("\n", " ")
    assert import_images(tmp_path / "mine.npz") == name  # again
    check_loaded(name)


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


def forget_checksum(stored: Path) -> None:
    """Of the description, which an earlier version did not store."""
    sums = json.loads((stored / "sums.json").read_text())
    del sums["about.json"]
    (stored / "sums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"", b"[]", b'{"title": 3}', b'{"arrays": {"x": 3}}'])
def test_a_description_that_is_refused(content: bytes, stored: Path, cli: Cli) -> None:
    name = stored.parent.name
    for _ in range(2):
        (stored / "about.json").write_bytes(content)
        with pytest.raises(DataError, match=r"about.json.*Remove .*import the images again"):
            load_dataset(name)
        forget_checksum(stored) if "about.json" in (stored / "sums.json").read_text() else None
    assert "about.json" in cli("list", "benchmarks").err
    assert [cli("data", "path").code, cli("data", "verify", name).code] == [0, 2]
    assert "damaged" in next(one for one in list_datasets() if one.own).description
    assert cli("data", "remove", name, "--yes", "--json").json == {"removed": [name]}


@pytest.mark.parametrize("field", ["title", "classes", "mean", "std", "arrays"])
def test_a_description_without_a_field_is_refused(field: str, stored: Path, cli: Cli) -> None:
    """Where no checksum shows that it has changed."""
    (stored / "sums.json").unlink()
    about = json.loads((stored / "about.json").read_text())
    del about[field]
    (stored / "about.json").write_text(json.dumps(about))
    answer = cli("show", stored.parent.name)
    assert (answer.code, "about.json is incomplete or invalid" in " ".join(answer.err.split())) == (2, True)


def test_what_earlier_versions_stored_is_read(stored: Path) -> None:
    forget_checksum(stored)
    check_loaded(stored.parent.name)
    (stored / "sums.json").unlink()  # the very first had none at all
    check_loaded(stored.parent.name)
    verify(stored.parent.name)


def test_a_name_that_other_images_have(stored: Path, tmp_path: Path) -> None:
    """The name has 32 bits of the digest. Another file with the same ones must not get the first one's images."""
    forget_checksum(stored)
    about = json.loads((stored / "about.json").read_text())
    (stored / "about.json").write_text(json.dumps(about | {"digest": about["digest"][:8] + "0" * 56}))
    with pytest.raises(InputError, match="is already the name of other images"):
        import_images(tmp_path / "mine.npz")


# -- kills --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a SIGKILL: nothing is done after it."""


def test_what_is_intact_is_not_replaced(stored: Path) -> None:
    """So a kill cannot lose it, and a run may go on reading it."""
    name, before = stored.parent.name, stored.stat().st_ino
    data = load_dataset(name)
    arrays = {array: getattr(data, array).numpy() for array in ARRAYS}
    arrays |= {array: arrays[array].astype(np.uint16) for array in ARRAYS if array.endswith("labels")}
    store(get_dataset(name), arrays, json.loads((stored / "about.json").read_text()))
    assert stored.stat().st_ino == before


@pytest.mark.parametrize("at", [1, 2])  # of the damaged folder, of the new one
def test_a_kill_at_each_rename(at: int, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, renames = stored.parent.name, itertools.count(1)
    flipped(stored / "test_images.npy", -2, 0)

    def killed(rename: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(renames) == at:
                patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a dead process does not clean up
                raise Killed
            return rename(*arguments)

        return call

    with monkeypatch.context() as patch:
        for method in (Path.rename, Path.replace):
            patch.setattr(Path, method.__name__, killed(method))
        with pytest.raises(Killed):
            import_images(tmp_path / "mine.npz")
    assert import_images(tmp_path / "mine.npz") == name
    check_loaded(name)


def test_other_files_beside_the_stored_ones_stay(stored: Path, tmp_path: Path) -> None:
    others = [stored.parent / name for name in ("mine.part", ".arrays.mybackup/a", ".arrays.removed/a")]
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    flipped(stored / "test_images.npy", -2, 0)
    import_images(tmp_path / "mine.npz")
    remove_dataset(stored.parent.name)
    assert all(file.read_text() == "mine" for file in others)
    assert len(list(stored.parent.iterdir())) == 4  # with the lock
    assert own_datasets() == []


def test_datasets_are_listed_and_removed(cli: Cli, tmp_path: Path) -> None:
    name = import_images(photos(tmp_path / "photos"), split_seed=3, size=6)
    about = tmp_path / "home" / "data" / name / "arrays" / "about.json"
    facts = json.loads(about.read_text())
    assert (facts["split_seed"], facts["size"], facts["classes"]) == (3, 6, list(CLASSES))
    listed = {one["name"]: one for one in cli("data", "list", "--json").json["datasets"]}
    assert listed[name]["own"]
    assert listed[name]["bytes"] > 40 * 3 * 36
    assert not listed["mnist"]["here"]
    assert re.search(rf"│ {name} │ own +│ +0.0 MB │ photos: 4 classes", cli("data", "list").out)
    assert "no terminal to ask on: add --yes" in cli("data", "remove", name).err
    assert cli("data", "remove", name, "mnist", "--yes").code == 2  # all or none
    about.rename(about.with_name("away"))
    assert own_datasets() == []
    assert is_cached(name)  # the arrays alone are no dataset
    assert import_images(tmp_path / "photos", split_seed=3, size=6) == name
    assert cli("data", "remove", name, "--yes").out == f"{name}: removed, 0.0 MB\n"
    assert own_datasets() == []
    assert [path.name for path in (tmp_path / "home" / "data" / name).iterdir()] == [".lock"]
    assert (tmp_path / "photos" / "cat" / "0.png").exists()


def test_a_published_dataset_is_removed_but_not_files_placed_by_hand(cli: Cli, small_mnist: Path) -> None:
    assert cli("data", "path", "mnist").out.strip() == str(small_mnist / "data" / "mnist")
    assert [one["status"] for one in cli("data", "path", "--json").json["datasets"][:2]] == ["here", "missing"]
    by_hand = small_mnist / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    by_hand.write_bytes(b"placed by hand")
    answer = cli("data", "remove", "mnist", "mnist", "--yes")
    assert (answer.code, answer.out.count("removed")) == (0, 1), answer.err
    assert by_hand.exists()
    assert cli("data", "verify", "--json").json == {"datasets": []}
    assert cli("data", "verify").out == "no dataset is here yet\n"
    assert "mnist is not stored" in cli("data", "remove", "mnist", "--yes").err


# -- on the way to another machine --------------------------------------------------------------------------------


def test_a_dataset_arrives(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, packed = stored.parent.name, pack(stored.parent.name)
    for values in packed.values():
        values.flags.writeable = False  # as from Ray's object store
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "other"))
    unpack(name, packed)
    check_loaded(name)
    verify(name)
    assert len({load_dataset(name).train_images.data_ptr() for _ in range(2)}) == 1  # no copy per cohort
    folder = tmp_path / "other" / "data" / name / "arrays"
    before = folder.stat().st_ino
    unpack(name, packed)  # another cohort was faster
    assert folder.stat().st_ino == before


def test_damage_on_the_way_is_found(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, packed = stored.parent.name, pack(stored.parent.name)
    packed["test_images.npy"][-1] ^= 1
    flipped(stored / "train_images.npy", -2, 0)
    with pytest.raises(DataError, match="train_images does not match its checksum"):
        pack(name)
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "other"))
    unpack(name, packed)
    assert is_cached(name)
    with pytest.raises(DataError, match="test_images does not match its checksum"):
        load_dataset(name)
