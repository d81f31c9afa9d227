"""The cases of each section of RESULTS.md, by device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from case import Case

from cclfp.methods import METHODS

FAST = {"cpu": "traced", "cuda": "graph"}

REPLICAS = {
    "cpu": (1, 2, 5, 10, 20, 50, 100, 200, 500),
    "cuda": (1, 5, 20, 100, 500),
}  # fewer, because GPU time is expensive
MEMORY = {"cpu": (200, 500, 1000, 2000, 5000), "cuda": (200, 1000, 5000)}
TASKS = {"cpu": (5, 10, 20, 50, 100), "cuda": (5, 20, 100)}
SIDES = {"cpu": (32, 40, 48, 56, 64), "cuda": (32, 48, 64)}
LAST = {"cpu": 6200, "cuda": 3000}  # images of a last task that is long enough for several windows

GRID = (("w", (0.3, 0.4, 0.5, 0.6)), ("alpha", (0.1, 0.3, 0.5)), ("beta", (0.01, 0.03, 0.1, 0.3)))

PASSES = ("drop_copies", "join_equal", "fold_constants", "add_bias_in_product", "call_directly", "write_in_place")

Groups = list[list[Case]]  # the cases of a group take turns


@dataclasses.dataclass(frozen=True)
class Section:
    """A table or chart: its cases for a device, or a quick selection of them for trying the benchmark."""

    name: str
    devices: tuple[str, ...]
    groups: Callable[[str, bool], Groups]
    is_scaling: bool = False


def methods(device: str, quick: bool) -> Groups:
    """Every method in the last task of Split MNIST, where its step is already traced or recorded."""
    examples, last = 400 if device == "cpu" else 100, LAST[device]
    chosen = ("er", "gem", "ccl-fp+") if quick else tuple(METHODS)
    base = Case("methods", "er", "split-mnist", "eager", device, examples=examples, last=600 if quick else last)
    return [
        [dataclasses.replace(base, method=m, engine=engine, seeds=n) for engine, n in _engines(device)] for m in chosen
    ]


def passes(device: str, quick: bool) -> Groups:
    """The traced step of five runs, with the whole clean-up and without each of its passes."""
    base = Case("passes", "er", "split-mnist", "traced", device, seeds=5, examples=400, last=2000 if quick else 12000)
    chosen = ("er",) if quick else ("er", "ccl-fp+")
    return [[dataclasses.replace(base, method=m, without=name)] for m in chosen for name in ("", *PASSES)]


def networks(device: str, quick: bool) -> Groups:
    """CCL-FP+ with ResNet18, and every other method on one stream; the third task is measured."""
    base = Case("networks", "ccl-fp+", "split-cifar10", "eager", device, tasks=3, examples=200, last=2000)
    if quick:
        base = dataclasses.replace(base, examples=50, last=500)
    graph: dict[str, Any] = {"engine": "graph", "seeds": 5}
    variants: list[dict[str, Any]] = [{}, *({**graph, "precision": precision} for precision in ("tf32", "bf16"))]
    found = [
        [dataclasses.replace(base, benchmark=benchmark, **variant)]
        for benchmark in ("split-cifar10", "split-tiny-imagenet")
        for variant in variants
    ]
    others = [] if quick else [method for method in METHODS if method != base.method]
    found += [[dataclasses.replace(base, method=method, last=1000, **graph)] for method in others]
    return found


def stacked(device: str, quick: bool) -> Groups:
    """Every method with ResNet18 in bf16, which a Hopper card has kernels for, in tasks that are short.

    On Split CIFAR-10 all tasks are measured, because GEM's and A-GEM's steps grow with the tasks behind them.
    """
    cifar = Case("stacked", "ccl-fp+", "split-cifar10", "graph", device, "bf16", seeds=10, examples=1000)
    tiny = dataclasses.replace(cifar, benchmark="split-tiny-imagenet", tasks=4, examples=400)
    found = [dataclasses.replace(cifar, method=m, seeds=n) for m, n in (("er", 5), ("ccl-fp+", 5), ("ccl-fp+", 20))]
    found += [dataclasses.replace(cifar, method=method) for method in (("er",) if quick else METHODS)]
    found += [dataclasses.replace(tiny, method=method) for method in ("er", "ccl-fp+", "gem", "a-gem", "hal")]
    measured = {"split-cifar10": 5, "split-tiny-imagenet": 2}
    return [
        [dataclasses.replace(case, measured=1 if METHODS[case.method].joint else measured[case.benchmark])]
        for case in found
    ]


def grid(device: str, quick: bool) -> Groups:
    """A grid of 48 configurations of CCL-FP+ with 5 seeds each on the whole of Split MNIST, tested after every task."""
    short: dict[str, Any] = {"examples": 2000} if quick else {"measured": 3}
    eager = Case("grid", "ccl-fp+", "split-mnist", "eager", device, tasks=3, examples=400, last=3000)
    return [[eager], [Case("grid", "ccl-fp+", "split-mnist", FAST[device], device, seeds=5, grid=GRID, **short)]]


def replicas(device: str, quick: bool) -> Groups:
    """Up to five seeds; larger numbers of runs combine five seeds with several learning rates."""
    found = []
    for method in ("er",) if quick else ("er", "ccl-fp+"):
        for count in (5, 50) if quick else REPLICAS[device]:
            steps = max(40, min(1100, 3200 // count)) if device == "cpu" else 200  # few steps are not traced
            rates = tuple(0.1 * (1 + i / 1000) for i in range(max(1, count // 5)))
            case = Case("replicas", method, "split-mnist", FAST[device], device, seeds=min(count, 5))
            found.append([dataclasses.replace(case, grid=(("lr", rates),), tasks=4, examples=10 * steps)])
    return found


def memory(device: str, quick: bool) -> Groups:
    """GEM's step reads the whole memory, the other methods' a fixed number of examples from it."""
    found = []
    for case in _growing("memory", device, quick):
        for size in (200, 1000) if quick else MEMORY[device]:
            # Enough examples to fill the memory, and GEM's part of it for each task.
            gem_last = 200 if quick or case.engine == "eager" else LAST[device]
            examples, last = (size // 5, gem_last) if case.method == "gem" else (max(2000, size // 5), None)
            found.append([dataclasses.replace(case, memory=size, examples=examples, last=last)])
    return found


def tasks(device: str, quick: bool) -> Groups:
    """The last task of streams of different lengths, each with all classes, on images of MNIST's shape."""
    found = []
    for case in _growing("tasks", device, quick):
        case = dataclasses.replace(case, benchmark="permuted-mnist", scenario="domain")
        for count in (5, 20) if quick else TASKS[device]:
            if case.method == "gem" and case.engine != "eager" and count > 20:
                continue  # its step is traced or recorded anew in every task, which takes minutes
            examples, last = max(10, 200 // count), 400 if case.method == "gem" else 6200
            found.append([dataclasses.replace(case, stream_tasks=count, examples=examples, last=last)])
    return found


def _growing(section: str, device: str, quick: bool) -> list[Case]:
    """Methods whose cost may grow with the memory or the tasks; on a CPU, GEM also runs eagerly."""
    case = Case(section, "er", "split-mnist", FAST[device], device, seeds=5)
    gem = dataclasses.replace(case, method="gem")
    plus = [] if quick else [dataclasses.replace(case, method="ccl-fp+")]
    eager = [dataclasses.replace(gem, engine="eager", seeds=1)] if device == "cpu" else []
    return [case, *plus, gem, *eager]


def side(device: str, quick: bool) -> Groups:
    """ResNet18 on square images of different sizes; on a CPU, a narrow ResNet18 that runs eagerly."""
    found = []
    for method in ("er",) if quick else ("er", "ccl-fp+") if device == "cpu" else ("ccl-fp+",):
        for pixels in (32, 64) if quick else SIDES[device]:
            case = Case("side", method, "split-cifar10", "eager", device, tasks=3, examples=20, side=pixels)
            if device == "cpu":
                found.append([dataclasses.replace(case, backbone="resnet18:width=8", last=50 if quick else 200)])
            else:
                case = dataclasses.replace(case, engine="graph", seeds=5, last=1000)
                found += [[dataclasses.replace(case, precision=precision)] for precision in ("tf32", "bf16")]
    return found


def _engines(device: str) -> list[tuple[str, int]]:
    """The eager engine with one seed, because it trains seeds in sequence, and the fast engine with five."""
    return [("eager", 1), (FAST[device], 5)]


SECTIONS = (
    Section("first-run", ("cpu",), lambda device, quick: []),
    Section("cluster", ("cpu",), lambda device, quick: []),
    Section("networks", ("cuda",), networks),
    Section("stacked", ("cuda",), stacked),
    Section("forked", ("cuda",), lambda device, quick: []),
    Section("grid", ("cuda",), grid),
    Section("methods", ("cpu", "cuda"), methods),
    Section("passes", ("cpu",), passes),
    Section("replicas", ("cpu", "cuda"), replicas, is_scaling=True),
    Section("memory", ("cpu", "cuda"), memory, is_scaling=True),
    Section("tasks", ("cpu", "cuda"), tasks, is_scaling=True),
    Section("side", ("cpu", "cuda"), side, is_scaling=True),
)
