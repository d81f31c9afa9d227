"""A process that is killed while it replaces stored images loses neither the old nor the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.data import datasets as module
from cclfp.data import import_images, list_datasets, load_dataset, own_datasets, remove_dataset, stored
from cclfp.data.download import discard


def again(name: str) -> tuple[Any, Any]:
    """What stores a dataset once more."""
    return module.get_dataset(name), {array: v.copy() for array, v in stored.map_arrays(name).items()}


def test_other_files_beside_the_stored_ones_stay(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array(["cat", "dog"] * 2)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    name = import_images(tmp_path / "a.npz")
    folder = tmp_path / "home" / "data" / name
    others = [folder / "mine.part", folder / ".arrays.mybackup" / "a", folder / ".arrays.removed" / "a"]
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    source, arrays = again(name)
    module.store(source, arrays, {stored.ABOUT: source.about})
    discard(folder)
    assert len(list(folder.iterdir())) == 5  # with arrays and .lock
    remove_dataset(name)
    assert all(file.read_text() == "mine" for file in others)


class Killed(BaseException):
    """Stands for a SIGKILL: nothing is done after it."""


@pytest.mark.parametrize("at", [1, 6, 7, 8])  # the first and the last file; the old folder, the new one
def test_a_kill_at_each_rename(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8), np.array(["cat", "dog"] * 2)
    path = tmp_path / "pets.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    name = import_images(path)
    source, arrays = again(name)
    replace, count = Path.replace, 0

    def stop(*_: Any, **__: Any) -> Any:
        raise Killed

    def counted(self: Path, target: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            for gone in ("replace", "unlink"):
                monkeypatch.setattr(Path, gone, stop)  # a dead process does not clean up
            monkeypatch.setattr(shutil, "rmtree", stop)
            raise Killed
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted)
        with pytest.raises(Killed):
            module.store(source, arrays, {stored.ABOUT: source.about})
    monkeypatch.undo()
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "home"))
    assert own_datasets() == [name]
    assert [one.here for one in list_datasets() if one.own] == [True]
    assert np.array_equal(load_dataset(name).train_images[:, 0].numpy(), images)
    assert import_images(path) == name
