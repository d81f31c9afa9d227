"""The paper's evaluation as data, and our runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Cli

from cclfp.configuration import configurations
from cclfp.errors import InputError
from cclfp.experiment import make_jobs
from cclfp.methods import METHODS
from cclfp.store import Record, Store
from cclfp.streams import BENCHMARKS
from cclfp.study import TABLES, Cell, Published, cells, columns, compare, figures, gather, published, rows
from cclfp.study.training import cost, longest_first, select, steps


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


def test_select_and_longest_first(tmp_path: Path) -> None:
    chosen = select(TABLES, ["rotated-mnist", "split-cifar10"], ["er", "gem"])
    assert {(c.method, c.benchmark) for c in chosen} == {
        (method, benchmark) for method in ("er", "gem") for benchmark in ("rotated-mnist", "split-cifar10")
    }
    assert len(chosen) == 6 + 12 + 3  # of the accuracy, the buffer and the ablation table
    jobs = make_jobs([c.configuration() for c in chosen], 2, store=tmp_path / "runs.sqlite")
    ordered = longest_first(jobs)
    assert len(ordered) == 2 * (6 + 9)  # a memory of 200, and an ablation without components, are the same runs
    costs = [cost(job.configuration) for job in ordered]
    assert costs == sorted(costs, reverse=True)
    assert (ordered[0].configuration.method, ordered[0].configuration.benchmark) == ("gem", "split-cifar10")


@pytest.mark.parametrize(
    ("benchmark", "count"),
    [("split-mnist", 6000), ("rotated-mnist", 2000), ("split-cifar100", 5000), ("split-tiny-imagenet", 10_000)],
)
def test_steps_of_a_run(benchmark: str, count: int) -> None:
    (configuration,) = configurations(["er"], benchmark)
    assert steps(configuration) == count


def test_every_method_has_a_cost() -> None:
    for table in TABLES:
        for cell in cells(table):
            assert cost(cell.configuration()) > 0


QUICK = (
    "study",
    "accuracy",
    "--benchmark",
    "split-mnist",
    "--method",
    "finetune,er",
    "--seeds",
    "2",
    "--engine",
    "eager",
)


def test_study_trains_what_is_missing_and_prints_it_beside_the_paper(small_mnist: Path, cli: Cli) -> None:
    cli("run", "er", "split-mnist", "--seeds", "1", "--scenario", "task")
    plan = cli(*QUICK, "--dry-run", "--json").json
    assert plan["missing"] == 7
    assert {(p["method"], p["scenario"]): p["seeds"] for p in plan["plan"]} == {
        ("er", "class"): [0, 1],
        ("er", "task"): [1],
        ("finetune", "class"): [0, 1],
        ("finetune", "task"): [0, 1],
    }
    assert plan["replica_steps"] == 7 * 6000
    answer = cli(*QUICK)
    assert answer.code == 0, answer.err
    assert "1 of 8 runs are in the store" in answer.err
    assert "[8/8]" in answer.err
    assert answer.err.count("accuracy table, split-mnist") == 4  # a line a cell
    assert "Split MNIST, class-incremental, seeds 0,1, %" in answer.out
    (first, second) = [line for line in answer.out.splitlines() if "ER-Res." in line]
    assert "76.43 ± 3.08" in first
    assert "98.77 ± 0.14" in second
    assert "4 cells: " in answer.out.splitlines()[-1]
    again = cli(*QUICK, "--json")
    assert again.err.startswith("8 of 8 runs are in the store")
    (er,) = [c for c in again.json["cells"] if (c["method"], c["scenario"]) == ("er", "class")]
    assert er["runs"] == 2
    assert er["difference"] == pytest.approx(er["mean"] - 76.43)
    assert f"{er['mean']:.2f} ± {er['std']:.2f}" in first
    assert "0 runs to train, 0 replica-steps" in cli(*QUICK, "--dry-run").out


def test_a_plan_leaves_no_store_behind(cli: Cli, tmp_path: Path) -> None:
    out = cli("study", "all", "--dry-run", "--store", tmp_path / "runs.sqlite").out
    assert "runs to train" in out
    assert not (tmp_path / "runs.sqlite").exists()


def test_the_ablation_and_the_buffer_table_are_printed_in_the_papers_order(
    small_mnist: Path, cli: Cli, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    for table in ("ablation", "buffer"):
        for number, cell in enumerate(cells(table)):
            if cell.benchmark == "rotated-mnist":
                store.add(record(cell, 0, 50.0 + number))
    arguments = ("--benchmark", "rotated-mnist", "--seeds", "1", "--store", store.path)
    rows_of = lambda out: [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")][1:]  # noqa: E731
    ablation = rows_of(cli("study", "ablation", *arguments).out)
    assert [row[0].strip() for row in ablation] == rows("ablation")
    buffer = rows_of(cli("study", "buffer", *arguments).out)
    sizes = [200, 500, 1000, 5000]
    assert [[row[0].strip(), row[1].strip()] for row in buffer] == [[str(s), r] for s in sizes for r in rows("buffer")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "acuracy"], "unknown table 'acuracy'. Did you mean 'accuracy'? Known: accuracy, buffer"),
        (["study", "buffer", "--method", "si"], "the paper has no number for si in its table buffer"),
        (["study", "all", "--method", "erx"], "unknown method 'erx'. Did you mean 'er'?"),
        (["study", "all", "--benchmark", "mnist"], "unknown benchmark 'mnist'"),
        (["study", "all", "--benchmark", ""], "--benchmark '': expected one name or several"),
        (["study", "all", "--seeds", "0"], "seeds=0"),
        (["study", "all", "--engine", "warp"], "unknown engine 'warp'"),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
