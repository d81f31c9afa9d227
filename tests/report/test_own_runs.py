"""The report's part about runs that are in none of the paper's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from own import CLASSES, write_images, write_method
from records import made_up, matrix_of
from report_records import ENVIRONMENT, cell_of, made_up_record, rows_of

from cclfp.data import import_images
from cclfp.report import collect, write_report
from cclfp.report.own import OwnTable
from cclfp.report.panels import draw_panel
from cclfp.report.shapes import CHARACTER
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store


def add(store: Store, method: str, benchmark: str, seeds: int = 5, level: float = 70.0, **options: Any) -> None:
    """Made-up runs whose accuracies differ a little between seeds."""
    for configuration in configurations([method], benchmark, **options):
        tasks = len(configuration.tasks or range(5))
        for seed in range(seeds):
            matrix = matrix_of([level + seed + 0.1 * (len(method) * seed % 3)] * tasks, configuration.scenario)
            record = made_up(configuration, seed, matrix, **ENVIRONMENT)
            if benchmark.startswith("pets"):
                record["confusion"] = [[8 + seed if i == j else 1 for j in range(4)] for i in range(4)]
            store.add(json.loads(json.dumps(record)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """ER of the paper's table beside a user's method, with two memories, and both on own images."""
    store = Store(tmp_path / "runs.sqlite")
    pets, half = import_images(write_images(tmp_path / "pets.npz")), write_method(tmp_path / "half.py")
    add(store, "er", "split-mnist", level=70)
    add(store, half, "split-mnist", level=75)
    add(store, half, "split-mnist", level=77, memory=500)
    for method, level in (("er", 60.0), (half, 61.0)):
        add(store, method, pets, level=level, tasks=2, backbone="mlp")
    add(store, "er", pets, seeds=3, tasks=2, backbone="mlp", validation=True)
    return store


def table_of(store: Store, title: str) -> OwnTable:
    (table,) = [table for table in collect(store, range(5)).own.tables if table.title.startswith(title)]
    return table


def test_runs_outside_the_tables_are_counted_and_those_of_the_tables_stand_beside_them(store: Store) -> None:
    own = collect(store, range(5)).own
    assert (own.runs, own.held_out) == (20, 3)
    assert own.sentence == "20 runs are not in the paper's tables"
    titles = [table.title for table in own.tables]
    assert titles[:2] == ["Split MNIST, class, memory 200", "Split MNIST, class, memory 500"]
    assert len(titles) == 3
    table = table_of(store, "Split MNIST, class, memory 200")
    assert [(row.label, row.standing.verdict) for row in table.rows] == [("er", "worse"), ("half", "best")]
    assert table_of(store, "pets").classes == list(CLASSES)


def test_without_other_runs_nothing_is_added(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    store.add(made_up_record(cell_of("accuracy", "ER-Res.", "split-mnist", "class"), 0))
    content, files = write_report(store, tmp_path / "out")
    assert (content.own.runs, content.own.tables) == (0, [])
    assert not [file for file in files if "own" in file.name]
    page = (tmp_path / "out/index.html").read_text()
    assert "Your runs" not in page
    assert "not in the paper's tables" not in page


def test_the_page_has_the_tables_charts_and_confusion_matrices(store: Store, tmp_path: Path, cli: Cli) -> None:
    answer = cli("report", "--out", tmp_path / "out", "--store", store.path)
    assert answer.code == 0, answer.err
    assert "20 runs are not in the paper's tables: see Your runs in" in answer.out
    assert "3 runs are on held-out images, made to choose hyperparameters: they are in no table" in answer.out
    page = (tmp_path / "out/index.html").read_text()
    assert page.count('data-cell="own/') == 5
    assert 'href="#own"' in page
    for name in ("evolution", "forgetting", "memory", "runtime"):
        assert f'id="figure-own-{name}"' in page
        assert (tmp_path / f"out/figures/own-{name}.svg").exists()
    assert page.count('<table class="heat">') == 2
    assert all(page.count(f'<th scope="row">{name}</th>') == 2 for name in CLASSES)
    rows = rows_of((tmp_path / "out/tables/own.csv").read_text())
    assert {row["standing"] for row in rows} == {"best", "worse", "unknown"}
    assert "**" in (tmp_path / "out/tables/own.md").read_text()


def test_a_method_looks_the_same_in_all_charts_and_joint_has_no_evolution(store: Store) -> None:
    add(store, "er", "split-mnist", seeds=1, settings={"lr": [0.01]})
    add(store, "joint", "split-mnist", level=95)
    evolution = collect(store, range(5)).own_charts[0]
    keys = {panel.title: {series.label: series.key for series in panel.series} for panel in evolution.panels}
    assert keys["Split MNIST, class, memory 200"] == {"er lr=0.1": "er", "er lr=0.01": "own-1", "half": "own-2"}
    assert next(keys[title] for title in keys if title.startswith("pets")) == {"er": "er", "half": "own-2"}


def test_rows_of_one_memory_chart_look_different(tmp_path: Path) -> None:
    """A search may have chosen other settings for each size of the memory."""
    store = Store(tmp_path / "runs.sqlite")
    for size, lr in ((200, 0.01), (500, 0.03)):
        add(store, "er", "split-mnist", seeds=1, memory=size, settings={"lr": [lr]})
    chart = next(chart for chart in collect(store, range(5)).own_charts if chart.name == "own-memory")
    keys = [series.key for series in chart.panels[0].series]
    assert sorted(keys) == ["er", "own-1"]


def test_long_labels_leave_room_for_bars(store: Store) -> None:
    add(store, "ccl-fp+", "split-mnist", seeds=1, settings={"w": [0.123456, 0.5], "alpha": [0.25, 0.5]})
    _, forgetting, *_ = collect(store, range(5)).own_charts
    longest = max(len(label) for panel in forgetting.panels for label in panel.categories)
    assert longest > 20
    for panel in forgetting.panels:
        left, _, right, _ = draw_panel(forgetting, panel).frame
        assert left > CHARACTER * max(map(len, panel.categories))
        assert right - left > 100


def test_counts_of_all_seeds_are_added(store: Store) -> None:
    row = table_of(store, "pets").rows[0]
    assert row.confusion is not None
    assert row.confusion[0] == [8 * 5 + 10, 5, 5, 5]


def test_versions_and_settings_tell_rows_apart(store: Store, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text((tmp_path / "half.py").read_text() + "\n# changed\n")
    add(store, f"{tmp_path / 'half.py'}:Half", "split-mnist", seeds=1)
    add(store, "er", "split-mnist", seeds=1, settings={"lr": [0.01, 0.02]})
    labels = [row.label for row in table_of(store, "Split MNIST, class, memory 200").rows]
    assert labels[:3] == ["er lr=0.1", "er lr=0.01", "er lr=0.02"]
    assert all(label.startswith("half@") for label in labels[3:])
    assert len(set(labels)) == len(labels) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": 2}, "--tasks 2"),
        ({"class_order": "random", "tasks": 2}, "--tasks 2 --class-order random"),
        ({"class_order": "owl,cat/dog,fish"}, "--class-order 3,0/1,2"),
        ({"class_order": "cat/dog,fish,owl"}, "--class-order 0/1,2,3"),
    ],
)
def test_the_command_of_a_row_makes_its_runs(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    pets, store = import_images(write_images(tmp_path / "pets.npz")), Store(tmp_path / "runs.sqlite")
    add(store, "er", pets, seeds=1, backbone="resnet18:width=16", settings={"epochs": [2]}, **options)
    command = table_of(store, "pets").rows[0].command
    assert f"{words} --backbone resnet18:width=16 --seeds 1" in command
    assert " epochs=2 " in command


@pytest.mark.parametrize(
    ("order", "name", "words"),
    [
        (None, None, ""),
        ("wnids", None, ""),
        ("labels", "classes by label", " --class-order labels"),
        (range(199, -1, -1), "other class order", " 199,198,"),
    ],
)
def test_a_table_and_the_commands_of_its_rows_name_an_order_that_is_not_the_usual(
    order: Any, name: str | None, words: str, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    add(store, "er", "split-tiny-imagenet", seeds=1, class_order=order, tasks=5)
    table = table_of(store, "Split Tiny ImageNet")
    assert table.place.split(", ") == ["Split Tiny ImageNet", "class", *filter(None, [name]), "5 tasks"]
    assert words in table.rows[0].command
    assert ("--class-order" in table.rows[0].command) == (name is not None)


def test_runs_on_images_that_are_not_here_are_shown_too(store: Store, tmp_path: Path) -> None:
    for folder in (tmp_path / "home/data").iterdir():
        folder.rename(tmp_path / folder.name)
    table = table_of(store, "pets")
    assert table.classes is None
    write_report(store, tmp_path / "out")
