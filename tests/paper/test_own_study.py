"""Studies of one's own: methods by benchmarks, the best marked, and differences beyond chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from own import write_images, write_method

import cclfp
from cclfp.metrics import holm, paired_t_test
from cclfp.paper.compare import rank
from cclfp.paper.study import select

HOW: dict[str, Any] = {"tasks": 2, "backbone": "mlp", "memory": 20, "engine": "eager"}
# Student's t: two-sided p-values of tables, by degrees of freedom.
TABLE = [(1, 12.706, 0.05), (2, 4.303, 0.05), (4, 2.776, 0.05), (5, 4.032, 0.01), (9, 2.262, 0.05), (30, 2.750, 0.01)]


@pytest.mark.parametrize(("freedom", "t", "p"), TABLE)
def test_the_t_test_gives_the_values_of_tables(freedom: int, t: float, p: float) -> None:
    n = freedom + 1
    spread = [(-1.0) ** i for i in range(n)] if n % 2 == 0 else [0.0, *((-1.0) ** i for i in range(n - 1))]
    std = (sum(x * x for x in spread) / freedom) ** 0.5
    assert paired_t_test([x + t * std / n**0.5 for x in spread]) == pytest.approx(p, rel=0.003)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_the_t_test_is_a_probability_and_does_not_depend_on_sign_or_unit(differences: list[float]) -> None:
    p = paired_t_test(differences)
    assert 0 <= p <= 1
    assert paired_t_test([-4 * x for x in differences]) == pytest.approx(p, abs=1e-9)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_values_are_larger_and_in_the_same_order(values: list[float]) -> None:
    corrected = holm(values)
    assert all(a <= b <= 1 for a, b in zip(values, corrected, strict=True))
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert [corrected[i] for i in order] == sorted(corrected)


def test_the_best_is_marked_and_only_what_is_beyond_chance_is_called_worse() -> None:
    best = {seed: 80.0 + seed for seed in range(5)}
    worse = {seed: 75.0 + seed + 0.1 * (seed % 2) for seed in range(5)}
    similar = {seed: 79.0 + 3 * (seed % 2) + 0.5 * seed for seed in range(5)}
    few = dict.fromkeys(range(4), 50.0)
    joint = dict.fromkeys(range(5), 95.0)
    found = rank([worse, joint, best, similar, few, {}], [True, False, True, True, True, False])
    assert [one.verdict for one in found] == ["worse", "unknown", "best", "similar", "unknown", "unknown"]
    assert [one.common for one in found] == [5, 0, 0, 5, 4, 0]
    assert found[4].difference == pytest.approx(-31.5)
    assert found[4].p is None  # four seeds are too few for a claim
    assert [one.verdict for one in rank([best, {}])] == ["unknown", "unknown"]  # nothing to compare with


def test_a_study_of_own_methods_on_own_images_uses_what_was_tuned(tmp_path: Path) -> None:
    images, method = write_images(tmp_path / "pets.npz"), write_method(tmp_path / "half.py")
    store = tmp_path / "runs.sqlite"
    tuned = cclfp.tune(method, images=images, **HOW, seeds=1, lr=[0.05], augment="off", half=[0.75], store=store)
    found = cclfp.study("mine", methods=["er", method], images=images, seeds=2, **HOW, store=store)
    er, half = found
    assert half.configuration.hyperparameters == {"lr": 0.05, "half": 0.75, "other": 1.0}
    assert (er.chosen, half.chosen, tuned.trials) == ("defaults", "tuned", [])
    assert [len(one.runs) for one in (er, half)] == [2, 2]
    assert {one.standing.verdict for one in (er, half)} == {"best", "unknown"}


def test_a_study_can_tune_first(tmp_path: Path) -> None:
    images, store = write_images(tmp_path / "pets.npz"), tmp_path / "runs.sqlite"
    (er,) = cclfp.study("mine", methods="er", images=images, seeds=1, auto=0.02, **HOW, store=store)
    assert er.chosen == "tuned in 0.02 min"
    assert er.standing.verdict == "unknown"  # nothing to compare with


def test_the_command_prints_a_table_per_column_and_one_of_all(cli: Cli, small_mnist: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "pets.npz")
    methods = f"er,{write_method(tmp_path / 'half.py')}"
    command = ["study", "mine", "--method", methods, "--images", tmp_path / "pets.npz", "--benchmark", "split-mnist"]
    command += ["--tasks", "2", "--backbone", "mlp", "--memory", "20,40", "--scenario", "task", "--seeds", "2"]
    command += ["--class-order", "random"]
    plan = cli(*command, "--dry-run")
    assert plan.code == 0, plan.err
    assert "16 runs to train" in plan.out
    answer = cli(*command, "--engine", "eager")
    assert answer.code == 0, answer.err
    for memory in (20, 40):
        assert (
            f"Split MNIST, task-incremental, memory {memory}, other class order, 2 tasks, seeds 0,1: mean ± std, %"
            in answer.out
        )
    assert "All columns, task-incremental, other class order, 2 tasks: mean ± std, %" in answer.out
    assert answer.out.count(" best │") == 2 * 4  # in the header, and the best of each column
    assert "no claim with fewer than 5 such seeds" in answer.out
    assert "not tuned, trained with the defaults: " in answer.out
    cells = cli(*command, "--engine", "eager", "--json").json["cells"]
    assert len(cells) == 8
    assert all(len(cell["accuracies"]) == 2 and cell["p"] is None for cell in cells)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--method", "er"], "which benchmarks?"),
        (["mine", "--benchmark", "split-mnist"], "which methods?"),
        (["mine", "--benchmark", "split-mnist", "--method", "err"], "unknown method 'err'"),
        (["mine", "--benchmark", "nothing", "--method", "er"], "unknown benchmark 'nothing'"),
        (["mine", "--benchmark", "split-mnist", "--method", "er", "--scenario", "domain"], "no domain scenario"),
        (["mine", "--benchmark", "split-mnist", "--method", "er", "--memory", "x"], "--memory 'x': expected"),
        (["accuracy", "--tasks", "5"], "--tasks is for a study of your own: cclfp study mine"),
        (["accuracy", "--scenario", "clas"], "unknown scenario 'clas'"),
        (["buffer", "--method", "gem", "--scenario", "task"], "the paper has no number for gem (task)"),
        (["mine", "--auto", "1", "--dry-run"], "leave out one of the two"),
    ],
)
def test_refusals(arguments: list[str], message: str, cli: Cli) -> None:
    answer = cli("study", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_one_cell_of_the_paper_can_be_chosen() -> None:
    (cell,) = select(["accuracy"], ["split-mnist"], ["er"], ["task"])
    assert (*cell.column, cell.configuration.method) == ("split-mnist", "task", "er")
