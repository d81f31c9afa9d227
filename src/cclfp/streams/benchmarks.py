"""The benchmarks by name: the dataset, the scenarios and the stream of each."""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cclfp.core.arguments import split_names, unquote
from cclfp.core.randomness import generator
from cclfp.data import Dataset, get_dataset, load_dataset, own_datasets
from cclfp.errors import InputError, unknown
from cclfp.streams.tasks import DOMAIN_TASKS, Stream, even_sizes, permuted, rotated, split
from cclfp.transforms import CropFlip

ClassOrder = tuple[int, ...] | str | None
MakeStream = Callable[[Dataset, int], Stream]  # from a dataset and a seed
MOST_CLASSES = 1 << 16  # more than any dataset has
AUGMENTATION = CropFlip(padding=4)  # used with augment=on


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A named stream."""

    name: str
    title: str
    dataset: str
    description: str
    backbone: str = "resnet18"
    sizes: tuple[int, ...] = ()  # classes per task; empty: every task has all of them, or the user chooses
    class_order: str = "labels"  # the name of the order its classes come in, one of class_orders
    domains: MakeStream | None = None  # makes the stream where every task has all classes
    # Settings that replace the method's defaults, unless a preset or the user gives another value.
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    no_augmentation: str | None = None  # why its images cannot be augmented

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios for which it is defined, the default first."""
        return ("class", "task") if self.domains is None else ("domain",)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return get_dataset(self.dataset).classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def class_orders(self) -> Mapping[str, tuple[int, ...]]:
        """The named class orders, as class ids; none where every task has all classes."""
        if self.domains is not None:
            return {}
        return {"labels": tuple(range(self.num_classes)), **get_dataset(self.dataset).class_orders}

    @property
    def usual_order(self) -> tuple[int, ...] | None:
        """The order its classes come in, unless a run has another; None: the order of the labels."""
        return None if self.class_order == "labels" else self.class_orders[self.class_order]

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own images."""
        return self.name not in BENCHMARKS

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of an image: channels, height, width."""
        return get_dataset(self.dataset).arrays["train_images"].shape[1:]

    @property
    def num_tasks(self) -> int | None:
        """The number of tasks; None for a user's own images, where every run chooses it."""
        return DOMAIN_TASKS if self.domains is not None else len(self.sizes) or None

    def stream(
        self, scenario: str, seed: int, class_order: ClassOrder = None, sizes: Sequence[int] | None = None
    ) -> Stream:
        """The stream for a seed.

        ``class_order`` is the order of the classes ("random" draws one from the seed, None is that of the labels),
        ``sizes`` the number of classes per task.
        """
        self.check(scenario)
        data = load_dataset(self.dataset)
        if self.domains is not None:
            return self.domains(data, seed)
        return split(data, scenario, self.task_classes(class_order, sizes, seed))

    def task_classes(self, class_order: ClassOrder, sizes: Sequence[int] | None, seed: int) -> list[list[int]]:
        """The ids of each task's classes in the :meth:`stream` with these arguments."""
        every, sizes = list(range(self.num_classes)), sizes or self.sizes
        if self.domains is not None:
            return [every] * DOMAIN_TASKS
        order: list[Any] = every if class_order is None else [*class_order]
        if class_order == "random":
            order = torch.randperm(self.num_classes, generator=generator(seed, "class order")).tolist()
        if sum(sizes) != self.num_classes or min(sizes, default=0) < 1 or sorted(order) != every:
            expected = f"each of the {self.num_classes} classes once, and how many of them each task has"
            raise InputError(f"class order {class_order}, sizes={list(sizes)}: expected {expected}")
        return [order[end - size : end] for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]

    def check(self, scenario: str, augment: bool = False) -> None:
        """InputError, with the reason, for a scenario that is not defined or images that cannot be augmented."""
        if scenario not in self.scenarios:
            why = "its tasks have disjoint classes" if self.domains is None else "each of its tasks has all classes"
            raise InputError(f"{self.name} has no {scenario} scenario ({why}); it has: {', '.join(self.scenarios)}")
        if augment and self.no_augmentation is not None:
            raise InputError(f"augment=on: {self.name} cannot be augmented ({self.no_augmentation})")

    def split_into(self, tasks: int | None, class_order: Any) -> tuple[ClassOrder, tuple[int, ...] | None]:
        """Resolve a user's choice to the order of the class ids and the number of classes per task.

        An order of None is that of the labels, sizes of None are the benchmark's. A class order made of lists, or a
        text with slashes between tasks, also gives the classes of each task. The name of one of ``class_orders`` stands
        for that order.
        """
        if self.domains is not None:
            if tasks is not None or class_order is not None:
                raise InputError(f"{self.name} has all classes in every task: tasks or a class order cannot be chosen")
            return None, None
        order: ClassOrder = self.usual_order
        sizes = None
        if isinstance(class_order, str):
            class_order = self.class_orders.get(class_order, class_order)
        if isinstance(class_order, str) and class_order == "random":
            order = "random"
        elif class_order is not None:
            order, sizes = self._read_order(class_order)
        if sizes is not None and tasks not in (None, len(sizes)):
            raise InputError(f"tasks={tasks}, but the class order has {len(sizes)} tasks")
        if sizes is None and tasks is not None:
            sizes = even_sizes(self.num_classes, tasks)
        if sizes is None and not self.sizes:
            raise InputError(
                f"how many tasks? {self.name} has {self.num_classes} classes: give tasks (--tasks 5), or a class order "
                "with a slash between tasks (--class-order a,b/c,d)"
            )
        is_by_label = order == tuple(range(self.num_classes))
        return None if is_by_label else order, None if sizes == self.sizes else sizes

    def _read_order(self, given: Any) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The ids of all classes in an order, and the number of classes per task where it is an order of tasks.

        It is a sequence of classes or of tasks, or a text with commas between classes and slashes between tasks. Each
        class is given once, by name or id. Names take precedence.
        """
        if isinstance(given, str):
            tasks: Any = [[unquote(c) for c in split_names(task)] for task in split_names(given, "/")]
            tasks = tasks if len(tasks) > 1 else tasks[0]
        else:
            values = _plain(given)
            tasks = [_plain(value) for value in (values if isinstance(values, list) else [values])]
        are_tasks = all(isinstance(task, list) for task in tasks)
        classes = [c for task in tasks for c in task or [task]] if are_tasks else tasks  # an empty task is wrong
        every, names = range(self.num_classes), self.classes
        known = {str(number): number for number in every} | {name: number for number, name in enumerate(names)}
        ids, wrong, missing = list[int](), list[str](), dict.fromkeys(every)
        for value in map(_plain, classes):
            number = known.get(value) if isinstance(value, str) else value
            if type(number) is int and number in missing:
                del missing[number]
                ids.append(number)
            else:
                wrong.append(f"{reprlib.repr(value)} is wrong or given twice")
        if not wrong and not missing:
            return tuple(ids), tuple(map(len, tasks)) if are_tasks else None
        orders = "".join(f", {name!r}" for name in self.class_orders)
        expected = f"'random'{orders}, or each of the {len(names)} classes once, by name or by number"
        problems = wrong[:12]
        problems += [f"not given: {', '.join([names[c] for c in missing][:12])}"] if missing else []
        raise InputError(f"class order {reprlib.repr(_plain(given))}: expected {expected} ({', '.join(problems)})")


def _plain(value: Any) -> Any:
    """Numbers, arrays, tensors and sequences as Python's own numbers and lists; anything else as it is."""
    value = value.tolist() if callable(getattr(value, "tolist", None)) else value
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return list(itertools.islice(value, MOST_CLASSES + 1)) if is_list else value  # anything longer is invalid anyway


def _digits(name: str, title: str, description: str, domains: MakeStream | None = None) -> Benchmark:
    why = "a mirrored or shifted digit may be a different digit, and permuted pixels have no neighbours"
    sizes = (2,) * 5 if domains is None else ()
    return Benchmark(name, title, "mnist", description, "mlp", sizes, domains=domains, no_augmentation=why)


def _photographs(
    name: str, title: str, dataset: str, tasks: int, each: int, images: int, side: int, class_order: str = "labels"
) -> Benchmark:
    what = f"{tasks} tasks of {each} classes each, {images:,} training images per task, {side}×{side}"
    settings = {"lr": 0.03, "augment": True}
    return Benchmark(name, title, dataset, what, sizes=(each,) * tasks, class_order=class_order, settings=settings)


_TASKS = "20 tasks of 1,000 training images, all digits"
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _digits("split-mnist", "Split MNIST", "5 tasks of 2 digits each, about 12,000 training images per task"),
        _digits("permuted-mnist", "Permuted MNIST", f"{_TASKS}, pixels in a different order in each", permuted),
        _digits("rotated-mnist", "Rotated MNIST", f"{_TASKS}, rotated by a different angle in each", rotated),
        _photographs("split-cifar10", "Split CIFAR-10", "cifar10", 5, 2, 10_000, 32),
        _photographs("split-cifar100", "Split CIFAR-100", "cifar100", 20, 5, 2_500, 32),
        # In the order of classes of the code of DER++, whose ResNet18 the paper takes.
        _photographs("split-tiny-imagenet", "Split Tiny ImageNet", "tiny-imagenet", 10, 20, 10_000, 64, "wnids"),
    )
}


def benchmark_names() -> list[str]:
    """All benchmarks: those that ship with the package, then the user's own images."""
    return [*BENCHMARKS, *own_datasets()]


def has_usual_order(benchmark: str, class_order: ClassOrder) -> bool:
    """Whether a run's classes come in the benchmark's own order. That of a user's own images is that of the labels."""
    return class_order == (BENCHMARKS[benchmark].usual_order if benchmark in BENCHMARKS else None)


def show_order(benchmark: str, class_order: ClassOrder) -> str:
    """How a table names the order of a run's classes; empty where it is the benchmark's own.

    >>> show_order("split-tiny-imagenet", None)
    'classes by label'
    """
    if has_usual_order(benchmark, class_order):
        return ""
    return "classes by label" if class_order is None else "other class order"


def get_benchmark(name: str) -> Benchmark:
    """A benchmark by name: one of BENCHMARKS, or the user's own images that were imported under that name."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name not in benchmark_names():
        raise unknown("benchmark", str(name), BENCHMARKS, own_datasets())
    settings = {"lr": 0.03}  # and augment, which depends on the images and the backbone
    return Benchmark(name=name, title=name, dataset=name, settings=settings, description=get_dataset(name).title)
