"""``cclfp list``: methods, benchmarks and datasets. ``cclfp show``: all about one method or one benchmark."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cclfp.cli import manage_data
from cclfp.cli.options import FORCE, app, argument, command, option
from cclfp.cli.output import Answer, Table, attributes, show_cell, unwrap
from cclfp.cli.progress import Progress
from cclfp.core.arguments import check_whole
from cclfp.core.userfiles import is_reference
from cclfp.errors import InputError, unknown
from cclfp.metrics import plus_minus

if TYPE_CHECKING:
    from cclfp.methods import Method
    from cclfp.runs.settings import Preset


@command(app, "list")
def list_(what: str = argument(..., "What to list.", "methods|benchmarks|datasets")) -> Answer:
    """List the methods, the benchmarks or the datasets."""
    from cclfp.methods import METHODS
    from cclfp.streams.benchmarks import benchmark_names, get_benchmark

    items: list[dict[str, Any]]
    match what:
        case "methods":
            items = [_facts(method) for method in METHODS.values()]
        case "benchmarks":
            shown = ("name", "dataset", "scenarios", "num_tasks", "backbone", "description")
            items = [attributes(get_benchmark(name), *shown) for name in benchmark_names()]
            items = [{name.removeprefix("num_"): value for name, value in item.items()} for item in items]
        case "datasets":
            return manage_data.list_()
        case _:
            raise unknown("list", what, ("methods", "benchmarks", "datasets"))
    return Answer({what: items}, [Table(list(items[0]), [item.values() for item in items])])


def _facts(method: type[Method]) -> dict[str, Any]:
    has_memory = method.schedule is not None
    return {"name": method.name, "scenarios": method.scenarios(), "memory": has_memory, "reference": method.reference}


@command(app)
def show(
    name: str = argument(..., "A method (cclfp list methods) or a benchmark (cclfp list benchmarks).", "NAME"),
    images: Path | None = option(None, "Draw what each task of the benchmark looks like.", "FILE.png"),
    seed: int = option(0, "Whose stream to draw, where it depends on the seed."),
    tasks: int | None = option(None, "How many tasks the classes are split into."),
    class_order: str | None = option(None, "The order classes come in, as for run.", "A,B,...|random"),
    force: bool = FORCE,
) -> Answer:
    """Show a method (what it does, its hyperparameters, presets and reference) or a benchmark (its tasks and classes).

    [bold]Examples[/bold]

    cclfp show ccl-fp+
    cclfp show split-cifar10 --images tasks.png
    """
    from cclfp.methods import METHODS
    from cclfp.streams.benchmarks import BENCHMARKS, benchmark_names

    if images is not None and images.suffix.lower() != ".png":
        raise InputError(f"--images {images}: expected the name of a file to write that ends in .png")
    if name in benchmark_names():
        return _look_at_benchmark(name, images, seed, tasks, class_order, force)
    if name in METHODS or is_reference(name):
        if images or seed or force or tasks is not None or class_order is not None:
            text = "--images, --seed, --force, --tasks and --class-order are about benchmarks"
            raise InputError(f"{name} is a method; {text}")
        return _look_at_method(name)
    raise unknown("method or benchmark", name, [*METHODS, *BENCHMARKS], benchmark_names())


def _look_at_benchmark(
    name: str, images: Path | None, seed: int, tasks: int | None, class_order: str | None, force: bool
) -> Answer:
    """All about a benchmark; its tasks are drawn where there is a file for them."""
    from cclfp.core.files import check_output
    from cclfp.data import fetch
    from cclfp.runs.settings import presets
    from cclfp.streams.benchmarks import get_benchmark
    from cclfp.streams.pictures import draw_stream, is_picture

    if images is not None:
        if not images.expanduser().parent.is_dir():
            raise InputError(f"--images {images}: the folder {images.parent} does not exist")
        check_output(images, is_picture, force=force)
    benchmark, seed = get_benchmark(name), check_whole("seed", seed, at_least=0)
    if tasks is None and class_order is None and benchmark.num_tasks is None:
        tasks = 1  # each run says how a user's own images are split
    order, sizes = benchmark.split_into(tasks, class_order)
    if images is not None:
        with Progress() as shown:
            fetch(benchmark.dataset, shown.update)
        stream = benchmark.stream(benchmark.scenarios[0], seed, order, sizes)
        draw_stream(stream, benchmark.classes, f"{benchmark.title}, {stream.num_tasks} tasks, seed {seed}", images)

    orders = sorted(benchmark.class_orders, key=lambda name: name != benchmark.class_order)  # the default first
    facts = attributes(benchmark, "dataset", "scenarios", "backbone")
    facts |= {"augmentation": benchmark.no_augmentation is None, "class_orders": orders}
    split = [[benchmark.classes[c] for c in task] for task in benchmark.task_classes(order, sizes, seed)]
    chosen, listed = _list_presets([preset for preset in presets() if preset.benchmark == name], "method")
    document = {**attributes(benchmark, "name", "title", "description"), **facts, "tasks": split, "presets": chosen}
    document |= {} if images is None else {"images": images}
    classes: str | Table = Table([">task", "classes"], enumerate(split, 1))
    if len(split) > 1 and all(names == split[0] for names in split):
        classes = f"{len(split)} tasks, each with the classes {', '.join(split[0])}"
    title = name if benchmark.title == name else f"{benchmark.title} ({name})"
    drawn = [] if images is None else [f"drawn: {images}"]
    parts = [f"{title}: {benchmark.description}\n", f"{_in_a_line(facts)}\n", classes, *listed, *drawn]
    return Answer(document, parts)


def _look_at_method(name: str) -> Answer:
    from cclfp.methods import get_method
    from cclfp.methods.base import interval
    from cclfp.runs.settings import presets

    kind = get_method(name)
    description = inspect.cleandoc(kind.__doc__ or "")
    settings = [
        {"name": f.name, "default": f.default, "range": interval(f), "description": f.metadata["doc"]}
        for f in dataclasses.fields(kind.Hyper)
    ]
    chosen, listed = _list_presets([preset for preset in presets() if preset.method == kind.name], "benchmark")
    document = {**_facts(kind), "description": description, "hyperparameters": settings, "presets": chosen}
    rows = [[f"{value:g}" if name == "default" else value for name, value in row.items()] for row in settings]
    facts = {name: document[name] for name in ("scenarios", "memory")}
    about = [f"{kind.name}: {kind.reference}\n", f"{unwrap(description)}\n", f"{_in_a_line(facts)}\n"]
    return Answer(document, [*about, Table(["hyperparameter", ">default", "range", "what it is"], rows), *listed])


def _in_a_line(facts: dict[str, Any]) -> str:
    return "   ".join(f"{name.replace('_', ' ')}: {show_cell(value)}" for name, value in facts.items())


def _list_presets(presets: Sequence[Preset], of: str) -> tuple[list[Any], list[str | Table]]:
    """Presets of one method (``of="benchmark"``: what differs among them) or of one benchmark, as JSON and as text."""
    from cclfp.paper import published

    papers = [published(preset.method, preset.benchmark, preset.scenario, 200) for preset in presets]
    both = list(zip(presets, papers, strict=True))
    document = [dataclasses.asdict(preset) | {"published": paper and paper._asdict()} for preset, paper in both]
    rows = [[getattr(p, of), p.scenario, p.settings, paper and plus_minus(*paper)] for p, paper in both]
    table = Table([of, "scenario", "hyperparameters", ">paper"], rows, "Presets, and the paper's average accuracy (%)")
    chosen = [f"{preset.method} {preset.benchmark} {preset.scenario}: chosen {preset.chosen}" for preset in presets]
    return document, [table, *chosen] if presets else []
