"""The README tells the truth: its Python runs, its numbers are those of the records in results/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from cclfp.paper import cells, compare, gather
from cclfp.runs.store import Store
from cclfp.runs.transfer import import_runs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_the_table_shows_what_the_records_have(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    import_runs([ROOT / "results" / "mnist.jsonl"], store)
    shown = [c for c in cells("accuracy") if (c.benchmark, c.scenario) == ("split-mnist", "class")]
    found = {cell.method: (cell, records) for cell, records in gather(shown, store).items()}
    rows = re.findall(r"^│ (\S+) +│ +(\S+) ± (\S+) │ +(\S+) ± (\S+) │", README, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["finetune", "er", "ccl-fp", "ccl-fp+", "joint"]
    for method, *numbers in rows:
        cell, records = found[method]
        ours = compare(cell, records)
        assert ours.n == 5
        assert numbers == [f"{number:.2f}" for number in (ours.mean, ours.std, *cell.published)]


def test_the_makefile_has_the_commands_named() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_sentence_about_results_is_that_of_the_records() -> None:
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"^Of the 80 MNIST numbers [^.]+\.", README, flags=re.MULTILINE)
    assert " ".join(said.split()) in results
