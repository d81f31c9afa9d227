"""Tests replicas and fills their accuracy matrices: one replica at a time, or many at once in large batches."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from cclfp.core import trees
from cclfp.engine.groups import common_structure, is_normalised, stack_leaves
from cclfp.engine.replica import Replica
from cclfp.methods import Method

# How many numbers the inputs of all replicas may have in one pass, on a GPU: elsewhere replicas are tested one by one.
NUMBERS = 400_000_000
NUMBERS_CONVOLVED = 20_000_000  # a convolution's outputs are twenty times as many as its inputs


def evaluate_alone(replica: Replica) -> None:
    """Fill the next row of a replica's matrix."""
    row, tasks = replica.next_tests
    began = time.perf_counter()
    replica.forget_predictions()
    replica.learner.make_classifier(replica.stream.train.x)
    for task in tasks:
        test = replica.stream.test[task]
        predicted = replica.learner.predict(test.x, task=replica.known_task(task))
        replica.count_predictions(test.y, predicted)
        replica.matrix[row][task] = 100 * int((predicted == test.y).sum()) / len(test.y)
    replica.test_seconds += time.perf_counter() - began


def evaluate_together(replicas: Sequence[Replica], method: Method) -> None:
    """Fill the next row of each replica's matrix, as :func:`evaluate_alone` does for one replica.

    ``method`` is that of a replica, possibly on a network that computes many of them at once.
    """
    row, tasks = replicas[0].next_tests
    began = time.perf_counter()
    groups: dict[Hashable, list[Replica]] = {}  # by stream; those in our own kernels, which take any images, by size
    for replica in replicas:
        sizes = tuple(len(test.y) for test in replica.stream.test)
        key = sizes if is_normalised(replica.learner.psi) else id(replica.stream)
        groups.setdefault(key, []).append(replica)
    right = [(several, count_correct(several, tasks, method)) for several in groups.values()]
    for several, counts in right:
        for task, count in zip(tasks, counts, strict=True):
            of = len(several[0].stream.test[task].y)
            for replica, number in zip(several, count.tolist(), strict=True):
                replica.matrix[row][task] = 100 * number / of
    for replica in replicas:
        replica.test_seconds += (time.perf_counter() - began) / len(replicas)


def count_correct(replicas: Sequence[Replica], tasks: Iterable[int], method: Method) -> list[Tensor]:
    """For each task, how many test examples each replica classifies correctly. All have equally many test examples."""
    first = replicas[0].learner
    for replica in replicas:
        replica.forget_predictions()
        replica.learner.make_classifier(replica.stream.train.x)
    models = [replica.learner.model for replica in replicas]
    leaves, spec = stack_leaves(models), common_structure(models)

    def scores(leaves: list[Tensor], x: Tensor) -> Tensor:
        params, buffers, state = trees.unflatten(leaves, spec)
        return method.scores(params, buffers, state, x)

    counts = []
    with torch.no_grad():
        for task in tasks:
            tests = [replica.stream.test[task] for replica in replicas]
            x, y, is_shared = tests[0].x, tests[0].y, all(test is tests[0] for test in tests)
            allowed = torch.stack([one.learner.mask.allowed(one.known_task(task)) for one in replicas])
            numbers = NUMBERS_CONVOLVED if is_normalised(first.psi) else NUMBERS
            size = max(1, numbers // (len(replicas) * x[:1].numel()))
            right = torch.zeros(len(replicas), dtype=torch.int64, device=x.device)
            for start in range(0, len(y), size):
                rows = slice(start, start + size)
                given = [x[rows]] if is_shared else [test.x[rows] for test in tests]
                labels = y[rows] if is_shared else torch.stack([test.y[rows] for test in tests])
                inputs = first.for_testing(torch.cat(given))
                if not is_shared:
                    inputs = inputs.unflatten(0, (len(tests), -1))
                found = torch.func.vmap(scores, in_dims=(0, None if is_shared else 0))(leaves, inputs)
                predicted = found.masked_fill(~allowed[:, None], -torch.inf).argmax(-1)
                right += (predicted == labels).sum(-1)
                for replica, own, of in zip(replicas, predicted, labels.expand_as(predicted), strict=True):
                    replica.count_predictions(of, own)
            counts.append(right)
    return counts
