"""Train Avalanche's replay on our job and print its speed and accuracy as one JSON object.

    bench/peers/.venv/bin/python bench/peers/avalanche_replay.py ARRAYS [--data tensors|images] [--tasks 5]
        [--turn SECONDS]

The job: Split MNIST, five tasks of two classes, class scenario; 10 new and 10 replayed examples per step, from a
memory of 200 that reservoir sampling fills; one epoch; MLP 784-100-100-10; SGD, learning rate 0.1; one thread. ARRAYS
is the folder ``arrays`` in what ``cclfp data path mnist`` prints. Runs in the environment that install.sh makes.

With ``--turn`` it works in turns with other processes, for bench/measure.py: after that many seconds it prints an empty
line, stops its clock and waits for a line.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import random
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

TASKS, CLASSES = 5, 10
BATCH, REPLAYED, MEMORY = 10, 10, 200
LR = 0.1

_operators: list[torch.library.Library] = []  # a declaration lives as long as its library object


def declare_operators() -> None:
    """Make torchvision importable with a torch that its compiled operators were not built for (a CPU build).

    Its Python files register ``nms`` and ``qnms`` without checking whether they exist. Nothing here calls them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise SystemExit("torchvision is missing: run bench/peers/install.sh, then use bench/peers/.venv/bin/python")
    try:
        for compiled in Path(spec.origin).parent.glob("_C.*"):
            torch.ops.load_library(compiled)
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _operators.append(library)


class Images(Dataset[tuple[Any, int]]):
    """PIL images and labels made one by one, as in torchvision's MNIST and therefore in Avalanche's SplitMNIST."""

    def __init__(self, images: np.ndarray[Any, Any], labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return Image.fromarray(self.images[index]), self.labels[index]


def read(arrays: Path, part: str) -> tuple[np.ndarray[Any, Any], Tensor]:
    images, labels = (np.load(arrays / f"{part}_{name}.npy") for name in ("images", "labels"))
    return images.reshape(-1, 28, 28), torch.from_numpy(labels).long()


def pixels(images: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(images).flatten(1).float() / 255


def make_stream(arrays: Path, data: str) -> Sequence[Any]:
    """The training experiences, made as in Avalanche's examples/custom_datasets.py."""
    from avalanche.benchmarks.scenarios import class_incremental_benchmark  # type: ignore[import-not-found]
    from avalanche.benchmarks.utils import (  # type: ignore[import-not-found]
        DataAttribute,
        TransformGroups,
        make_avalanche_dataset,
    )
    from torchvision.transforms import ToTensor  # type: ignore[import-not-found]

    images, labels = read(arrays, "train")
    dataset: Dataset[Any]
    if data == "tensors":
        dataset, transforms = TensorDataset(pixels(images), labels), None
    else:
        dataset, transforms = Images(images, labels), TransformGroups({"train": ToTensor(), "eval": ToTensor()})
    dataset = make_avalanche_dataset(
        dataset, data_attributes=[DataAttribute(labels.tolist(), "targets")], transform_groups=transforms
    )
    benchmark = class_incremental_benchmark({"train": dataset}, class_order=list(range(CLASSES)), num_experiences=TASKS)
    stream: Sequence[Any] = benchmark.train_stream
    return stream


def make_model() -> nn.Sequential:
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, CLASSES),
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


class Turns:
    """The clock, which stops during the turns of other processes."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._waited = 0.0
        self._began = self.now()

    def now(self) -> float:
        return time.perf_counter() - self._waited

    def wait(self) -> None:
        began = time.perf_counter()
        print(flush=True)
        if not sys.stdin.readline():
            raise SystemExit("stdin was closed: the process that starts the turns has ended")
        self._waited += time.perf_counter() - began
        self._began = self.now()

    def plugin(self) -> Any:
        from avalanche.core import SupervisedPlugin  # type: ignore[import-not-found]

        turns = self

        class Pause(SupervisedPlugin):  # type: ignore[misc]
            def after_training_iteration(self, strategy: Any, **others: Any) -> None:
                if turns.seconds is not None and turns.now() - turns._began >= turns.seconds:
                    turns.wait()

        return Pause()


def make_strategy(model: nn.Module, others: Sequence[Any] = ()) -> Any:
    """The strategy that Avalanche's ``Replay`` builds, but with a reservoir, which ``Replay`` does not offer.

    ``evaluator=None`` leaves out metrics and loggers; the default one prints a progress bar.
    """
    from avalanche.training.plugins import ReplayPlugin  # type: ignore[import-not-found]
    from avalanche.training.storage_policy import ReservoirSamplingBuffer  # type: ignore[import-not-found]
    from avalanche.training.supervised import Naive  # type: ignore[import-not-found]

    replay = ReplayPlugin(
        mem_size=MEMORY,
        batch_size=BATCH,
        batch_size_mem=REPLAYED,
        storage_policy=ReservoirSamplingBuffer(max_size=MEMORY),
    )
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=1,
        device="cpu",
        plugins=[replay, *others],
        evaluator=None,
    )


@torch.no_grad()
def average_accuracy(model: nn.Module, arrays: Path) -> float:
    """The mean over tasks of the accuracy on their test images, in percent, any class allowed."""
    model.eval()
    images, labels = read(arrays, "test")
    right = (model(pixels(images)).argmax(1) == labels).double()
    task = labels // (CLASSES // TASKS)
    return 100 * float(torch.stack([right[task == t].mean() for t in range(TASKS)]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arrays", type=Path, help="the folder with train_images.npy and the other arrays")
    parser.add_argument(
        "--data",
        choices=["tensors", "images"],
        default="tensors",
        help="pixels as tensors in memory, or as images that are converted at each use",
    )
    parser.add_argument("--tasks", type=int, default=TASKS, help="how many of the five tasks to train")
    parser.add_argument("--turn", type=float, default=None, help="seconds per turn; default: no turns")
    arguments = parser.parse_args()
    if not (arguments.arrays / "train_images.npy").is_file():
        parser.error(f"{arguments.arrays} has no train_images.npy")

    torch.set_num_threads(1)
    declare_operators()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - Avalanche draws from the global generators
    torch.manual_seed(0)
    stream = make_stream(arguments.arrays, arguments.data)[: arguments.tasks]
    model = make_model()
    turns = Turns(arguments.turn)
    strategy = make_strategy(model, [turns.plugin()] if arguments.turn is not None else [])

    wall, cpu = turns.now(), time.process_time()
    with warnings.catch_warnings(record=True):  # printing warnings about its own calls must not cost it time
        for experience in stream:
            strategy.train(experience, num_workers=0)
    wall, cpu = turns.now() - wall, time.process_time() - cpu

    steps = strategy.clock.train_iterations
    print(
        json.dumps(
            {
                "peer": "avalanche",
                "version": importlib.metadata.version("avalanche-lib"),
                "data": arguments.data,
                "tasks": arguments.tasks,
                "steps": steps,
                "seconds": round(wall, 3),
                "steps_per_second": round(steps / wall, 1),
                "cpu_seconds": round(cpu, 3),
                "average_accuracy": round(average_accuracy(model, arguments.arrays), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
