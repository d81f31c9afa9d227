"""The job of all peers: its numbers, its data, its network and its tests, and the command line that they share.

Split MNIST, five tasks of two classes in label order, class scenario, one epoch; 10 new and 10 replayed examples per
step, from a memory of 200 that reservoir sampling fills; MLP 784-100-100-10, Xavier-uniform; SGD, learning rate 0.1;
one thread. After each task, it is tested on the test images of every task so far. Needs torch and numpy only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

TASKS, CLASSES, BATCH, MEMORY, LR = 5, 10, 10, 200, 0.1
PER_TASK = CLASSES // TASKS

Examples = tuple[Tensor, Tensor]  # pixels, flat and from 0 to 1, and labels

_operators: list[torch.library.Library] = []  # a declaration lives as long as its library object


def declare_operators() -> None:
    """Make torchvision importable with a torch that its binary operators were not built for (a CPU build).

    Its Python files register ``nms`` and ``qnms`` without checking whether they exist. Nothing here calls them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise SystemExit("torchvision is missing: run bench/peers/install.sh, then use bench/peers/.venv/bin/python")
    try:
        for binary in Path(spec.origin).parent.glob("_C.*"):
            torch.ops.load_library(binary)
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _operators.append(library)


class Clock:
    """One seed: its steps of training, the seconds in which they are taken, and the accuracy after the last task."""

    def __init__(self) -> None:
        self.steps, self.seconds, self.accuracy = 0, 0.0, 0.0

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def test(self, predict: Callable[[Tensor], Tensor], tests: Sequence[Examples]) -> None:
        """Test the classes that are predicted on each of these tasks' images."""
        self.accuracy = statistics.mean(100 * float((predict(x) == y).double().mean()) for x, y in tests)


def read(arrays: Path, part: str) -> list[Examples]:
    """The examples of each task."""
    images, labels = (torch.from_numpy(np.load(arrays / f"{part}_{what}.npy")) for what in ("images", "labels"))
    x, y = images.flatten(1).float() / 255, labels.long()
    rows = [torch.nonzero(y // PER_TASK == task).flatten() for task in range(TASKS)]
    return [(x[some], y[some]) for some in rows]


def make_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, CLASSES))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def parser(description: str | None) -> argparse.ArgumentParser:
    """The command line: the images and the seeds."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("arrays", type=Path, help="the folder `arrays` in what `cclfp data path mnist` prints")
    made.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0, one after the other")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, where the images are there; from here on torch uses one thread."""
    arguments = made.parse_args()
    if not (arguments.arrays / "train_images.npy").is_file():
        made.error(f"{arguments.arrays} has no train_images.npy")
    torch.set_num_threads(1)
    return arguments


def show(peer: str, version: str, clocks: Sequence[Clock]) -> None:
    """Print what was measured as one JSON object."""
    steps, seconds = sum(clock.steps for clock in clocks), sum(clock.seconds for clock in clocks)
    found = {
        "peer": peer,
        "version": version,
        "seeds": len(clocks),
        "steps": steps,
        "training_seconds": round(seconds, 3),
        "steps_per_second": round(steps / seconds, 1),
        "average_accuracy": round(statistics.mean(clock.accuracy for clock in clocks), 2),
    }
    print(json.dumps(found))
