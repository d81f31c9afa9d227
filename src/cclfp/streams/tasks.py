"""Streams of tasks in RAM. A dataset's classes are divided among them, or each has all classes in another domain."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.data import Dataset
from cclfp.errors import InputError
from cclfp.transforms import Normalise, Scale, Transform

DOMAIN_TASKS = 20
DOMAIN_IMAGES = 1000  # training images per task
VALIDATION_SHARE = 10  # one of this many training examples is held out

# Inputs -> their copies on other devices, while a stream uses them. Streams that share inputs share the copies too.
_copies = WeakTensorKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Stream:
    """An ordered list of tasks. ``joint()`` returns a stream with the same examples as one task."""

    scenario: str
    num_classes: int
    classes: list[list[int]]  # one list per task
    train: Examples  # of all tasks
    train_rows: list[Tensor]  # the rows of ``train`` to train on: one tensor per task, a single one if joint
    test: list[Examples]  # one entry per task
    transform: Transform = dataclasses.field(default_factory=Scale)

    @property
    def num_tasks(self) -> int:
        return len(self.classes)

    def joint(self) -> Stream:
        """The stream with all tasks trained as one, for the upper bound; the test sets stay the same."""
        return dataclasses.replace(self, train_rows=[torch.cat(self.train_rows)])

    def validation(self, seed: int) -> Stream:
        """The stream for tuning hyperparameters: a tenth of each task's training examples is held out for testing."""
        kept, test = [], []
        for task, rows in enumerate(self.train_rows):
            order = torch.randperm(len(rows), generator=generator(seed, "validation", task))
            held_out = max(1, len(rows) // VALIDATION_SHARE)
            test.append(self.train.rows(rows[order[:held_out]]))
            kept.append(rows[order[held_out:].sort().values])
        return dataclasses.replace(self, train_rows=kept, test=test)

    def task_ids(self, position: int) -> list[int]:
        """The tasks trained at a position of the stream: one, or all tasks of a joint stream."""
        return [position] if len(self.train_rows) == self.num_tasks else list(range(self.num_tasks))

    def to(self, device: torch.device) -> Stream:
        """The stream on a device."""
        copies = _copies.setdefault(self.train.x, weakref.WeakValueDictionary())
        x = copies.get(device)
        if x is None:
            copies[device] = x = self.train.x.to(device)
        train = self.train._replace(x=x).to(device)
        return dataclasses.replace(self, train=train, test=[test.to(device) for test in self.test])


def split(data: Dataset, scenario: str, classes: list[list[int]]) -> Stream:
    """Split a dataset into tasks with these classes, each of which is in one task. Class ids stay the same."""
    task_of = torch.empty(data.num_classes, dtype=torch.int64)
    for task, members in enumerate(classes):
        task_of[members] = task
    train = Examples(data.train_images, data.train_labels, task_of[data.train_labels])
    test = Examples(data.test_images, data.test_labels, task_of[data.test_labels])
    tasks = range(len(classes))
    return Stream(
        scenario=scenario,
        num_classes=data.num_classes,
        classes=classes,
        train=train,
        train_rows=[(train.task == task).nonzero().flatten() for task in tasks],
        test=[test.rows((test.task == task).nonzero().flatten()) for task in tasks],
        transform=Scale() if data.mean is None or data.std is None else Normalise(data.mean, data.std),
    )


def even_sizes(num_classes: int, tasks: int) -> tuple[int, ...]:
    """The number of classes per task, as even as possible; the first tasks have one more.

    >>> even_sizes(10, 4)
    (3, 3, 2, 2)
    """
    if not 1 <= tasks <= num_classes:
        raise InputError(f"tasks={tasks}: expected a whole number from 1 to {num_classes}, the number of classes")
    return tuple(num_classes // tasks + (task < num_classes % tasks) for task in range(tasks))


def permuted(data: Dataset, seed: int) -> Stream:
    """A stream in which every task, including the first, has its own random order of the pixels."""

    def draw(g: torch.Generator) -> Callable[[Tensor], Tensor]:
        order = torch.randperm(data.train_images[0].numel(), generator=g)
        return lambda images: images.flatten(1)[:, order].reshape(images.shape)

    return _domains(data, seed, draw)


def rotated(data: Dataset, seed: int) -> Stream:
    """A stream in which every task, including the first, has its own random angle from [0°, 180°)."""

    def draw(g: torch.Generator) -> Callable[[Tensor], Tensor]:
        degrees = float(torch.rand((), dtype=torch.float64, generator=g)) * 180
        return lambda images: rotate(images, degrees)

    return _domains(data, seed, draw)


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate square uint8 images (N, C, S, S) counter-clockwise about their centre: bilinear, zero fill, rounded.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> rotate(image, 90).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    cos, sin = torch.cos(angle).item(), torch.sin(angle).item()
    # The place in the input that each output pixel comes from (x to the right, y down).
    matrix = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = F.affine_grid(matrix, [1, *images.shape[1:]], align_corners=False)
    rotated_chunks = [
        F.grid_sample(chunk.float(), grid.expand(len(chunk), -1, -1, -1), align_corners=False).round().byte()
        for chunk in images.split(1000)
    ]
    return torch.cat(rotated_chunks)


def _domains(data: Dataset, seed: int, draw: Callable[[torch.Generator], Callable[[Tensor], Tensor]]) -> Stream:
    """Tasks with all classes. Each draws its training images and a transformation, which the test set undergoes too."""
    g = generator(seed, "stream")
    images, labels, test = [], [], []
    for task in range(DOMAIN_TASKS):
        subset = torch.randperm(len(data.train_labels), generator=g)[:DOMAIN_IMAGES]
        change = draw(g)
        images.append(change(data.train_images[subset]))
        labels.append(data.train_labels[subset])
        of_task = torch.full_like(data.test_labels, task)
        test.append(Examples(change(data.test_images), data.test_labels, of_task))
    tasks = torch.arange(DOMAIN_TASKS).repeat_interleave(len(labels[0]))
    return Stream(
        scenario="domain",
        num_classes=data.num_classes,
        classes=[list(range(data.num_classes))] * DOMAIN_TASKS,
        train=Examples(torch.cat(images), torch.cat(labels), tasks),
        train_rows=list(torch.arange(len(tasks)).split(len(labels[0]))),
        test=test,
    )
