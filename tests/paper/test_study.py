"""The paper's evaluation as data, and our runs beside it."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from records import made_up

from cclfp.errors import DataError, InputError, RunError
from cclfp.paper import (
    FIGURES,
    PANELS,
    TABLES,
    TIMING_SEED,
    Change,
    Published,
    cells,
    columns,
    describe_conditions,
    effects,
    gather_timings,
    largest_comparable_group,
    published,
    rows,
    run_time_cells,
)
from cclfp.paper.numbers import LABELS, missing_components
from cclfp.paper.study import Study, select
from cclfp.runs.code import device_name
from cclfp.runs.events import Event, Finished, Note, OnEvent
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, cost, steps
from cclfp.runs.pool import Executor, Pool
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.streams import BENCHMARKS


def find(table: str, row: str, benchmark: str, scenario: str, buffer: int | None = 200) -> Result:
    (cell,) = [
        c for c in cells(table) if (c.label, *c.column, c.configuration.buffer) == (row, benchmark, scenario, buffer)
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
        places = [(c.label, c.configuration.buffer, *c.column) for c in cells(table)]
        assert len(set(places)) == len(places)
        first = cells(table)[: len(columns(table))]
        assert [c.column for c in first] == columns(table)
        assert {c.label for c in first} == {rows(table)[0]}
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
        c = cell.configuration
        assert c.is_papers_protocol
        off = missing_components(cell)
        assert {name: c.hyperparameters[name] for name in off} == off
        keys.add(cell.key(0))
        if table != "ablation":
            assert published(c.method, c.benchmark, c.scenario, c.buffer) == cell.published
    assert len(keys) == len(cells(table))


def test_the_published_numbers_are_those_of_the_paper() -> None:
    """All 216 were compared with the paper's source; the file must stay what it was then, byte for byte."""
    data = resources.files("cclfp.paper").joinpath("published.csv").read_bytes()
    digest = "3f8077255958984ca321c064d7703546d88353c19cf3432d31f3c1e30816abea"
    assert hashlib.sha256(data).hexdigest() == digest
    # Each line of it is one cell, of the same number.
    lines = list(csv.DictReader(io.StringIO(data.decode())))
    found = {
        (c.table, c.label, *c.column, c.configuration.buffer or 200): c.published
        for table in TABLES
        for c in cells(table)
    }
    assert len(lines) == len(found) == 216
    for line in lines:
        there = [label for label, name in (("w", "w"), ("α", "alpha"), ("β", "beta")) if line[name] == "1"]
        row = (", ".join(there) or "none") if line["table"] == "ablation" else LABELS[line["method"]]
        number = Published(float(line["mean"]), float(line["std"]) if line["std"] else None)
        assert found[line["table"], row, line["benchmark"], line["scenario"], int(line["buffer"])] == number


def test_the_ablations_rows_that_are_methods_have_the_papers_numbers_of_those() -> None:
    for variant, row in (("none", "ER-Res."), ("w, α", "CCL-FP"), ("w, α, β", "CCL-FP+")):
        for benchmark, scenario in columns("ablation"):
            ablation = find("ablation", variant, benchmark, scenario)
            accuracy = find("accuracy", row, benchmark, scenario)
            assert ablation.published is not None
            assert accuracy.published is not None
            assert ablation.published.mean == accuracy.published.mean
            assert (ablation.key(3) == accuracy.key(3)) == (row == "CCL-FP+")  # all else is as CCL-FP+ has it


def test_an_ablation_switches_components_off_and_leaves_the_rest() -> None:
    whole = find("ablation", "w, α, β", "split-mnist", "class").configuration.hyperparameters
    for variant in rows("ablation"):
        cell = find("ablation", variant, "split-mnist", "class")
        off = {name for label, name in (("w", "w"), ("α", "alpha"), ("β", "beta")) if label not in variant}
        assert cell.configuration.method == "ccl-fp+"
        assert cell.configuration.hyperparameters == {**whole, **dict.fromkeys(off, 0.0)}
    assert all(whole[name] > 0 for name in ("w", "alpha", "beta"))


def record(cell: Result, seed: int, accuracy: float, environment: dict[str, Any] | None = None) -> Any:
    tasks = BENCHMARKS[cell.configuration.benchmark].num_tasks or 0
    matrix: list[list[float | None]] = [[None] * tasks for _ in range(tasks)]
    return made_up(cell.configuration, seed, [*matrix, [accuracy] * tasks], 1.0, **(environment or {}))


@pytest.mark.slow
def test_gather_finds_what_is_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = find("accuracy", "ER-Res.", "rotated-mnist", "domain")
    for seed in (3, 0, 7):
        store.add(record(er, seed, 70.0 + seed))
    found = [cell.find_runs(store, range(5)) for cell in cells("accuracy")]
    assert sum(len(result.runs) for result in found) == 2
    assert [r["seed"] for r in er.find_runs(store, range(5)).runs] == [0, 3]
    assert [r["seed"] for r in er.find_runs(store, [7]).runs] == [7]
    same = find("buffer", "ER-Res.", "rotated-mnist", "domain", 200).find_runs(store, range(5))
    assert [r["average_accuracy"] for r in same.runs] == [70.0, 73.0]


def with_runs(cell: Result, *accuracies: float) -> Result:
    runs = [record(cell, seed, accuracy) for seed, accuracy in enumerate(accuracies)]
    return dataclasses.replace(cell, runs=runs)


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
    assert with_runs(cell, *accuracies).verdict == verdict


def test_verdict_without_a_published_std_goes_by_our_own() -> None:
    cell = find("ablation", "none", "split-mnist", "class")
    wide = with_runs(cell, 70.0, 74.0)
    assert wide.mean == pytest.approx(72.0)
    assert wide.std == pytest.approx(8**0.5)
    assert wide.difference == pytest.approx(-4.43)
    assert wide.verdict == "within"
    narrow = with_runs(cell, 71.9, 72.1)
    assert narrow.verdict == "below"
    assert with_runs(cell, 72.0).verdict is None  # one run has no spread


def test_figures_have_the_papers_panels() -> None:
    assert {name: len(PANELS[name]) for name in FIGURES} == {"evolution": 6, "forgetting": 3, "runtime": 3}
    for benchmark, scenario in (place for places in PANELS.values() for place in places):
        assert scenario in BENCHMARKS[benchmark].scenarios
    assert len(run_time_cells()) == 12 + 12 + 10
    assert "joint" in {cell.configuration.method for cell in run_time_cells()}


def test_select_and_longest_first(tmp_path: Path) -> None:
    chosen = select(TABLES, ["rotated-mnist", "split-cifar10"], ["er", "gem"])
    assert {(c.configuration.method, c.configuration.benchmark) for c in chosen} == {
        (method, benchmark) for method in ("er", "gem") for benchmark in ("rotated-mnist", "split-cifar10")
    }
    assert len(chosen) == 6 + 12  # of the accuracy and the buffer table; the ablation is all CCL-FP+
    ordered = Study("all", chosen, range(2), Execution(store=tmp_path / "runs.sqlite")).jobs
    assert len(ordered) == 2 * (6 + 9)  # a memory of 200 is the same runs
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
            assert cost(cell.configuration) > 0


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


@pytest.mark.slow
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


def test_what_is_there_is_printed_if_a_run_fails(
    small_mnist: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Pool, cohorts: object, on_event: OnEvent) -> None:
        raise RunError("a run failed")

    monkeypatch.setattr(Pool, "run", fail)
    assert cli(*QUICK) == (1, "", "error: a run failed\n")
    store = Store(tmp_path / "home" / "runs.sqlite")
    er = find("accuracy", "ER-Res.", "split-mnist", "class")
    for seed in range(2):
        store.add(record(er, seed, 80.0 + seed))
    answer = cli(*QUICK)
    assert answer.code == 1
    assert "80.50 ± 0.71" in answer.out
    assert "Split MNIST, class" in answer.out
    assert "Split MNIST, task" not in answer.out  # has nothing yet
    assert "4 cells: 1 within two standard deviations of the paper's number, 0 above, 0 below, 3 with" in answer.out
    assert answer.err.splitlines()[-1] == "error: a run failed"
    answer = cli(*QUICK, "--json")
    assert answer.code == 1
    assert [c["mean"] for c in answer.json["cells"] if c["runs"]] == [80.5]


def test_a_column_is_printed_when_it_is_complete(
    small_mnist: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_key = {cell.key(seed): (cell, seed) for cell in cells("accuracy") for seed in range(2)}
    titles: list[str] = []
    seen: list[list[str]] = []

    def train(self: Pool, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        jobs = [job for cohort in cohorts for job in cohort]
        for number, job in enumerate(sorted(jobs, key=lambda job: job.configuration.scenario)):
            made = record(*by_key[job.key], 50.0 + number)
            Store(job.execution.store).add(made)
            on_event(Finished(job.key, made))
            seen.append(list(titles))

    monkeypatch.setattr(Pool, "run", train)
    monkeypatch.setattr("cclfp.cli.print_study.print_table", lambda columns, rows, title: titles.append(title))
    answer = cli(*QUICK)
    assert answer.code == 0, answer.err
    first, second = titles  # each once
    assert "Split MNIST, class" in first
    assert "Split MNIST, task" in second
    assert seen == [[], [], [], [first], [first], [first], [first], [first, second]]
    titles.clear()
    assert cli(*QUICK).code == 0  # all are in the store: at the end
    assert titles == [first, second]


@pytest.mark.slow
def test_what_is_not_tuned_is_named(small_mnist: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    untuned = [{"method": "er", "benchmark": "split-mnist", "scenario": "task"}]
    said = "no preset, trained with the defaults and not tuned: er on split-mnist (task)"
    tuned = lambda method, benchmark, scenario: None if (method, scenario) == ("er", "task") else object()  # noqa: E731
    monkeypatch.setattr("cclfp.paper.numbers.find_preset", tuned)
    plan = cli(*QUICK, "--dry-run", "--json").json
    assert plan["not_tuned"] == untuned
    assert [(p["method"], p["scenario"]) for p in plan["plan"] if not p["preset"]] == [("er", "task")]
    out = cli(*QUICK, "--dry-run").out
    assert out.splitlines()[-1] == said
    lines = [line for line in out.splitlines() if "│ er " in line]
    assert sorted((" task " in line, " defaults " in line) for line in lines) == [(False, False), (True, True)]
    assert cli(*QUICK).out.splitlines()[-1] == said
    done = cli(*QUICK, "--json").json
    assert done["not_tuned"] == untuned
    assert [(c["method"], c["scenario"]) for c in done["cells"] if not c["preset"]] == [("er", "task")]
    monkeypatch.setattr("cclfp.paper.numbers.find_preset", lambda *place: object())
    assert "not tuned" not in cli(*QUICK).out


@pytest.mark.slow
def test_run_times_are_measured_one_at_a_time(
    small_mnist: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 4)
    monkeypatch.setattr("cclfp.runs.pool.Workers", None)  # no process beside this one
    arguments = ("study", "runtime", "--benchmark", "rotated-mnist", "--method", "finetune,joint,er")
    answer = cli(*arguments, "--json")
    assert answer.code == 0, answer.err
    records = Store(tmp_path / "home" / "runs.sqlite").records()
    assert {(r["method"], r["seed"]) for r in records} == {(m, TIMING_SEED) for m in ("finetune", "joint", "er")}
    assert {(r["environment"]["together"], r["environment"]["engine"]) for r in records} == {(1, "eager")}
    (panel,) = answer.json["panels"]
    assert (panel["benchmark"], panel["scenario"]) == ("rotated-mnist", "domain")
    assert panel["made"] == f"{device_name('cpu')}, eager engine, float32, 1 thread"
    for r in records:
        assert panel["times"][r["method"]] == {n: r[n] for n in ("train_seconds", "test_seconds", "seconds")}
    again = cli(*arguments)
    assert again.err.startswith("3 of 3 runs are in the store")
    (line,) = [line for line in again.out.splitlines() if "│ er " in line]
    times = panel["times"]["er"]
    shown = [f"{times[name]:.1f}" for name in ("train_seconds", "test_seconds", "seconds")]
    assert [part.strip() for part in line.split("│")[2:-1]] == shown
    assert "each method alone on" in again.out
    # The tables have none of them.
    plan = cli("study", "all", "--benchmark", "rotated-mnist", "--dry-run", "--json").json
    assert all(part["seeds"] == [0, 1, 2, 3, 4] for part in plan["plan"])


@pytest.mark.parametrize(("asked", "engine"), [("auto", "eager"), ("eager", "eager"), ("compiled", "compiled")])
def test_run_times_are_of_one_engine(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, asked: str, engine: str, tmp_path: Path
) -> None:
    calls: list[Sequence[Job]] = []

    def run_one(jobs: Sequence[Job], on_event: OnEvent, executor: Executor) -> dict[str, Record]:
        calls.append(jobs)
        return {}

    monkeypatch.setattr("cclfp.paper.study.run_jobs", run_one)
    assert cli("study", "runtime", "--engine", asked, "--store", tmp_path / "runs.sqlite").code == 0
    assert len(calls) == len(run_time_cells()) == 12 + 12 + 10
    assert {len(jobs) for jobs in calls} == {1}
    assert {(jobs[0].execution.engine, jobs[0].seed) for jobs in calls} == {(engine, TIMING_SEED)}


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({}, 0),
        ({"together": 5}, 1),
        ({"together": None}, 1),  # a record of before that was kept
        ({"engine": "compiled"}, 1),
        ({"device_name": "another"}, 1),
        ({"threads": 2}, 1),
        ({"precision": "bf16"}, 1),
    ],
)
def test_a_run_that_was_not_timed_so_is_timed_again(
    cli: Cli, tmp_path: Path, environment: dict[str, Any], missing: int
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = find("accuracy", "ER-Res.", "rotated-mnist", "domain")
    here = {"together": 1, "engine": "eager", "precision": "float32", "threads": 1, "device_name": device_name("cpu")}
    store.add(record(er, TIMING_SEED, 80.0, {**here, **environment}))
    arguments = ("--benchmark", "rotated-mnist", "--method", "er", "--device", "cpu", "--store", store.path)
    assert cli("study", "runtime", *arguments, "--dry-run", "--json").json["missing"] == missing


def test_a_method_that_fails_does_not_keep_the_others_from_being_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Study("runtime", run_time_cells()[:3], [TIMING_SEED], Execution(engine="eager", store=tmp_path / "s"))
    errors: list[Exception | None] = [None, RunError("the second"), None]
    events: list[Event] = []

    def run_one(some: Sequence[Job], on_event: OnEvent, executor: Executor) -> dict[str, Record]:
        (job,) = some
        on_event(Note("trained", job.key))
        if (error := errors[timed.jobs.index(job)]) is not None:
            raise error
        return {}

    monkeypatch.setattr("cclfp.paper.study.run_jobs", run_one)
    with pytest.raises(RunError, match="the second"):
        timed.train(events.append)
    assert events[1:] == [Note("trained", job.key) for job in timed.jobs]
    errors[0] = DataError("no dataset")
    events.clear()
    with pytest.raises(DataError):
        timed.train(events.append)
    assert len(events) == 2


def test_times_are_compared_only_if_made_alike(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er, gem, hal, fdr = (find("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "HAL", "FDR"))
    here = {"together": 1, "engine": "eager", "precision": "float32", "threads": 1, "device_name": "A processor"}
    store.add(record(er, TIMING_SEED, 80.0, {**here, "engine": "compiled"}))
    store.add(record(gem, TIMING_SEED, 80.0, here))
    store.add(record(hal, TIMING_SEED, 80.0, here))
    store.add(record(fdr, TIMING_SEED, 80.0, {**here, "together": 2}))
    store.add(record(er, 0, 80.0, here))
    found = gather_timings(run_time_cells(), store)

    def labels(timings: Sequence[Any]) -> list[str]:
        pairs = zip(run_time_cells(), timings, strict=True)
        return [cell.label for cell, timing in pairs if timing is not None]

    assert labels(found) == ["ER-Res.", "GEM", "HAL"]
    assert labels(largest_comparable_group(found)) == ["GEM", "HAL"]
    assert largest_comparable_group([]) == []
    assert (
        describe_conditions(next(timing for timing in largest_comparable_group(found) if timing is not None))
        == "A processor, eager engine, float32, 1 thread"
    )
    nothing = "unknown device, unknown engine, unknown precision, unknown threads"
    assert describe_conditions({"environment": {}}) == nothing


def means(changes: dict[str, Change | None]) -> dict[str, float | None]:
    return {component: None if change is None else change.mean for component, change in changes.items()}


def test_what_a_component_is_worth() -> None:
    """In the paper, w matters most in class-incremental learning and β in domain-incremental."""
    by_column = {
        column: effects(
            {c.label: {0: c.published.mean} for c in cells("ablation") if c.column == column and c.published}
        )
        for column in columns("ablation")
    }
    mnist = by_column["split-mnist", "class"]
    assert means(mnist.without) == pytest.approx({"w": 78.31 - 89.16, "α": 82.95 - 89.16, "β": 88.67 - 89.16})
    assert means(mnist.alone) == pytest.approx({"w": 83.48 - 76.43, "α": 78.04 - 76.43, "β": 77.37 - 76.43})
    assert [by_column[column].most for column in columns("ablation")] == ["w", "α", "w", "α", "β"]
    known = {"none": 50.0, "w": 51.0, "α": 49.0, "β": 50.0, "α, β": 60.0, "w, β": 61.0, "w, α": 59.0, "w, α, β": 62.0}
    made_up = effects({row: {0: accuracy - 1, 1: accuracy + 1} for row, accuracy in known.items()})
    assert means(made_up.without) == {"w": -2.0, "α": -1.0, "β": -3.0}
    assert means(made_up.alone) == {"w": 1.0, "α": -1.0, "β": 0.0}
    assert effects({row: {0: -accuracy} for row, accuracy in known.items()}).most is None  # none is missed
    assert made_up.most == "β"
    some = effects({row: {0: accuracy} for row, accuracy in known.items() if row not in ("w, α", "α")})
    assert means(some.without) == {"w": -2.0, "α": -1.0, "β": None}
    assert means(some.alone) == {"w": 1.0, "α": None, "β": 0.0}
    assert some.most is None
    # Over the seeds that both have: they differ among themselves by more than the rows do.
    paired = effects({"none": {0: 50.0, 1: 60.0, 2: 70.0}, "w": {2: 71.0, 1: 63.0}, "α": {5: 10.0}})
    assert paired.alone["w"] == pytest.approx((2.0, 2**0.5))
    assert (paired.alone["α"], paired.alone["β"]) == (None, None)
    nothing = effects({})
    assert {*nothing.without.values(), *nothing.alone.values()} == {None}


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
            if cell.configuration.benchmark == "rotated-mnist":
                store.add(record(cell, 0, 50.0 + number / 2))
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
        (["study", "runtime", "--seeds", "3"], "seeds=3: run times are measured with one seed"),
        (
            ["study", "runtime", "--method", "lwf", "--benchmark", "rotated-mnist"],
            "the paper has no number for lwf on rotated-mnist in its run-time figure",
        ),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_batch_that_is_larger_than_the_data_is_a_step() -> None:
    (configuration,) = configurations(["er"], "split-mnist", settings={"batch": [70_000]})
    assert steps(configuration) == 1
    assert cost(configuration) > 0
