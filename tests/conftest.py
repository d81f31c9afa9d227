"""Every test has a CCLFP_HOME of its own; those marked ``mnist`` use the machine's, where the real MNIST is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

torch.set_num_threads(1)  # as the engine does; the suite's tensors are small


@pytest.fixture(autouse=True)
def own_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "mnist" not in request.keywords:
        monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "home"))


@pytest.fixture
def small_mnist(own_home: None, tmp_path: Path) -> Path:
    """A CCLFP_HOME with a little dataset in MNIST's place: blurry digits that can be told apart, quick to train on."""
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 256, (10, 1, 28, 28))
    folder = tmp_path / "home" / "data" / "mnist" / "arrays"
    folder.mkdir(parents=True)
    for part, size in (("train", 1500), ("test", 200)):
        labels = np.arange(size) % 10
        noise = rng.integers(0, 256, (size, 1, 28, 28))
        np.save(folder / f"{part}_images.npy", ((prototypes[labels] + noise) // 2).astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels.astype(np.uint8))
    return tmp_path / "home"
