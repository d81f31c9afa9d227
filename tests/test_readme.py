"""The README tells the truth: its Python runs, its numbers are those the presets were measured to give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from cclfp.presets import find_preset, presets
from cclfp.streams import BENCHMARKS
from cclfp.study import published

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_is_python_to_run() -> None:
    assert BLOCKS


@pytest.mark.mnist
@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.strip().splitlines()[0])
def test_python_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for promised in re.findall(r"print\(.*\)  # (tensor\(.*?\)):", code):
        assert promised in printed


def test_the_table_shows_what_was_measured() -> None:
    rows = re.findall(r"^│ (\S+) +│ +(\S+) ± (\S+) │ +(\S+) ± (\S+) │", README, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["finetune", "er", "ccl-fp", "ccl-fp+", "joint"]
    for method, mean, std, paper_mean, paper_std in rows:
        preset = find_preset(method, "split-mnist", "class")
        assert preset is not None
        assert (float(mean), float(std)) == (preset.accuracy, preset.std)
        assert (float(paper_mean), float(paper_std)) == published(method, "split-mnist", "class", 200)


def test_the_makefile_has_the_commands_named() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_results_are_the_presets() -> None:
    names = {benchmark.title: benchmark.name for benchmark in BENCHMARKS.values()}
    rows = re.findall(r"^\| ([^|`]+?) \| (class|task) \| (.+?) \| (.+?) \|$", README, flags=re.MULTILINE)
    cells = {
        (m, names[title], s): cell for title, s, *two in rows for m, cell in zip(("er", "ccl-fp+"), two, strict=True)
    }
    columns = [
        ("split-mnist", "class"),
        ("split-mnist", "task"),
        ("permuted-mnist", "domain"),
        ("rotated-mnist", "domain"),
    ]
    for method, *four in re.findall(r"^\| `(\S+)`" + 4 * r" \| ([^|]+?)" + r" \|$", README, flags=re.MULTILINE):
        cells |= {(method, *column): cell for column, cell in zip(columns, four, strict=True) if cell != "–"}
    shown = {}
    for (method, benchmark, scenario), cell in cells.items():
        ours, ours_std, paper, paper_std = map(float, re.findall(r"\d+\.\d+", cell))
        shown[method, benchmark, scenario] = (ours, ours_std)
        assert published(method, benchmark, scenario, 200) == (paper, paper_std)
    assert shown == {(p.method, p.benchmark, p.scenario): (p.accuracy, p.std) for p in presets()}
