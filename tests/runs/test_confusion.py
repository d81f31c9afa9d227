"""The counts of predictions per class."""

from __future__ import annotations

from pathlib import Path

from training import make_job, train, train_all

from cclfp.runs.settings import configurations


def test_counts_agree_with_the_accuracies_and_are_the_same_for_runs_that_train_together(
    small_mnist: Path, tmp_path: Path
) -> None:
    (configuration,) = configurations(["er"], "split-mnist", "task")
    alone = train(make_job(configuration, 0, tmp_path / "alone.sqlite"))
    jobs = [make_job(configuration, seed, tmp_path / "both.sqlite", engine="traced") for seed in (0, 1)]
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
