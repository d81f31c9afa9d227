"""``cclfp predict`` and ``cclfp observe``: a saved learner, from the command line."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from own import HALF, write_folders
from PIL import Image

import cclfp
from cclfp.nets import MLP
from cclfp.testing import same
from cclfp.transforms import Normalise


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a learner of cats and dogs with room for two more classes."""
    folder = tmp_path_factory.mktemp("trained")
    write_folders(folder / "pets", ("cat", "dog", "ox"), each=40)
    command = "run er --images pets --classes cat,dog --tasks 1 --backbone mlp --seed 0 augment=off"
    command += " --max-classes 4 --save learners"
    home = os.environ | {"CCLFP_HOME": str(folder / "home")}
    subprocess.run([sys.executable, "-m", "cclfp", *command.split()], cwd=folder, env=home, check=True)
    (path,) = (folder / "learners").glob("*.ckpt")
    return path.read_bytes()


@pytest.fixture
def saved(trained: bytes, tmp_path: Path) -> Path:
    (tmp_path / "pets.ckpt").write_bytes(trained)
    return tmp_path / "pets.ckpt"


def test_images_are_named(saved: Path, cli: Cli, tmp_path: Path) -> None:
    new = write_folders(tmp_path / "new", ("cat", "dog"), each=3, size=(60, 50))  # of another size
    answer = cli("predict", saved, new, "--json").json
    assert answer["named"]
    assert [one["class"] for one in answer["predictions"]] == ["cat"] * 3 + ["dog"] * 3
    first = answer["predictions"][0]
    assert first["image"] == str(new / "cat" / "0.png")
    assert first["probability"] == first["probabilities"]["cat"] == pytest.approx(1 - first["probabilities"]["dog"])
    rows = list(csv.DictReader(io.StringIO(cli("predict", saved, new, "--csv").out)))
    assert [row["class"] for row in rows] == ["cat"] * 3 + ["dog"] * 3
    assert float(rows[0]["p(cat)"]) == pytest.approx(first["probability"], rel=1e-4)
    assert f"{100 * first['probability']:.1f} %" in cli("predict", saved, new / "cat" / "0.png").out


def test_images_are_prepared_as_for_training(saved: Path, cli: Cli, tmp_path: Path) -> None:
    learner, file = cclfp.load(saved), write_folders(tmp_path / "pets", ("dog",)) / "dog" / "0.png"
    x = torch.from_numpy(np.asarray(Image.open(file)).transpose(2, 0, 1).copy())[None]
    found = cli("predict", saved, file, "--json").json["predictions"][0]["probabilities"]
    assert [found["cat"], found["dog"]] == pytest.approx(learner.predict_proba(x)[0, :2].tolist())
    learner = cclfp.make("er", psi=MLP(120, (8,)), num_classes=2, classes=["cat", "dog"], transform=Normalise([0], [1]))
    learner.observe(torch.zeros(4, 1, 10, 12, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))  # grey ones
    learner.save(tmp_path / "grey.ckpt")
    grey = torch.from_numpy(np.asarray(Image.open(file).convert("L")).copy())[None, None]
    (one,) = cli("predict", tmp_path / "grey.ckpt", file, "--json").json["predictions"]
    assert one["probabilities"]["cat"] == pytest.approx(float(learner.predict_proba(grey)[0, 0]))


def test_a_new_class_is_learned(saved: Path, cli: Cli, tmp_path: Path) -> None:
    new, twin = write_folders(tmp_path / "new", ("dog", "ox"), each=40), tmp_path / "twin.ckpt"
    twin.write_bytes(saved.read_bytes())
    command = ("--images", new, "--epochs", "3", "--json")
    answer = cli("observe", saved, *command).json
    assert answer["images"] == 80
    assert (answer["new_classes"], answer["task"], answer["free_rows"]) == (["ox"], 1, 1)
    learner = cclfp.load(saved)
    assert (learner.classes, learner.tasks_done, learner.steps) == (("cat", "dog", "ox"), 2, 7 + 24)
    cli("observe", twin, *command)
    assert same(cclfp.load(twin), learner)  # the same steps, from the same seed
    pets = write_folders(tmp_path / "pets", ("cat",), each=40)
    found = cli("predict", saved, new / "ox", pets / "cat", "--json").json["predictions"]
    assert sum(one["class"] == Path(one["image"]).parent.name for one in found) > 70
    text = cli("observe", saved, "--images", new, "--classes", "ox").out
    assert text == f"{saved}: learned 40 images of 1 class; room for 1 more class\n"


def test_without_room_the_file_stays(saved: Path, cli: Cli, tmp_path: Path) -> None:
    before = saved.read_bytes()
    new = write_folders(tmp_path / "new", ("cat", "ox", "black, white"))
    (new / "emu").mkdir()
    Image.new("RGB", (12, 10)).save(new / "emu" / "1.png")
    answer = cli("observe", saved, "--images", new)
    assert answer.code == 2
    assert "no room for the new classes black, white, emu, ox: the learner has 2 classes and room for 2" in answer.err
    assert saved.read_bytes() == before
    assert cli("observe", saved, "--images", new, "--classes", '"black, white",ox').code == 0
    assert cclfp.load(saved).classes == ("cat", "dog", "black, white", "ox")


REFUSED = """
observe {saved} --images {new} --batch 0   | batch=0
observe {saved} --images {new} --threads 0 | threads=0
observe {saved} --images {new} --classes emu   | unknown class of new 'emu'
observe {saved} --images {new} --classes ,     | expected one name or several
observe {saved} --images {bad}             | 1.png cannot be decoded
predict {saved} {bad}                      | 2 images cannot be decoded (--skip-bad leaves such images out
predict {saved} nowhere.png                | nowhere.png does not exist
predict {saved} {empty}                    | expected images, and found none
predict {saved} {new} --task 7             | task 7 is out of range: tasks are 0 to 0
predict {saved} {new} --json --csv         | --json and --csv: expected one of the two
run er rotated-mnist --max-classes 12      | max_classes is 12: expected null: all tasks have all classes
"""


def test_what_is_refused(saved: Path, cli: Cli, tmp_path: Path) -> None:
    before = saved.read_bytes()
    new, bad = write_folders(tmp_path / "new", ("cat",)), write_folders(tmp_path / "bad", ("cat",))
    for name in ("1.png", "2.png"):
        (bad / "cat" / name).write_bytes(b"not a picture")
    (tmp_path / "empty").mkdir()
    places = {"saved": saved, "new": new, "bad": bad, "empty": tmp_path / "empty"}
    for line in REFUSED.strip().splitlines():
        command, _, message = line.partition("|")
        answer = cli(*command.format(**places).split())
        assert (answer.code, answer.out) == (2, ""), line
        assert message.strip() in answer.err, line
    assert saved.read_bytes() == before
    answer = cli("predict", saved, bad, "--skip-bad", "--json")
    assert len(answer.json["predictions"]) == 4
    assert "left out 2 images that cannot be decoded:\n" in answer.err
    assert cli("observe", saved, "--images", bad, "--skip-bad", "--json").json["images"] == 4


def test_a_learner_without_names(saved: Path, cli: Cli, tmp_path: Path) -> None:
    """Files of earlier versions: classes are numbers, and class folders match nothing."""
    state = torch.load(saved, weights_only=True)
    del state["class_names"]
    torch.save(state, saved)
    new = write_folders(tmp_path / "new", ("cat",))
    answer = cli("predict", saved, new, "--json")
    assert {one["class"] for one in answer.json["predictions"]} == {"0"}
    assert not answer.json["named"]
    assert "has no class names" in cli("observe", saved, "--images", new).err


def test_code_of_ones_own_is_named_again(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{HALF}\n\ndef make():\n    import torch\n    return torch.nn.Flatten()\n")
    code: list[Any] = ["--backbone", f"{tmp_path}/own.py:make", "--method", f"{tmp_path}/own.py:Half"]
    folder = write_folders(tmp_path / "pets", ("cat", "dog"))
    command = ["run", f"{tmp_path}/own.py:Half", "--images", folder, "--tasks", "1", "--seed", "0", *code[:2]]
    assert cli(*command, "--save", tmp_path / "learners").code == 0
    (path,) = (tmp_path / "learners").glob("*.ckpt")
    assert "--method FILE.py:NAME" in cli("predict", path, folder, *code[:2]).err
    assert "--backbone FILE.py:NAME" in cli("predict", path, folder, *code[2:]).err
    assert len(cli("predict", path, folder, *code, "--json").json["predictions"]) == 12
    assert cli("observe", path, "--images", folder, *code).code == 0
    assert cclfp.load(path, psi=code[1], method=code[3]).tasks_done == 2
    learner = cclfp.make("er", psi=torch.nn.Flatten(), num_classes=2)
    learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    learner.save(tmp_path / "flat.ckpt")
    answer = cli("predict", tmp_path / "flat.ckpt", folder, *code[:2])
    assert "this learner takes inputs of shape (3,) and torch.float32, not images" in answer.err


def test_names_that_attack(saved: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files that a terminal would take for commands, a spreadsheet for formulas, or rich for colours."""
    folder = tmp_path / "new"
    folder.mkdir()
    names = ["\x1b]0;owned\x07\x1b[31mred.png", "=cmd|' -C calc'!A0.png", "[red]a.png"]
    for name in names:
        Image.new("RGB", (12, 10), (40, 40, 40)).save(folder / name, "png")
    (folder / "\x1b[2Jbad.png").write_bytes(b"no image")
    error = cli("predict", saved, folder)
    assert error.code == 2
    skipped = ["predict", saved, folder, "--skip-bad"]
    for answer in (error, cli(*skipped), cli(*skipped, "--csv")):
        assert "\x1b" not in answer.out + answer.err
        assert "\\x1b[2Jbad.png" in answer.err
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    shown = [f"{folder}/{name}" for name in ("\\x1b]0;owned\\x07\\x1b[31mred.png", *names[1:])]
    assert sorted(row["image"] for row in rows) == sorted(shown)
    monkeypatch.chdir(folder)
    rows = list(csv.DictReader(io.StringIO(cli("predict", saved, names[1], "--csv").out)))
    assert rows[0]["image"] == "'" + names[1]
    assert names[2] in cli("predict", saved, names[2]).out
    exact = cli(*skipped, "--json").json
    assert {Path(one["image"]).name for one in exact["predictions"]} == set(names)
