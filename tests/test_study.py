"""The paper's evaluation as data, and our runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.store import Record, Store
from cclfp.streams import BENCHMARKS
from cclfp.study import TABLES, Cell, Published, cells, columns, compare, figures, gather, published, rows


def find(table: str, row: str, benchmark: str, scenario: str, buffer: int | None = 200) -> Cell:
    (cell,) = [
        c for c in cells(table) if (c.row, c.benchmark, c.scenario, c.buffer) == (row, benchmark, scenario, buffer)
    ]
    return cell


def test_the_tables_have_the_papers_shape() -> None:
    assert list(TABLES) == ["accuracy", "buffer", "ablation"]
    assert [len(cells(table)) for table in TABLES] == [116, 60, 40]
    assert [(len(rows(table)), len(columns(table))) for table in TABLES] == [(12, 10), (3, 5), (8, 5)]
    assert rows("accuracy")[0] == "Joint"
    assert rows("accuracy")[-2:] == ["CCL-FP", "CCL-FP+"]
    assert columns("accuracy")[4] == ("permuted-mnist", "domain")
    for table in TABLES:
        places = [(c.row, c.buffer, c.benchmark, c.scenario) for c in cells(table)]
        assert len(set(places)) == len(places)
        first = cells(table)[: len(columns(table))]
        assert [(c.benchmark, c.scenario) for c in first] == columns(table)
        assert {c.row for c in first} == {rows(table)[0]}
    with pytest.raises(InputError, match="unknown table 'acuracy'. Did you mean 'accuracy'"):
        cells("acuracy")


@pytest.mark.parametrize(
    ("cell", "mean", "std"),
    [
        (("accuracy", "HAL", "permuted-mnist", "domain"), 70.83, 1.86),
        (("accuracy", "SI", "split-tiny-imagenet", "task", None), 17.85, 0.92),
        (("buffer", "CCL-FP+", "split-cifar100", "class", 5000), 27.38, 1.32),
        (("ablation", "w, β", "rotated-mnist", "domain"), 81.78, None),
        (("ablation", "none", "split-mnist", "class"), 76.43, None),
    ],
)
def test_numbers_of_the_paper(cell: tuple[str, str, str, str], mean: float, std: float | None) -> None:
    assert find(*cell).published == Published(mean, std)


@pytest.mark.parametrize("table", TABLES)
def test_every_cell_is_a_run_of_the_papers_protocol(table: str) -> None:
    keys = set()
    for cell in cells(table):
        c = cell.configuration()
        assert c.is_papers_protocol
        assert (c.method, c.benchmark, c.scenario, c.buffer) == (
            cell.method,
            cell.benchmark,
            cell.scenario,
            cell.buffer,
        )
        assert {name: c.hyperparameters[name] for name, _ in cell.settings} == dict(cell.settings)
        keys.add(cell.key(0))
        if table != "ablation":
            assert published(c.method, c.benchmark, c.scenario, c.buffer) == cell.published
    assert len(keys) == len(cells(table))


def test_the_ablations_rows_that_are_methods_have_the_numbers_of_those() -> None:
    for variant, row in (("none", "ER-Res."), ("w, α", "CCL-FP"), ("w, α, β", "CCL-FP+")):
        for benchmark, scenario in columns("ablation"):
            ablation = find("ablation", variant, benchmark, scenario)
            accuracy = find("accuracy", row, benchmark, scenario)
            assert ablation.published.mean == accuracy.published.mean
            assert ablation.key(3) == accuracy.key(3)


def test_an_ablation_switches_components_off_and_leaves_the_rest() -> None:
    whole = find("ablation", "w, α, β", "split-mnist", "class").configuration().hyperparameters
    for variant in rows("ablation"):
        cell = find("ablation", variant, "split-mnist", "class")
        if cell.method == "ccl-fp+":
            off = {name for label, name in (("w", "w"), ("α", "alpha"), ("β", "beta")) if label not in variant}
            assert cell.configuration().hyperparameters == {**whole, **dict.fromkeys(off, 0.0)}
    assert all(whole[name] > 0 for name in ("w", "alpha", "beta"))


def record(cell: Cell, seed: int, accuracy: float) -> Record:
    configuration = cell.configuration()
    return {
        "key": configuration.key(seed),
        "method": configuration.method,
        "benchmark": configuration.benchmark,
        "scenario": configuration.scenario,
        "buffer": configuration.buffer,
        "seed": seed,
        "configuration": configuration.to_dict(),
        "average_accuracy": accuracy,
        "accuracy_matrix": [[None], [accuracy]],
        "seconds": 2.0,
        "train_seconds": 1.0,
        "test_seconds": 1.0,
        "environment": {},
        "finished_at": "2026-01-01T00:00:00+00:00",
    }


def test_gather_finds_what_is_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = find("accuracy", "ER-Res.", "rotated-mnist", "domain")
    for seed in (3, 0, 7):
        store.add(record(er, seed, 70.0 + seed))
    accuracy = gather("accuracy", store)
    assert list(accuracy) == cells("accuracy")
    assert [r["seed"] for r in accuracy[er]] == [0, 3]
    assert sum(map(len, accuracy.values())) == 2
    assert [r["seed"] for r in gather("accuracy", store, seeds=[7])[er]] == [7]
    same = find("ablation", "none", "rotated-mnist", "domain")
    assert [r["average_accuracy"] for r in gather("ablation", store)[same]] == [70.0, 73.0]


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([76.43], "within"),
        ([76.43 + 2 * 3.08], "within"),
        ([76.43 - 2 * 3.08, 76.43 - 2 * 3.08], "within"),
        ([76.43 + 2 * 3.08 + 0.01], "above"),
        ([70.0, 70.2], "below"),
        ([], None),
    ],
)
def test_verdict_with_a_published_std(accuracies: list[float], verdict: str | None) -> None:
    cell = find("accuracy", "ER-Res.", "split-mnist", "class")
    assert cell.published == (76.43, 3.08)
    comparison = compare(cell, [record(cell, seed, accuracy) for seed, accuracy in enumerate(accuracies)])
    assert (comparison.verdict, comparison.n) == (verdict, len(accuracies))


def test_verdict_without_a_published_std_goes_by_our_own() -> None:
    cell = find("ablation", "none", "split-mnist", "class")
    wide = compare(cell, [record(cell, 0, 70.0), record(cell, 1, 74.0)])
    assert wide.mean == pytest.approx(72.0)
    assert wide.std == pytest.approx(8**0.5)
    assert wide.difference == pytest.approx(-4.43)
    assert wide.verdict == "within"
    narrow = compare(cell, [record(cell, 0, 71.9), record(cell, 1, 72.1)])
    assert narrow.verdict == "below"
    assert compare(cell, [record(cell, 0, 72.0)]).verdict is None  # one run has no spread


def test_figures_have_the_papers_panels() -> None:
    by_name = {figure.name: figure for figure in figures()}
    assert {name: len(figure.panels) for name, figure in by_name.items()} == {
        "evolution": 6,
        "forgetting": 3,
        "runtime": 3,
    }
    for figure in by_name.values():
        for benchmark, scenario, methods in figure.panels:
            assert scenario in BENCHMARKS[benchmark].scenarios
            assert all(scenario in METHODS[method].scenarios() for method in methods)
            assert ("joint" in methods) == (figure.name == "runtime")
            assert len(methods) == (12 if scenario != "domain" else 10) - (figure.name != "runtime")
