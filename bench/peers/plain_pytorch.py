"""Train replay on the job of job.py with a bare PyTorch loop, one seed after the other, and print its accuracy.

    .venv/bin/python bench/peers/plain_pytorch.py ARRAYS [--method er|ccl-fp+] [--seeds 5]

What a careful user writes without a library: the images are tensors in memory, the loop has no data loader, no logging
and no hooks.
"""

from __future__ import annotations

import copy
import functools
import random

import torch
import torch.nn.functional as F
from job import BATCH, LR, MEMORY, PER_TASK, Clock, Examples, make_model, parse, parser, read, show
from torch import Tensor, nn

W, ALPHA, BETA, ETA, TAU = 0.5, 0.5, 0.01, 0.1, 0.1  # of CCL-FP+: our preset for this job


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


def replay_loss(psi: nn.Module, f: nn.Module, old: nn.Module | None, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """ER: the cross-entropy over the classes seen so far."""
    return F.cross_entropy(f(psi(x))[:, :classes], y)


def ccl_fp_plus_loss(psi: nn.Module, f: nn.Module, old: nn.Module | None, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """CCL-FP+ (Han & Guo 2021, eq. 9)."""
    z = fused = psi(x)
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
    return F.cross_entropy(f(fused)[:, :classes], y) + ALPHA * rehearsal + BETA * contrastive


LOSSES = {"er": replay_loss, "ccl-fp+": ccl_fp_plus_loss}


def train(method: str, seed: int, tasks: list[Examples], tests: list[Examples]) -> Clock:
    torch.manual_seed(seed)
    random.seed(seed)
    model, memory, old, clock = make_model(), Memory(), None, Clock()
    psi, f, first = model[:-1], model[-1], 0  # the task's first row
    images, labels = (torch.cat(parts) for parts in zip(*tasks, strict=True))
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for task, (_, y) in enumerate(tasks):
        classes = (task + 1) * PER_TASK
        with clock.training():
            for current in (first + torch.randperm(len(y))).split(BATCH):
                chosen = torch.cat([current, memory.draw()])
                loss = LOSSES[method](psi, f, old, images[chosen], labels[chosen], classes)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                memory.add(current)
                clock.steps += 1
        first += len(y)
        old = copy.deepcopy(psi).requires_grad_(False)
        clock.test(functools.partial(predict, model, classes), tests[: task + 1])
    return clock


@torch.no_grad()
def predict(model: nn.Module, classes: int, x: Tensor) -> Tensor:
    """The most probable of the classes seen so far."""
    logits: Tensor = model(x)
    return logits[:, :classes].argmax(1)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--method", choices=list(LOSSES), default="er")
    arguments = parse(made)
    tasks, tests = read(arguments.arrays, "train"), read(arguments.arrays, "test")
    clocks = [train(arguments.method, seed, tasks, tests) for seed in range(arguments.seeds)]
    show("plain", str(torch.__version__), clocks)


if __name__ == "__main__":
    main()
