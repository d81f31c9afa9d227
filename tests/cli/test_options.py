"""The options of ``run``, ``tune`` and ``study`` are the fields of a problem and of an execution."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from conftest import Cli
from PIL import Image

from cclfp.cli.app import app
from cclfp.cli.options import RUN_ONLY
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.streams import get_benchmark


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


def options_of(command: str) -> dict[str, tuple[Any, ...]]:
    """What a command says about each of its options."""
    commands: Any = typer.main.get_command(app)
    params = [p for p in commands.commands[command].params if p.param_type_name == "option"]
    return {p.name: (p.opts, p.metavar, (p.help or "").replace("\\[", "["), p.default) for p in params}


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        ("run", ()),
        ("tune", (*RUN_ONLY, "shard")),
        ("study", (*RUN_ONLY, "scenario", "memory")),  # of which a study takes several
    ],
)
def test_every_field_is_an_option(command: str, left_out: tuple[str, ...]) -> None:
    fields = {f.name: f for kind in (Problem, Execution) for f in dataclasses.fields(kind) if f.name != "benchmark"}
    found = {name: option for name, option in options_of(command).items() if name in fields}
    assert found.keys() - {"scenario", "memory"} == fields.keys() - set(left_out) - {"scenario", "memory"}
    for name, (opts, metavar, text, default) in found.items():
        if name not in left_out:
            field = fields[name]
            assert opts == [f"--{name.replace('_', '-')}"]
            assert (metavar, text, default) == (field.metadata["metavar"], field.metadata["help"], field.default)


def test_the_fields_are_in_the_docstrings() -> None:
    for field in dataclasses.fields(Execution):
        assert f"    {field.name}\n        {field.metadata['help'][:20]}" in (Execution.__doc__ or "")


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
    ("option", "named"), [("--classes=cat", "classes"), ("--skip-bad", "skip_bad"), ("--image-size=8", "image_size")]
)
def test_options_of_images_need_images(command: tuple[str, ...], option: str, named: str, cli: Cli) -> None:
    answer = cli(*command, option)
    assert answer.code == 2
    assert f"{named} can be given with images of your own only" in answer.err


def test_options_of_images_are_for_mine_only(cli: Cli) -> None:
    answer = cli("study", "accuracy", "--skip-bad")
    assert answer.code == 2
    assert "--skip-bad is for a study of your own" in answer.err
