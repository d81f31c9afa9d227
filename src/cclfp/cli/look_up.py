"""``cclfp list``: methods, benchmarks and datasets. ``cclfp show``: all about one method or one benchmark."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from cclfp.cli.options import ForceOption, JsonOption
from cclfp.cli.output import hyperparameters, plus_minus, print_json, print_table, print_text, unwrap
from cclfp.cli.progress import progress
from cclfp.errors import InputError, unknown


def list_(
    what: Annotated[str, typer.Argument(metavar="methods|benchmarks|datasets", help="What to list.")],
    json: JsonOption = False,
) -> None:
    """List the methods, the benchmarks or the datasets."""
    lists = {"methods": _methods, "benchmarks": _benchmarks, "datasets": _datasets}
    if what not in lists:
        raise unknown("list", what, lists)
    items = lists[what]()
    if json:
        print_json({what: items})
        return
    cells = [{name: _cell(value) for name, value in item.items()} for item in items]
    print_table(list(cells[0]), [list(item.values()) for item in cells], drop=("path", "dataset", "backbone"))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _methods() -> list[dict[str, Any]]:
    from cclfp.methods import METHODS

    return [
        {
            "name": method.name,
            "scenarios": method.scenarios(),
            "memory": method.schedule is not None,
            "reference": method.reference,
        }
        for method in METHODS.values()
    ]


def _benchmarks() -> list[dict[str, Any]]:
    from cclfp.streams.benchmarks import benchmark_names, get_benchmark

    return [
        {
            "name": benchmark.name,
            "dataset": benchmark.dataset,
            "scenarios": list(benchmark.scenarios),
            "tasks": benchmark.num_tasks,
            "backbone": benchmark.backbone,
            "description": benchmark.description,
        }
        for benchmark in map(get_benchmark, benchmark_names())
    ]


def _datasets() -> list[dict[str, Any]]:
    from cclfp.data import dataset_names, dataset_path, get_dataset, is_cached

    return [
        {
            "name": name,
            "here": is_cached(name),
            "description": get_dataset(name).title,
            "path": str(dataset_path(name)),
        }
        for name in dataset_names()
    ]


def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A method (cclfp list methods) or a benchmark (cclfp list benchmarks)."),
    ],
    images: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw what each task of the benchmark looks like.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Whose stream to draw, where it depends on the seed.")] = 0,
    tasks: Annotated[
        int | None, typer.Option(help="How many tasks the classes are split into.", show_default=False)
    ] = None,
    class_order: Annotated[
        str | None,
        typer.Option(metavar="A,B,...|random", help="The order classes come in, as for run.", show_default=False),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Show a method (what it does, its hyperparameters, presets and reference) or a benchmark (its tasks and classes).

    [bold]Examples[/bold]

    cclfp show ccl-fp+

    cclfp show split-cifar10 --images tasks.png
    """
    from cclfp.core.arguments import check_whole
    from cclfp.core.files import check_output
    from cclfp.core.userfiles import is_reference
    from cclfp.methods import METHODS
    from cclfp.streams.benchmarks import BENCHMARKS, benchmark_names, get_benchmark
    from cclfp.streams.pictures import is_picture

    if images is not None and images.suffix.lower() != ".png":
        raise InputError(f"--images {images}: expected the name of a file to write that ends in .png")
    if name in benchmark_names():
        if images is not None and not images.expanduser().parent.is_dir():
            raise InputError(f"--images {images}: the folder {images.parent} does not exist")
        if images is not None:
            check_output(images, is_picture, force=force)
        benchmark, seed = get_benchmark(name), check_whole("seed", seed, at_least=0)
        is_undivided = tasks is None and class_order is None and benchmark.num_tasks is None
        order, sizes = benchmark.split_into(1 if is_undivided else tasks, class_order)
        answer = _benchmark(benchmark, order, sizes, seed)
        if is_undivided:
            answer["example"] = _example(benchmark, seed)
        if images is not None:
            _draw(benchmark, order, sizes, seed, images)
            answer["images"] = str(images)
        print_json(answer) if json else _print_benchmark(answer)
        return
    if name not in METHODS and not is_reference(name):
        raise unknown("method or benchmark", name, [*METHODS, *BENCHMARKS], benchmark_names())
    for option, given in (("--images", images), ("--tasks", tasks), ("--class-order", class_order)):
        if given is not None:
            raise InputError(f"{option} is about a benchmark; {name} is a method")
    answer = _method(name)
    print_json(answer) if json else _print_method(answer)


def _benchmark(benchmark: Any, order: Any, sizes: Any, seed: int) -> dict[str, Any]:
    from cclfp.runs.settings import presets

    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "description": benchmark.description,
        "dataset": benchmark.dataset,
        "scenarios": list(benchmark.scenarios),
        "backbone": benchmark.backbone,
        "augmentation": benchmark.no_augmentation is None,
        "class_orders": sorted(benchmark.class_orders, key=lambda name: name != benchmark.class_order),
        "tasks": benchmark.task_classes(order, sizes, seed),
        "presets": [_preset(preset) for preset in presets() if preset.benchmark == benchmark.name],
    }


def _example(benchmark: Any, seed: int) -> dict[str, Any]:
    """What ``--tasks`` does to a user's own images, shown for one number of tasks."""
    tasks = min(5, max(2, benchmark.num_classes // 2))
    order, sizes = benchmark.split_into(tasks, None)
    return {"option": f"--tasks {tasks}", "tasks": benchmark.task_classes(order, sizes, seed)}


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
    if "example" in answer:
        _print_own(tasks[0], answer["example"])
    elif len(tasks) > 1 and all(classes == tasks[0] for classes in tasks):
        print_text(f"{len(tasks)} tasks, each with the classes {', '.join(tasks[0])}")
    else:
        print_table([">task", "classes"], [[str(t + 1), ", ".join(classes)] for t, classes in enumerate(tasks)])
    _print_presets(answer["presets"], "method")
    if "images" in answer:
        typer.echo(f"drawn: {answer['images']}")


def _print_own(classes: list[str], example: dict[str, Any]) -> None:
    from cclfp.core.arguments import quote

    print_text(f"{len(classes)} classes: {', '.join(classes)}\n")
    split = "/".join(",".join(map(quote, members)) for members in example["tasks"])
    typer.echo("Each run says how they are split into tasks. For example, these two do the same:")
    typer.echo(f"  {example['option']}\n  --class-order {shlex.quote(split)}")


def _draw(benchmark: Any, order: Any, sizes: Any, seed: int, path: Path) -> None:
    from cclfp.data import fetch
    from cclfp.streams.pictures import draw_stream

    with progress() as shown:
        fetch(benchmark.dataset, shown.update)
    stream = benchmark.stream(benchmark.scenarios[0], seed, order, sizes)
    draw_stream(stream, benchmark.classes, f"{benchmark.title}, {stream.num_tasks} tasks, seed {seed}", path)


def _method(name: str) -> dict[str, Any]:
    from cclfp.methods import get_method
    from cclfp.methods.base import interval
    from cclfp.runs.settings import presets

    kind = get_method(name)
    return {
        "name": kind.name,
        "reference": kind.reference,
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "scenarios": kind.scenarios(),
        "memory": kind.schedule is not None,
        "hyperparameters": [
            {"name": f.name, "default": f.default, "range": interval(f), "description": f.metadata["doc"]}
            for f in dataclasses.fields(kind.Hyper)
        ],
        "presets": [_preset(preset) for preset in presets() if preset.method == kind.name],
    }


def _preset(preset: Any) -> dict[str, Any]:
    from cclfp.paper import published

    paper = published(preset.method, preset.benchmark, preset.scenario, 200)
    return dataclasses.asdict(preset) | {"published": None if paper is None else paper._asdict()}


def _print_method(answer: dict[str, Any]) -> None:
    print_text(f"{answer['name']}: {answer['reference']}\n")
    print_text(f"{unwrap(answer['description'])}\n", hang="")
    typer.echo(f"scenarios: {', '.join(answer['scenarios'])}   memory: {'yes' if answer['memory'] else 'no'}\n")
    rows = [[k["name"], f"{k['default']:g}", k["range"], k["description"]] for k in answer["hyperparameters"]]
    print_table(["hyperparameter", ">default", "range", "what it is"], rows)
    _print_presets(answer["presets"], "benchmark")


def _print_presets(presets: list[dict[str, Any]], of: str) -> None:
    """Presets of one method (``of="benchmark"``: what differs among them) or of one benchmark."""
    if not presets:
        return
    rows = [
        [
            p[of],
            p["scenario"],
            hyperparameters(p["hyperparameters"] | {"augment": p["augment"]}),
            "–" if p["published"] is None else plus_minus(**p["published"]),
        ]
        for p in presets
    ]
    print_table([of, "scenario", "hyperparameters", ">paper"], rows, "Presets, and the paper's average accuracy (%)")
    for p in presets:
        print_text(f"{p['method']} {p['benchmark']} {p['scenario']}: chosen {p['chosen']}")
