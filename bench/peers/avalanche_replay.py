"""Train Avalanche's replay on the job of job.py, one seed after the other, and print its speed and accuracy.

    bench/peers/.venv/bin/python bench/peers/avalanche_replay.py ARRAYS [--seeds 5]

Its pixels are tensors in memory, and one task is trained at a time: the fastest way that we found.
"""

from __future__ import annotations

import importlib.metadata
import random
import warnings
from typing import Any

import numpy as np
import torch
from job import (
    BATCH,
    CLASSES,
    LR,
    MEMORY,
    TASKS,
    Clock,
    Examples,
    declare_operators,
    make_model,
    parse,
    parser,
    read,
    show,
)
from torch import nn
from torch.utils.data import TensorDataset


def make_benchmark(tasks: list[Examples]) -> Any:
    """The tasks, made as in Avalanche's examples/custom_datasets.py."""
    from avalanche.benchmarks.scenarios import class_incremental_benchmark  # type: ignore[import-not-found]
    from avalanche.benchmarks.utils import DataAttribute, make_avalanche_dataset  # type: ignore[import-not-found]

    x, y = (torch.cat(parts) for parts in zip(*tasks, strict=True))
    dataset = make_avalanche_dataset(TensorDataset(x, y), data_attributes=[DataAttribute(y.tolist(), "targets")])
    return class_incremental_benchmark({"train": dataset}, class_order=list(range(CLASSES)), num_experiences=TASKS)


def make_strategy(model: nn.Module) -> Any:
    """The strategy that Avalanche's ``Replay`` builds, but with a reservoir, which ``Replay`` does not offer.

    ``evaluator=None`` leaves out metrics and loggers; the default one prints a progress bar.
    """
    from avalanche.training.plugins import ReplayPlugin  # type: ignore[import-not-found]
    from avalanche.training.storage_policy import ReservoirSamplingBuffer  # type: ignore[import-not-found]
    from avalanche.training.supervised import Naive  # type: ignore[import-not-found]

    replay = ReplayPlugin(
        mem_size=MEMORY,
        batch_size=BATCH,
        batch_size_mem=BATCH,
        storage_policy=ReservoirSamplingBuffer(max_size=MEMORY),
    )
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=1,
        device="cpu",
        plugins=[replay],
        evaluator=None,
    )


def train(seed: int, benchmark: Any, tests: list[Examples]) -> Clock:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - Avalanche draws from the global generators
    torch.manual_seed(seed)
    model, clock = make_model(), Clock()
    strategy = make_strategy(model)
    for task, experience in enumerate(benchmark.train_stream):
        with clock.training(), warnings.catch_warnings(record=True):  # printing those about its own calls takes time
            strategy.train(experience, num_workers=0)
        with torch.no_grad():
            clock.test(lambda x: model(x).argmax(1), tests[: task + 1])
    clock.steps = strategy.clock.train_iterations
    return clock


def main() -> None:
    arguments = parse(parser(__doc__))
    declare_operators()
    benchmark, tests = make_benchmark(read(arguments.arrays, "train")), read(arguments.arrays, "test")
    clocks = [train(seed, benchmark, tests) for seed in range(arguments.seeds)]
    show("avalanche", importlib.metadata.version("avalanche-lib"), clocks)


if __name__ == "__main__":
    main()
