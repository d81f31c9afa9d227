"""A process that is killed while it replaces stored images loses neither the old nor the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.data import datasets as module
from cclfp.data import import_images, list_datasets, load_dataset, own_datasets, stored


class Killed(BaseException):
    """Stands for a SIGKILL: nothing is done after it."""


@pytest.mark.parametrize("at", [1, 6, 7, 8])  # the first and the last file; the old folder, the new one
def test_a_kill_at_each_rename(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8), np.array(["cat", "dog"] * 2)
    path = tmp_path / "pets.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    name = import_images(path)
    source: Any = module.get_dataset(name)
    arrays = {array: values.copy() for array, values in stored.map_arrays(name).items()}
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
