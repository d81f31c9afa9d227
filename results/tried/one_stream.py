"""Finetune on Permuted MNIST with the same permutations for all seeds: results/tried/one_stream.py [lr]

`cclfp run` draws other permutations and other training images for each seed. Here six streams, those of the seeds 0 to
5, are each trained five times, with other initial values and another order of the examples. RESULTS.md has the
numbers, under "Numbers below the paper's".
"""

from __future__ import annotations

import argparse

import torch

import cclfp
from cclfp.metrics import mean_std, plus_minus
from cclfp.nets import MLP
from cclfp.streams import BENCHMARKS, Stream


def accuracy(stream: Stream, seed: int, lr: float) -> float:
    """The average accuracy (%) at the end of the stream."""
    psi = MLP(inputs=784, seed=seed)
    learner = cclfp.make(
        "finetune", psi=psi, num_classes=10, scenario="domain", transform=stream.transform, seed=seed, lr=lr
    )
    g = torch.Generator().manual_seed(seed)
    for task, rows in enumerate(stream.train_rows):
        for batch in rows[torch.randperm(len(rows), generator=g)].split(10):
            learner.observe(stream.train.x[batch], stream.train.y[batch], task=task)
        learner.end_task()
    right = [(learner.predict(test.x) == test.y).double().mean().item() for test in stream.test]
    return 100 * sum(right) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lr", type=float, nargs="?", default=0.03, help="step size (default: 0.03)")
    lr = parser.parse_args().lr
    torch.set_num_threads(1)
    means = []
    for number in range(6):
        stream = BENCHMARKS["permuted-mnist"].stream("domain", number)
        of_seeds = mean_std([accuracy(stream, seed, lr) for seed in range(5)])
        means.append(of_seeds["mean"])
        print(f"stream {number}: {plus_minus(**of_seeds)}", flush=True)
    print(f"means of the six streams: {plus_minus(**mean_std(means))}")


if __name__ == "__main__":
    main()
