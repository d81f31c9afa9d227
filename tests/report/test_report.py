"""The report: what it says of the runs in a store, and the files it writes."""

from __future__ import annotations

import errno
import itertools
import json
import re
import shlex
import statistics
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from paper_runs import ENVIRONMENT, add_all, cell_of, full_store, made_up_record, rows_of
from records import with_accuracy

from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.metrics import signed
from cclfp.paper import TABLES, TIMING_SEED, cells, compare, run_time_cells
from cclfp.report import collect, write_report
from cclfp.report.charts import ChartPanel, Value
from cclfp.report.content import Content
from cclfp.report.entries import format_exactly
from cclfp.report.figures import accuracy_so_far
from cclfp.report.latex import escape_latex, to_latex
from cclfp.report.page import render_page
from cclfp.report.scales import linear_ticks
from cclfp.report.styles import STYLES
from cclfp.report.svg import draw_figure
from cclfp.report.tables import to_csv, to_markdown
from cclfp.report.wording import describe_components
from cclfp.runs.grid import configurations
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return full_store(tmp_path_factory.mktemp("full") / "runs.sqlite")


@pytest.fixture(scope="module")
def content(full: Store) -> Content:
    return collect(full, range(5))


def test_every_number_is_that_of_the_runs(full: Store, content: Content) -> None:
    records: dict[str, list[float]] = {}
    runs = [record for record in full.records() if record["seed"] != TIMING_SEED]
    for record in sorted(runs, key=lambda record: int(record["seed"])):
        key = json.dumps([record["configuration"], record["buffer"]])
        records.setdefault(key, []).append(record["average_accuracy"] or 0.0)
    lines = [line for table in content.tables for line in rows_of(to_csv(table, content))]
    assert len(lines) == 216
    for entry, line in zip(content.entries, lines, strict=True):
        ours = records[json.dumps([entry.cell.configuration().to_dict(), entry.cell.buffer])]
        assert (line["table"], line["row"], line["benchmark"]) == (
            entry.cell.table,
            entry.cell.row,
            entry.cell.benchmark,
        )
        assert line["seeds"] == "5"
        assert float(line["mean"]) == pytest.approx(statistics.fmean(ours), abs=1e-4)
        assert float(line["std"]) == pytest.approx(statistics.stdev(ours), abs=1e-4)
        assert float(line["published_mean"]) == entry.cell.published.mean
        difference = statistics.fmean(ours) - entry.cell.published.mean
        assert float(line["difference"]) == pytest.approx(difference, abs=1e-4)
        spread = entry.cell.published.std or statistics.stdev(ours)
        within = abs(difference) <= 2 * spread
        assert line["verdict"] == ("within" if within else "above" if difference > 0 else "below")
        each = [float(pair.partition(":")[2]) for pair in line["accuracies"].split()]
        assert each == pytest.approx(ours, abs=1e-4)
    assert sum(content.counts().values()) == 216
    assert content.counts()["missing"] == 0
    assert content.runs == len(runs)


def test_best_is_the_best_of_its_column_joint_aside(content: Content) -> None:
    for table in content.tables:
        lines = rows_of(to_csv(table, content))
        columns: dict[tuple[str, ...], list[dict[str, str]]] = {}
        for line in lines:
            size = line["buffer"] if table.name == "buffer" else ""
            columns.setdefault((line["benchmark"], line["scenario"], size), []).append(line)
        for column in columns.values():
            candidates = [line for line in column if line["method"] != "joint"]
            top = max(round(float(line["mean"]), 2) for line in candidates)
            assert [line for line in column if line["best"] == "yes"] == [
                line for line in candidates if round(float(line["mean"]), 2) == top
            ]


def test_ties_are_both_best_and_joint_never_is(content: Content, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    here = [c for c in cells("accuracy") if c.benchmark == "rotated-mnist"]
    accuracies = {"joint": 81.0, "er": 80.001, "gem": 79.999, "hal": 79.9}
    for cell in here:
        best = [entry.cell.row for entry in collect(store, [0]).tables[0].entries if entry.best]
        assert best == []  # until the column is whole
        store.add(with_accuracy(made_up_record(cell, 0), accuracies.get(cell.method, 50.0)))
    best = [entry.cell.row for entry in collect(store, [0]).tables[0].entries if entry.best]
    assert best == ["ER-Res.", "GEM"]
    # The paper has one tie.
    published = [e.cell for e in content.tables[0].entries if e.best_published]
    tied = [cell.method for cell in published if cell.published.mean == 65.19]
    assert tied == ["ccl-fp", "ccl-fp+"]


@pytest.fixture
def empty(tmp_path: Path) -> Content:
    return collect(Store(tmp_path / "empty.sqlite"), range(5))


def test_what_is_missing_is_said_to_be_missing(empty: Content) -> None:
    assert empty.counts() == {"within": 0, "above": 0, "below": 0, "unjudged": 0, "missing": 216, "diverged": 0}
    for table in empty.tables:
        assert to_markdown(table, empty).count("| missing (") == len(table.entries)
        assert to_latex(table, empty).count(r"\textit{missing}") == len(table.entries)
        assert [line["mean"] for line in rows_of(to_csv(table, empty))] == [""] * len(table.entries)
        assert {line["verdict"] for line in rows_of(to_csv(table, empty))} == {"missing"}
        assert not any(entry.best for entry in table.entries)
    for chart in empty.charts:
        drawn = draw_figure(chart)
        assert drawn.count("no runs yet") + (drawn.count(">missing<") > 0) >= 1
    assert empty.environments == []
    assert not any("†" in to_markdown(table, empty) for table in empty.tables)  # nothing is there to be marked


def test_fewer_seeds_than_asked_for_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er, gem = (cell_of("accuracy", row, "split-mnist", "class") for row in ("ER-Res.", "GEM"))
    none = cell_of("ablation", "none", "split-mnist", "class")
    add_all(store, [made_up_record(cell, seed) for seed in (0, 2, 3) for cell in (er, none)] + [made_up_record(gem, 0)])
    content = collect(store, range(5))
    (accuracy, _, ablation) = content.tables
    mean = statistics.fmean(made_up_record(er, seed)["average_accuracy"] for seed in (0, 2, 3))
    assert f"{mean:.2f}" in to_markdown(accuracy, content)
    assert to_markdown(accuracy, content).count("[3 of 5 seeds]") == 1
    assert to_markdown(accuracy, content).count("[1 of 5 seeds]") == 1
    assert to_latex(accuracy, content).count("_{n=3}") == 1
    (entry,) = [e for e in accuracy.entries if e.cell == er]
    assert entry.command(content.seeds).endswith(
        " --seeds 0,2,3 --engine eager --precision float32 --device cpu --threads 1 --fresh"
    )
    # The ablation goes by our own standard deviation.
    assert ablation.entries[0].verdict != "unjudged"
    assert collect(store, [0]).tables[2].entries[0].verdict == "unjudged"
    assert not any(e.best for e in (*accuracy.entries, *ablation.entries))  # their columns are not whole


def test_each_command_trains_the_runs_of_its_number(
    content: Content, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def run(names: list[str], benchmark: str, **options: Any) -> list[Any]:
        asked.update(options, names=names, benchmark=benchmark)
        return []

    monkeypatch.setattr("cclfp.runs.run.run", run)
    for entry in content.entries:
        words = shlex.split(entry.command(content.seeds))
        assert cli(*words[1:], "--json").code == 0
        settings = {
            name: [v == "on" for v in values] if name == "augment" else values
            for name, values in asked["settings"].items()
        }
        (made,) = configurations(
            asked["names"], asked["benchmark"], asked["scenario"], memory=asked["memory"], settings=settings
        )
        seeds = range(asked["seeds"])
        assert [made.key(seed) for seed in seeds] == [record["key"] for record in entry.records]
        used = {name: asked[name] for name in ("engine", "precision", "device", "threads")}
        assert used == {"engine": "eager", "precision": "float32", "device": "cpu", "threads": 1}
        assert asked["fresh"]  # a store that has the run would give it back
        # Nothing is left to the presets, which may change.
        said = {*entry.cell.configuration().hyperparameters, *(["augment"] if "mnist" not in made.benchmark else [])}
        assert set(asked["settings"]) == said
    assert [format_exactly(value) for value in (0.1, 1.0, 1e-5, 0.123456789)] == ["0.1", "1", "1e-05", "0.123456789"]


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


def test_the_curves_end_where_the_table_stands(content: Content) -> None:
    charts = {chart.name: chart for chart in content.charts}
    means = {
        (e.cell.benchmark, e.cell.scenario, e.cell.row): e.comparison.mean
        for e in content.entries
        if e.cell.table == "accuracy"
    }
    titles = {f"{get_benchmark(b).title}, {s}": (b, s) for b, s, _ in means}
    checked = 0
    for panel in charts["evolution"].panels:
        for series in panel.series:
            last = series.values[-1]
            assert last is not None
            assert last.mean == pytest.approx(means[*titles[panel.title], series.label])
            checked += 1
    assert checked == 2 * 11 + 2 * 11 + 2 * 9
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    forgetting = charts["forgetting"].panels[2]
    value = forgetting.series[0].values[forgetting.categories.index("ER-Res.")]
    assert value is not None
    assert value.seeds == pytest.approx([made_up_record(er, seed)["forgetting"] for seed in range(5)])
    assert accuracy_so_far([[None, None], [90.0, None], [70.0, None]], 2) is None


def run_time_panel(store: Store) -> ChartPanel:
    """That of Rotated MNIST."""
    chart = next(chart for chart in collect(store, [0]).charts if chart.name == "runtime")
    return next(panel for panel in chart.panels if panel.title == "Rotated MNIST, domain")


def test_run_times_are_those_of_methods_that_trained_alone(full: Store, tmp_path: Path) -> None:
    panel, shown = run_time_panel(full), [c for c in run_time_cells() if c.benchmark == "rotated-mnist"]
    assert panel.categories == [cell.row for cell in shown]
    assert [(series.key, series.label) for series in panel.series] == [("train", "training"), ("test", "testing")]
    for i, cell in enumerate(shown):
        record = made_up_record(cell, TIMING_SEED)
        assert record["train_seconds"] > 2 * record["test_seconds"]
        assert [series.values[i] for series in panel.series] == [
            Value(record["train_seconds"], None),
            Value(record["test_seconds"], None),
        ]
    assert panel.note == "Each method alone on A made-up processor for tests, eager engine, float32, 1 thread"
    # Runs of other seeds, and those that trained with others, are not drawn.
    store = Store(tmp_path / "runs.sqlite")
    er, gem, hal = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "HAL"))
    together = {**ENVIRONMENT, "together": 5}
    add_all(store, [made_up_record(er, 0), made_up_record(gem, TIMING_SEED, together)])
    assert run_time_panel(store).is_empty
    assert run_time_panel(store).note == ""
    add_all(store, [made_up_record(hal, TIMING_SEED)])
    panel = run_time_panel(store)
    for series in panel.series:
        assert [stop for stop, value in zip(panel.categories, series.values, strict=True) if value is not None] == [
            "HAL"
        ]
    chart = next(chart for chart in collect(store, [0]).charts if chart.name == "runtime")
    assert draw_figure(chart).count(">missing<") == 12 + 12 + 9
    assert "alone, one run at a time" in chart.caption


def test_run_times_of_different_devices_are_not_set_side_by_side(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er, gem, hal = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "HAL"))
    add_all(store, [made_up_record(er, TIMING_SEED)])
    graph = {**ENVIRONMENT, "engine": "graph", "device_name": "Another", "threads": 2}
    add_all(store, [made_up_record(cell, TIMING_SEED, graph) for cell in (gem, hal)])
    panel = run_time_panel(store)
    for series in panel.series:
        drawn = [stop for stop, value in zip(panel.categories, series.values, strict=True) if value is not None]
        assert drawn == ["GEM", "HAL"]
    assert panel.note == (
        "Each method alone on Another, graph engine, float32, 2 threads; left out, because they were measured under "
        "other conditions: ER-Res."
    )


def test_a_command_is_words_for_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a record from elsewhere says goes into a command that people paste."""
    monkeypatch.setattr("cclfp.runs.record.NAMES", {})  # or the record below would be refused
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    add_all(store, [made_up_record(er, 0, {**ENVIRONMENT, "engine": "eager; echo $HOME 'x'", "threads": 2})])
    entries = {entry.cell: entry for entry in collect(store, [0]).tables[0].entries}
    words = shlex.split(entries[er].command([0]), posix=True)
    assert words[words.index("--engine") + 1] == "eager; echo $HOME 'x'"
    assert words[-3:] == ["--threads", "2", "--fresh"]
    gem = entries[cell_of("accuracy", "GEM", "rotated-mnist", "domain")]
    assert not {"--fresh", "--threads", "--engine"} & set(shlex.split(gem.command([0])))  # there is no run of it yet


def test_what_is_not_tuned_is_told(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_each_component_is_worth_is_said(content: Content, empty: Content, tmp_path: Path) -> None:
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


def test_figures_are_well_formed_and_alone(content: Content) -> None:
    for chart in content.charts:
        drawn = draw_figure(chart)
        root = ElementTree.fromstring(drawn)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert re.findall(r"https?://[^\"]*", drawn) == ["http://www.w3.org/2000/svg"]
        assert "NaN" not in drawn
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {panel.title for panel in chart.panels} <= set(texts)
        for panel in chart.panels:
            for series in panel.series:
                assert chart.kind == "bars" or series.label in texts


def test_a_gap_in_a_curve_is_a_gap(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    sizes = [cell_of("buffer", "HAL", "rotated-mnist", "domain", size) for size in (200, 1000, 5000)]
    add_all(store, [made_up_record(cell, 0) for cell in sizes])
    chart = collect(store, [0]).charts[3]
    panel = chart.panels[-1]
    assert [value is None for value in panel.series[2].values] == [False, True, False, False]
    assert chart.notes(panel) == ["missing: ER-Res.; HAL (500); CCL-FP+"]
    (curve,) = re.findall(
        r'<path class="curve k-hal" [^>]*data-series="HAL" d="([^"]*)"',
        "".join(part for part in draw_figure(chart).split("<g ") if "Rotated MNIST" in part or "curve k-hal" in part),
    )[-1:]
    assert curve.count("M") == 2


@given(low=st.floats(-1e4, 1e4), span=st.floats(1e-3, 1e4), count=st.integers(2, 8))
def test_ticks_enclose_what_they_are_for(low: float, span: float, count: int) -> None:
    found = linear_ticks(low, low + span, count)
    assert 2 <= len(found) <= count + 3
    assert found[0] <= low + 1e-6 * span + 1e-9
    assert found[-1] >= low + span - 1e-6 * span - 1e-9
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-4)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_method_can_be_told_from_the_paper_and_from_the_others() -> None:
    assert set(METHODS) <= set(STYLES)
    for style in STYLES.values():
        assert 1.05 / (luminance(style.light) + 0.05) >= 3
        assert (luminance(style.dark) + 0.05) / (luminance("#131417") + 0.05) >= 3
    looks = [(STYLES[name].dashes, STYLES[name].mark) for name in METHODS]
    assert len(set(looks)) == len(METHODS)  # without colours too


def test_nothing_in_a_record_becomes_markup(tmp_path: Path) -> None:
    evil = '</script><script>alert("1")</script><b>&amp;'
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    add_all(store, [made_up_record(er, 0, {**ENVIRONMENT, "device_name": evil, "commit": evil})])
    _, written = write_report(store, tmp_path / "out", [0])
    text = (tmp_path / "out" / "index.html").read_text()
    assert "alert(" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert "<b>&amp;amp;" not in text.replace("&lt;b&gt;", "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert data["cells"]["accuracy/ER-Res./200/rotated-mnist/domain"]["environments"][0]["device"] == evil
    for path in written:
        if path.suffix == ".svg":
            ElementTree.parse(path)


def test_the_page_needs_nothing_else(content: Content) -> None:
    files = {
        f"{name}.{kind}": b""
        for names, kinds in (
            ([table.name for table in content.tables], ("csv", "md", "tex")),
            ([chart.name for chart in content.charts], ("svg",)),
        )
        for name in names
        for kind in kinds
    }
    text = render_page(content, files)
    for link in re.findall(r"(?:href|src|action|data|poster|srcset)=[\"']([^\"']*)", text):
        assert link.startswith(("data:", "#"))
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_the_report_is_the_same_for_the_same_runs_and_small(full: Store, cli: Cli, tmp_path: Path) -> None:
    answer = cli("report", "--out", tmp_path / "a", "--store", full.path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("216 numbers: ")
    listed = [line.split("  ")[0] for line in answer.out.splitlines()[1:]]
    kinds = [("tables", TABLES, ("md", "csv", "tex"))]
    kinds.append(("figures", ("evolution", "forgetting", "runtime", "buffer", "ablation"), ("svg", "pdf", "png")))  # type: ignore[arg-type]
    expected = {f"{folder}/{name}.{kind}" for folder, names, several in kinds for name in names for kind in several}
    expected.add("index.html")
    found = {
        path.relative_to(tmp_path / "a").as_posix(): path for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    assert set(found) == expected
    assert set(listed) == {str(path) for path in found.values()}
    assert found["index.html"].stat().st_size < 5_000_000
    for name, path in found.items():
        data = path.read_bytes()
        if name.endswith(".pdf"):
            assert data.startswith(b"%PDF-")
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG")
            width, height = struct.unpack(">II", data[16:24])
            drawn = ElementTree.parse(path.with_suffix(".svg")).getroot()
            assert (width, height) == (2 * float(drawn.attrib["width"]), 2 * float(drawn.attrib["height"]))
    again = cli("report", "--out", tmp_path / "b", "--store", full.path, "--json")
    assert again.json["counts"]["missing"] == 0
    assert again.json["runs"] == len([record for record in full.records() if record["seed"] != TIMING_SEED])
    assert sorted(again.json["files"]) == sorted(str(tmp_path / "b" / name) for name in expected)
    for name, path in found.items():
        assert path.suffix == ".pdf" or path.read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_full_disk_leaves_the_old_report(full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_report(Store(tmp_path / "empty.sqlite"), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full_disk(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cclfp.core.files.os.fsync", full_disk)
    with pytest.raises(InputError, match="the report cannot be written there: .*No space left"):
        write_report(full, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way_is_refused(full: Store, cli: Cli, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    answer = cli("report", "--out", tmp_path / place, "--store", full.path)
    assert answer.code == 2
    assert str(tmp_path / place) in answer.err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_is_not_there_is_refused_and_not_made(cli: Cli, tmp_path: Path) -> None:
    answer = cli("report", "--out", tmp_path / "out", "--store", tmp_path / "none.sqlite")
    assert answer.code == 2
    assert "there is no store of runs" in answer.err
    assert cli("report", "--out", tmp_path / "out").code == 2  # nor the default one
    assert list(tmp_path.iterdir()) == []
    assert cli("report", "--out", tmp_path / "out", "--store", tmp_path, "--seeds", "0").code == 2


def test_the_comparison_is_the_studys(content: Content) -> None:
    for entry in content.entries:
        assert entry.comparison == compare(entry.cell, entry.records)
