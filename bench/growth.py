"""How cost grows: the sections of RESULTS.md that vary one quantity."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charts import Charts
from formatting import format_number, format_table
from measured import DEVICES, Measured, Result, step_rate

BENDS = Path(__file__).with_name("bends.md")


@dataclasses.dataclass(frozen=True)
class Axis:
    """A quantity that varies."""

    title: str
    field: str  # of the case
    label: str
    panels: tuple[tuple[str, str], ...]  # measured values and their titles
    text: str


STEP = ("step_ms", "one training step, ms per run")
AXES = {
    "replicas": Axis(
        "Runs that train together",
        "replicas",
        "runs that train together",
        (("step_rate", "steps/s of all runs, steps only"), ("train_rate", "steps/s of all runs, whole tasks")),
        "Split MNIST, class scenario; the runs differ in seed and learning rate. A whole task includes planning "
        "and the beginning and end of the task.",
    ),
    "memory": Axis(
        "Memory",
        "memory",
        "examples in the memory",
        (STEP, ("between_ms", "a task except its steps, ms per run")),
        "Split MNIST, class scenario, the fifth task. Besides its steps, a task consists of planning, a beginning and "
        "an end. GEM's step reads the whole memory.",
    ),
    "tasks": Axis(
        "Tasks",
        "stream_tasks",
        "tasks in the stream",
        (STEP, ("test_ms", "testing after the last task, ms per run")),
        "A stream of random images of MNIST's shape with all ten classes in every task; the last task is measured. "
        "After each task, the learner is tested on 200 images of every task so far.",
    ),
    "side": Axis(
        "Image side",
        "side",
        "pixels per side",
        (STEP, ("test_ms", "testing after the third task, ms per run")),
        "Random images in tasks of two classes; the third task is measured. The test uses 200 images of every task so "
        "far.",
    ),
}


def show_growth(name: str, section: Measured, charts: Charts) -> list[str]:
    axis, cases = AXES[name], [r["case"] for r in section.results]
    lines = [
        {**r, "step_rate": step_rate(r), "series": series_name(r, cases), "x": r["case"][axis.field]}
        for r in section.results
    ]
    series, points = dict.fromkeys(line["series"] for line in lines), sorted({line["x"] for line in lines})
    found = {(line["series"], line["x"]): line for line in lines}
    rows = [
        [f"{key}: {title}", *(format_number(found[key, x][field]) if (key, x) in found else "–" for x in points)]
        for field, title in axis.panels
        for key in series
    ]
    numbers = format_table([axis.label, *(f"{x:,}" for x in points)], rows)
    notes = dict.fromkeys(f"- `{line['series']}` at {line['x']:,}: {note}" for line in lines for note in line["notes"])
    title = f"{'Speed' if name == 'replicas' else 'Cost'} by {axis.label}, {section.hardware}"
    return [
        f"**{', '.join(_setting(name, section))}.** {axis.text}",
        charts.lines(section.chart, lines, title, axis.label, axis.panels, same_scale=name == "replicas"),
        explain_bends(name, section.device),
        f"<details><summary>The numbers</summary>\n\n{numbers}\n\n</details>",
        "\n".join(notes),
    ]


def _setting(name: str, section: Measured) -> list[str]:
    """The hardware, engine, runs and backbone of a section."""
    cases = [result["case"] for result in section.results]
    first, gem = cases[0], {case["seeds"] for case in cases if case["method"] == "gem" and case["engine"] != "eager"}
    setting = [DEVICES[section.device], section.hardware, first["engine"]]
    setting += [f"{first['seeds']} runs"] * (name != "replicas" and first["seeds"] > 1)
    setting += ["GEM with 1"] * (gem == {1})
    setting += [f"backbone `{first['backbone'] or 'resnet18'}`"] * (name == "side")
    return setting


def series_name(result: Result, cases: Sequence[dict[str, Any]]) -> str:
    """The name of a line: the method, with the precision or the engine where the lines differ in them."""
    case = result["case"]
    parts = [case["method"]]
    parts += [case["precision"]] * (len({one["precision"] for one in cases}) > 1)
    parts += ["eager"] * (case["engine"] == "eager" and len({one["engine"] for one in cases}) > 1)
    return ", ".join(parts)


@functools.cache
def read_bends() -> dict[str, str]:
    """The texts in bends.md by their heading ``section, device``."""
    parts = re.split(r"^## (.+)\n", BENDS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {heading.strip(): text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def explain_bends(name: str, device: str) -> str:
    text = read_bends().get(f"{name}, {device}", "")
    if not text:
        print(f"bends.md has no text for {name}, {device}", file=sys.stderr)
    return text
