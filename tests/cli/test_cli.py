"""The command line: what it prints, how it refuses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from records import made_up, matrix_of

import cclfp
from cclfp.methods import METHODS
from cclfp.runs.settings import configurations, presets
from cclfp.runs.store import export
from cclfp.streams import BENCHMARKS
from cclfp.streams.benchmarks import ClassOrder
from cclfp.transforms import CropFlip, Normalise

QUICK = ("run", "finetune", "split-mnist", "--seeds", "2", "--device", "cpu")


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; sys.argv = ['cclfp', 'run', '--help']\n"
        "from cclfp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "NAME=VALUE" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.slow
def test_run_prints_one_table(small_mnist: Path, cli: Cli) -> None:
    answer = cli(*QUICK)
    assert answer.code == 0, answer.err
    assert "Split MNIST, class-incremental, seeds 0,1: mean ± std, %" in answer.out
    (line,) = [line for line in answer.out.splitlines() if "finetune" in line]
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert "±" in cells[1]
    assert cells[2] == "19.62 ± 0.12"  # the paper's
    assert "[2/2] finetune seed" in answer.err
    again = cli(*QUICK)
    assert again.out.splitlines()[3] == answer.out.splitlines()[3]
    assert again.err.startswith("2 of 2 runs are in the store ")
    assert again.err.count("\n") == 1


@pytest.mark.slow
def test_run_json(small_mnist: Path, cli: Cli) -> None:
    answer = cli("run", "er,joint", "split-mnist", "lr=0.1,0.05", "--seeds", "3,1", "--memory", "50", "--json")
    assert answer.code == 0, answer.err
    document = answer.json
    assert list(document) == ["configurations"]
    assert [(c["method"], c["hyperparameters"]) for c in document["configurations"]] == [
        ("er", {"lr": 0.1}),
        ("er", {"lr": 0.05}),
        ("joint", {"lr": 0.1}),
        ("joint", {"lr": 0.05}),
    ]
    er, joint = document["configurations"][0], document["configurations"][2]
    assert (er["benchmark"], er["scenario"], er["buffer"]) == ("split-mnist", "class", 50)
    assert joint["buffer"] is None
    assert [run["seed"] for run in er["runs"]] == [3, 1]
    a, b = [run["average_accuracy"] for run in er["runs"]]
    assert er["average_accuracy"]["mean"] == pytest.approx((a + b) / 2)
    assert er["average_accuracy"]["std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert joint["forgetting"] == {"mean": None, "std": None}
    assert joint["runs"][0]["forgetting"] is None
    for run in er["runs"]:
        matrix = run["accuracy_matrix"]
        assert sum(matrix[-1]) / 5 == pytest.approx(run["average_accuracy"])
        assert run["seconds"] > 0
    assert er["published"] is None  # the paper has no memory of 50
    assert joint["published"] == {"mean": 95.59, "std": 0.31}


def test_one_seed_has_no_std(small_mnist: Path, cli: Cli) -> None:
    (configuration,) = cli("run", "finetune", "split-mnist", "--seeds", "1", "--json").json["configurations"]
    assert configuration["average_accuracy"]["std"] is None


@pytest.mark.slow
def test_grid_shows_what_varies_and_no_published_number_beside_another_protocol(small_mnist: Path, cli: Cli) -> None:
    answer = cli(
        "run", "finetune", "split-mnist", "batch=20,30", "--seeds", "1", "--class-order", "9,8,7,6,5,4,3,2,1,0"
    )
    rows = [[c.strip() for c in line.strip("│ ").split("│")] for line in answer.out.splitlines() if "finetune" in line]
    assert [row[1] for row in rows] == ["20", "30"]
    header = next(line for line in answer.out.splitlines() if "│ method" in line)
    assert [c.strip() for c in header.strip("│ ").split("│")][:4] == [
        "method",
        "batch",
        "average accuracy",
        "forgetting",
    ]


@pytest.mark.slow
def test_save_writes_learners_that_load_opens(small_mnist: Path, cli: Cli, tmp_path: Path) -> None:
    cli("run", "er", "split-mnist", "--seeds", "2")
    answer = cli("run", "er", "split-mnist", "--seeds", "2", "--save", tmp_path / "learners")
    assert "er seed 0: its learner was not saved: training again to save it" in answer.err
    assert f"learners saved in {tmp_path / 'learners'}" in answer.out
    files = sorted((tmp_path / "learners").iterdir())
    assert [file.name.rsplit("_", 1)[0] for file in files] == [
        "er_split-mnist_class_seed0",
        "er_split-mnist_class_seed1",
    ]
    for file in files:
        learner = cclfp.load(file)
        assert (learner.method.name, learner.tasks_done) == ("er", 5)
    assert "[1/" not in cli("run", "er", "split-mnist", "--seeds", "2", "--save", tmp_path / "learners").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "ccl-pf", "split-mnist"], "error: unknown method 'ccl-pf'. Did you mean 'ccl-fp'? Known: joint,"),
        (["run", "er", "split-mnst"], "unknown benchmark 'split-mnst'. Did you mean 'split-mnist'?"),
        (["run", "er", "split-mnist", "--scenario", "domain"], "split-mnist has no domain scenario"),
        (["run", "er", "permuted-mnist", "--scenario", "task"], "permuted-mnist has no task scenario"),
        (["run", "er", "split-mnist", "w=0.5"], "unknown setting of er 'w'"),
        (["run", "er", "split-mnist", "lr"], "'lr' is not a setting: expected NAME=VALUE"),
        (["run", "er", "split-mnist", "lr=fast"], "'lr=fast': expected a number"),
        (["run", "er", "split-mnist", "lr=1", "lr=2"], "lr is set twice"),
        (["run", "er", "split-mnist", "lr=-1"], "lr=-1.0: expected a number in (0, inf)"),
        (["run", "er", "split-mnist", "--seeds", "x"], "--seeds 'x': expected how many (5) or which (0,3,7)"),
        (["run", "er", "split-mnist", "--seeds", "0"], "seeds=0"),
        (["run", "er", "split-mnist", "--seeds", "99999999999999999999,1"], "seed=99999999999999999999"),
        (["run", "er", "split-mnist", "--seeds", "1000000"], "expected 1 to 10,000 of them"),
        (["run", "er", "split-mnist", "--threads", "100000"], "threads=100000: this process may use"),
        (["run", ",", "split-mnist"], "no method was given"),
        (["run", "er", "split-mnist", "buffer=500"], "unknown setting of er 'buffer'"),
        (["run", "ER", "split-mnist"], "unknown method 'ER'. Did you mean 'er'?"),
        (["runs", "--method", "erx"], "unknown method 'erx'. Did you mean 'er'?"),
        (["run", "er", "split-mnist", "--memory", "0"], "memory=0"),
        (["run", "er", "split-mnist", "--device", "tpu"], "device 'tpu': expected auto, cpu, cuda, or GPUs by number"),
        (["run", "er", "split-mnist", "--threads", "0"], "threads=0"),
        (["run", "er", "split-mnist", "--checkpoint-every", "-1"], "checkpoint_every=-1.0"),
        (["run", "er", "split-mnist", "--class-order", "0,1"], "by number from 0 to 9 (not given: 2,3"),
        (["run", "er", "split-mnist", "--class-order", "a"], "wrong or given twice: 'a'"),
        (["run", "er", "rotated-mnist", "--class-order", "random"], "a class order cannot be chosen"),
        (["run", "er", "rotated-mnist", "--tasks", "5"], "tasks cannot be chosen"),
        (["run", "er", "split-mnist", "--tasks", "11"], "tasks=11: expected a whole number from 1 to 10"),
        (["run", "er", "split-mnist", "augment=on"], "split-mnist cannot be augmented"),
        (["run", "er", "split-cifar10", "augment=maybe"], "augment=maybe: expected on or off"),
        (["run", "er", "split-cifar10", "--backbone", "resnet"], "Did you mean 'resnet18'"),
        (["run", "er", "split-cifar10", "--backbone", "net.py:make"], "net.py cannot be read"),
        (
            ["run", "er", "--images", "/nowhere"],
            "--images /nowhere does not exist: expected a folder of class folders",
        ),
        (["run", "er", "split-mnist", "--images", "/nowhere"], "or images of your own, one of the two"),
        (["run", "er", "lr=0.1"], "expected a benchmark (cclfp list benchmarks) or images"),
        (["run", "er", "split-mnist", "--split-seed", "1"], "split_seed can be given with images of your own only"),
        (["show", "split-mnist", "--seed", "-1"], "seed=-1: expected a whole number, 0 or more"),
        (["run", "erx", "--images", "/nowhere"], "unknown method 'erx'"),
        (["show", "er", "--images", "a.png"], "--images is about a benchmark; er is a method"),
        (["show", "split-mnist", "--images", "a.jpg"], "expected the name of a file to write that ends in .png"),
        (["run", "er", "split-mnist", "--store", "/dev/null/x"], "cannot be used as a store"),
        (["run", "er", "split-mnist", "--save", "/dev/null/x"], "learners cannot be saved in /dev/null/x"),
        (["list", "method"], "unknown list 'method'. Did you mean 'methods'?"),
        (["show", "cclfp"], "unknown method or benchmark 'cclfp'. Did you mean 'ccl-fp'?"),
        (["data", "fetch", "minst"], "unknown dataset 'minst'. Did you mean 'mnist'?"),
        (["data", "verify", "mnist"], "mnist is not stored"),
        (["data", "import", "mnist", "/nowhere"], "/nowhere does not exist"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run", "er"], "expected a benchmark (cclfp list benchmarks) or images of your own"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refuses_with_exit_code_2(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert message in " ".join(answer.err.replace("│", " ").split())
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_cuda_is_refused_where_there_is_none(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = cli("run", "er", "split-mnist", "--device", "cuda")
    assert (answer.code, answer.out) == (2, "")
    assert "torch finds no CUDA device" in answer.err


@pytest.mark.slow
def test_runs(small_mnist: Path, cli: Cli) -> None:
    assert "no runs in" in cli("runs").out
    assert cli("runs", "--json").json["runs"] == []
    cli(*QUICK)
    table = cli("runs").out
    assert table.count("finetune") == 2
    cli(*QUICK, "batch=30")
    assert cli("runs").out.count("lr=0.1 batch=30") == 2
    records = cli("runs", "--method", "finetune", "--json").json["runs"]
    assert sorted(record["seed"] for record in records) == [0, 0, 1, 1]
    assert {"configuration", "accuracy_matrix", "environment", "seconds"} <= set(records[0])
    assert cli("runs", "--method", "er", "--json").json["runs"] == []
    assert "class-incremental, other class order, seeds 0,1: mean" in cli(*QUICK, "--class-order", "random").out


def test_runs_whose_classes_come_in_another_order_say_so(cli: Cli, tmp_path: Path) -> None:
    orders: dict[ClassOrder, str] = {BENCHMARKS["split-tiny-imagenet"].usual_order: "", None: "classes by label"}
    orders["random"] = "other class order"
    (usual,) = configurations(["er"], "split-tiny-imagenet", "task")
    for seed, order in enumerate(orders):
        configuration = dataclasses.replace(usual, class_order=order)
        export([made_up(configuration, seed, matrix_of([50.0] * 10, "task"))], tmp_path / f"{seed}.jsonl")
    assert cli("runs", "import", *(tmp_path / f"{seed}.jsonl" for seed in range(3))).code == 0
    rows = [line.split("│")[7:9] for line in cli("runs").out.splitlines() if "│ er" in line]
    expected = {seed: f"lr=0.1 {text}".strip() for seed, text in enumerate(orders.values())}
    assert {int(seed): settings.strip() for seed, settings in rows} == expected


@pytest.mark.parametrize("what", ["methods", "benchmarks", "datasets"])
def test_list(what: str, cli: Cli) -> None:
    names = [item["name"] for item in cli("list", what, "--json").json[what]]
    assert names
    table = cli("list", what).out
    assert all(name in table for name in names)


@pytest.mark.parametrize("method", METHODS)
def test_show(method: str, cli: Cli) -> None:
    shown = cli("show", method, "--json").json
    assert shown["reference"]
    names = [knob["name"] for knob in shown["hyperparameters"]]
    assert "lr" in names
    assert shown["presets"]
    assert len(shown["presets"]) == sum(p.method == method for p in presets())
    text = cli("show", method).out
    assert all(f"chosen {preset['chosen']}" in text for preset in shown["presets"])
    assert all(name in text for name in names)
    assert shown["reference"] in text


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_show_a_benchmark_and_draw_it(name: str, cli: Cli, small_data: Path, tmp_path: Path) -> None:
    shown = cli("show", name, "--json", "--images", tmp_path / "tasks.png").json
    assert len(shown["tasks"]) == BENCHMARKS[name].num_tasks
    assert all(preset["benchmark"] == name for preset in shown["presets"])
    with Image.open(tmp_path / "tasks.png") as page:
        assert page.format == "PNG"
        assert page.width <= 1600
        colours = np.asarray(page.convert("RGB"))
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 100  # images, not an empty page
    text = cli("show", name, "--images", tmp_path / "tasks.png").out
    assert shown["tasks"][0][0] in text
    assert f"drawn: {tmp_path / 'tasks.png'}" in text


def test_show_a_benchmark_split_otherwise(cli: Cli) -> None:
    tasks = cli("show", "split-cifar100", "--tasks", "3", "--class-order", "random", "--seed", "4", "--json").json[
        "tasks"
    ]
    assert list(map(len, tasks)) == [34, 33, 33]
    assert len({name for members in tasks for name in members}) == 100


def test_show_names_the_class_orders(cli: Cli) -> None:
    command = ("show", "split-tiny-imagenet")
    assert cli(*command, "--json").json["class_orders"] == ["wnids", "labels"]
    assert cli(*command, "--json").json["tasks"][0][0] == "Egyptian cat"
    assert cli(*command, "--class-order", "labels", "--json").json["tasks"][0][0] == "goldfish"
    assert "class orders: wnids (default), labels" in cli(*command).out
    assert "class orders" not in cli("show", "split-mnist").out
    assert cli("show", "permuted-mnist", "--json").json["class_orders"] == []


@pytest.mark.slow
def test_run_with_a_narrow_resnet_and_augmentation(cli: Cli, small_data: Path, tmp_path: Path) -> None:
    arguments = ("run", "er", "split-cifar10", "--backbone", "resnet18:width=2", "--seeds", "1", "augment=on,off")
    out = cli(*arguments, "--save", tmp_path / "learners").out
    assert "resnet18:width=2" in out
    assert "│ on " in out
    assert "│ off " in out
    first, second = cli(*arguments, "--json").json["configurations"]
    assert (first["augment"], second["augment"]) == (True, False)
    assert first["backbone"] == {"name": "resnet18", "width": 2}
    assert first["published"] is None
    learners = [cclfp.load(file) for file in (tmp_path / "learners").iterdir()]
    assert {type(learner.augment) for learner in learners} == {CropFlip, type(None)}
    assert {type(learner.transform) for learner in learners} == {Normalise}
    weights = [learner.psi.state_dict()["stem.weight"] for learner in learners]
    assert not np.array_equal(*weights)
    listed = cli("runs").out
    assert "augment=on resnet18:width=2" in listed


@pytest.mark.slow
def test_run_with_a_backbone_from_a_file(cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("from torch import nn\ndef flat(): return nn.Flatten()\n")
    answer = cli("run", "er", "split-mnist", "--backbone", f"{file}:flat", "--seeds", "2")
    assert answer.code == 0
    assert "nets.py:flat" in answer.out


MINE = """
import dataclasses
from cclfp.losses import cross_entropy
from cclfp.methods import Hyperparameters, Method, setting
from cclfp.schedules import Reservoir

@dataclasses.dataclass(frozen=True)
class MineHyper(Hyperparameters):
    weight: float = setting(0.5, "weight of the replayed examples", low=0)

class Mine(Method):
    "Replay at a weight."
    name = "mine"
    reference = "nobody, never"
    Hyper = MineHyper
    schedule = Reservoir

    def loss(self, params, buffers, state, batch, hyper):
        z, buffers = self.net.features(params, buffers, batch.x)
        logits, n = self.net.classify(params, z), batch.n_current
        loss = cross_entropy(logits[:n], batch.y[:n], batch.mask[:n])
        if n < len(batch.y):
            loss = loss + hyper.weight * cross_entropy(logits[n:], batch.y[n:], batch.mask[n:])
        return loss, buffers

class Thief(Mine):
    name = "er"

class Nameless(Method):
    pass
"""


@pytest.mark.slow
def test_run_a_method_of_ones_own(cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    arguments = ("run", f"er,{file}:Mine", "split-mnist", "weight=0.2,0.4", "--seeds", "2")
    answer = cli(*arguments, "--save", tmp_path / "learners")
    assert answer.code == 0
    assert answer.out.count("│ mine ") == 2
    assert "6/6" in answer.err
    er, first, second = cli(*arguments, "--json").json["configurations"]
    assert (er["method_file"], first["method"], first["hyperparameters"]["weight"]) == (None, "mine", 0.2)
    assert first["method_file"]["object"] == "Mine"
    assert second["hyperparameters"]["weight"] == 0.4
    assert "mine" in cli("runs", "--method", "mine").out
    shown = cli("show", f"{file}:Mine", "--json").json
    assert [knob["name"] for knob in shown["hyperparameters"]] == ["lr", "weight"]
    saved = next((tmp_path / "learners").glob("mine*"))
    with pytest.raises(cclfp.InputError, match=r"a learner of mine, which does not ship with cclfp: give the class"):
        cclfp.load(saved)
    assert cclfp.load(saved, method=f"{file}:Mine").method.name == "mine"
    file.write_text(MINE.replace("0.5, ", "0.7, "))
    assert "[6/6]" in cli(*arguments).err  # another method now
    for name, message in (
        ("Thief", "has the name 'er' of a method that ships with cclfp"),
        ("Nameless", "has the name None: expected letters"),
        ("MineHyper", "mine.py:MineHyper is not a method"),
        ("Nothing", "has no function or class 'Nothing'"),
    ):
        refused = cli("run", f"{file}:{name}", "split-mnist")
        assert refused.code == 2
        assert message in refused.err


@pytest.mark.slow
def test_run_on_a_validation_part(cli: Cli, small_mnist: Path) -> None:
    arguments = ("run", "joint,er", "split-mnist", "--seeds", "1", "--validation")
    assert "tested on held-out training images" in cli(*arguments).out
    for configuration in cli(*arguments, "--json").json["configurations"]:
        assert configuration["validation"]
        (run,) = configuration["runs"]
        assert all(value * 30 / 100 == pytest.approx(round(value * 30 / 100)) for value in run["accuracy_matrix"][-1])
    assert "validation" in cli("runs").out


def test_run_with_another_split(cli: Cli, small_mnist: Path) -> None:
    order = "9,8,7/0,1,2,3,4,5,6"
    answer = cli("run", "er", "split-mnist", "--class-order", order, "--seeds", "1", "--json").json
    (configuration,) = answer["configurations"]
    assert configuration["tasks"] == [3, 7]
    assert len(configuration["runs"][0]["accuracy_matrix"]) == 3
    assert "2 tasks" in cli("run", "er", "split-mnist", "--class-order", order, "--seeds", "1").out


def test_data_path_and_verify(cli: Cli, tmp_path: Path) -> None:
    assert cli("data", "path", "mnist").out.strip() == str(tmp_path / "home" / "data" / "mnist")
    assert cli("data", "path", "--json").json["datasets"][0]["status"] == "missing"
    assert "no dataset is here yet" in cli("data", "verify").out
    assert cli("data", "verify", "--json").json == {"datasets": []}


@pytest.mark.mnist
def test_data_on_the_real_mnist(cli: Cli) -> None:
    assert "mnist: here" in cli("data", "fetch", "mnist").out
    assert cli("data", "verify", "--json").json["datasets"][0]["status"] == "verified"


def test_version(cli: Cli) -> None:
    assert cli("--version").out.strip() == f"cclfp {cclfp.__version__}"
