"""The streams: which examples, which classes, which change."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cclfp
from cclfp.data import Dataset, dataset_path
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.streams import BENCHMARKS, get_benchmark
from cclfp.streams.tasks import permuted, rotate, rotated, split

PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def little(n: int = 3000) -> Dataset:
    g = torch.Generator().manual_seed(0)

    def images(n: int) -> Tensor:
        return torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8, generator=g)

    return Dataset(images(n), torch.arange(n) % 10, images(50), torch.arange(50) % 10, tuple("abcdefghij"))


def test_split_gives_each_class_to_one_task_in_order() -> None:
    data = little()
    stream = split(data, "class", [[9, 0], [8, 1], [7, 2], [6, 3], [5, 4]])
    rows = torch.cat(stream.train_rows)
    assert sorted(rows.tolist()) == list(range(3000))
    for task, classes in enumerate(stream.classes):
        part = stream.train.rows(stream.train_rows[task])
        assert set(part.y.tolist()) == set(classes) == set(stream.test[task].y.tolist())
        assert set(part.task.tolist()) == {task} == set(stream.test[task].task.tolist())
    assert torch.equal(stream.train.x, data.train_images)
    joint = stream.joint()
    assert sorted(joint.train_rows[0].tolist()) == list(range(3000))
    assert joint.task_ids(0) == [0, 1, 2, 3, 4]
    assert stream.task_ids(3) == [3]


@pytest.mark.parametrize("make", [permuted, rotated])
def test_domains_are_fresh_for_every_task_and_seed(make: Any) -> None:
    data = little()
    stream, again, other = make(data, 0), make(data, 0), make(data, 1)
    assert stream.num_tasks == 20
    assert [len(rows) for rows in stream.train_rows] == [1000] * 20
    assert torch.equal(stream.train.x, again.train.x)
    assert not torch.equal(stream.train.x, other.train.x)
    assert all(torch.equal(test.y, data.test_labels) for test in stream.test)
    tests = {images.numpy().tobytes() for images in (data.test_images, *(test.x for test in stream.test))}
    assert len(tests) == 21  # all are different; the first task is changed too
    labels = [stream.train.y[rows] for rows in stream.train_rows]
    assert not torch.equal(labels[0], labels[1])  # other training images


def test_a_permutation_is_the_same_for_every_image_of_a_task() -> None:
    data = little()
    stream = permuted(data, 0)
    moved = stream.test[3].x.flatten(1)
    original = data.test_images.flatten(1)
    where = [(original[:, [pixel]] == moved).all(0).nonzero().flatten().tolist() for pixel in range(784)]
    assert sorted(sum(where, [])) == list(range(784))


def turned_by_hand(image: Tensor, degrees: float) -> Tensor:
    """Bilinear rotation about the centre, zero outside."""
    size, angle = len(image), math.radians(degrees)
    centre, padded = (size - 1) / 2, F.pad(image.float(), (size,) * 4)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    right, up = columns - centre, centre - rows
    # counter-clockwise by the angle: the value comes from the place turned back by it
    x = size + centre + right * math.cos(angle) + up * math.sin(angle)
    y = size + centre + right * math.sin(angle) - up * math.cos(angle)
    x0, y0 = x.floor().long(), y.floor().long()
    fx, fy = x - x0, y - y0
    above = padded[y0, x0] * (1 - fx) + padded[y0, x0 + 1] * fx
    below = padded[y0 + 1, x0] * (1 - fx) + padded[y0 + 1, x0 + 1] * fx
    return above * (1 - fy) + below * fy


@pytest.mark.parametrize("degrees", [0.0, 13.7, 90.0, 151.2, 179.9])
def test_rotation_equals_a_plain_loop(degrees: float) -> None:
    image = torch.randint(0, 256, (28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ours = rotate(image[None, None], degrees)[0, 0].float()
    assert (ours - turned_by_hand(image, degrees)).abs().max() <= 0.51  # half a grey level, from rounding


def test_benchmarks_refuse_what_they_are_not() -> None:
    with pytest.raises(InputError, match="split-mnist has no domain scenario .*disjoint classes.*class, task"):
        get_benchmark("split-mnist").check("domain")
    with pytest.raises(InputError, match="permuted-mnist has no class scenario .*all classes"):
        get_benchmark("permuted-mnist").check("class")
    for tasks, order in ((None, "random"), (5, None), (None, "labels")):
        with pytest.raises(InputError, match="all classes in every task: tasks or a class order cannot be chosen"):
            get_benchmark("rotated-mnist").split_into(tasks, order)
    with pytest.raises(InputError, match="permuted-mnist cannot be augmented .*mirrored"):
        get_benchmark("permuted-mnist").check("domain", augment=True)
    with pytest.raises(InputError, match="Did you mean 'split-mnist'"):
        get_benchmark("split-mnst")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_say_the_truth(name: str, small_data: object) -> None:
    benchmark = BENCHMARKS[name]
    stream = benchmark.stream(benchmark.scenarios[0], seed=0)
    assert stream.num_tasks == benchmark.num_tasks
    assert stream.num_classes == benchmark.num_classes == len(benchmark.classes)
    tasks = benchmark.task_classes(None, None, seed=0)
    assert tasks == stream.classes
    wanted = {"split-cifar10": (5, 2), "split-cifar100": (20, 5), "split-tiny-imagenet": (10, 20)}.get(name)
    if wanted is not None:
        assert (len(tasks), *{len(members) for members in tasks}) == wanted
        x = stream.transform(stream.train.x[:50])
        assert x.dtype == torch.float32
        assert -3 < x.min() < -1  # normalised
        assert 1 < x.max() < 3


def test_class_orders_of_a_stream(small_mnist: object) -> None:
    benchmark = BENCHMARKS["split-mnist"]
    orders = [benchmark.stream("class", seed, "random").classes for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(sum(orders[0], [])) == list(range(10))
    assert benchmark.stream("class", 0, (9, *range(9)), (4, 3, 3)).classes == [[9, 0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(InputError, match="each of the 10 classes once"):
        benchmark.stream("class", 0, (0, 1, 2, 3, 4, 5, 6, 7, 8, 10))


def test_streams_of_a_dataset_share_its_inputs(small_data: Path) -> None:
    benchmark = BENCHMARKS["split-mnist"]
    streams = [
        benchmark.stream("class", 0),
        benchmark.stream("task", 1, "random"),
        benchmark.stream("class", 2).validation(2),
        benchmark.stream("class", 3).joint(),
    ]
    assert len({stream.train.x.data_ptr() for stream in streams}) == 1
    assert BENCHMARKS["split-cifar10"].stream("class", 0).train.x.shape[1] == 3
    meta = torch.device("meta")  # a device like another, but for its data
    copies = [stream.to(meta).train.x for stream in streams]
    assert copies[0].device == meta
    assert all(copy is copies[0] for copy in copies)
    assert streams[0].to(torch.device("cpu")).train.x is streams[0].train.x
    alive = weakref.ref(copies[0])
    del copies
    gc.collect()
    assert alive() is None  # gone with the last stream that has it


def test_a_dataset_that_is_stored_again_is_read_again(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = BENCHMARKS["split-mnist"]
    first = benchmark.stream("class", 0).train.x
    path = dataset_path("mnist") / "arrays" / "train_images.npy"
    other = 255 - np.load(path)
    path.unlink()  # as a dataset is replaced: what is mapped stays whole
    np.save(path, other)
    second = benchmark.stream("class", 0).train.x
    assert torch.equal(second, 255 - first)
    (tmp_path / "another").mkdir()
    (small_mnist / "data").rename(tmp_path / "another" / "data")
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "another"))
    assert torch.equal(benchmark.stream("class", 0).train.x, second)


def test_training_leaves_the_shared_inputs_as_they_are(small_mnist: Path) -> None:
    stream = BENCHMARKS["split-mnist"].stream("class", 0)
    learner = cclfp.make(
        "er", psi=nn.Flatten(), num_classes=10, memory=20, tasks=stream.classes, transform=stream.transform
    )
    replica = Replica(learner, stream)
    Cohort([replica]).advance()
    Cohort([replica]).advance()
    part = stream.train.rows(stream.train_rows[2])
    learner.observe(part.x[:50], part.y[:50], task=2)  # enters the memory, which held rows of the stream
    stored = np.load(dataset_path("mnist") / "arrays" / "train_images.npy")
    assert np.array_equal(BENCHMARKS["split-mnist"].stream("class", 0).train.x.numpy(), stored)


def test_validation_holds_out_a_tenth_of_each_tasks_training_examples() -> None:
    stream = split(little(), "class", PAIRS).validation(seed=0)
    assert [len(rows) for rows in stream.train_rows] == [540] * 5
    assert [len(test.y) for test in stream.test] == [60] * 5
    for task, rows in enumerate(stream.train_rows):
        kept = {x.numpy().tobytes() for x in stream.train.x[rows]}
        held_out = {x.numpy().tobytes() for x in stream.test[task].x}
        assert not kept & held_out
        assert set(stream.test[task].y.tolist()) == set(stream.classes[task])
        assert set(stream.test[task].task.tolist()) == {task}
    other = split(little(), "class", PAIRS).validation(seed=1)
    assert not torch.equal(stream.train_rows[0], other.train_rows[0])
    assert len(stream.joint().train_rows[0]) == 2700
