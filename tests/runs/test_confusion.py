"""The counts of predictions per class, in runs and in stores of every version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stores import record
from training import make_job, train, train_all

from cclfp.errors import InputError
from cclfp.runs.record import Record, check_record, from_line, to_line
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

COUNTS = [[7 * (i == j) + (i < j) for j in range(10)] for i in range(10)]


def with_counts(seed: int = 0) -> Record:
    return {**record(seed), "confusion": COUNTS}


def test_counts_agree_with_the_accuracies_and_are_the_same_for_runs_that_train_together(
    small_mnist: Path, tmp_path: Path
) -> None:
    (configuration,) = configurations(["er"], "split-mnist", "task")
    alone = train(make_job(configuration, 0, tmp_path / "alone.sqlite"))
    jobs = [make_job(configuration, seed, tmp_path / "both.sqlite", engine="compiled") for seed in (0, 1)]
    for one in (alone, *train_all(jobs)):
        counts = one["confusion"]
        assert len(counts) == 10
        for task, accuracy in enumerate(one["accuracy_matrix"][-1]):
            rows = counts[2 * task : 2 * task + 2]
            right = sum(counts[c][c] for c in (2 * task, 2 * task + 1))
            assert accuracy == 100 * right / sum(map(sum, rows))
            assert sum(sum(row[2 * task : 2 * task + 2]) for row in rows) == sum(map(sum, rows))  # of the task only


def test_runs_on_held_out_images_and_on_many_classes_have_no_counts(small_data: Path, tmp_path: Path) -> None:
    (held_out,) = configurations(["er"], "split-mnist", validation=True)
    assert "confusion" not in train(make_job(held_out, 0, tmp_path / "runs.sqlite"))
    (many,) = configurations(["er"], "split-cifar100", backbone="mlp")
    assert "confusion" not in train(make_job(many, 0, tmp_path / "runs.sqlite"))


def test_counts_are_stored_and_exported(tmp_path: Path) -> None:
    store, one = Store(tmp_path / "runs.sqlite"), with_counts()
    store.add(one)
    store.add(record(1))
    assert store.records() == [one, record(1)]
    assert from_line(to_line(one).decode()) == one


@pytest.mark.parametrize("counts", [None, [], [[1]], COUNTS[:9], [[-1] * 10] * 10, [[0.5] * 10] * 10, [[1]] * 10, 3])
def test_other_counts_are_refused(counts: Any) -> None:
    with pytest.raises(InputError, match="confusion is .*expected a row of counts per class"):
        check_record({**record(), "confusion": counts})
