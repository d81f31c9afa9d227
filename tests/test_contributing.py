"""CONTRIBUTING.md's recipes, followed in a copy of the package: what they add is listed, tested, trained and reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torture.material import write_little_dataset

ROOT = Path(__file__).parents[1]
# Runs commands in one process, and prints the exit code of each and what it printed.
COMMANDS = """
import contextlib, io, json, sys
import pytest
from cclfp.cli import main
answers = []
for program, *words in json.loads(sys.argv[1]):
    sys.argv = [program, *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main() if program == "cclfp" else pytest.main(words)
        except SystemExit as stop:
            code = stop.code
    answers.append([int(code or 0), " ".join(out.getvalue().split()), err.getvalue()])
print(json.dumps(answers))
"""
METHOD = '''"""ER with a weight for its loss."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from cclfp.methods.base import Batch, Hyperparameters, State, setting
from cclfp.methods.er import ER
from cclfp.nets.network import Tensors


@dataclasses.dataclass(frozen=True)
class WeightedHyper(Hyperparameters):
    """Hyperparameters of weighted ER."""

    weight: float = setting(0.5, "of the loss", low=0)


class Weighted(ER):
    """ER with a weight for its loss."""

    name = "weighted"
    reference = "nobody 2026"
    Hyper = WeightedHyper

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return hyper.weight * loss, buffers
'''
BENCHMARK = """        Benchmark(
            name="halves-mnist",
            title="Halves of MNIST",
            dataset="mnist",
            scenarios=("class", "task"),
            sizes=(5, 5),
            backbone="mlp",
            description="two tasks of five digits",
            no_augmentation="digits may not be mirrored",
        ),
"""


def follow(root: Path, heading: str, edits: list[tuple[str, str, str]], new: dict[str, str] | None = None) -> None:
    """Follow a recipe: write new files, and put text behind other text, in folders and files that the recipe names."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for path, text in (new or {}).items():
        assert f"`{Path(path).parent}/" in recipe, f"the recipe does not name the folder of {path}"
        (root / path).write_text(text, encoding="utf-8")
    for path, before, text in edits:
        assert f"`{path}`" in recipe, f"the recipe does not name {path}"
        content = (root / path).read_text("utf-8")
        assert content.count(before) == 1, f"{path} has not once: {before}"
        (root / path).write_text(content.replace(before, before + text), encoding="utf-8")


def add_method(root: Path) -> None:
    methods, contract = "src/cclfp/methods/__init__.py", "tests/methods/test_contract.py"
    row = '    {"method": "ccl-fp+", "w": 0.5, "alpha": 0.5, "beta": 0.1},\n'
    edits = [
        (methods, "from cclfp.methods.si import SI\n", "from cclfp.methods.weighted import Weighted\n"),
        (methods, "HAL, CCLFP, CCLFPPlus", ", Weighted"),
        (contract, row, '    {"method": "weighted"},\n'),
        ("src/cclfp/paper/grids.py", '    "er": {"lr": _LR},\n', '    "weighted": {"weight": [0.5, 1.0]},\n'),
    ]
    follow(root, "Add a method", edits, {"src/cclfp/methods/weighted.py": METHOD})


def add_benchmark(root: Path) -> None:
    path = "src/cclfp/streams/benchmarks.py"
    start = re.search(r"\nBENCHMARKS.*?(?=        Benchmark\()", (root / path).read_text("utf-8"), flags=re.DOTALL)
    assert start is not None
    follow(root, "Add a benchmark", [(path, start[0], BENCHMARK)])


def add_option(root: Path) -> None:
    path = "src/cclfp/runs/execution.py"
    last = re.search(r"\n    shard: .*?\n(?=\n)", (root / path).read_text("utf-8"), flags=re.DOTALL)
    assert last is not None
    check = '            ("fresh", isinstance(self.fresh, bool), "True or False"),\n'
    edits = [
        (path, last[0], '    patience: int = option(0, "How long to wait.", "DAYS")\n'),
        (path, check, '            ("patience", self.patience >= 0, "days, 0 or more"),\n'),
        ("src/cclfp/cli/options.py", "RUN_ONLY = (", '"patience", '),
    ]
    follow(root, "Add an option", edits)


@pytest.mark.slow
def test_what_the_recipes_add_is_listed_tested_trained_tuned_and_reported(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / "tests" / "methods").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "methods" / "test_contract.py", tmp_path / "tests" / "methods")
    write_little_dataset(tmp_path / "home", "mnist", 10, (1, 28, 28), train=600, test=100)
    for add in (add_method, add_benchmark, add_option):
        add(tmp_path)
    presets, how = "src/cclfp/runs/presets.json", "--seeds 1 --engine eager"
    one_check = ["weighted-class and steps_purely or every_method_has_a_row"]
    expected = {  # commands, and what they print or, if they are refused, say
        "pytest -q --noconftest -p no:cacheprovider tests/methods/test_contract.py -k": "2 passed",
        "cclfp list methods": "weighted │ nobody 2026",
        "cclfp show weighted": "of the loss",
        "cclfp list benchmarks": "halves-mnist │",
        "cclfp show halves-mnist": "2 │ 5, 6, 7, 8, 9",
        "cclfp run --help": "--patience DAYS How long to wait.",
        f"cclfp run er,weighted halves-mnist weight=0.25 {how} --patience 3": "Halves of MNIST, class-incremental",
        f"cclfp run er split-mnist {how} --patience -1": "patience=-1: expected days, 0 or more",
        f"cclfp tune weighted halves-mnist {how} --write {presets}": f"written to {presets}",
        "cclfp show weighted --json": '"benchmark": "halves-mnist"',
        "cclfp report --out report": "report/index.html",
    }
    commands = [command.split() + one_check * command.startswith("pytest") for command in expected]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "CCLFP_HOME": str(tmp_path / "home")}
    script = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    made = subprocess.run(script, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    for command, (code, out, err) in zip(expected, json.loads(made.stdout), strict=True):
        assert code == (2 if "-1" in command else 0), f"{command}: {out} {err}"
        assert expected[command] in (err if code else out), f"{command}: {out} {err}"
    assert "weighted" in (tmp_path / "report" / "tables" / "own.md").read_text("utf-8")
