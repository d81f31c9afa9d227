"""``cclfp list``: the methods, benchmarks and datasets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cclfp.cli.options import JsonOption
from cclfp.cli.output import print_json, print_table
from cclfp.errors import unknown


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
