"""Testing many replicas at once, in large batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from cclfp.engine.replica import Replica
from cclfp.engine.stack import is_normalised, stacked

# Numbers that all replicas' inputs of one pass may have together. A convolution's outputs are twenty times its images.
NUMBERS = {"cpu": 4_000_000, "cuda": 400_000_000}
NUMBERS_CONVOLVED = 20_000_000


def test_together(replicas: Sequence[Replica]) -> None:
    """Fill the row of each replica's matrix that comes now, as ``Replica.test`` does for one."""
    row, tasks = replicas[0].tests
    began = time.perf_counter()
    groups = _by_sizes(replicas) if is_normalised(replicas[0].learner.psi) else _by_stream(replicas)
    right = [(several, correct(several, tasks)) for several in groups]
    for several, counts in right:
        for task, count in zip(tasks, counts, strict=True):
            of = len(several[0].stream.test[task].y)
            for replica, number in zip(several, count.tolist(), strict=True):
                replica.matrix[row][task] = 100 * number / of
    for replica in replicas:
        replica.test_seconds += (time.perf_counter() - began) / len(replicas)


def correct(replicas: Sequence[Replica], tasks: Iterable[int]) -> list[Tensor]:
    """How many of each task's test examples each of the replicas has right; they must be as many for all."""
    first = replicas[0].learner
    for replica in replicas:
        replica.learner.prepare_for(replica.stream.train)
    leaves, spec = stacked([replica.learner.model for replica in replicas])

    def scores(leaves: list[Tensor], x: Tensor) -> Tensor:
        params, buffers, state = tree_unflatten(leaves, spec)
        return first.method.scores(params, buffers, state, x)

    counts = []
    with torch.no_grad():
        for task in tasks:
            tests = [replica.stream.test[task] for replica in replicas]
            x, y, is_shared = tests[0].x, tests[0].y, all(test is tests[0] for test in tests)
            allowed = torch.stack([replica.learner.allowed(replica.told(task))[0] for replica in replicas])
            numbers = NUMBERS_CONVOLVED if is_normalised(first.psi) else NUMBERS[x.device.type]
            size = max(1, numbers // (len(replicas) * x[:1].numel()))
            right = torch.zeros(len(replicas), dtype=torch.int64, device=x.device)
            for start in range(0, len(y), size):
                rows = slice(start, start + size)
                given = [x[rows]] if is_shared else [test.x[rows] for test in tests]
                labels = y[rows] if is_shared else torch.stack([test.y[rows] for test in tests])
                inputs = first.prepare_testing(torch.cat(given))
                if not is_shared:
                    inputs = inputs.unflatten(0, (len(tests), -1))
                found = torch.func.vmap(scores, in_dims=(0, None if is_shared else 0))(leaves, inputs)
                right += (found.masked_fill(~allowed[:, None], -torch.inf).argmax(-1) == labels).sum(-1)
            counts.append(right)
    return counts


def _by_sizes(replicas: Sequence[Replica]) -> list[list[Replica]]:
    """Replicas that have as many test examples of each task."""
    groups: dict[tuple[int, ...], list[Replica]] = {}
    for replica in replicas:
        groups.setdefault(tuple(len(test.y) for test in replica.stream.test), []).append(replica)
    return list(groups.values())


def _by_stream(replicas: Sequence[Replica]) -> list[list[Replica]]:
    groups: dict[int, list[Replica]] = {}
    for replica in replicas:
        groups.setdefault(id(replica.stream), []).append(replica)
    return list(groups.values())
