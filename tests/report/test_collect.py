"""What the report takes from a store: runs of other code are marked, and every record is read once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import write
from report_records import ENVIRONMENT, add_all, add_own, cell_of, diverged_record, made_up_record, rows_of

from cclfp.report import collect
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store, StoredRow


@pytest.mark.slow
def test_numbers_with_runs_of_other_code_are_marked_and_explained(store: Store, cli: Cli, tmp_path: Path) -> None:
    """Of ER one seed of two, of FDR one that diverged, and one of one's own; those of GEM are of this code."""
    other = {**ENVIRONMENT, "cclfp": "0.0.9", "commit": None, "source": "f" * 16}
    er, gem, fdr = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "FDR"))
    diverged = diverged_record(fdr, 0) | {"environment": other}
    add_all(store, [made_up_record(gem, 0), made_up_record(er, 0), made_up_record(er, 1, other), diverged])
    add_own(store, "er", "split-mnist", seeds=2, settings={"lr": [0.3, 0.4]})
    mine: Any = store.find(configurations(["er"], "split-mnist", settings={"lr": [0.4]})[0].key(0))
    store.add(mine | {"environment": other}, replace=True)
    out = tmp_path / "out"
    answer = cli("report", "--out", out, "--store", store.path, "--seeds", "2")
    risk = "their numbers may not be those of this code"
    what = f"runs are of other code (cclfp 0.0.9, code ffffffff): {risk}"
    assert f"‡ 3 of 8 {what}\n" in answer.out
    assert len(cli("report", "--out", out, "--store", store.path, "--seeds", "2", "--json").json["other_code"]) == 3
    papers = ["ER-Res.", "FDR"]
    for name, mark, marked in (
        ("accuracy.md", "‡", papers),
        ("accuracy.tex", "ddagger", papers),
        ("own.md", "‡", ["er lr=0.4"]),
    ):
        text = (out / "tables" / name).read_text()
        assert f"{'1' if name == 'own.md' else '2'} of 4 {what}" in text
        rows = [line.strip("| ") for line in text.splitlines() if mark in line and what not in line]
        assert [re.split(r" [|&] ", row)[0] for row in rows] == marked
    for name, seeds in (("accuracy", {"1", "0", ""}), ("own", {"0", ""})):
        assert {line["other_code"] for line in rows_of((out / f"tables/{name}.csv").read_text())} == seeds
    page = (out / "index.html").read_text()
    assert re.findall(rf"‡ (\d of \d) {re.escape(what)}\.", page) == ["3 of 8", "2 of 4", "1 of 2", "1 of 4"]
    cells = re.findall(r'data-cell="(\w+)/([^/]*)[^"]*"[^>]*><span class="ours">(?:(?!</span>)[^‡])*‡', page)
    assert cells == [("accuracy", "ER-Res."), ("accuracy", "FDR"), ("buffer", "ER-Res."), ("own", "0")]


def test_a_record_is_read_once(store: Store) -> None:
    """One that several tables show too: a bad one is told once."""
    store.add(made_up_record(cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain"), 0))
    write(store.path, "UPDATE runs SET average_accuracy = 99")
    bad: list[StoredRow] = []
    collect(Store(store.path, on_bad=bad.append), [0])
    assert len(bad) == 1
