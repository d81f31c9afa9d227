"""The paper's evaluation as data, and our runs beside it; studies of one's own."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from own import write_images, write_method
from report_records import cell_of, record_of

import cclfp
from cclfp.errors import RunError
from cclfp.metrics import holm, paired_t_test
from cclfp.paper import TABLES, TIMING_SEED, Published, cells, published, run_time_cells
from cclfp.paper.compare import component_worths, rank_results
from cclfp.paper.numbers import (
    COMPONENTS,
    FIGURES,
    LABELS,
    PANELS,
    comparable,
    describe_conditions,
    gather_timings,
    missing_components,
)
from cclfp.paper.study import plan
from cclfp.report.tables import collect
from cclfp.runs.code import device_name
from cclfp.runs.events import OnEvent
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import cost, steps
from cclfp.runs.pool import Pool
from cclfp.runs.results import Result, Standing
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.streams import BENCHMARKS

QUICK = ["study", "accuracy", "--benchmark=split-mnist", "--method=finetune,er", "--seeds=2", "--engine=eager"]
HOW: dict[str, Any] = {"tasks": 2, "backbone": "mlp", "memory": 20, "engine": "eager"}


# The paper's tables as data -------------------------------------------------------------------------------------------


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


def test_figures_have_the_papers_panels() -> None:
    assert {name: len(PANELS[name]) for name in FIGURES} == {"evolution": 6, "forgetting": 3, "runtime": 3}
    assert all(scenario in BENCHMARKS[benchmark].scenarios for of in PANELS.values() for benchmark, scenario in of)
    assert len(run_time_cells()) == 12 + 12 + 10


@pytest.mark.parametrize("table", TABLES)
def test_every_cell_is_a_run_of_the_papers_protocol_and_an_ablation_only_switches_components_off(table: str) -> None:
    whole = {cell.column: cell.configuration for cell in cells("accuracy") if cell.label == "CCL-FP+"}
    for cell in cells(table):
        c = cell.configuration
        assert c.is_papers_protocol
        if table != "ablation":
            assert published(c.method, c.benchmark, c.scenario, c.buffer) == cell.published
            continue
        usual = whole[cell.column].hyperparameters
        off = {name: 0.0 for label, name in COMPONENTS.items() if label not in cell.label}
        assert missing_components(cell) == off
        assert c == dataclasses.replace(whole[cell.column], hyperparameters=usual | off)
        assert all(usual[name] > 0 for name in COMPONENTS.values())
    assert len({cell.key(0) for cell in cells(table)}) == len(cells(table))


# Numbers beside each other --------------------------------------------------------------------------------------------

ER = ("accuracy", "ER-Res.", "split-mnist", "class")  # 76.43 ± 3.08
NONE = ("ablation", "none", "split-mnist", "class")  # 76.43; where the paper gives no deviation, it is our own


@pytest.mark.parametrize(
    ("place", "accuracies", "verdict"),
    [
        (ER, [76.43], "within"),
        (ER, [76.43 + 2 * 3.08], "within"),
        (ER, [76.43 - 2 * 3.08, 76.43 - 2 * 3.08], "within"),
        (ER, [76.43 + 2 * 3.08 + 0.01], "above"),
        (ER, [70.0, 70.2], "below"),
        (ER, [], None),
        (NONE, [70.0, 74.0], "within"),
        (NONE, [71.9, 72.1], "below"),
        (NONE, [72.0], None),  # one run has no spread
    ],
)
def test_verdicts(place: tuple[str, str, str, str], accuracies: list[float], verdict: str | None) -> None:
    cell = cell_of(*place)
    runs = [record_of(cell, seed, accuracy) for seed, accuracy in enumerate(accuracies)]
    assert dataclasses.replace(cell, runs=runs).verdict == verdict


@pytest.mark.parametrize(  # Student's t: two-sided p-values of tables, by degrees of freedom
    ("freedom", "t", "p"),
    [(1, 12.706, 0.05), (2, 4.303, 0.05), (4, 2.776, 0.05), (5, 4.032, 0.01), (9, 2.262, 0.05), (30, 2.750, 0.01)],
)
def test_the_t_test_gives_the_values_of_tables(freedom: int, t: float, p: float) -> None:
    n = freedom + 1
    spread = [(-1.0) ** i for i in range(n)] if n % 2 == 0 else [0.0, *((-1.0) ** i for i in range(n - 1))]
    std = (sum(x * x for x in spread) / freedom) ** 0.5
    assert paired_t_test([x + t * std / n**0.5 for x in spread]) == pytest.approx(p, rel=0.003)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_values_are_larger_and_in_the_same_order(values: list[float]) -> None:
    corrected = holm(values)
    assert all(a <= b <= 1 for a, b in zip(values, corrected, strict=True))
    assert sorted(corrected) == [after for _, after in sorted(zip(values, corrected, strict=True))]


def test_the_best_is_marked_and_only_what_is_beyond_chance_is_called_worse() -> None:
    best = {seed: 80.0 + seed for seed in range(5)}
    worse = {seed: 75.0 + seed + 0.1 * (seed % 2) for seed in range(5)}
    similar = {seed: 79.0 + 3 * (seed % 2) + 0.5 * seed for seed in range(5)}
    few = dict.fromkeys(range(4), 50.0)
    joint = dict.fromkeys(range(5), 95.0)

    def rank(*column: dict[int, float]) -> list[Standing]:
        several = []
        for row in column:
            (c,) = configurations(["joint" if row is joint else "er"], "split-mnist")
            runs: Any = [{"seed": seed, "average_accuracy": accuracy} for seed, accuracy in row.items()]
            several.append(Result(c, runs))
        return [result.standing for result in rank_results(several)]

    found = rank(worse, joint, best, similar, few, {})
    assert [one.verdict for one in found] == ["worse", "unknown", "best", "similar", "unknown", "unknown"]
    assert [one.common for one in found] == [5, 0, 0, 5, 4, 0]
    assert found[4].difference == pytest.approx(-31.5)
    assert found[4].p is None  # four seeds are too few for a claim
    assert [one.verdict for one in rank(best, {})] == ["unknown", "unknown"]  # nothing to compare with


def test_what_a_component_is_worth() -> None:
    """In the paper, w matters most in class-incremental learning and β in domain-incremental."""
    columns: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for cell in cells("ablation"):
        columns.setdefault(cell.column, {})[cell.label] = {0: cell.published.mean if cell.published else 0.0}
    found = {column: component_worths(accuracies) for column, accuracies in columns.items()}
    mnist = ["−10.85", "−6.21", "−0.49", "+7.05", "+1.61", "+0.94", "w"]
    assert list(found["split-mnist", "class"].values()) == mnist
    assert [worths["matters most"] for worths in found.values()] == ["w", "α", "w", "α", "β"]
    some = {row: accuracies for row, accuracies in columns["split-mnist", "class"].items() if row not in ("w, α", "α")}
    assert list(component_worths(some).values())[2:] == ["missing", mnist[3], "missing", mnist[5], "not known yet"]
    worst = columns["split-mnist", "class"] | {"w, α, β": {0: 10.0}}
    assert component_worths(worst)["matters most"] == "none: no removal costs anything"
    # Over the seeds that both have: they differ among themselves by more than the rows do.
    paired = component_worths({"none": {0: 50.0, 1: 60.0, 2: 70.0}, "w": {2: 71.0, 1: 63.0}, "α": {5: 10.0}})
    assert [paired[f"{component} alone"] for component in "wαβ"] == ["+2.00 ± 1.41", "missing", "missing"]


# What a study trains --------------------------------------------------------------------------------------------------


def test_select_and_longest_first(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"benchmarks": ["rotated-mnist", "split-cifar10"], "methods": ["er", "gem"]}
    study = plan("all", **wanted, seeds=2, execution=Execution(store=tmp_path / "runs.sqlite"))
    chosen, ordered = study.results, study.jobs
    assert {(c.configuration.method, c.configuration.benchmark) for c in chosen} == {
        (method, benchmark) for method in ("er", "gem") for benchmark in ("rotated-mnist", "split-cifar10")
    }
    assert len(chosen) == 6 + 12  # of the accuracy and the buffer table; the ablation is all CCL-FP+
    assert len(ordered) == 2 * (6 + 9)  # a memory of 200 is the same runs
    costs = [cost(job.configuration) for job in ordered]
    assert costs == sorted(costs, reverse=True)
    assert (ordered[0].configuration.method, ordered[0].configuration.benchmark) == ("gem", "split-cifar10")


def test_steps_of_a_run() -> None:
    expected = {"split-mnist": 6000, "rotated-mnist": 2000, "split-cifar100": 5000, "split-tiny-imagenet": 10_000}
    for benchmark, count in expected.items():
        several = configurations(["er"], benchmark, settings={"batch": [10, 200_000]})  # one is larger than the data
        assert [steps(configuration) for configuration in several] == [count, 1]


@pytest.mark.slow
def test_study_trains_what_is_missing_and_prints_it_beside_the_paper(
    small_mnist: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "er", "split-mnist", "--seeds", "1", "--scenario", "task")
    plan = cli(*QUICK, "--dry-run", "--json").json
    assert (plan["missing"], plan["replica_steps"]) == (7, 7 * 6000)
    seeds = {("er", "class"): [0, 1], ("er", "task"): [1], ("finetune", "class"): [0, 1], ("finetune", "task"): [0, 1]}
    assert {(p["method"], p["scenario"]): p["seeds"] for p in plan["plan"]} == seeds
    answer = cli(*QUICK)
    assert answer.code == 0, answer.err
    assert all(part in answer.err for part in ("1 of 8 runs are in the store", "[8/8]"))
    assert "Split MNIST, class-incremental, seeds 0 and 1: mean ± std, %" in answer.out
    first, second = [line for line in answer.out.splitlines() if "ER-Res." in line]
    assert ("76.43 ± 3.08" in first, "98.77 ± 0.14" in second) == (True, True)
    assert "the paper's 4 numbers: " in answer.out.splitlines()[-1]
    again = cli(*QUICK, "--json")
    assert again.err.startswith("8 of 8 runs are in the store")
    (er,) = [c for c in again.json["cells"] if (c["method"], c["scenario"]) == ("er", "class")]
    assert er["runs"] == 2
    assert er["difference"] == pytest.approx(er["mean"] - 76.43)
    assert f"{er['mean']:.2f} ± {er['std']:.2f}" in first
    assert "0 runs to train, 0 replica-steps" in cli(*QUICK, "--dry-run").out
    # What has no preset is named.
    assert "not tuned" not in answer.out
    tuned = lambda method, benchmark, scenario: None if (method, scenario) == ("er", "task") else object()  # noqa: E731
    monkeypatch.setattr("cclfp.paper.numbers.find_preset", tuned)
    untuned = [{"method": "er", "benchmark": "split-mnist", "scenario": "task"}]
    assert cli(*QUICK, "--dry-run", "--json").json["not_tuned"] == untuned
    said = "no preset, trained with the defaults and not tuned: er on split-mnist (task)"
    assert [cli(*QUICK, *more).out.splitlines()[-1] for more in ([], ["--dry-run"])] == [said, said]
    done = cli(*QUICK, "--json").json
    assert done["not_tuned"] == untuned
    assert [(c["method"], c["scenario"]) for c in done["cells"] if not c["preset"]] == [("er", "task")]


def test_what_is_there_is_printed_if_a_run_fails(
    small_mnist: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Pool, cohorts: object, on_event: OnEvent) -> None:
        raise RunError("a run failed")

    monkeypatch.setattr(Pool, "run", fail)
    assert cli(*QUICK) == (1, "", "error: a run failed\n")
    store = Store(tmp_path / "home" / "runs.sqlite")
    for seed in range(2):
        store.add(record_of(cell_of(*ER), seed, 80.0 + seed))
    answer = cli(*QUICK)
    assert answer.code == 1
    assert "80.50 ± 0.71" in answer.out
    assert "Split MNIST, class" in answer.out
    assert "Split MNIST, task" not in answer.out  # has nothing yet
    assert "the paper's 4 numbers: 1 within, 0 above, 0 below, 3 missing" in answer.out
    assert answer.err.splitlines()[-1] == "error: a run failed"


def test_the_ablation_and_the_buffer_table_are_printed_in_the_papers_order(
    small_mnist: Path, cli: Cli, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    for table in ("ablation", "buffer"):
        for number, cell in enumerate(cells(table)):
            if cell.configuration.benchmark == "rotated-mnist":
                store.add(record_of(cell, 0, 50.0 + number / 2))
    arguments = ("--benchmark", "rotated-mnist", "--seeds", "1", "--store", store.path)
    _, *variants = cli("study", "ablation", *arguments).rows
    assert [row[0] for row in variants] == ["none", "w", "α", "β", "w, α", "w, β", "α, β", "w, α, β"]
    _, *buffer = cli("study", "buffer", *arguments).rows
    sizes = ("200", "500", "1000", "5000")
    assert [row[:2] for row in buffer] == [[size, row] for size in sizes for row in ("ER-Res.", "HAL", "CCL-FP+")]


# Run times ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_times_are_measured_one_at_a_time(
    small_mnist: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 4)
    monkeypatch.setattr("cclfp.runs.pool.work", None)  # no process beside this one
    arguments = ("study", "runtime", "--benchmark", "rotated-mnist", "--method", "joint,er")
    answer = cli(*arguments, "--json")
    assert answer.code == 0, answer.err
    records = Store(tmp_path / "home" / "runs.sqlite").records()
    assert {(r["method"], r["seed"]) for r in records} == {(m, TIMING_SEED) for m in ("joint", "er")}
    assert {(r["environment"]["together"], r["environment"]["engine"]) for r in records} == {(1, "eager")}
    (panel,) = answer.json["panels"]
    assert (panel["benchmark"], panel["scenario"]) == ("rotated-mnist", "domain")
    assert panel["made"] == f"{device_name('cpu')}, eager engine, float32, 1 thread"
    for r in records:
        assert panel["times"][r["method"]] == {n: r[n] for n in ("train_seconds", "test_seconds", "seconds")}
    again = cli(*arguments)
    assert again.err.startswith("2 of 2 runs are in the store")
    shown = [f"{panel['times']['er'][name]:.1f}" for name in ("train_seconds", "test_seconds", "seconds")]
    assert ["er", *shown] in again.rows
    assert "each method alone on" in again.out
    # The tables have none of them.
    plan = cli("study", "all", "--benchmark", "rotated-mnist", "--dry-run", "--json").json
    assert all(part["seeds"] == [0, 1, 2, 3, 4] for part in plan["plan"])


def test_run_times_are_of_one_engine(tmp_path: Path) -> None:
    for asked, engine in (("auto", "eager"), ("traced", "traced")):
        jobs = plan("runtime", execution=Execution(engine=asked, store=tmp_path / "runs.sqlite")).jobs
        assert len(jobs) == len(run_time_cells())
        assert {(job.execution.engine, job.seed) for job in jobs} == {(engine, TIMING_SEED)}


HERE = {"together": 1, "engine": "eager", "precision": "float32", "threads": 1, "device_name": device_name("cpu")}
OLD = {"source": "f" * 16, "cclfp": "0.0.1"}
# None: in a record of before it was kept.
OTHERS = [("together", 5), ("together", None), ("engine", "traced"), ("device_name", "another"), ("threads", 2)]


@pytest.mark.parametrize(("name", "value"), [("together", 1), *OTHERS, ("precision", "bf16")])
def test_a_run_that_was_not_timed_so_is_timed_again(cli: Cli, tmp_path: Path, name: str, value: Any) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    store.add(record_of(er, TIMING_SEED, 80.0, {**HERE, name: value}))
    arguments = ("--benchmark", "rotated-mnist", "--method", "er", "--device", "cpu", "--store", store.path)
    missing = cli("study", "runtime", *arguments, "--dry-run", "--json").json["missing"]
    assert missing == (HERE[name] != value)


def test_plans_and_run_times_say_which_runs_are_of_other_code(cli: Cli, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er, gem = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM"))
    for cell, seed, others in ((er, TIMING_SEED, OLD), (gem, TIMING_SEED, {}), (er, 0, OLD), (er, 1, {})):
        store.add(record_of(cell, seed, 80.0, {**HERE, **others}))
    arguments = ("--benchmark", "rotated-mnist", "--method", "er,gem", "--device", "cpu", "--store", store.path)
    said = "1 of 2 runs are of other code (cclfp 0.0.1, code ffffffff): "
    for what in (("runtime",), ("accuracy", "--seeds", "2")):
        plan = cli("study", *what, *arguments, "--dry-run").out.splitlines()
        assert [line.startswith(said) for line in plan if "of other code" in line] == [True]
    again = cli("study", "accuracy", "--seeds", "2", *arguments, "--dry-run", "--other-code", "retrain").out
    assert "1 of 4 runs are in the store" in again
    assert "of other code" not in again
    shown = cli("study", "runtime", *arguments)
    assert f"‡ {said}" in shown.out
    assert ("│ er ‡ ") in shown.out
    assert ("│ gem ") in shown.out
    (panel,) = cli("study", "runtime", *arguments, "--json").json["panels"]
    assert panel["other_code"] == {"er": "cclfp 0.0.1, code ffffffff"}


def test_conditions_that_nobody_noted_are_unknown() -> None:
    assert {made for made, _ in comparable(gather_timings(run_time_cells(), lambda key: None))} == {""}
    assert describe_conditions({}) == "unknown device, unknown engine, unknown precision, unknown threads"


# Studies of one's own -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_core")
def test_a_study_of_own_methods_on_own_images_uses_what_was_tuned_or_tunes_first(tmp_path: Path) -> None:
    images, method = write_images(tmp_path / "pets.npz"), write_method(tmp_path / "half.py")
    store = tmp_path / "runs.sqlite"
    tuned = cclfp.tune(method, images=images, **HOW, seeds=1, lr=[0.05], augment="off", half=[0.75], store=store)
    er, half = cclfp.study("mine", methods=["er", method], images=images, seeds=2, **HOW, store=store)
    assert half.configuration.hyperparameters == {"lr": 0.05, "half": 0.75, "other": 1.0}
    assert (er.chosen, half.chosen, tuned.trials) == ("defaults", "tuned", [])
    assert [len(one.runs) for one in (er, half)] == [2, 2]
    assert {one.standing.verdict for one in (er, half)} == {"best", "unknown"}
    (er,) = cclfp.study("mine", methods="er", images=images, seeds=1, auto=0.02, **HOW, store=store)
    assert (er.chosen, er.standing.verdict) == ("tuned in 0.02 min", "unknown")  # nothing to compare with


@pytest.mark.usefixtures("one_core")
def test_an_own_method_that_trains_jointly_is_an_upper_bound_in_a_study_and_in_the_report(tmp_path: Path) -> None:
    code = "from cclfp.methods.er import Joint\n\n\nclass Both(Joint):\n    name = 'both'\n"
    (tmp_path / "both.py").write_text(code)
    methods, store = ["er", "finetune", f"{tmp_path / 'both.py'}:Both"], tmp_path / "runs.sqlite"
    images = write_images(tmp_path / "pets.npz")
    found = cclfp.study("mine", methods=methods, images=images, seeds=1, **HOW, store=store)
    (tmp_path / "both.py").unlink()
    (table,) = collect(Store(store), [0]).own
    for results in (found, table.results):
        standings = {result.configuration.method: result.standing for result in results}
        assert standings["both"] == Standing()
        assert sorted(standings[name].best for name in ("er", "finetune")) == [False, True]


@pytest.mark.usefixtures("one_core", "small_mnist")
def test_the_command_prints_a_table_per_column(cli: Cli, tmp_path: Path) -> None:
    write_images(tmp_path / "pets.npz")
    methods = f"er,{write_method(tmp_path / 'half.py')}"
    command = ["study", "mine", "--method", methods, "--images", tmp_path / "pets.npz", "--benchmark", "split-mnist"]
    command += ["--tasks", "2", "--backbone", "mlp", "--memory", "20,40", "--scenario", "task", "--seeds", "2"]
    command += ["--class-order", "random"]
    plan = cli(*command, "--dry-run")
    assert plan.code == 0, plan.err
    assert "16 runs to train" in plan.out
    assert not (tmp_path / "home" / "runs.sqlite").exists()
    answer = cli(*command, "--engine", "eager")
    assert answer.code == 0, answer.err
    for memory in (20, 40):
        order = f"memory {memory}, other class order, 2 tasks"
        assert f"Split MNIST, task-incremental, {order}, seeds 0 and 1: mean ± std, %" in answer.out
    assert answer.out.count(" best │") == 2 * 4  # in the header, and the best of each column
    assert "no claim with fewer than 5 such seeds" in answer.out
    assert "trained with the defaults and not tuned: " in answer.out
    found = cli(*command, "--engine", "eager", "--json").json["cells"]
    assert len(found) == 8
    assert all(len(cell["accuracies"]) == 2 and cell["p"] is None for cell in found)
