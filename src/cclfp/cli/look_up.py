"""``cclfp list``: methods, benchmarks and datasets. ``cclfp show``: all about one method or one benchmark."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cclfp.cli.options import FORCE, JSON, argument, option
from cclfp.cli.output import Table, attributes, print_answer, print_json, print_table, print_text, unwrap
from cclfp.cli.progress import Progress
from cclfp.errors import InputError, unknown
from cclfp.metrics import plus_minus

if TYPE_CHECKING:
    from cclfp.methods import Method


def list_(what: str = argument(..., "What to list.", "methods|benchmarks|datasets"), json: bool = JSON) -> None:
    """List the methods, the benchmarks or the datasets."""
    from cclfp.data import list_datasets
    from cclfp.methods import METHODS
    from cclfp.streams.benchmarks import benchmark_names, get_benchmark

    items: list[dict[str, Any]]
    match what:
        case "methods":
            items = [_about(method) for method in METHODS.values()]
        case "benchmarks":
            shown = ("name", "dataset", "scenarios", "num_tasks", "backbone", "description")
            items = [attributes(get_benchmark(name), *shown) for name in benchmark_names()]
            items = [{name.removeprefix("num_"): value for name, value in item.items()} for item in items]
        case "datasets":
            items = [attributes(one, "name", "here", "description", "path") for one in list_datasets()]
        case _:
            raise unknown("list", what, ("methods", "benchmarks", "datasets"))
    print_answer(json, {what: items}, Table(list(items[0]), [item.values() for item in items]))


def _about(method: type[Method]) -> dict[str, Any]:
    has_memory = method.schedule is not None
    return {"name": method.name, "scenarios": method.scenarios(), "memory": has_memory, "reference": method.reference}


def show(
    name: str = argument(..., "A method (cclfp list methods) or a benchmark (cclfp list benchmarks).", "NAME"),
    images: Path | None = option(None, "Draw what each task of the benchmark looks like.", "FILE.png"),
    seed: int = option(0, "Whose stream to draw, where it depends on the seed."),
    tasks: int | None = option(None, "How many tasks the classes are split into."),
    class_order: str | None = option(None, "The order classes come in, as for run.", "A,B,...|random"),
    force: bool = FORCE,
    json: bool = JSON,
) -> None:
    """Show a method (what it does, its hyperparameters, presets and reference) or a benchmark (its tasks and classes).

    [bold]Examples[/bold]

    cclfp show ccl-fp+
    cclfp show split-cifar10 --images tasks.png
    """
    from cclfp.core.userfiles import is_reference
    from cclfp.methods import METHODS
    from cclfp.streams.benchmarks import BENCHMARKS, benchmark_names

    if images is not None and images.suffix.lower() != ".png":
        raise InputError(f"--images {images}: expected the name of a file to write that ends in .png")
    if name in benchmark_names():
        answer = _show_benchmark(name, images, seed, tasks, class_order, force)
        print_json(answer) if json else _print_benchmark(answer)
        return
    if name not in METHODS and not is_reference(name):
        raise unknown("method or benchmark", name, [*METHODS, *BENCHMARKS], benchmark_names())
    drawing = {"--images": images, "--seed": seed or None, "--force": force or None}
    for option_name, given in {**drawing, "--tasks": tasks, "--class-order": class_order}.items():
        if given is not None:
            raise InputError(f"{option_name} is about a benchmark; {name} is a method")
    answer = _show_method(name)
    print_json(answer) if json else _print_method(answer)


def _show_benchmark(
    name: str, images: Path | None, seed: int, tasks: int | None, class_order: str | None, force: bool
) -> dict[str, Any]:
    """All about a benchmark; its tasks are drawn where there is a file for them."""
    from cclfp.core.arguments import check_whole
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
    answer = {
        **attributes(benchmark, "name", "title", "description", "dataset", "scenarios", "backbone"),
        "augmentation": benchmark.no_augmentation is None,
        "class_orders": sorted(benchmark.class_orders, key=lambda name: name != benchmark.class_order),
        "tasks": benchmark.task_classes(order, sizes, seed),
        "presets": [_preset(preset) for preset in presets() if preset.benchmark == benchmark.name],
    }
    if images is not None:
        with Progress() as shown:
            fetch(benchmark.dataset, shown.update)
        stream = benchmark.stream(benchmark.scenarios[0], seed, order, sizes)
        title = f"{benchmark.title}, {stream.num_tasks} tasks, seed {seed}"
        draw_stream(stream, benchmark.classes, title, images)
        answer["images"] = images
    return answer


def _print_benchmark(answer: dict[str, Any]) -> None:
    title, name = answer["title"], answer["name"]
    print_text(f"{title if title == name else f'{title} ({name})'}: {answer['description']}\n")
    facts = [] if answer["dataset"] == name else [f"dataset: {answer['dataset']}"]
    facts += [f"scenarios: {', '.join(answer['scenarios'])}"]
    facts += [f"backbone: {answer['backbone']}", f"can be augmented: {'yes' if answer['augmentation'] else 'no'}"]
    orders = answer["class_orders"]  # the default first
    facts += [f"class orders: {orders[0]} (default), {', '.join(orders[1:])}"] if len(orders) > 1 else []
    print_text("   ".join(facts) + "\n")
    tasks = answer["tasks"]
    if len(tasks) > 1 and all(classes == tasks[0] for classes in tasks):
        print_text(f"{len(tasks)} tasks, each with the classes {', '.join(tasks[0])}")
    else:
        print_table(Table([">task", "classes"], enumerate(tasks, 1)))
    _print_presets(answer["presets"], "method")
    if "images" in answer:
        print_text(f"drawn: {answer['images']}")


def _show_method(name: str) -> dict[str, Any]:
    from cclfp.methods import get_method
    from cclfp.methods.base import interval
    from cclfp.runs.settings import presets

    kind = get_method(name)
    return {
        **_about(kind),
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "hyperparameters": [
            {"name": f.name, "default": f.default, "range": interval(f), "description": f.metadata["doc"]}
            for f in dataclasses.fields(kind.Hyper)
        ],
        "presets": [_preset(preset) for preset in presets() if preset.method == kind.name],
    }


def _print_method(answer: dict[str, Any]) -> None:
    print_text(f"{answer['name']}: {answer['reference']}\n")
    print_text(f"{unwrap(answer['description'])}\n", hang="")
    print_text(f"scenarios: {', '.join(answer['scenarios'])}   memory: {'yes' if answer['memory'] else 'no'}\n")
    rows = [[k["name"], f"{k['default']:g}", k["range"], k["description"]] for k in answer["hyperparameters"]]
    print_table(Table(["hyperparameter", ">default", "range", "what it is"], rows))
    _print_presets(answer["presets"], "benchmark")


def _preset(preset: Any) -> dict[str, Any]:
    from cclfp.paper import published

    paper = published(preset.method, preset.benchmark, preset.scenario, 200)
    return dataclasses.asdict(preset) | {"published": None if paper is None else paper._asdict()}


def _print_presets(presets: list[dict[str, Any]], of: str) -> None:
    """Presets of one method (``of="benchmark"``: what differs among them) or of one benchmark."""
    if not presets:
        return
    rows = [
        [p[of], p["scenario"], p["hyperparameters"] | {"augment": p["augment"]}, paper and plus_minus(**paper)]
        for p in presets
        for paper in [p["published"]]
    ]
    columns = [of, "scenario", "hyperparameters", ">paper"]
    print_table(Table(columns, rows, "Presets, and the paper's average accuracy (%)"))
    for p in presets:
        print_text(f"{p['method']} {p['benchmark']} {p['scenario']}: chosen {p['chosen']}")
