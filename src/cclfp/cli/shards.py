"""What ``--shard`` prints: where the part is, and how to put the parts together."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from cclfp.cli.output import print_json

if TYPE_CHECKING:
    from cclfp.runs.execution import Execution
    from cclfp.runs.record import Record


def print_shard(execution: Execution, records: Sequence[Record], json: bool) -> None:
    """Say how many runs the part has, and in which store they are."""
    from cclfp.runs.execution import parse_shard
    from cclfp.runs.shards import store_of

    number, count = parse_shard(str(execution.shard))
    store = store_of(execution)
    if json:
        print_json({"shard": execution.shard, "store": str(store), "keys": [record["key"] for record in records]})
        return
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    typer.echo(f"part {number} of {count}: {runs}, in {store}" if records else f"part {number} of {count} has no runs")
    parts = f"{shlex.quote(str(store.parent))}/shard-*-of-{count}.sqlite"
    typer.echo(f"when all parts are there: cclfp runs import {parts} --store {shlex.quote(str(execution.store))}")
