"""Sections of RESULTS.md that reproducibility checklists ask for: networks, datasets, searches, and computing time.

And its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cclfp.data import get_dataset
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.paper.numbers import LABELS
from cclfp.report import tables
from cclfp.report.tables import column_title
from cclfp.report.text import render
from cclfp.runs.code import OTHER_CODE
from cclfp.runs.record import Record
from cclfp.streams import BENCHMARKS
from cclfp.streams.tasks import DOMAIN_IMAGES

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]


def show_table(table: tables.Table) -> str:
    """As the report has it, without its marks of other code, which depend on the code that writes the document.

    The document says which code made its runs.
    """
    text = render("table.md", table=table)
    for mark in [*(f" {note}." for note in table.notes), OTHER_CODE]:
        text = text.replace(mark, "")
    return text


def describe_streams(table: Table) -> list[str]:
    """The network and the images of each benchmark."""
    rows = []
    for benchmark in BENCHMARKS.values():
        data = get_dataset(benchmark.dataset)
        shape, tests = data.arrays["train_images"].shape, data.arrays["test_images"].shape[0]
        tasks = benchmark.num_tasks or 1
        train = DOMAIN_IMAGES * tasks if benchmark.domains else shape[0]
        psi = make_psi(parse_backbone(benchmark.backbone), shape[1:], seed=0)
        features = psi.eval()(torch.zeros(1, *shape[1:])).shape[1]
        parameters = sum(p.numel() for p in psi.parameters()) + (features + 1) * data.num_classes
        rows.append(
            [
                benchmark.title,
                "×".join(map(str, shape[1:])),
                str(data.num_classes),
                f"{tasks} × {data.num_classes if benchmark.domains else benchmark.sizes[0]}",
                f"{train:,}",
                f"{tests * tasks if benchmark.domains else tests:,}",
                benchmark.backbone,
                f"{parameters:,}",
            ]
        )
    columns = ["", "image", ">classes", "tasks × classes", ">training images", ">test images", "network"]
    return [table([*columns, ">parameters"], rows)]


def describe_searches(records: Sequence[Record], table: Table) -> list[str]:
    """The number of runs per search, and their time."""
    runs, seconds = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for record in records:
        place = (record["benchmark"], record["scenario"], record["method"])
        runs[place] += 1
        seconds[place] += record["seconds"]  # type: ignore[assignment]  # a Counter adds floats too
    columns = [(name, s) for name, benchmark in BENCHMARKS.items() for s in benchmark.scenarios]
    rows = [
        [
            LABELS[method],
            *(
                f"{runs[b, s, method]} ({seconds[b, s, method] / 60:.1f})" if runs[b, s, method] else "–"
                for b, s in columns
            ),
        ]
        for method in LABELS
    ]
    return [table(["", *(f">{column_title(column)}" for column in columns)], rows)]


def describe_time(kinds: dict[str, Sequence[Record]], table: Table) -> list[str]:
    """Hours per kind of run and device."""
    hours: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for kind, records in kinds.items():
        for record in records:
            hours[kind][_device(record["environment"])] += record["seconds"] / 3600  # type: ignore[assignment]
    devices = sorted({device for counted in hours.values() for device in counted})
    rows = [[kind, str(len(kinds[kind])), *(f"{hours[kind][d]:.1f}" for d in devices)] for kind in kinds]
    total = [sum(counted[d] for counted in hours.values()) for d in devices]
    rows.append(["all", str(sum(map(len, kinds.values()))), *(f"{hours:.1f}" for hours in total)])
    return [table(["", ">runs", *(f">hours, {device}" for device in devices)], rows)]


def _device(environment: dict[str, Any]) -> str:
    return str(environment["device_name"]) if environment["device"] == "cuda" else "one CPU core"
