"""The benchmarks by name: which dataset, which scenarios, how it becomes a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from cclfp.data import Dataset, load_dataset
from cclfp.errors import InputError, unknown
from cclfp.randomness import generator
from cclfp.streams import mnist
from cclfp.streams.stream import Stream

ClassOrder = tuple[int, ...] | str | None


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A named stream. ``scenarios`` lists what it is defined for, the default first."""

    name: str
    title: str
    dataset: str
    scenarios: tuple[str, ...]
    num_tasks: int
    num_classes: int
    backbone: dict[str, Any]
    description: str
    classes_per_task: int | None = None  # None: every task has all classes
    domains: Callable[[Dataset, int], Stream] | None = None

    def stream(self, scenario: str, seed: int, class_order: ClassOrder = None) -> Stream:
        """The stream a seed sees. ``class_order`` is the order classes come in; "random" draws one from the seed."""
        self.check(scenario, class_order)
        data = load_dataset(self.dataset)
        if self.domains is not None:
            return self.domains(data, seed)
        assert self.classes_per_task is not None
        if class_order == "random":
            order = torch.randperm(self.num_classes, generator=generator(seed, "class order")).tolist()
        else:
            order = list(class_order or range(self.num_classes))
        return mnist.split(data, scenario, order, self.classes_per_task)

    def check(self, scenario: str, class_order: ClassOrder = None) -> None:
        """Refuse what this benchmark is not defined for, with the reason."""
        if scenario not in self.scenarios:
            why = (
                "its tasks have disjoint classes, so there is no common set of classes whose domain shifts"
                if self.classes_per_task
                else "every task has all ten classes, so there are no new classes and no task's own classes"
            )
            raise InputError(f"{self.name} has no {scenario} scenario ({why}); it has: {', '.join(self.scenarios)}")
        if class_order is None:
            return
        if self.classes_per_task is None:
            raise InputError(f"{self.name} has all classes in every task: a class order does not apply to it")
        if class_order != "random" and sorted(class_order, key=str) != sorted(range(self.num_classes), key=str):
            given = class_order if isinstance(class_order, str) else ",".join(map(str, class_order))
            raise InputError(
                f"class order {given!r}: expected 'random', or each of 0 to {self.num_classes - 1} once, with commas"
            )


_MLP = {"name": "mlp", "inputs": 784, "widths": [100, 100]}

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="split-mnist",
            title="Split MNIST",
            dataset="mnist",
            scenarios=("class", "task"),
            num_tasks=5,
            num_classes=10,
            backbone=_MLP,
            classes_per_task=2,
            description="5 tasks of 2 digits each, about 12,000 training images a task",
        ),
        Benchmark(
            name="permuted-mnist",
            title="Permuted MNIST",
            dataset="mnist",
            scenarios=("domain",),
            num_tasks=mnist.DOMAIN_TASKS,
            num_classes=10,
            backbone=_MLP,
            domains=mnist.permuted,
            description="20 tasks of 1,000 training images, all digits, pixels in a fresh order in each",
        ),
        Benchmark(
            name="rotated-mnist",
            title="Rotated MNIST",
            dataset="mnist",
            scenarios=("domain",),
            num_tasks=mnist.DOMAIN_TASKS,
            num_classes=10,
            backbone=_MLP,
            domains=mnist.rotated,
            description="20 tasks of 1,000 training images, all digits, turned by a fresh angle in each",
        ),
    )
}


def get_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
