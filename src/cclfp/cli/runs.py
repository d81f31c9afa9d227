"""``cclfp runs``: the records in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cclfp.cli.output import JsonOption, StoreOption, hyperparameters, number, print_json, print_table
from cclfp.errors import unknown

MethodOption = Annotated[str | None, typer.Option(help="Only this method.", show_default=False)]
BenchmarkOption = Annotated[str | None, typer.Option(help="Only this benchmark.", show_default=False)]


def runs(
    store: StoreOption = None,
    method: MethodOption = None,
    benchmark: BenchmarkOption = None,
    json: JsonOption = False,
) -> None:
    """List the finished runs in a store, the oldest first."""
    from cclfp.backbones import show_backbone
    from cclfp.configuration import PROTOCOL, USUAL

    path, records = stored_runs(store, method, benchmark)
    if json:
        print_json({"store": str(path), "runs": records})
        return
    if not records:
        typer.echo(f"no runs in {path}")
        return
    columns = ["finished (UTC)", "method", "benchmark", "scenario", ">memory", ">seed", "settings"]
    columns += [">accuracy", ">forgetting", ">seconds"]
    rows = []
    for record in records:
        configuration = {**USUAL, **record["configuration"]}  # a record may be older than a setting
        unusual = {name: configuration[name] for name in PROTOCOL if configuration[name] not in (None, PROTOCOL[name])}
        unusual |= {"augment": True} if configuration["augment"] else {}
        other = "" if configuration["class_order"] is None else " other class order"
        other += " validation" if configuration["validation"] else ""
        other += "" if configuration["tasks"] is None else f" {len(configuration['tasks'])} tasks"
        other += "" if configuration["backbone"] is None else f" {show_backbone(configuration['backbone'])}"
        rows.append(
            [
                record["finished_at"].removesuffix("+00:00").replace("T", " "),
                record["method"],
                record["benchmark"],
                record["scenario"],
                "–" if record["buffer"] is None else str(record["buffer"]),
                str(record["seed"]),
                hyperparameters(configuration["hyperparameters"] | unusual) + other,
                number(record["average_accuracy"]),
                number(record["forgetting"]),
                number(record["seconds"], 1),
            ]
        )
    print_table(columns, rows, str(path))


def stored_runs(store: Path | None, method: str | None, benchmark: str | None) -> tuple[Path, list[dict[str, Any]]]:
    """Where the store is, and those of its records that the filters leave."""
    from cclfp.methods import METHODS
    from cclfp.store import Store, default_store
    from cclfp.streams.benchmarks import benchmark_names

    path = store or default_store()
    records = Store(path).records(method, benchmark) if path.exists() else []
    for kind, name, known in (("method", method, METHODS), ("benchmark", benchmark, benchmark_names())):
        if name is not None and not records and name not in known:
            raise unknown(kind, name, known)
    return path, records
