"""Make RESULTS.md and its charts from what bench/measure.py wrote, on one machine or several.

    .venv/bin/python bench/render.py                          # bench/results/*.json -> bench/RESULTS.md, charts
    .venv/bin/python bench/render.py build/bench/quick.json --to build/bench

A section that several files have for one device comes from the newest. What there is to say about a chart's bends is
in bends.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from charts import Charts

from cclfp.files import write_atomic

BENCH = Path(__file__).parent
FORMAT = "cclfp bench 1"
BENCHMARKS = {
    "split-mnist": "Split MNIST",
    "split-cifar10": "Split CIFAR-10",
    "split-tiny-imagenet": "Split Tiny ImageNet",
}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Measured:
    """A section as one machine measured it on a device."""

    name: str
    device: str
    results: list[Result]
    document: dict[str, Any]  # the file it is from

    @property
    def hardware(self) -> str:
        return str(self.document["machine"]["gpu" if self.device == "cuda" else "processor"])

    @property
    def chart(self) -> str:
        """The name of its chart, the same whenever it is measured again there."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.device} {self.hardware}".lower()).strip("-")

    def find(self, **wanted: Any) -> Result | None:
        """The first result whose case, or what was measured, has these values."""
        return next((r for r in self.results if all({**r, **r["case"]}.get(k) == v for k, v in wanted.items())), None)


def read(paths: Iterable[Path]) -> list[Measured]:
    """The newest of every section, device and hardware."""
    found: dict[tuple[str, str, str], Measured] = {}
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for document in sorted(documents, key=lambda document: str(document["started_at"])):
        if document["format"] != FORMAT:
            raise SystemExit(f"a file of format {document['format']!r}: expected {FORMAT!r}; measure it again")
        for section in document["sections"]:
            one = Measured(section["name"], section["device"], section["results"], document)
            if one.results:
                found[one.name, one.device, one.hardware] = one
    order = [*SECTIONS, *AXES]
    return sorted(found.values(), key=lambda one: order.index(one.name))


# Tables ---------------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns but the first to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """Three digits that count: 0.123, 1.23, 12.3, 1,230."""
    rounded = float(f"{value:.3g}")
    return "0" if not rounded else f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:#.3g}"


def times(ratio: float) -> str:
    return f"{number(ratio)}×"


def used(result: Result) -> str:
    """The engine, and whether it did what it was asked to."""
    engine, asked = str(result["engine_used"]), str(result["case"]["engine"])
    if engine != asked:
        return f"{asked} (went on as {engine})"
    return f"{engine} (too few steps to compile)" if engine == "compiled" and not result["compile_seconds"] else engine


def rate(result: Result) -> float:
    return 1e3 / float(result["step_ms"])


# Sections -------------------------------------------------------------------------------------------------------------


def peers(section: Measured, charts: Charts) -> list[str]:
    avalanche = {data: r for data in ("tensors", "images") if (r := section.find(method="avalanche", data=data))}
    ours = [r for r in section.results if r["case"]["method"] != "avalanche"]
    rows = []
    for data, r in avalanche.items():
        share = f"{100 * r['cpu_seconds'] / r['seconds']:.0f} %"
        accuracy = "–" if r["tasks"] < 5 else f"{r['average_accuracy']:.1f}"
        ratios = [times(r["train_rate"] / other["train_rate"]) for other in avalanche.values()]
        rows.append(
            [f"Avalanche {r['version']} replay, {data}", "1", number(r["train_rate"]), "", *ratios, "", accuracy, share]
        )
    for r in ours:
        case = r["case"]
        eager = section.find(method=case["method"], engine="eager")
        ratios = [times(r["train_rate"] / other["train_rate"]) for other in avalanche.values()]
        against = times(r["train_rate"] / eager["train_rate"]) if eager else "–"
        accuracy = (
            "–" if case["examples"] is not None or section.document["images"] == "random" else f"{r['accuracy']:.1f}"
        )
        name = f"cclfp `{case['method']}`, {used(r)}"
        compiling = number(r["compile_seconds"]) if r["compile_seconds"] else ""
        share = f"{100 * r['cpu_share']:.0f} %"
        rows.append(
            [name, str(case["replicas"]), number(r["train_rate"]), against, *ratios, compiling, accuracy, share]
        )
    besides = [f"against Avalanche, {data}" for data in avalanche]
    columns = [
        "",
        "seeds at once",
        "steps/s",
        "against eager",
        *besides,
        "compiling, s",
        "accuracy, %",
        "share of a core",
    ]
    bars = [
        {"what": f"Avalanche replay, {data}", "series": "Avalanche", "value": r["train_rate"]}
        for data, r in avalanche.items()
    ] + [
        {"what": f"cclfp {r['case']['method']}, {r['case']['engine']}", "series": "cclfp", "value": r["train_rate"]}
        for r in ours
    ]
    return [
        "Replay on Split MNIST, class scenario, one epoch: 10 examples and 10 replayed ones a step, memory 200, MLP "
        "784-100-100-10, SGD; one thread for each. Avalanche gets its pixels as ready tensors, the faster way, or as "
        "images that are converted at each use, as its own `SplitMNIST` does it.",
        table(columns, rows),
        charts.bars(section.chart, bars, "steps of one seed a second"),
        "Steps/s are those of all seeds together, over all that training takes but compiling: planning, the beginnings "
        "and ends of tasks included. Ours are of the last three tasks (the first two see the compiler), Avalanche's of "
        "all five: its first, which replays nothing, is its cheapest.",
    ]


def command(section: Measured, charts: Charts) -> list[str]:
    rows = [[f"`{r['command']}`", number(r["seconds"])] for r in section.results]
    cores = section.document["machine"]["cores"]
    return [
        f"From the shell's prompt to the table, on {cores} cores, the compiler's cache warm.",
        table(["", "seconds"], rows),
    ]


def networks(section: Measured, charts: Charts) -> list[str]:
    rows, bars = [], []
    for r in section.results:
        case = r["case"]
        eager = section.find(benchmark=case["benchmark"], method=case["method"], engine="eager")
        against = times(eager["step_ms"] / r["step_ms"]) if eager else "–"
        title = BENCHMARKS[case["benchmark"]]
        memory = number(r["memory_bytes"] / 2**30)
        engine = f"{used(r)}, {case['precision']}" + ", compiled" * case.get("compiled", False)
        seeds, speed = str(case["replicas"]), number(r["step_ms"])
        rows.append([title, f"`{case['method']}`", engine, seeds, speed, against, memory])
        if case["method"] == "ccl-fp+":
            what = f"{title}, {case['engine']} {case['precision']}"
            bars.append({"what": what, "series": case["engine"], "value": r["step_ms"]})
    return [
        "ResNet18, 10 examples and 10 replayed ones a step, cropped and mirrored at random; the training steps of the "
        "third task alone.",
        table(["", "method", "engine", "seeds at once", "ms a replica-step", "against eager", "GiB"], rows),
        *([charts.bars(section.chart, bars, "milliseconds a step of one seed")] if len(bars) > 1 else []),
    ]


def stacked(section: Measured, charts: Charts) -> list[str]:
    rows = []
    for r in section.results:
        case = r["case"]
        memory = number(r["memory_bytes"] / 2**30)
        rows.append([f"`{case['method']}`", str(case["replicas"]), number(r["step_ms"]), memory])
    return [
        "ResNet18 on Split CIFAR-10, class scenario, in bf16: all replicas as one network, in kernels of our own. The "
        "steps inside the graph, of all five tasks: those of GEM and A-GEM cost more in later ones.",
        table(["method", "replicas at once", "ms per replica-step", "GiB"], rows),
    ]


def compiled(section: Measured, charts: Charts) -> list[str]:
    seconds = sum(r["compile_seconds"] for r in section.results)
    return [
        f"The same with the step compiled before the graph is recorded. It took the compiler {number(seconds)} s, so "
        "the engine does so by itself only for cohorts of 100,000 steps of a kind and more.",
        *networks(section, charts)[1:],
    ]


def grid(section: Measured, charts: Charts) -> list[str]:
    rows = []
    eager = section.find(engine="eager")
    for r in section.results:
        case = r["case"]
        whole = case["tasks"] is None
        against = times(rate(r) / rate(eager)) if eager else "–"
        rows.append(
            [
                f"{used(r)}, {case['precision']}",
                str(case["replicas"]),
                number(r["whole_rate"]) if whole else "–",
                number(r["whole_seconds"]) if whole else "–",
                number(rate(r)),
                against,
            ]
        )
    columns = ["engine", "replicas", "replica-steps/s", "seconds", "replica-steps/s, steps alone", "against eager"]
    return [
        "48 configurations of CCL-FP+ (w, α and β varied) with 5 seeds each on Split MNIST, class scenario. "
        "Replica-steps/s are of the whole stream: planning, capturing or compiling, and testing after every task.",
        table(columns, rows),
    ]


def methods(section: Measured, charts: Charts) -> list[str]:
    rows, dots = [], []
    names = dict.fromkeys(r["case"]["method"] for r in section.results)
    fast = next(r["case"]["engine"] for r in section.results if r["case"]["engine"] != "eager")
    er = section.find(method="er", engine="eager")
    remarks = []
    for method in names:
        eager, quick = section.find(method=method, engine="eager"), section.find(method=method, engine=fast)
        if eager is None or quick is None:
            continue
        against = times(eager["step_ms"] / quick["step_ms"])
        in_er = number(eager["step_ms"] / er["step_ms"]) if er else "–"
        before = number(quick["compile_seconds"]) if quick["compile_seconds"] else "–"
        rows.append([f"`{method}`", number(eager["step_ms"]), in_er, number(quick["step_ms"]), against, before])
        dots += [{"what": method, "series": r["case"]["engine"], "value": r["step_ms"]} for r in (eager, quick)]
        remarks += [f"`{method}`: {note}" for note in dict.fromkeys(quick["notes"])]
        if used(quick) != fast and not quick["notes"]:
            remarks.append(f"`{method}`: {used(quick)}")
    columns = ["", "eager, ms", "in steps of er", f"{fast}, 5 seeds, ms", "against eager", "compiling, s"]
    return [
        "Milliseconds a step of one seed in the last of Split MNIST's five tasks, class scenario, the steps alone.",
        table(columns, rows),
        *(["\n".join(f"- {remark}" for remark in remarks)] if remarks else []),
        charts.dots(section.chart, dots, "milliseconds a step of one seed"),
    ]


@dataclasses.dataclass(frozen=True)
class Axis:
    """How cost grows with one thing."""

    title: str
    field: str  # of the case
    label: str
    panels: tuple[tuple[str, str], ...]  # what was measured, and what it is called
    text: str


STEP = ("step_ms", "a training step, ms a replica")
AXES = {
    "replicas": Axis(
        "Replicas",
        "replicas",
        "replicas that train together",
        (
            ("step_rate", "replica-steps/s, the steps alone"),
            ("train_rate", "replica-steps/s, planning and the ends of tasks included"),
        ),
        "Split MNIST, class scenario; replicas differ in seed and learning rate.",
    ),
    "memory": Axis(
        "Memory",
        "memory",
        "examples the memory holds",
        (STEP, ("between_ms", "a task besides its steps, ms a replica")),
        "Split MNIST, class scenario, the fifth task. Besides its steps, a task takes planning, its beginning and its "
        "end. GEM's step reads the whole memory.",
    ),
    "tasks": Axis(
        "Tasks",
        "stream_tasks",
        "tasks of the stream",
        (STEP, ("test_ms", "testing after the last task, ms a replica")),
        "A stream of random images of MNIST's shape, all ten classes in every task; the last task is measured. After "
        "each, the learner is tested with 200 images of every task so far.",
    ),
    "side": Axis(
        "Image side",
        "side",
        "pixels a side",
        (STEP, ("test_ms", "testing after the third task, ms a replica")),
        "Random images in tasks of two classes, the third task; tested with 200 images of every task so far.",
    ),
}


def growth(name: str, section: Measured, charts: Charts) -> list[str]:
    axis, cases = AXES[name], [r["case"] for r in section.results]
    lines = [
        {**r, "step_rate": rate(r), "series": series(r["case"], cases), "x": r["case"][axis.field]}
        for r in section.results
    ]
    names, points = dict.fromkeys(line["series"] for line in lines), sorted({line["x"] for line in lines})
    found = {(line["series"], line["x"]): line for line in lines}
    rows = [
        [f"{what}: {title}", *(number(found[what, x][key]) if (what, x) in found else "–" for x in points)]
        for key, title in axis.panels
        for what in names
    ]
    numbers = table([axis.label, *(f"{x:,}" for x in points)], rows)
    first = cases[0]
    setting = [DEVICES[section.device], section.hardware, first["engine"]]
    setting += [f"{first['seeds']} seeds"] * (name != "replicas" and first["seeds"] > 1)
    setting += [f"GEM with {case['seeds']}" for case in cases[-1:] if case["method"] == "gem" and case["seeds"] == 1]
    setting += [f"backbone `{first['backbone'] or 'resnet18'}`"] * (name == "side")
    notes = dict.fromkeys(f"- `{line['series']}` at {line['x']:,}: {note}" for line in lines for note in line["notes"])
    return [
        f"**{', '.join(setting)}.** {axis.text}",
        charts.lines(section.chart, lines, axis.label, axis.panels, alike=name == "replicas"),
        bend(name, section.device),
        f"<details><summary>The numbers</summary>\n\n{numbers}\n\n</details>",
        "\n".join(notes),
    ]


def series(case: dict[str, Any], cases: Sequence[dict[str, Any]]) -> str:
    """What tells the lines of a chart apart: the method, and where they vary the precision, and the eager engine."""
    told = [case["method"]]
    told += [case["precision"]] * (len({one["precision"] for one in cases}) > 1)
    told += ["eager"] * (case["engine"] == "eager" and len({one["engine"] for one in cases}) > 1)
    return ", ".join(told)


@functools.cache
def bends() -> dict[str, str]:
    """The sentences in bends.md by ``section, device``."""
    text = (BENCH / "bends.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {heading.strip(): said.strip() for heading, said in zip(parts[::2], parts[1::2], strict=True)}


def bend(name: str, device: str) -> str:
    said = bends().get(f"{name}, {device}", "")
    if not said:
        print(f"bends.md says nothing of {name}, {device}", file=sys.stderr)
    return said


# The document ---------------------------------------------------------------------------------------------------------

Show = Callable[[Measured, Charts], list[str]]
SECTIONS: dict[str, tuple[str, Show]] = {
    "peers": ("Beside Avalanche", peers),
    "command": ("The whole command", command),
    "networks": ("ResNet18", networks),
    "stacked": ("ResNet18, stacked replicas", stacked),
    "compiled": ("ResNet18, compiled", compiled),
    "grid": ("A grid at once", grid),
    "methods": ("Every method", methods),
}


def in_short(sections: Sequence[Measured]) -> list[str]:
    """The ratios that matter, a line each."""
    said = []
    for one in sections:
        where = f"({one.hardware})"
        for method in ("er", "ccl-fp+") if one.name == "peers" else ():
            fast = next(
                (r for r in one.results if r["case"]["method"] == method and r["case"]["engine"] != "eager"), None
            )
            peers = {data: r for data in ("tensors", "images") if (r := one.find(method="avalanche", data=data))}
            if fast is not None and peers:
                ratios = [f"{times(fast['train_rate'] / r['train_rate'])} ({d})" for d, r in peers.items()]
                said.append(
                    f"One CPU thread, Split MNIST, {fast['case']['replicas']} seeds: `{method}` at "
                    f"{number(fast['train_rate'])} steps/s, {' and '.join(ratios)} the speed of Avalanche's replay "
                    f"{where}."
                )
        for r in one.results if one.name == "command" else ():
            if r["case"]["engine"] == "auto":
                said.append(f"`{r['command']}`: {number(r['seconds'])} s {where}.")
        for r in one.results if one.name == "networks" else ():
            eager = one.find(benchmark=r["case"]["benchmark"], method=r["case"]["method"], engine="eager")
            if eager is not None and r is not eager:
                said.append(
                    f"{BENCHMARKS[r['case']['benchmark']]}, `ccl-fp+`, ResNet18, {r['case']['replicas']} seeds, "
                    f"{r['case']['precision']}: {number(r['step_ms'])} ms a replica-step, "
                    f"{times(eager['step_ms'] / r['step_ms'])} the eager engine's speed {where}."
                )
        for r in one.results if one.name == "grid" else ():
            if r["case"]["tasks"] is None:
                said.append(
                    f"A grid of {r['case']['replicas']} replicas of `ccl-fp+` on Split MNIST: "
                    f"{number(r['whole_rate'])} replica-steps/s, {number(r['whole_seconds'])} s with all tests {where}."
                )
    return said


def machines(sections: Sequence[Measured]) -> str:
    """What the sections shown were measured on, a row for each file."""
    documents = {id(one.document): one.document for one in sections}
    rows = []
    for document in documents.values():
        m = document["machine"]
        names = dict.fromkeys(one.name for one in sections if one.document is document)
        memory = f"{m['memory_bytes'] / 2**30:.0f} GiB" if m["memory_bytes"] else "–"
        software = f"Python {m['python']}, torch {m['torch']}, numpy {m['numpy']}"
        commit = str(m["commit"])[:10] + ("+" if str(m["commit"]).endswith("+") else "")
        images = "random images of the same shapes" if document["images"] == "random" else "the real datasets"
        rows.append(
            [
                ", ".join(names),
                f"{m['processor']}, {m['cores']} cores, {memory}"
                + (f"; {m['gpu']}, CUDA {m['cuda']}" if m["gpu"] else ""),
                f"{software}, cclfp {m['cclfp']} at {commit if m['commit'] else 'no commit'}",
                f"{document['started_at'][:10]}, load {m['load']:.1f}"
                if m["load"] is not None
                else document["started_at"],
                images,
                f"`{document['command']}`",
            ]
        )
    lines = [["sections", "hardware", "software", "when, and how busy before", "images", "command"], ["---"] * 6, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


METHOD = """\
- **A replica-step** is one training step of one seed of one configuration. Where several train together, their steps
  are counted one by one: 5 seeds that take 1,000 steps a second each make 5,000 replica-steps/s.
- **The steps alone**: the median over windows of a quarter of a second of training, in tasks for which all is compiled.
  Elsewhere the text says what is counted.
- **Side by side**: on a CPU, what a table compares trains in turns of one window, in one run, Avalanche too, so that
  whatever else the machine does slows all alike. "Share of a core" says how much it did: near 100 % is an idle machine.
- **One thread**: on a CPU everything has one, but for the whole command, which has all cores.
- **Eager** is our reference engine, plain PyTorch, one replica after the other; so one seed tells the speed of five.
- On a GPU, clocks are read after the device has finished."""


def document(sections: Sequence[Measured], charts: Charts) -> str:
    parts = [
        "# Speed",
        "Written by `make bench` (`bench/measure.py`, then `bench/render.py`); do not edit. What was measured, and on "
        "what, is at the end.",
    ]
    if any(one.document["quick"] for one in sections):
        parts.append("**From a quick run, to try the benchmark itself: these numbers are rough and not to be quoted.**")
    if said := in_short(sections):
        parts += ["## In short", "\n".join(f"- {line}" for line in said)]
    for name, (title, show) in SECTIONS.items():
        if chosen := [one for one in sections if one.name == name]:
            parts.append(f"## {title}")
            for one in chosen:
                parts += [f"### {DEVICES[one.device]}: {one.hardware}", *show(one, charts)]
    if any(one.name in AXES for one in sections):
        parts.append("## How cost grows")
    for name, axis in AXES.items():
        if chosen := [one for one in sections if one.name == name]:
            parts.append(f"### {axis.title}")
            for one in chosen:
                parts += growth(name, one, charts)
    parts += ["## How it was measured", METHOD, machines(sections)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: all in bench/results")
    parser.add_argument("--to", type=Path, default=BENCH, help="the folder for RESULTS.md and charts")
    arguments = parser.parse_args()
    files = arguments.files or sorted((BENCH / "results").glob("*.json"))
    if not files:
        parser.error("no files: bench/measure.py writes them")
    sections = read(files)
    text = document(sections, Charts(arguments.to))
    write_atomic(arguments.to / "RESULTS.md", lambda file: file.write(text.encode()))
    print(f"{arguments.to / 'RESULTS.md'}: {len(sections)} sections from {len(files)} files")


if __name__ == "__main__":
    main()
