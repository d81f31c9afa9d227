"""The tables as Markdown, CSV and LaTeX, and the sentences beside them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from records import with_accuracy
from report_records import cell_of, full_store, made_up_record, rows_of

from cclfp.metrics import signed
from cclfp.report import collect
from cclfp.report.components import TITLE, component_worths
from cclfp.report.content import Content
from cclfp.report.latex import FIT, escape_latex, to_latex
from cclfp.report.tables import to_csv, to_markdown
from cclfp.runs.store import Store

PDFLATEX = shutil.which("pdflatex")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return full_store(tmp_path_factory.mktemp("full") / "runs.sqlite")


@pytest.fixture(scope="module")
def content(full: Store) -> Content:
    return collect(full, range(5))


@pytest.fixture
def empty(tmp_path: Path) -> Content:
    return collect(Store(tmp_path / "empty.sqlite"), range(5))


def test_markdown(content: Content) -> None:
    for table in content.tables:
        text = to_markdown(table, content).partition(TITLE)[0]
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
        for row, line in zip(table.rows, lines[2:], strict=True):
            found = line.strip("| ").split(" | ")[-len(table.columns) :]
            for entry, text in zip(row.entries, found, strict=True):
                if entry is None:
                    assert text == "–"
                    continue
                c = entry.comparison
                ours, paper, mark = re.fullmatch(r"(.+?) \((.+?)\) ?([↑↓]?)", text).groups()  # type: ignore[union-attr]
                assert ours.replace("*", "") == f"{c.mean:.2f} ± {c.std:.2f}" + "†" * entry.untuned
                assert ours.startswith("**") == entry.best
                assert paper.strip("*").startswith(f"{entry.cell.published.mean:.2f}")
                assert mark == {"above": "↑", "below": "↓"}.get(entry.verdict, "")


def test_latex(content: Content) -> None:
    for table in content.tables:
        text = to_latex(table, content)
        assert text.count("{") == text.count("}")
        assert text.isascii()
        assert text.count(r"\begin") == text.count(r"\end")
        head = 2 if table.name == "buffer" else 1
        body = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)
        assert len(body) == len(table.columns) // 5
        lines = [line for part in body for line in part.splitlines() if line.endswith(r"\\")]
        assert {line.count("&") for line in lines} == {4 + head}
        numbers = re.findall(
            r"\$(?:\\mathbf\{)?(\d+\.\d\d) \\pm (\d+\.\d\d)\}?(?:\^\{\\dagger\})?(?:\\,\{\\(up|down)arrow\})?\$", text
        )
        halves = [row.entries[start : start + 5] for start in range(0, len(table.columns), 5) for row in table.rows]
        entries = [entry for half in halves for entry in half if entry is not None]
        marks = {"above": "up", "below": "down"}
        assert numbers == [
            (f"{e.comparison.mean:.2f}", f"{e.comparison.std:.2f}", marks.get(e.verdict, "")) for e in entries
        ]
        assert text.count(r"\mathbf") == sum(e.best + e.best_published for e in entries)


@pytest.mark.slow
@pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex here: apt-get install texlive-latex-recommended")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_tables_fit_a_page(content: Content, columns: str, tmp_path: Path) -> None:
    tables = "".join(to_latex(table, content) for table in content.tables)
    head = rf"\documentclass[{columns}]{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}"
    (tmp_path / "tables.tex").write_text(head + tables + r"\end{document}")
    command = [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    log = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, errors="replace").stdout
    assert "Output written on tables.pdf" in log
    assert "Overfull" not in log
    assert "too large" not in log


def test_latex_tables_are_shrunk_to_the_width_of_the_text(content: Content) -> None:
    for table in content.tables:
        floats = to_latex(table, content).split(r"\begin{table*}")[1:]
        assert len(floats) == len(table.columns) // 5
        for i, text in enumerate(floats):
            assert text.count(r"\begin{tabular}") == text.count(FIT) == 1
            assert text.count(r"\\") <= 2 * 12 + 2  # lines of 9.5 pt; a page has at least 550 pt
            assert (", continued." in text) == (i > 0)


def test_latex_prints_special_characters() -> None:
    printed = escape_latex("a_b & 50% {x} #1 ~ ^ $ \\")
    assert printed == r"a\_b \& 50\% \{x\} \#1 \textasciitilde{} \textasciicircum{} \$ \textbackslash{}"


def test_differences_have_their_sign() -> None:
    assert [signed(value) for value in (0.5, -1.204, 0.004, -0.004)] == ["+0.50", "−1.20", "0.00", "0.00"]


def test_numbers_with_default_hyperparameters_are_marked(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cclfp.paper.tables.find_preset", lambda m, b, s: None if (m, s) == ("er", "task") else object()
    )
    content = collect(full, range(5))
    lines = [line for table in content.tables for line in rows_of(to_csv(table, content))]
    for line in lines:
        if (line["method"], line["scenario"]) == ("er", "task"):
            assert line["chosen"] == "defaults, not tuned"
        elif line["table"] == "ablation" and line["row"] != "w, α, β":
            assert line["chosen"] == "preset, except for the components left out"
        else:
            assert line["chosen"] == ("preset" if line["buffer"] in ("", "200") else "preset, tuned with memory 200")
    assert len({line["chosen"] for line in lines}) == 4
    for table in content.tables:
        marked = sum(entry.cell.method == "er" and entry.cell.scenario == "task" for entry in table.entries)
        assert marked == {"accuracy": 4, "buffer": 8, "ablation": 0}[table.name]
        text = to_markdown(table, content)
        assert (text.count("†"), text.count("†: with the method's")) == (marked + bool(marked), bool(marked))
        text = to_latex(table, content)
        assert (text.count(r"^{\dagger}"), text.count(r"$\dagger$: with the method's")) == (marked, bool(marked))


def test_what_each_component_is_worth(content: Content, empty: Content, tmp_path: Path) -> None:
    *others, ablation = content.tables
    assert [component_worths(table) for table in others] == [[], []]
    assert not any(TITLE in to_markdown(table, content) for table in others)
    lines = to_markdown(ablation, content).partition(TITLE)[2].splitlines()[2:]
    assert lines[0] == "|  | without w | without α | without β | w alone | α alone | β alone | matters most |"
    assert [line.count("|") for line in lines] == [9] * (2 + 5)
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {worth.title}" for worth in component_worths(ablation)]
    last = to_markdown(empty.tables[2], empty).splitlines()[-1]
    assert last == (
        "| Rotated MNIST, domain | missing (−0.27) | missing (−0.28) | missing (−1.38) | missing (−0.39) | "
        "missing (+0.12) | missing (+1.24) | not known yet (β) |"
    )
    store = Store(tmp_path / "runs.sqlite")
    made_up = {"none": 80.0, "w": 80.5, "β": 82.0, "w, α": 80.0, "w, β": 82.5, "α, β": 83.0, "w, α, β": 83.25}
    for row, accuracy in made_up.items():
        record = made_up_record(cell_of("ablation", row, "rotated-mnist", "domain"), 0)
        store.add(with_accuracy(record, accuracy))
    worth = component_worths(collect(store, [0]).tables[2])[4]
    assert list(worth.changes) == [
        ("−0.25", "−0.27"),
        ("−0.75", "−0.28"),
        ("−3.25", "−1.38"),
        ("+0.50", "−0.39"),
        ("missing", "+0.12"),
        ("+2.00", "+1.24"),
    ]
    assert worth.most == ("β", "β")
    for row, accuracy, most in (("α, β", 70.0, "w"), ("w, α, β", 60.0, "none: no removal costs anything")):
        record = made_up_record(cell_of("ablation", row, "rotated-mnist", "domain"), 0)
        store.add(with_accuracy(record, accuracy), replace=True)
        assert component_worths(collect(store, [0]).tables[2])[4].most == (most, "β")
