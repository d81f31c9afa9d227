"""The options of ``run``, ``tune`` and ``study`` are the fields of a problem and of an execution."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import typer.main
from conftest import Cli
from PIL import Image

from cclfp.cli.app import app
from cclfp.cli.options import RUN_ONLY
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.streams import get_benchmark


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
    commands: Any = typer.main.get_command(app)
    found = {p.name: p for p in commands.commands[command].params if p.param_type_name == "option" and p.name in fields}
    assert found.keys() - {"scenario", "memory"} == fields.keys() - set(left_out) - {"scenario", "memory"}
    for name in found.keys() - set(left_out):
        option, field = found[name], fields[name]
        assert option.opts == [f"--{name.replace('_', '-')}"]
        shown = (option.metavar, option.help.replace("\\[", "["), option.default)
        assert shown == (field.metadata["metavar"], field.metadata["help"], field.default)


def test_tune_and_study_take_a_subset_of_classes_and_leave_out_bad_images(tmp_path: Path, cli: Cli) -> None:
    for number, name in enumerate(("cat", "dog", "ox")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(6):
            Image.new("RGB", (8, 8), (40 * number, image, 0)).save(tmp_path / "photos" / name / f"{image}.png")
    (tmp_path / "photos" / "cat" / "bad.png").write_bytes(b"no image")
    images = ("--images", tmp_path / "photos", "--classes", "cat,dog", "--skip-bad")
    place = (*images, "--tasks", "2", "--backbone", "mlp", "--json")
    tuned = cli("tune", "er", "lr=0.05", "augment=off", *place)  # there is nothing to search
    planned = cli("study", "mine", "--method", "er", "--dry-run", *place)
    assert (tuned.code, planned.code) == (0, 0)
    name = tuned.json["preset"]["benchmark"]
    assert get_benchmark(name).classes == ("cat", "dog")
    assert "bad.png" in tuned.err
    assert planned.json["plan"][0]["benchmark"] == name
