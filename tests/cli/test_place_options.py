"""``run``, ``tune`` and ``study`` take the same options about what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from conftest import Cli
from PIL import Image

from cclfp.cli.app import app
from cclfp.streams import get_benchmark

SHARED = ("images", "image_size", "split_seed", "classes", "skip_bad", "tasks", "class_order", "backbone")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes, and an image that cannot be decoded."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog", "ox"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(6):
            pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{image}.png")
    (tmp_path / "photos" / "cat" / "bad.png").write_bytes(b"no image")
    return tmp_path / "photos"


def test_the_options_are_the_same() -> None:
    commands: Any = typer.main.get_command(app)
    described = [
        {p.name: (p.opts, p.metavar, p.help, p.default) for p in commands.commands[name].params if p.name in SHARED}
        for name in ("run", "tune", "study")
    ]
    assert sorted(described[0]) == sorted(SHARED)
    assert described[0] == described[1] == described[2]


def test_tune_and_study_take_a_subset_of_classes_and_leave_out_bad_images(photos: Path, cli: Cli) -> None:
    place = ("--images", photos, "--classes", "cat,dog", "--skip-bad", "--tasks", "2", "--backbone", "mlp", "--json")
    tuned = cli("tune", "er", "lr=0.05", "augment=off", *place)  # there is nothing to search
    planned = cli("study", "mine", "--method", "er", "--dry-run", *place)
    assert (tuned.code, planned.code) == (0, 0)
    name = tuned.json["preset"]["benchmark"]
    assert get_benchmark(name).classes == ("cat", "dog")
    assert "bad.png" in tuned.err
    assert planned.json["plan"][0]["benchmark"] == name


@pytest.mark.parametrize(
    "command", [("tune", "er", "split-mnist"), ("study", "mine", "--method=er", "--benchmark=split-mnist")]
)
@pytest.mark.parametrize(
    ("option", "named"), [("--classes=cat", "classes"), ("--skip-bad", "skip_bad"), ("--image-size=8", "an image size")]
)
def test_options_of_images_need_images(command: tuple[str, ...], option: str, named: str, cli: Cli) -> None:
    answer = cli(*command, option)
    assert answer.code == 2
    assert f"{named} can be given with images of your own only" in answer.err


def test_options_of_images_are_for_mine_only(cli: Cli) -> None:
    answer = cli("study", "accuracy", "--skip-bad")
    assert answer.code == 2
    assert "--skip-bad is for a study of your own" in answer.err
