"""The command line: what it prints, how it refuses."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from conftest import Cli
from own import HALF
from PIL import Image

import cclfp
from cclfp.cli.app import app
from cclfp.cli.options import RUN_ONLY
from cclfp.methods import METHODS
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem
from cclfp.runs.settings import presets
from cclfp.streams import BENCHMARKS
from cclfp.transforms import CropFlip, Normalise


@pytest.mark.parametrize(("command", "shown"), [("run", "NAME=VALUE"), ("data import", "archive")])
def test_help_imports_nothing_that_takes_long(command: str, shown: str) -> None:
    code = (
        f"import sys; sys.argv = ['cclfp', *{command.split()}, '--help']\n"
        "from cclfp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'PIL', 'requests') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        ("run", ()),
        ("tune", (*RUN_ONLY, "shard")),
        ("study", (*RUN_ONLY, "scenario", "memory")),  # of which a study takes several
    ],
)
def test_every_field_of_a_problem_and_of_an_execution_is_an_option(command: str, left_out: tuple[str, ...]) -> None:
    fields = {f.name: f for kind in (Problem, Execution) for f in dataclasses.fields(kind) if f.name != "benchmark"}
    commands: Any = typer.main.get_command(app)
    found = {p.name: p for p in commands.commands[command].params if p.param_type_name == "option" and p.name in fields}
    assert found.keys() - {"scenario", "memory"} == fields.keys() - set(left_out) - {"scenario", "memory"}
    for name in found.keys() - set(left_out):
        option, field = found[name], fields[name]
        assert option.opts == [f"--{name.replace('_', '-')}"]
        shown = (option.metavar, option.help.replace("\\[", "["), option.default)
        assert shown == (field.metadata["metavar"], field.metadata["help"], field.default)


@pytest.mark.slow
def test_run_prints_one_table_and_the_same_as_json(small_mnist: Path, cli: Cli) -> None:
    command = ("run", "er,joint", "split-mnist", "lr=0.1,0.05", "--seeds", "3,1", "--memory", "50", "--device", "cpu")
    answer = cli(*command)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("Split MNIST, class-incremental, memory 50, seeds 3 and 1: mean ± std, %\n")
    head, *rows = answer.rows
    assert head == ["method", "lr", "average accuracy", "paper", "forgetting", "seconds per run"]
    joint = [("joint", lr, "95.59 ± 0.31") for lr in ("0.1", "0.05")]
    assert [(row[0], row[1], row[3]) for row in rows] == [("er", "0.1", "–"), ("er", "0.05", "–"), *joint]
    assert all("±" in ours for _, _, ours, *_ in rows)
    assert "[8/8] " in answer.err
    again = cli(*command)
    assert again.rows == answer.rows
    assert again.err.startswith("8 of 8 runs are in the store ")
    assert again.err.count("\n") == 1
    document = cli(*command, "--json").json
    assert list(document) == ["configurations"]
    trained = [(c["method"], c["hyperparameters"]["lr"], c["buffer"]) for c in document["configurations"]]
    assert trained == [("er", 0.1, 50), ("er", 0.05, 50), ("joint", 0.1, None), ("joint", 0.05, None)]
    er, _, bound, _ = document["configurations"]
    assert [run["seed"] for run in er["runs"]] == [3, 1]
    a, b = [run["average_accuracy"] for run in er["runs"]]
    assert er["average_accuracy"] == pytest.approx({"mean": (a + b) / 2, "std": abs(a - b) / 2**0.5})
    assert bound["forgetting"] == {"mean": None, "std": None}
    assert (er["published"], bound["published"]) == (None, {"mean": 95.59, "std": 0.31})  # it has no memory of 50


@pytest.mark.slow
def test_a_grid_on_another_split_tested_on_held_out_images(small_mnist: Path, cli: Cli) -> None:
    """What varies has a column; no published number stands beside another protocol."""
    how = ("--class-order", "9,8,7/0,1,2,3,4,5,6", "--seeds", "1", "--validation")
    command = ("run", "finetune", "split-mnist", "batch=20,30", *how)
    answer = cli(*command)
    head, *rows = answer.rows
    protocol = "tested on held-out training images, other class order, 2 tasks"
    assert answer.out.startswith(f"Split MNIST, class-incremental, {protocol}, ")
    assert head == ["method", "batch", "average accuracy", "forgetting", "seconds per run"]
    assert [row[1] for row in rows] == ["20", "30"]
    found = cli(*command, "--json").json["configurations"][0]
    assert found["tasks"] == [3, 7]
    assert found["average_accuracy"]["std"] is None  # of one seed
    (run,) = found["runs"]
    counts = [value * images / 100 for value, images in zip(run["accuracy_matrix"][-1], (45, 105), strict=True)]
    assert counts == pytest.approx(list(map(round, counts)))
    assert "lr=0.1 batch=20 validation other class order 2 tasks" in cli("runs").out


@pytest.mark.slow
def test_save_writes_learners_that_load_opens(cli: Cli, small_data: Path, tmp_path: Path) -> None:
    arguments = ("run", "er", "split-cifar10", "--backbone", "resnet18:width=2", "--seeds", "1", "augment=on,off")
    assert [row[1] for row in cli(*arguments).rows] == ["augment", "on", "off"]
    answer = cli(*arguments, "--save", tmp_path / "learners")
    assert "its learner was not saved: training again to save it" in answer.err
    assert f"learners saved in {tmp_path / 'learners'}" in answer.out
    assert "[1/" not in cli(*arguments, "--save", tmp_path / "learners").err
    files = sorted((tmp_path / "learners").iterdir())
    assert {file.name.rsplit("_", 1)[0] for file in files} == {"er_split-cifar10_class_seed0"}
    learners = [cclfp.load(file) for file in files]
    assert [(learner.method.name, learner.tasks_done) for learner in learners] == [("er", 5)] * 2
    assert {type(learner.augment) for learner in learners} == {CropFlip, type(None)}
    assert {type(learner.transform) for learner in learners} == {Normalise}
    weights = [learner.psi.state_dict()["stem.weight"] for learner in learners]
    assert not np.array_equal(*weights)
    first, second = cli(*arguments, "--json").json["configurations"]
    assert (first["augment"], second["augment"], first["published"]) == (True, False, None)
    assert first["backbone"] == {"name": "resnet18", "width": 2}
    assert "augment=on resnet18:width=2" in cli("runs").out


@pytest.mark.slow
def test_run_files_of_ones_own(cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    file, net = tmp_path / "half.py", tmp_path / "net.py"
    file.write_text(HALF)
    net.write_text("from torch import nn\ndef flat(): return nn.Flatten()\n")
    arguments = ("run", f"er,{file}:Half", "split-mnist", "half=0.2,0.4", "--seed", "0", "--backbone", f"{net}:flat")
    answer = cli(*arguments)
    assert answer.code == 0
    assert "net.py:flat" in answer.out
    assert answer.out.count("│ half ") == 3  # the column of the setting, too
    assert "3/3" in answer.err
    er, first, second = cli(*arguments, "--json").json["configurations"]
    assert (er["method_file"], first["method_file"]["object"]) == (None, "Half")
    assert [one["hyperparameters"]["half"] for one in (first, second)] == [0.2, 0.4]
    shown = cli("show", f"{file}:Half", "--json").json
    assert [knob["name"] for knob in shown["hyperparameters"]] == ["lr", "half", "other"]
    file.write_text(HALF.replace("setting(0.5, ", "setting(0.7, "))
    assert "[3/3]" in cli(*arguments).err  # another method now
    assert "half.py:HalfHyper is not a method" in cli("run", f"{file}:HalfHyper", "split-mnist").err
    assert "has no function or class 'Nothing'" in cli("run", f"{file}:Nothing", "split-mnist").err


REFUSED = """
run ccl-pf split-mnist                     | error: unknown method 'ccl-pf'. Did you mean 'ccl-fp'? Known: joint,
run , split-mnist lr=0.1                   | METHOD ',': expected one name or several with commas
run er lr=0.1                              | expected a benchmark (cclfp list benchmarks) or images
run er split-mnist buffer=500              | unknown setting of er 'buffer'
run er split-mnist lr=0.1,,0.3             | lr '0.1,,0.3': expected a number, or several with commas
run er split-mnist lr                      | 'lr' is not a setting: expected NAME=VALUE
run er split-mnist lr=fast                 | lr 'fast': expected a number
run er split-mnist lr=1 lr=2               | lr is set twice
run er split-mnist --seeds x               | --seeds 'x': expected how many (5) or which (0,3,7)
run er split-mnist --seeds 2 --seed 1      | --seeds 2 and --seed 1: expected one of the two
run er split-mnist --seeds 99999999999999999999,1 | seed=99999999999999999999
run er split-mnist --seeds 1000000         | expected 1 to 10,000 of them
run er split-mnist --threads 0             | threads=0
run er split-mnist --threads 100000        | threads=100000: this process may use
run er split-mnist --device tpu            | device 'tpu': expected auto, cpu, cuda, or GPUs by number
run er split-mnist --checkpoint-every -1   | checkpoint_every=-1.0
run er split-cifar10 --backbone net.py:make | net.py cannot be read
run er --images /nowhere                   | --images /nowhere does not exist: expected a folder of class folders
run er split-mnist --save /dev/null/x      | learners cannot be saved in /dev/null/x
run er split-mnist --auto 0                | --auto 0.0: expected minutes, more than 0
study mine --method=er --benchmark=split-mnist --skip-bad | skip_bad can be given with images of your own
study mine --auto 1 --dry-run              | --auto trains to find settings, and --dry-run trains nothing
runs --method erx                          | unknown method 'erx'. Did you mean 'er'?
list method                                | unknown list 'method'. Did you mean 'methods'?
show cclfp                                 | unknown method or benchmark 'cclfp'. Did you mean 'ccl-fp'?
show split-mnist --seed -1                 | seed=-1: expected a whole number, 0 or more
show er --seed 4                           | er is a method; --images, --seed,
show split-mnist --images a.jpg            | expected the name of a file to write that ends in .png
data fetch minst                           | unknown dataset 'minst'. Did you mean 'mnist'?
data import mnist /nowhere                 | /nowhere does not exist
study acuracy                              | unknown table 'acuracy'. Did you mean 'accuracy'? Known: accuracy, buffer
study buffer --method gem --scenario task  | the paper has no number for gem, task in buffer
study all --method erx                     | unknown method 'erx'. Did you mean 'er'?
study all --benchmark ,                    | --benchmark ',': expected one name or several
study accuracy --scenario clas             | unknown scenario 'clas'
study all --seeds 0                        | seeds=0
study all --engine warp                    | unknown engine 'warp'
run er split-mnist --engine compiled       | there is no engine 'compiled' any more: traced has taken its place
study accuracy --tasks 5                   | --tasks is for a study of your own: cclfp study mine
study runtime --seeds 3                    | seeds=3: run times are measured with one seed
study runtime --shard 1/2                  | run times are measured on this machine
study runtime --method lwf --benchmark rotated-mnist | no number for rotated-mnist, lwf in runtime
study mine --method er                     | which benchmarks?
study mine --benchmark split-mnist         | which methods?
study mine --benchmark split-mnist --method err | unknown method 'err'
study mine --benchmark nothing --method er | unknown benchmark 'nothing'
study mine --benchmark split-mnist --method er --scenario domain | no domain scenario
study mine --benchmark split-mnist --method er --memory x | --memory 'x': expected
study mine --benchmark rotated-mnist --method er,lwf --auto 1 | lwf is not defined in the domain scenario
study mine --benchmark rotated-mnist --method finetune,er --seeds 0 --auto 1 | seeds=0
run finetune,er rotated-mnist --seeds 0 --auto 1 | seeds=0
tune er split-mnist w=0.1,0.2              | unknown setting of er 'w'
tune lwf rotated-mnist                     | lwf
tune er split-mnist --seeds 0              | seeds=0
tune er split-mnist --budget 0             | budget=0.0: expected minutes, more than 0
tune er split-mnist lr=0.1,0.2 --budget nan | budget=nan
tune er split-mnist --halving 0            | halving=0: expected
tune er split-mnist --halving 2 --budget 1 | budget and halving are two ways to limit a search
tune er split-mnist --memory 20 lr=0.1,0.2 --write p.json | presets are for the paper's methods and benchmarks
tune er --images pets lr=0.1,0.2 --write p.json | presets are for the paper's methods and benchmarks
tune half.py:Half split-mnist --write p.json | presets are for the paper's methods and benchmarks
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines(), ids=lambda line: line.partition("|")[0].strip())
def test_refuses_with_exit_code_2_before_anything_is_written_or_trained(
    line: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, _, message = line.partition("|")
    answer = cli(*shlex.split(command))
    assert (answer.code, answer.out) == (2, "")
    assert message.strip() in " ".join(answer.err.replace("│", " ").split())
    assert "Traceback" not in answer.err
    assert "searching" not in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["methods", "benchmarks", "datasets"])
def test_list(what: str, cli: Cli) -> None:
    names = [item["name"] for item in cli("list", what, "--json").json[what]]
    assert [row[0] for row in cli("list", what).rows] == ["name", *names]


@pytest.mark.parametrize("method", METHODS)
def test_show(method: str, cli: Cli) -> None:
    shown = cli("show", method, "--json").json
    names = [knob["name"] for knob in shown["hyperparameters"]]
    assert "lr" in names
    assert len(shown["presets"]) == sum(p.method == method for p in presets())
    text = cli("show", method).out
    assert all(f"chosen {preset['chosen']}" in text for preset in shown["presets"])
    assert all(name in text for name in (*names, shown["reference"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_show_a_benchmark(name: str, cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    picture = ("--images", tmp_path / "tasks.png") if name == "rotated-mnist" else ()
    shown = cli("show", name, "--json", *picture).json
    assert len(shown["tasks"]) == BENCHMARKS[name].num_tasks
    assert all(preset["benchmark"] == name for preset in shown["presets"])
    assert shown["tasks"][0][0] in cli("show", name).out
    if picture:
        with Image.open(tmp_path / "tasks.png") as page:
            assert (page.format, page.width <= 1600) == ("PNG", True)
            assert len(page.convert("RGB").getcolors(page.width * page.height) or ()) > 100  # no empty page


def test_show_a_benchmark_split_otherwise(cli: Cli) -> None:
    split = ("--tasks", "3", "--class-order", "random", "--seed", "4", "--json")
    tasks = cli("show", "split-cifar100", *split).json["tasks"]
    assert list(map(len, tasks)) == [34, 33, 33]
    assert len({name for members in tasks for name in members}) == 100
    command = ("show", "split-tiny-imagenet")
    assert cli(*command, "--json").json["class_orders"] == ["wnids", "labels"]
    assert cli(*command, "--json").json["tasks"][0][0] == "Egyptian cat"
    assert cli(*command, "--class-order", "labels", "--json").json["tasks"][0][0] == "goldfish"
    assert "class orders: wnids, labels" in cli(*command).out


def test_version(cli: Cli) -> None:
    assert cli("--version").out.strip() == f"cclfp {cclfp.__version__}"
