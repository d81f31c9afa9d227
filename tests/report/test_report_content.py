"""The numbers of the report are those of the runs in a store."""

from __future__ import annotations

import json
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import with_accuracy
from report_records import ENVIRONMENT, add_all, cell_of, full_store, made_up_record, rows_of

from cclfp.paper import TIMING_SEED, cells, compare
from cclfp.report import collect
from cclfp.report.components import TITLE
from cclfp.report.content import Content
from cclfp.report.entries import format_exactly
from cclfp.report.latex import to_latex
from cclfp.report.svg import draw_figure
from cclfp.report.tables import to_csv, to_markdown
from cclfp.runs.settings import configurations
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


@pytest.mark.slow
@pytest.mark.slow
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


def test_the_best_number_of_a_column_is_marked_without_joint(content: Content) -> None:
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


@pytest.mark.slow
def test_both_numbers_of_a_tie_are_best_and_joint_never_is(content: Content, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    here = [c for c in cells("accuracy") if c.benchmark == "rotated-mnist"]
    accuracies = {"joint": 81.0, "er": 80.001, "gem": 79.999, "hal": 79.9}
    for cell in here:
        best = [entry.cell.row for entry in collect(store, [0]).tables[0].entries if entry.best]
        assert best == []  # until the column is complete
        store.add(with_accuracy(made_up_record(cell, 0), accuracies.get(cell.method, 50.0)))
    best = [entry.cell.row for entry in collect(store, [0]).tables[0].entries if entry.best]
    assert best == ["ER-Res.", "GEM"]
    # The paper has one tie.
    published = [e.cell for e in content.tables[0].entries if e.best_published]
    tied = [cell.method for cell in published if cell.published.mean == 65.19]
    assert tied == ["ccl-fp", "ccl-fp+"]


@pytest.mark.slow
def test_missing_numbers_are_shown_as_missing(empty: Content) -> None:
    assert empty.counts() == {"within": 0, "above": 0, "below": 0, "unjudged": 0, "missing": 216, "diverged": 0}
    for table in empty.tables:
        assert to_markdown(table, empty).partition(TITLE)[0].count("| missing (") == len(table.entries)
        assert to_latex(table, empty).count(r"\textit{missing}") == len(table.entries)
        assert [line["mean"] for line in rows_of(to_csv(table, empty))] == [""] * len(table.entries)
        assert {line["verdict"] for line in rows_of(to_csv(table, empty))} == {"missing"}
        assert not any(entry.best for entry in table.entries)
    for chart in empty.charts:
        assert draw_figure(chart).count(">No runs yet: ") == 1
    assert empty.environments == []
    assert not any("†" in to_markdown(table, empty) for table in empty.tables)  # there is nothing to mark


@pytest.mark.slow
def test_missing_seeds_are_counted(tmp_path: Path) -> None:
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
    # The ablation uses our own standard deviation.
    assert ablation.entries[0].verdict != "unjudged"
    assert collect(store, [0]).tables[2].entries[0].verdict == "unjudged"
    assert not any(e.best for e in (*accuracy.entries, *ablation.entries))  # their columns are incomplete


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
        used = asked["execution"]
        assert (used.engine, used.precision, used.device, used.threads) == ("eager", "float32", "cpu", 1)
        assert used.fresh  # otherwise a store that has the run would return it
        # The command does not depend on the presets, which may change.
        said = {*entry.cell.configuration().hyperparameters, *(["augment"] if "mnist" not in made.benchmark else [])}
        assert set(asked["settings"]) == said
    assert [format_exactly(value) for value in (0.1, 1.0, 1e-5, 0.123456789)] == ["0.1", "1", "1e-05", "0.123456789"]


def test_commands_are_quoted_for_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields of an imported record become part of a command that users paste."""
    monkeypatch.setattr("cclfp.runs.record.NAMES", {})  # otherwise the record below would be refused
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    add_all(store, [made_up_record(er, 0, {**ENVIRONMENT, "engine": "eager; echo $HOME 'x'", "threads": 2})])
    entries = {entry.cell: entry for entry in collect(store, [0]).tables[0].entries}
    words = shlex.split(entries[er].command([0]), posix=True)
    assert words[words.index("--engine") + 1] == "eager; echo $HOME 'x'"
    assert words[-3:] == ["--threads", "2", "--fresh"]
    gem = entries[cell_of("accuracy", "GEM", "rotated-mnist", "domain")]
    assert not {"--fresh", "--threads", "--engine"} & set(shlex.split(gem.command([0])))  # it has no run yet


def test_the_comparison_is_the_studys(content: Content) -> None:
    for entry in content.entries:
        assert entry.comparison == compare(entry.cell, entry.records)
