"""The tutorial: all its commands run on little images, and print what the page shows."""

from __future__ import annotations

import gzip
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli

EXAMPLES = Path(__file__).parents[1] / "examples"
TUTORIAL = runpy.run_path(str(EXAMPLES / "tutorial.py"))
FASHION = runpy.run_path(str(EXAMPLES / "fashion_mnist.py"))
PAGE: str = TUTORIAL["PAGE"].read_text(encoding="utf-8")
BLOCKS = [(block["command"], block["output"]) for block in TUTORIAL["BLOCK"].finditer(PAGE)]
NAME = r"fashion-[0-9a-f]{8}"
NUMBER = r"\d+\.\d\d"
# What a command prints, on the page and in the test; one entry per command.
PRINTED: list[tuple[str, list[str]]] = [
    ("apt-get", []),
    ("python", [r"fashion.npz: [\d,]+ training and [\d,]+ test images of 10 classes"]),
    (
        "cclfp run er --images",
        [rf"^{NAME}, class-incremental, memory 200, 5 tasks, mlp, seed 0:", rf"│ er +│ +{NUMBER} │"],
    ),
    ("cclfp data list", [rf"│ {NAME} +│ own +│ +\d+\.\d MB │"]),
    ("cclfp show", [r"│ +1 │ ankle-boot, bag +│", r"│ +5 │ t-shirt, trouser +│"]),
    (
        "cclfp run er,ccl-fp+",
        [
            rf"│ er +│ +{NUMBER} ± {NUMBER} │",
            rf"│ ccl-fp\+ +│ +{NUMBER} ± {NUMBER} │",
            rf"^er: lr=\S+ augment=\w+ \(\d+ settings tried, {NUMBER}( ± {NUMBER})? % on held-out images",
            r"^ccl-fp\+: lr=\S+ w=\S+ .* beta=\S+ augment=\w+ \(\d+ settings tried, ",
        ],
    ),
    ("cclfp study mine", [r"│ +best │", r"^  er: lr=.* \(tuned", r"^  ccl-fp\+: lr=.* \(tuned", "^p: two-sided"]),
    (
        "cclfp report",
        [r"runs are not in the paper's tables: see Your runs in report/index.html", "^report/index.html "],
    ),
    (
        "cclfp run ccl-fp+",
        ["4 tasks, mlp, room for 10 classes, seed 0", rf"│ ccl-fp\+ +│ +{NUMBER} │", "saved in learners"],
    ),
    ("cclfp predict", [r"│ new/sandal.png +│ \S+ +│ +\d+\.\d % │"]),
    ("cclfp observe", [r"learned [\d,]+ images of 2 classes, new: ankle-boot, bag; no room for more classes"]),
    ("cclfp predict", [r"│ new/ankle-boot.png +│ \S+ +│ +\d+\.\d % │"]),
]


def write_files(folder: Path) -> None:
    """Images that a network can tell apart, in the format of the published files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, each in (("train", 40), ("t10k", 10)):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), each))
        images = rng.integers(0, 60, (len(labels), 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4] += 150
        for kind, header, values in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            packed = gzip.compress(bytes(header) + values.tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(packed)


def words_of(command: str, name: str) -> list[str]:
    """The words of a command as the shell passes them on, with the name that the little images have here."""
    words = shlex.split(re.sub(NAME, name, command).replace("\\\n", " "))
    return [found for word in words for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]


def test_every_block_of_the_page_shows_a_command_with_its_output_and_time() -> None:
    assert PAGE.count("```console") == len(BLOCKS) == len(PRINTED)
    for (command, output), (start, patterns) in zip(BLOCKS, PRINTED, strict=True):
        assert command.startswith(start)
        assert re.search(r"^# \d+ s\n$", output, flags=re.MULTILINE), command
        for pattern in patterns:
            assert re.search(pattern, output, flags=re.MULTILINE), f"{command} on the page: {pattern}"


def test_the_page_is_what_its_script_would_write() -> None:
    shown = [f"$ {command}\n{output}" for command, output in BLOCKS]
    assert TUTORIAL["fill_in"](PAGE, shown) == PAGE
    assert TUTORIAL["find_commands"](TUTORIAL["fill_in"](PAGE, ["$ a \\\n  b\nout\n# 1 s\n"] * len(BLOCKS))) == [
        "a \\\n  b"
    ] * len(BLOCKS)
    assert TUTORIAL["show"]("a", "x\n" * 99, 0.2) == "$ a\n" + "x\n" * 22 + "...\nx\n# 1 s\n"


@pytest.mark.slow
def test_the_commands_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 1)  # no other process is started
    name, outputs = "", list[str]()
    for (command, _), (_, patterns) in zip(BLOCKS, PRINTED, strict=True):
        program, *words = words_of(command, name)
        if program == "apt-get":  # nothing is downloaded
            write_files(tmp_path / "usr/share/datasets/fashion-mnist")
            output = ""
        elif program == "python":
            assert words[0] == "$EXAMPLES/fashion_mnist.py"
            monkeypatch.setattr(sys, "argv", words)
            FASHION["main"]()
            output = capsys.readouterr().out
        else:
            answer = cli(*words)
            assert answer.code == 0, f"{command}: {answer.err}"
            output = answer.out
        for pattern in patterns:
            assert re.search(pattern, output, flags=re.MULTILINE), f"{command}: {pattern}\n{output}"
        name = next(iter(re.findall(NAME, output)), name)
        outputs.append(output)
    tuned, studied = outputs[5], outputs[6]
    means = [re.findall(rf"│ {method} +│ +({NUMBER} ± {NUMBER})", tuned)[0] for method in ("er", r"ccl-fp\+")]
    assert all(mean in studied for mean in means)  # nothing was trained again
    assert all(float(mean.split()[0]) > 30 for mean in means)
    before, after = outputs[9], outputs[11]
    for new in ("ankle-boot", "bag"):
        assert not re.search(rf"│ {new} +│", before)
        assert re.search(rf"│ new/{new}.png +│ {new} +│", after)
