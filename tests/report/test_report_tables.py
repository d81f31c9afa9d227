"""The tables as Markdown, CSV and LaTeX, and the sentences beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from records import with_accuracy
from report_records import cell_of, full_store, made_up_record, rows_of

from cclfp.metrics import signed
from cclfp.report import collect
from cclfp.report.content import Content
from cclfp.report.latex import escape_latex, to_latex
from cclfp.report.tables import to_csv, to_markdown
from cclfp.report.wording import describe_components
from cclfp.runs.store import Store


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
        lines = [line for line in to_markdown(table, content).splitlines() if line.startswith("|")]
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


def test_the_effect_of_each_component_is_described(content: Content, empty: Content, tmp_path: Path) -> None:
    *others, ablation = content.tables
    assert [describe_components(table) for table in others] == [[], []]
    first, *sentences = describe_components(ablation)
    assert "with the paper's change in brackets" in first
    assert len(sentences) == 5
    text = to_markdown(ablation, content)
    assert text.endswith("\n\n" + "\n".join(f"- {sentence}" for sentence in sentences) + "\n")
    none = describe_components(empty.tables[2])[5]
    assert none == (
        "Rotated MNIST, domain: without w missing (−0.27), without α missing (−0.28), without β missing (−1.38); "
        "w alone missing (−0.39), α alone missing (+0.12), β alone missing (+1.24); it is not known yet which "
        "component matters most; in the paper, the supervised contrastive loss (β) matters most."
    )
    store = Store(tmp_path / "runs.sqlite")
    made_up = {"none": 80.0, "w": 80.5, "β": 82.0, "w, α": 80.0, "w, β": 82.5, "α, β": 83.0, "w, α, β": 83.25}
    for row, accuracy in made_up.items():
        record = made_up_record(cell_of("ablation", row, "rotated-mnist", "domain"), 0)
        store.add(with_accuracy(record, accuracy))
    assert describe_components(collect(store, [0]).tables[2])[5] == (
        "Rotated MNIST, domain: without w −0.25 (−0.27), without α −0.75 (−0.28), without β −3.25 (−1.38); "
        "w alone +0.50 (−0.39), α alone missing (+0.12), β alone +2.00 (+1.24); the supervised contrastive loss (β) "
        "matters most, as in the paper."
    )
    other = made_up_record(cell_of("ablation", "α, β", "rotated-mnist", "domain"), 0)
    store.add(with_accuracy(other, 70.0), replace=True)
    assert describe_components(collect(store, [0]).tables[2])[5].endswith(
        "; feature propagation (w) matters most; in the paper, the supervised contrastive loss (β) matters most."
    )
    whole = made_up_record(cell_of("ablation", "w, α, β", "rotated-mnist", "domain"), 0)
    store.add(with_accuracy(whole, 60.0), replace=True)
    assert (
        "; removing a component costs nothing; in the paper, the"
        in describe_components(collect(store, [0]).tables[2])[5]
    )
