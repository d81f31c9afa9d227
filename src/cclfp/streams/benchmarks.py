"""The benchmarks by name: which dataset, which scenarios, how it becomes a stream."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cclfp.core.randomness import generator
from cclfp.data import Dataset, get_dataset, load_dataset, own_datasets
from cclfp.errors import InputError, unknown
from cclfp.streams import domains
from cclfp.streams.split import even_sizes, split
from cclfp.streams.stream import Stream
from cclfp.transforms import CropFlip

ClassOrder = tuple[int, ...] | str | None
MOST_CLASSES = 1 << 16  # more than any dataset has
AUGMENTATION = CropFlip(padding=4)  # what augment=on does


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A named stream. ``scenarios`` lists what it is defined for, the default first."""

    name: str
    title: str
    dataset: str
    scenarios: tuple[str, ...]
    description: str
    backbone: str
    sizes: tuple[int, ...] = ()  # how many classes each task has; empty: every task has all of them
    domains: Callable[[Dataset, int], Stream] | None = None
    # What a run takes where neither a preset nor the user says otherwise, and the method's own default does not suit.
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    no_augmentation: str | None = None  # why its images cannot be augmented

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return get_dataset(self.dataset).classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_tasks(self) -> int | None:
        """None for images of a user's own, where every run says it."""
        return domains.DOMAIN_TASKS if self.domains is not None else len(self.sizes) or None

    def stream(
        self, scenario: str, seed: int, class_order: ClassOrder = None, sizes: Sequence[int] | None = None
    ) -> Stream:
        """The stream a seed sees.

        ``class_order`` is the order classes come in ("random" draws one from the seed), ``sizes`` how many of them each
        task has.
        """
        self.check(scenario)
        data = load_dataset(self.dataset)
        if self.domains is not None:
            return self.domains(data, seed)
        return split(data, scenario, self._order(class_order, seed), sizes or self.sizes)

    def task_classes(self, class_order: ClassOrder, sizes: Sequence[int] | None, seed: int) -> list[list[str]]:
        """The names of each task's classes, in the stream that these arguments give."""
        if self.domains is not None:
            return [list(self.classes)] * domains.DOMAIN_TASKS
        order, names = iter(self._order(class_order, seed)), self.classes
        return [[names[next(order)] for _ in range(size)] for size in sizes or self.sizes]

    def _order(self, class_order: ClassOrder, seed: int) -> list[int]:
        if class_order == "random":
            return torch.randperm(self.num_classes, generator=generator(seed, "class order")).tolist()
        return list(range(self.num_classes)) if class_order is None else self.class_ids(class_order)

    def check(self, scenario: str) -> None:
        """Refuse a scenario this benchmark is not defined for, with the reason."""
        if scenario not in self.scenarios:
            why = (
                "its tasks have disjoint classes, so there is no common set of classes whose domain shifts"
                if self.domains is None
                else "every task has all ten classes, so there are no new classes and no task's own classes"
            )
            raise InputError(f"{self.name} has no {scenario} scenario ({why}); it has: {', '.join(self.scenarios)}")

    def check_augment(self, augment: bool) -> None:
        if augment and self.no_augmentation is not None:
            raise InputError(f"augment=on: {self.name} cannot be augmented ({self.no_augmentation})")

    def class_ids(self, order: Sequence[int | str]) -> list[int]:
        """Each class once, given by name or id, as ids. A text that is both is a name."""
        names = self.classes
        texts = {str(number): number for number in range(len(names))}
        texts |= {name: number for number, name in enumerate(names)}
        found = [texts.get(c) if isinstance(c, str) else _whole_below(c, len(names)) for c in order]
        count = Counter(found)
        if count == dict.fromkeys(range(len(names)), 1):
            return [c for c in found if c is not None]
        wrong = [_shown(c) for c, number in zip(order, found, strict=True) if number is None]
        twice = [names[c] for c, times in count.items() if times > 1 and c is not None]
        missing = [name for number, name in enumerate(names) if number not in count]
        problems = ((wrong, "not a class: "), (twice, "given twice: "), (missing, "not given: "))
        listed = "; ".join(text + _few(classes) for classes, text in problems if classes)
        raise InputError(
            f"class order {_few(list(map(_shown, order)))!r}: expected 'random', or each of the {len(names)} "
            f"classes once, by name or by number from 0 to {len(names) - 1} ({listed})"
        )

    def split_into(
        self,
        tasks: int | None,
        class_order: str | Sequence[Any] | None,
    ) -> tuple[ClassOrder, tuple[int, ...] | None]:
        """What a user wants of the classes: their order as ids, and each task's size where it is not the usual.

        An order of lists, or text with a slash between tasks, says which classes each task has.
        """
        order, sizes = _groups(class_order)
        if self.domains is not None:
            if order is not None or tasks is not None:
                what = "a class order" if order is not None else "tasks"
                raise InputError(f"{self.name} has all classes in every task: {what} cannot be chosen for it")
            return None, None
        if sizes is not None and tasks not in (None, len(sizes)):
            raise InputError(f"tasks={tasks}, but the class order has {len(sizes)} tasks")
        if order is not None and order != "random":
            order = tuple(self.class_ids(order))
            order = None if order == tuple(range(self.num_classes)) else order
        if sizes is None and tasks is not None:
            sizes = even_sizes(self.num_classes, tasks)
        if sizes is None and not self.sizes:
            raise InputError(
                f"how many tasks? {self.name} has {self.num_classes} classes: say tasks (--tasks 5), or a class order "
                "with a slash between tasks (--class-order a,b/c,d)"
            )
        return order, None if sizes == self.sizes else sizes


def _groups(order: object) -> tuple[tuple[Any, ...] | str | None, tuple[int, ...] | None]:
    """The classes in order, and how many each task has where the order says."""
    if order is None or (isinstance(order, str) and order == "random"):
        return order, None
    if isinstance(order, str):
        texts = [[c.strip() for c in group.split(",")] for group in order.split("/")]
        given: list[Any] | None = texts if len(texts) > 1 else texts[0]
    else:
        given = _as_list(order)
    if not given:
        raise InputError(f"class order {_shown(order)}: expected 'random', classes, or the classes of each task")
    groups = [_as_list(group) for group in given]
    if any(group is None for group in groups):
        return tuple(given), None
    if not all(groups):
        raise InputError(f"class order {_shown(order)}: a task without classes")
    return tuple(c for group in groups for c in group or ()), tuple(len(group or ()) for group in groups)


def _whole_below(value: Any, limit: int) -> int | None:
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # numpy and torch have errors of their own for arrays
        return None
    return number if 0 <= number < limit and not isinstance(value, bool) else None


def _as_list(values: Any) -> list[Any] | None:
    """The values of a list, a tuple, an array or a tensor; None for what is one class, or has no order or no end."""
    values = values.tolist() if callable(getattr(values, "tolist", None)) else values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        return None
    return list(itertools.islice(values, MOST_CLASSES + 1))  # a longer one is wrong all the same


def _shown(value: object) -> str:
    """A value as messages show it: short, and without what cannot be printed."""
    if isinstance(value, str):
        text = value if value.isprintable() else ascii(value)
    else:
        try:
            text = reprlib.repr(value)
        except ValueError:  # Python does not print a whole number of more than 4,300 digits
            text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:60] + "..."


def _few(names: list[str]) -> str:
    return ",".join(names[:12]) + (", ..." if len(names) > 12 else "")


_NO_FLIP = "a mirrored or shifted digit may be another, and permuted pixels have no neighbours"
_CONVOLUTIONAL = {"lr": 0.03, "augment": True}

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="split-mnist",
            title="Split MNIST",
            dataset="mnist",
            scenarios=("class", "task"),
            sizes=(2,) * 5,
            backbone="mlp",
            no_augmentation=_NO_FLIP,
            description="5 tasks of 2 digits each, about 12,000 training images a task",
        ),
        Benchmark(
            name="permuted-mnist",
            title="Permuted MNIST",
            dataset="mnist",
            scenarios=("domain",),
            backbone="mlp",
            domains=domains.permuted,
            no_augmentation=_NO_FLIP,
            description="20 tasks of 1,000 training images, all digits, pixels in a fresh order in each",
        ),
        Benchmark(
            name="rotated-mnist",
            title="Rotated MNIST",
            dataset="mnist",
            scenarios=("domain",),
            backbone="mlp",
            domains=domains.rotated,
            no_augmentation=_NO_FLIP,
            description="20 tasks of 1,000 training images, all digits, turned by a fresh angle in each",
        ),
        Benchmark(
            name="split-cifar10",
            title="Split CIFAR-10",
            dataset="cifar10",
            scenarios=("class", "task"),
            sizes=(2,) * 5,
            backbone="resnet18",
            settings=_CONVOLUTIONAL,
            description="5 tasks of 2 classes each, 10,000 training images a task, 32×32",
        ),
        Benchmark(
            name="split-cifar100",
            title="Split CIFAR-100",
            dataset="cifar100",
            scenarios=("class", "task"),
            sizes=(5,) * 20,
            backbone="resnet18",
            settings=_CONVOLUTIONAL,
            description="20 tasks of 5 classes each, 2,500 training images a task, 32×32",
        ),
        Benchmark(
            name="split-tiny-imagenet",
            title="Split Tiny ImageNet",
            dataset="tiny-imagenet",
            scenarios=("class", "task"),
            sizes=(20,) * 10,
            backbone="resnet18",
            settings=_CONVOLUTIONAL,
            description="10 tasks of 20 classes each, 10,000 training images a task, 64×64",
        ),
    )
}


def benchmark_names() -> list[str]:
    """All there are: those that ship with the package, then the images of a user's own."""
    return [*BENCHMARKS, *own_datasets()]


def get_benchmark(name: str) -> Benchmark:
    """A benchmark by name: one of BENCHMARKS, or the images of a user's own that were imported under that name."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name not in benchmark_names():
        raise unknown("benchmark", str(name), benchmark_names())
    data = get_dataset(name)
    return Benchmark(
        name=name,
        title=name,
        dataset=name,
        scenarios=("class", "task"),
        backbone="resnet18",
        settings=_CONVOLUTIONAL,
        description=data.title,
    )
