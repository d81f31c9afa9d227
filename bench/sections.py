"""The sections of RESULTS.md: each function returns the paragraphs of one section as Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charts import Charts, Point
from formatting import format_count, format_number, format_range, format_ratio, format_table, table_of
from measured import BENCHMARKS, Measured, Result, engine_used, show_peer, step_rate, whole_ratios

STEP_TITLE = "milliseconds per step of one run"
FLOPS = Path(__file__).parent / "flops.json"  # GFLOP per step, by benchmark and method
PEAK = {"NVIDIA H200": 989}  # TFLOP/s, dense bf16, from its data sheet


def show_peers(section: Measured, charts: Charts) -> list[str]:
    avalanche = section.avalanche
    ours = [r for r in section.results if r["case"]["method"] != "avalanche"]
    columns = ["", "runs at once", "steps/s", "relative to eager"]
    columns += [f"relative to Avalanche, {data}" for data in avalanche]
    columns += ["accuracy, %", "share of a core"]
    rows = [_avalanche_row(data, r, avalanche) for data, r in avalanche.items()]
    rows += [_peers_row(section, r) for r in ours]
    points = [Point(f"Avalanche replay, {data}", "Avalanche", r["train_rate"]) for data, r in avalanche.items()]
    points += [Point(_peers_label(r["case"]), "cclfp", r["train_rate"]) for r in ours]
    return [
        "Replay on Split MNIST, class scenario, one epoch: 10 new and 10 replayed examples per step, memory 200, MLP "
        "784-100-100-10, SGD, one thread each. Avalanche gets its pixels either as tensors that are ready for use, "
        "which is faster, or as images that are converted at each use, which is what its own `SplitMNIST` does.",
        format_table(columns, rows),
        charts.bars(
            section.chart,
            points,
            "Speed of replay on Split MNIST",
            section.hardware,
            "steps per second, all runs together",
        ),
        "The steps per second are those of all runs together. They count all the time that training takes: "
        "planning and the beginning and end of each task are included. Our numbers are those of the last three tasks, "
        "in which nothing is left to trace. Avalanche's numbers are those of all five tasks; its first task is its "
        "cheapest, because it replays nothing.",
    ]


def _peers_label(case: dict[str, Any]) -> str:
    return f"cclfp {case['method']}, {case['engine']}, {format_count(case['replicas'], 'run')}"


def _avalanche_row(data: str, result: Result, avalanche: dict[str, Result]) -> list[str]:
    share = f"{100 * result['cpu_seconds'] / result['seconds']:.0f} %"
    accuracy = "–" if result["tasks"] < 5 else f"{result['average_accuracy']:.1f}"
    ratios = [format_ratio(result["train_rate"] / other["train_rate"]) for other in avalanche.values()]
    name, rate = f"Avalanche {result['version']} replay, {data}", format_number(result["train_rate"])
    return [name, "1", rate, "", *ratios, accuracy, share]


def _peers_row(section: Measured, result: Result) -> list[str]:
    case = result["case"]
    eager = section.find(method=case["method"], engine="eager")
    is_real = case["examples"] is None and section.document["images"] != "random"
    return [
        f"cclfp `{case['method']}`, {engine_used(result)}",
        str(case["replicas"]),
        format_number(result["train_rate"]),
        format_ratio(result["train_rate"] / eager["train_rate"]) if eager else "–",
        *(format_ratio(result["train_rate"] / other["train_rate"]) for other in section.avalanche.values()),
        f"{result['accuracy']:.1f}" if is_real else "–",
        f"{100 * result['cpu_share']:.0f} %",
    ]


def show_whole(section: Measured, charts: Charts) -> list[str]:
    columns = ["", "runs", "seconds", "steps/s, whole command", "steps/s, training"]
    columns += ["relative to plain PyTorch", *(f"relative to {show_peer(r)}" for r in _others(section))]
    columns += ["peak memory, MiB", "accuracy, %", "share of a core"]
    return [
        "Replay on Split MNIST as above, from the prompt to the table: starting Python, importing, reading the images, "
        "training and testing after each task, on one core. Our runs train together. The others train one run after "
        "the other: the plain loop in one process, Avalanche and Mammoth in one process per run.",
        format_table(columns, [_whole_row(section, r) for r in section.results]),
        "The steps per second are those of all runs together. Those of training leave out the start of the process "
        "and the tests.",
    ]


def _others(section: Measured) -> list[Result]:
    """The peers other than the plain loop, with one seed."""
    return [r for r in section.results if r["case"]["who"] not in ("cclfp", "plain") and r["case"]["seeds"] == 1]


def _whole_row(section: Measured, result: Result) -> list[str]:
    case, runs = result["case"], result["runs"]
    name = (
        f"cclfp `{case['method']}`, {case['how']}"
        if case["who"] == "cclfp"
        else f"{show_peer(result)}, `{case['method']}`"
    )
    peers = section.peers_of(result)
    plain = next((r for r in peers if r["case"]["who"] == "plain"), None)
    compared = [plain, *(r if r in peers else None for r in _others(section))]
    return [
        name,
        str(case["seeds"]),
        format_range([run["whole_seconds"] for run in runs]),
        format_range([run["whole_rate"] for run in runs]),
        format_range([run["train_rate"] for run in runs]),
        *("–" if r is None else f"{format_range(whole_ratios(result, r))}×" for r in compared),
        format_number(max(run["memory_bytes"] for run in runs) / 2**20),
        f"{runs[0]['average_accuracy']:.1f}",
        f"{100 * min(run['cpu_share'] for run in runs):.0f} %",
    ]


def show_cluster(section: Measured, charts: Charts) -> list[str]:
    idle = [r for r in section.results if r["case"]["method"] == "idle"]
    rows = [{"x": r["cohorts"], "series": "cclfp", "rate": r["cohorts_per_second"], **_mebibytes(r)} for r in idle]
    panels = [("rate", "cohorts per second"), ("memory", "memory of the driver, MiB")]
    parts = [
        f"Cohorts that do nothing, {idle[-1]['cohorts']:,} of them: each is a Ray task, whose record the driver writes "
        f"into the store. A private Ray cluster on this machine; {_rate_of(idle)} cohorts per second in all, and "
        f"{format_number(rows[0]['memory'])} MiB of memory after the first tenth, {format_number(rows[-1]['memory'])} "
        "MiB in the end.",
        charts.lines(
            section.chart, rows, f"The cost of Ray, {section.hardware}", "cohorts so far", panels, same_scale=False
        ),
    ]
    if section.find(place="ray") is None:
        return parts
    seconds = {place: _mean(section, place, "seconds") for place in ("local", "ray")}
    table = [
        [place, format_number(seconds[place]), format_number(_mean(section, place, "startup_seconds"))]
        for place in seconds
    ]
    runs = section.results[-1]["runs"]
    return [
        *parts,
        f"{runs} runs of `er` on Split MNIST in minibatches of 50, on {section.document['machine']['cores']} cores, "
        "without Ray and on it, twice each in turn: the time from the first finished run to the last, and the time "
        f"until then. On Ray this takes {_difference(seconds['ray'], seconds['local'])}.",
        format_table(["", "seconds", "seconds until the first run is finished"], table),
    ]


def _mebibytes(result: Result) -> dict[str, float]:
    return {"memory": result["driver_bytes"] / 2**20}


def _rate_of(idle: list[Result]) -> str:
    """The speed over all parts, which have the same number of cohorts."""
    return format_number(len(idle) / sum(1 / r["cohorts_per_second"] for r in idle))


def _difference(ours: float, other: float) -> str:
    return f"{abs(100 * (ours / other - 1)):.1f} % {'longer' if ours >= other else 'less time'}"


def _mean(section: Measured, place: str, field: str) -> float:
    values = [r[field] for r in section.results if r["case"].get("place") == place]
    return float(sum(values) / len(values))


def show_precision(result: Result) -> str:
    """The precision, and whose kernels: bf16 has its own, but was measured before them too."""
    precision = str(result["case"]["precision"])
    is_stacked = any("stacked kernels" in note for note in result["notes"])
    return precision if precision != "bf16" or is_stacked else f"{precision}, PyTorch's kernels"


def show_networks(section: Measured, charts: Charts) -> list[str]:
    def eager_of(r: Result) -> Result | None:
        return section.find(benchmark=r["case"]["benchmark"], method=r["case"]["method"], engine="eager")

    columns: dict[str, Callable[[Result], str]] = {
        "": lambda r: BENCHMARKS[r["case"]["benchmark"]],
        "method": lambda r: f"`{r['case']['method']}`",
        "engine": lambda r: f"{engine_used(r)}, {show_precision(r)}",
        "runs at once": lambda r: str(r["case"]["replicas"]),
        "ms per step of one run": lambda r: format_number(r["step_ms"]),
        "speed relative to eager": lambda r: format_ratio(e["step_ms"] / r["step_ms"]) if (e := eager_of(r)) else "–",
        "GiB": lambda r: format_number(r["memory_bytes"] / 2**30),
    }
    points = [
        Point(f"{BENCHMARKS[c['benchmark']]}, {c['engine']} {c['precision']}", c["engine"], r["step_ms"])
        for r in section.results
        if (c := r["case"])["method"] == "ccl-fp+"
    ]
    return [
        "ResNet18, 10 new and 10 replayed examples per step with random crops and flips; only the training steps of "
        "the third task are measured.",
        table_of(section.results, columns),
        *(
            [charts.bars(section.chart, points, "One step of CCL-FP+ with ResNet18", section.hardware, STEP_TITLE)]
            if len(points) > 1
            else []
        ),
    ]


def show_stacked(section: Measured, charts: Charts) -> list[str]:
    operations, peak = json.loads(FLOPS.read_text()), PEAK.get(section.hardware)

    def share(r: Result) -> str:
        gigaflop = operations[r["case"]["benchmark"]].get(r["case"]["method"])
        return f"{100 * gigaflop / r['step_ms'] / peak:.0f} %" if gigaflop and peak else "–"

    columns: dict[str, Callable[[Result], str]] = {
        "": lambda r: BENCHMARKS[r["case"]["benchmark"]],
        "method": lambda r: f"`{r['case']['method']}`",
        "runs at once": lambda r: str(r["case"]["replicas"]),
        "ms per step of one run": lambda r: format_number(r["step_ms"]),
        "share of the peak": share,
        "GiB": lambda r: format_number(r["memory_bytes"] / 2**30) if r["memory_bytes"] else "–",
    }
    return [
        "ResNet18, class scenario, in bf16: all runs are trained as one network, in kernels of our own. The "
        "numbers are those of the steps inside the graph: over all five tasks of Split CIFAR-10, and over the third "
        "and fourth task of Split Tiny ImageNet. The steps of GEM, A-GEM and HAL cost more in later tasks. HAL takes "
        "second derivatives, which the kernels lack: from its second task on its runs train side by side, in PyTorch's "
        "kernels.",
        table_of(section.results, columns),
        "The share of the peak relates the operations of plain PyTorch's step (`bench/flops.py`), two per "
        f"multiply-add, to the {peak or 'unknown'} TFLOP/s that the data sheet of the {section.hardware} gives "
        "for dense bf16 products. GiB is the most that PyTorch had allocated. Two measurements of one case differed "
        "by up to 13 %, with other cases before it.",
    ]


def show_forked(section: Measured, charts: Charts) -> list[str]:
    def forked(r: Result) -> list[float]:
        other = section.find(method=r["case"]["method"], scenario=r["case"]["scenario"], how="forked")
        assert other is not None  # measured in the same group
        return list(other["accuracies"])

    columns: dict[str, Callable[[Result], str]] = {
        "method": lambda r: f"`{r['case']['method']}`",
        "scenario": lambda r: str(r["case"]["scenario"]),
        "stacked, %": lambda r: _mean_and_deviation(r["accuracies"]),
        "forked, %": lambda r: _mean_and_deviation(forked(r)),
        "difference": lambda r: _mean_and_deviation([a - b for a, b in zip(r["accuracies"], forked(r), strict=True)]),
    }
    return [
        "Final average accuracy on Split CIFAR-10 in bf16, mean ± standard deviation over 5 seeds: trained as one "
        "network in our kernels, and as five networks in PyTorch's. The last column is the difference seed by seed.",
        table_of([r for r in section.results if r["case"]["how"] == "stacked"], columns),
    ]


def _mean_and_deviation(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def show_grid(section: Measured, charts: Charts) -> list[str]:
    eager = section.find(engine="eager")

    def of_whole(r: Result, field: str) -> str:
        return format_number(r[field]) if r["case"]["tasks"] is None else "–"

    columns: dict[str, Callable[[Result], str]] = {
        "engine": lambda r: f"{engine_used(r)}, {r['case']['precision']}",
        "runs at once": lambda r: str(r["case"]["replicas"]),
        "steps/s": lambda r: of_whole(r, "whole_rate"),
        "seconds": lambda r: of_whole(r, "whole_seconds"),
        "steps/s, steps only": lambda r: format_number(step_rate(r)),
        "relative to eager": lambda r: format_ratio(step_rate(r) / step_rate(eager)) if eager else "–",
    }
    return [
        "48 configurations of CCL-FP+ (w, α and β vary) with 5 seeds each on Split MNIST, class scenario. The first "
        "steps/s are those of the whole stream: they include planning, recording, and testing "
        "after every task.",
        table_of(section.results, columns),
    ]


def show_methods(section: Measured, charts: Charts) -> list[str]:
    rows, points, remarks = [], [], []
    fast_engine = next(r["case"]["engine"] for r in section.results if r["case"]["engine"] != "eager")
    er = section.find(method="er", engine="eager")
    for method in dict.fromkeys(r["case"]["method"] for r in section.results):
        eager, fast = (section.find(method=method, engine=engine) for engine in ("eager", fast_engine))
        if eager is None or fast is None:
            continue
        rows.append(
            [
                f"`{method}`",
                format_number(eager["step_ms"]),
                format_number(eager["step_ms"] / er["step_ms"]) if er else "–",
                format_number(fast["step_ms"]),
                format_ratio(eager["step_ms"] / fast["step_ms"]),
            ]
        )
        points += [Point(method, r["case"]["engine"], r["step_ms"]) for r in (eager, fast)]
        remarks += [f"- `{method}`: {note}" for note in dict.fromkeys(fast["notes"])]
        if engine_used(fast) != fast_engine and not fast["notes"]:
            remarks.append(f"- `{method}`: {engine_used(fast)}")
    columns = ["", "eager, ms", "in steps of `er`", f"{fast_engine}, 5 runs, ms", "speed relative to eager"]
    return [
        "Milliseconds per step of one run in the last of the five tasks of Split MNIST, class scenario; only the "
        "training steps are measured.",
        format_table(columns, rows),
        "\n".join(remarks),
        charts.dots(section.chart, points, "One step of each method on Split MNIST", section.hardware, STEP_TITLE),
    ]


Show = Callable[[Measured, Charts], list[str]]
SECTIONS: dict[str, tuple[str, Show]] = {
    "peers": ("Comparison with Avalanche", show_peers),
    "whole": ("From prompt to table", show_whole),
    "cluster": ("The cost of Ray", show_cluster),
    "networks": ("ResNet18", show_networks),
    "stacked": ("ResNet18, stacked runs", show_stacked),
    "forked": ("Accuracy with stacked kernels", show_forked),
    "grid": ("A grid at once", show_grid),
    "methods": ("Every method", show_methods),
}
