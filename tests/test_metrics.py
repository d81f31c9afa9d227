"""Metrics on matrices worked out by hand."""

from __future__ import annotations

from cclfp.metrics import Matrix, average_accuracy, backward_transfer, forgetting, forward_transfer, mean_std

# Row t is after t tasks; three tasks.
MATRIX = [
    [10.0, 20.0, 30.0],
    [80.0, 25.0, 12.0],
    [85.0, 90.0, 42.0],
    [60.0, 75.0, 99.0],
]


def test_average_accuracy() -> None:
    assert average_accuracy(MATRIX) == 78.0  # (60 + 75 + 99) / 3


def test_forgetting_takes_the_best_before_the_end() -> None:
    assert forgetting(MATRIX) == 20.0  # task 0: max(80, 85) - 60 = 25; task 1: 90 - 75 = 15; the last task counts not


def test_forgetting_is_negative_where_a_task_got_better() -> None:
    assert forgetting([[None, None], [70.0, None], [75.0, 90.0]]) == -5.0


def test_forgetting_ignores_accuracy_from_before_a_task_was_learned() -> None:
    assert forgetting([[0.0, 99.0, 0.0], [50.0, 99.0, 0.0], [50.0, 60.0, 0.0], [50.0, 60.0, 0.0]]) == 0.0


def test_backward_transfer() -> None:
    assert backward_transfer(MATRIX) == -17.5  # (60 - 80 + 75 - 90) / 2


def test_forward_transfer() -> None:
    assert forward_transfer(MATRIX) == 8.5  # (25 - 20 + 42 - 30) / 2


def test_joint_has_an_average_accuracy_alone() -> None:
    matrix: Matrix = [[None, None], [None, None], [70.0, 80.0]]
    assert average_accuracy(matrix) == 75.0
    assert forgetting(matrix) is None
    assert backward_transfer(matrix) is None
    assert forward_transfer(matrix) is None


def test_one_task_has_nothing_to_forget() -> None:
    matrix: Matrix = [[None], [70.0]]
    assert average_accuracy(matrix) == 70.0
    assert (forgetting(matrix), backward_transfer(matrix), forward_transfer(matrix)) == (None, None, None)


def test_class_scenario_has_no_forward_transfer() -> None:
    assert forward_transfer([[None, None], [70.0, None], [60.0, 80.0]]) is None


def test_std_divides_by_n_minus_1() -> None:
    assert mean_std([2.0, 4.0, 6.0]) == {"mean": 4.0, "std": 2.0}
    assert mean_std([2.0]) == {"mean": 2.0, "std": None}
    assert mean_std([]) == {"mean": None, "std": None}
    assert mean_std([None, None]) == {"mean": None, "std": None}
