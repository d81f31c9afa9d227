"""Testing many replicas at once, in large batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from cclfp.engine.replica import Replica
from cclfp.engine.stack import stacked

NUMBERS = {"cpu": 4_000_000, "cuda": 400_000_000}  # that all replicas' inputs of one pass may have together


def test_together(replicas: Sequence[Replica]) -> None:
    """Fill the row of each replica's matrix that comes now, as ``Replica.test`` does for one."""
    row, tasks = replicas[0].tests
    began = time.perf_counter()
    right = [(several, correct(several, tasks)) for several in _by_stream(replicas)]
    for several, counts in right:
        for task, count in zip(tasks, counts, strict=True):
            of = len(several[0].stream.test[task].y)
            for replica, number in zip(several, count.tolist(), strict=True):
                replica.matrix[row][task] = 100 * number / of
    for replica in replicas:
        replica.test_seconds += (time.perf_counter() - began) / len(replicas)


def correct(replicas: Sequence[Replica], tasks: Iterable[int]) -> list[Tensor]:
    """How many of each task's test examples each of the replicas, which share their stream, has right."""
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
            test = replicas[0].stream.test[task]
            allowed = torch.stack([replica.learner.allowed(replica.told(task))[0] for replica in replicas])
            size = max(1, NUMBERS[test.x.device.type] // (len(replicas) * test.x[:1].numel()))
            right = torch.zeros(len(replicas), dtype=torch.int64, device=test.x.device)
            for x, y in zip(test.x.split(size), test.y.split(size), strict=True):
                given = torch.func.vmap(scores, in_dims=(0, None))(leaves, first.prepare_testing(x))
                right += (given.masked_fill(~allowed[:, None], -torch.inf).argmax(-1) == y).sum(-1)
            counts.append(right)
    return counts


def _by_stream(replicas: Sequence[Replica]) -> list[list[Replica]]:
    groups: dict[int, list[Replica]] = {}
    for replica in replicas:
        groups.setdefault(id(replica.stream), []).append(replica)
    return list(groups.values())
