"""CONTRIBUTING.md's recipes, followed in a copy of the package: what they add is listed, trained and reported."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torture.material import idx_header

from cclfp.data.formats import IDX_FILES

ROOT = Path(__file__).parents[1]
# Runs commands in one process, and prints the exit code of each and what it printed.
COMMANDS = """
import contextlib, io, json, os, sys
import pytest
from cclfp.cli import main
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # no other process is started
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

    weight: float = setting(0.5, "of the loss", low=0, search=(0.5, 1.0))


class Weighted(ER):
    """ER with a weight for its loss."""

    name = "weighted"
    reference = "nobody 2026"
    Hyper = WeightedHyper

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return hyper.weight * loss, buffers
'''
DATASET = {
    "format": "idx",
    "title": "Stripes: 600 + 100 images, 8×8",
    "classes": ["a", "b", "c", "d"],
    "mirrors": ["https://stripes.example/"],
}
BENCHMARK = """        Benchmark(
            name="split-stripes",
            title="Split Stripes",
            dataset="stripes",
            sizes=(2, 2),
            backbone="mlp",
            description="two tasks of two classes",
        ),
"""


def follow(root: Path, heading: str, edits: list[tuple[str, str, str, str]], new: dict[str, str] | None = None) -> None:
    """Follow a recipe: write new files, and put text behind other text.

    The recipe names the folder of each new file, and for each edit the file and what is edited there.
    """
    recipe = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for path, text in (new or {}).items():
        assert f"`{Path(path).parent}/" in recipe, f"the recipe does not name the folder of {path}"
        (root / path).write_text(text, encoding="utf-8")
    for path, what, before, text in edits:
        assert f"`{path}`" in recipe, f"the recipe does not name {path}"
        assert f"`{what}`" in recipe, f"the recipe does not name {what}"
        content = (root / path).read_text("utf-8")
        assert content.count(before) == 1, f"{path} has not once: {before}"
        (root / path).write_text(content.replace(before, before + text), encoding="utf-8")


def add_method(root: Path) -> None:
    methods, contract = "src/cclfp/methods/__init__.py", "tests/methods/test_contract.py"
    row = '    {"method": "ccl-fp+", "w": 0.5, "alpha": 0.5, "beta": 0.1},\n'
    edits = [
        (methods, "METHODS", "from cclfp.methods.si import SI\n", "from cclfp.methods.weighted import Weighted\n"),
        (methods, "METHODS", "HAL, CCLFP, CCLFPPlus", ", Weighted"),
        (contract, "ROWS", row, '    {"method": "weighted"},\n'),
    ]
    follow(root, "Add a method", edits, {"src/cclfp/methods/weighted.py": METHOD})


def add_benchmark(root: Path) -> None:
    arrays = {}
    (root / "files").mkdir()
    for array, file in IDX_FILES.items():
        labels = np.arange(600 if "train" in array else 100, dtype=np.uint8) % 4
        values = labels if "labels" in array else np.repeat(60 * labels, 64).reshape(-1, 8, 8)
        (root / "files" / file).write_bytes(idx_header(values.shape) + values.tobytes())
        shape = (*values.shape[:1], *[1] * (values.ndim == 3), *values.shape[1:])
        arrays[array] = [shape, hashlib.sha256(values.tobytes()).hexdigest()]
    path, datasets = "src/cclfp/streams/benchmarks.py", "src/cclfp/data/published.json"
    mnist = re.search(r' "mnist": \{.*?\n \}(?=,\n)', (root / datasets).read_text("utf-8"), flags=re.DOTALL)
    start = re.search(r"\nBENCHMARKS.*?(?=        _digits\()", (root / path).read_text("utf-8"), flags=re.DOTALL)
    assert mnist is not None
    assert start is not None
    edits = [
        (datasets, "mnist", mnist[0], f', "stripes": {json.dumps({**DATASET, "arrays": arrays})}'),
        (path, "BENCHMARKS", start[0], BENCHMARK),
    ]
    follow(root, "Add a benchmark", edits)


def add_option(root: Path) -> None:
    path = "src/cclfp/runs/execution.py"
    last = re.search(r"\n    shard: .*?\n(?=\n)", (root / path).read_text("utf-8"), flags=re.DOTALL)
    assert last is not None
    check = '            ("fresh", isinstance(self.fresh, bool), "True or False"),\n'
    edits = [
        (path, "Execution", last[0], '    patience: int = option(0, "How long to wait.", "DAYS")\n'),
        (path, "Execution", check, '            ("patience", self.patience >= 0, "days, 0 or more"),\n'),
        ("src/cclfp/cli/options.py", "RUN_ONLY", "RUN_ONLY = (", '"patience", '),
    ]
    follow(root, "Add an option", edits)


def add_column(root: Path) -> None:
    last = "accuracy,ccl-fp+,rotated-mnist,domain,200,,,,82.06,1.29\n"
    cell = "accuracy,er,split-stripes,class,200,,,,75.0,2.5\n"
    path = "src/cclfp/paper/published.csv"
    follow(root, "Add a column to a table", [(path, path, last, cell)])


@pytest.mark.slow
def test_what_the_recipes_add_is_listed_tested_trained_tuned_and_reported(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    (tmp_path / "tests" / "methods").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "methods" / "test_contract.py", tmp_path / "tests" / "methods")
    for add in (add_method, add_benchmark, add_option, add_column):
        add(tmp_path)
    presets, how = "src/cclfp/runs/presets.json", "--seeds 1 --engine eager"
    one_check = ["weighted-class and survives_saving or every_method_has_a_row"]
    expected = {  # commands, and what they print or, if they are refused, say
        "pytest -q --noconftest -p no:cacheprovider tests/methods/test_contract.py -k": "2 passed",
        "cclfp list methods": "nobody 2026",
        "cclfp show weighted": "of the loss",
        "cclfp list datasets": "stripes │",
        "cclfp data import stripes files": "",
        "cclfp list benchmarks": "split-stripes │",
        "cclfp show split-stripes": "2 │ c, d",
        "cclfp run --help": "--patience DAYS How long to wait.",
        f"cclfp run weighted split-stripes weight=0.25 {how} --patience 3": "Split Stripes, class-incremental",
        f"cclfp run er split-stripes {how} --patience -1": "patience=-1: expected days, 0 or more",
        f"cclfp tune weighted split-stripes {how} --write {presets}": "0.3, weight from 0.5 1",
        f"cclfp study accuracy --benchmark split-stripes {how} --dry-run": "1 runs to train",
        "cclfp report --out report": "report/index.html",
    }
    commands = [command.split() + one_check * command.startswith("pytest") for command in expected]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "CCLFP_HOME": str(tmp_path / "home")}
    script = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    made = subprocess.run(script, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    for command, (code, out, err) in zip(expected, json.loads(made.stdout), strict=True):
        assert code == (2 if "-1" in command else 0), f"{command}: {out} {err}"
        assert expected[command] in (err if code else out), f"{command}: {out} {err}"
    assert json.loads((tmp_path / presets).read_text("utf-8"))[-1]["benchmark"] == "split-stripes"
    tables = tmp_path / "report" / "tables"
    assert "weighted" in (tables / "own.md").read_text("utf-8")
    assert "Split Stripes, class" in (tables / "accuracy.md").read_text("utf-8")
    assert (tables / "accuracy.tex").read_text("utf-8").count(r"\begin{tabular}") == 3
