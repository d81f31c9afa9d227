"""Train replay on our job with a bare PyTorch loop, one seed after the other, and print its accuracy.

    .venv/bin/python bench/peers/plain_pytorch.py ARRAYS [--method er|ccl-fp+] [--seeds 5]

What a careful user writes without a library: the images are tensors in memory, the loop has no data loader, no logging
and no hooks. The job is that of avalanche_replay.py, with the tests of a run of ours: after each task, on the test
images of all tasks so far. ARRAYS is the folder ``arrays`` in what ``cclfp data path mnist`` prints. Needs torch and
numpy only. bench/measure.py times the whole process.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

TASKS, CLASSES, BATCH, MEMORY, LR = 5, 10, 10, 200, 0.1
W, ALPHA, BETA, ETA, TAU = 0.5, 0.5, 0.01, 0.1, 0.1  # of CCL-FP+: our preset for this job
PER_TASK = CLASSES // TASKS


def read(arrays: Path, part: str) -> tuple[Tensor, Tensor]:
    """The pixels, flat and from 0 to 1, and the labels."""
    images, labels = (torch.from_numpy(np.load(arrays / f"{part}_{what}.npy")) for what in ("images", "labels"))
    return images.flatten(1).float() / 255, labels.long()


def make_model() -> nn.ModuleDict:
    psi = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    model = nn.ModuleDict({"psi": psi, "f": nn.Linear(100, CLASSES)})
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


class Memory:
    """Rows of the training images, filled by reservoir sampling."""

    def __init__(self) -> None:
        self.rows = torch.zeros(MEMORY, dtype=torch.int64)
        self.seen = 0

    def draw(self) -> Tensor:
        held = min(self.seen, MEMORY)
        return self.rows[torch.randperm(held)[:BATCH]]

    def add(self, rows: Tensor) -> None:
        for row in rows.tolist():
            place = self.seen if self.seen < MEMORY else random.randrange(self.seen + 1)
            if place < MEMORY:
                self.rows[place] = row
            self.seen += 1


def replay_loss(model: nn.ModuleDict, old: nn.Module | None, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """ER: the cross-entropy over the classes seen so far."""
    return F.cross_entropy(model["f"](model["psi"](x))[:, :classes], y)


def ccl_fp_plus_loss(model: nn.ModuleDict, old: nn.Module | None, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """CCL-FP+ (Han & Guo 2021, eq. 9)."""
    z = fused = model["psi"](x)
    rehearsal: Tensor | float = 0.0
    if old is not None:
        with torch.no_grad():
            z_old = old(x)
        d = torch.cdist(z, z_old, compute_mode="donot_use_mm_for_euclid_dist")
        fused = (1 - W) * z + W * (torch.softmax(-ETA * d, 1) @ z_old)
        rehearsal = -torch.log_softmax(-TAU * d, 1).diagonal().mean()
    itself = torch.eye(len(z), dtype=torch.bool)
    d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    log_p = torch.log_softmax((-TAU * d).masked_fill(itself, -1e30), 1)
    partner = (y[:, None] == y) & ~itself
    each = torch.where(partner, -log_p, 0).sum(1) / partner.sum(1).clamp(min=1)
    contrastive = each.sum() / (partner.sum(1) > 0).sum().clamp(min=1)
    return F.cross_entropy(model["f"](fused)[:, :classes], y) + ALPHA * rehearsal + BETA * contrastive


LOSSES = {"er": replay_loss, "ccl-fp+": ccl_fp_plus_loss}


def train(method: str, seed: int, data: tuple[Tensor, Tensor], tests: tuple[Tensor, Tensor]) -> tuple[float, int]:
    """The final average accuracy of one seed, in percent, and the number of steps."""
    torch.manual_seed(seed)
    random.seed(seed)
    (x, y), model, memory, old, steps = data, make_model(), Memory(), None, 0
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for task in range(TASKS):
        classes = (task + 1) * PER_TASK
        rows = torch.nonzero(y // PER_TASK == task).flatten()
        for current in rows[torch.randperm(len(rows))].split(BATCH):
            chosen = torch.cat([current, memory.draw()])
            loss = LOSSES[method](model, old, x[chosen], y[chosen], classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            memory.add(current)
            steps += 1
        old = copy.deepcopy(model["psi"]).requires_grad_(False)
        accuracies = [accuracy(model, tests, t, classes) for t in range(task + 1)]
    return statistics.mean(accuracies), steps


@torch.no_grad()
def accuracy(model: nn.ModuleDict, tests: tuple[Tensor, Tensor], task: int, classes: int) -> float:
    """The accuracy on the test images of a task, in percent, among the classes seen so far."""
    x, y = tests
    rows = torch.nonzero(y // PER_TASK == task).flatten()
    found = model["f"](model["psi"](x[rows]))[:, :classes].argmax(1)
    return 100 * float((found == y[rows]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arrays", type=Path, help="the folder with train_images.npy and the other arrays")
    parser.add_argument("--method", choices=list(LOSSES), default="er")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if not (arguments.arrays / "train_images.npy").is_file():
        parser.error(f"{arguments.arrays} has no train_images.npy")
    torch.set_num_threads(1)
    data, tests = read(arguments.arrays, "train"), read(arguments.arrays, "test")
    began = time.perf_counter()
    results = [train(arguments.method, seed, data, tests) for seed in range(arguments.seeds)]
    seconds = time.perf_counter() - began
    accuracies, steps = zip(*results, strict=True)
    found = {
        "peer": "plain PyTorch",
        "version": torch.__version__,
        "method": arguments.method,
        "seeds": arguments.seeds,
        "steps": sum(steps),
        "seconds": round(seconds, 3),
        "steps_per_second": round(sum(steps) / seconds, 1),
        "average_accuracy": round(statistics.mean(accuracies), 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
