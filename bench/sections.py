"""The sections of RESULTS.md: each function returns the paragraphs of one section as Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

from charts import Charts, Point
from formatting import format_number, format_ratio, format_table, table_of
from measured import BENCHMARKS, Measured, Result, engine_used, median, ratio, step_rate

STEP_TITLE = "milliseconds per step of one run"
FLOPS = Path(__file__).parent / "flops.json"  # GFLOP per step, by benchmark and method
PEERS = {"capymoa": "CapyMOA", "avalanche": "Avalanche", "mammoth": "Mammoth"}
JOB_NAMES = {"er_ace": "`examples/er_ace.py`", "grid": "a grid of `er`, 100 runs"}
PEAK = {"NVIDIA H200": 989}  # TFLOP/s, dense bf16, from its data sheet


def show_first_run(section: Measured, charts: Charts) -> list[str]:
    torch, before = section.find(who="import torch"), section.find(who="before")
    columns: dict[str, Callable[[Result], str]] = {
        "": lambda r: JOB_NAMES.get(r["case"]["method"], f"`{r['case']['method']}`"),
        "cores": lambda r: str(r["case"]["cores"]),
        "`cclfp`": lambda r: format_number(median(r, "seconds")),
        "again": lambda r: format_number(median(r, "again_seconds")),
        "eager": lambda r: _beside(section, r, "eager"),
        f"earlier, {before['commit']}" if before else "earlier": lambda r: _beside(section, r, "before"),
        "plain PyTorch loop": lambda r: _beside(section, r, "plain"),
    }
    importing = f" Importing torch alone takes {format_number(median(torch, 'seconds'))} s." if torch else ""
    return [
        "Seconds from the prompt to the table: starting Python, importing, reading the images, training and testing "
        "after each task, in a new process with an empty store. Five seeds on Split MNIST, class scenario, one epoch: "
        "10 new and 10 replayed examples per step, memory 200, MLP 784-100-100-10, SGD.",
        *_show_peers(section, charts),
        "The others train one seed after the other on one thread, each as fast as we could make it run "
        "(`bench/peers/README.md`). Every method, and how many times as long the others take:",
        table_of([r for r in section.results if r["case"]["who"] == "default"], columns),
        f"*Again* is the same command once more: all of its runs are stored, and nothing is trained.{importing} "
        "*Earlier* is the eager engine of an earlier version, for the grid its default. All commands of a method run "
        f"one after the other. Where that is repeated, numbers are medians: {_repetitions(section)}.",
    ]


def _repetitions(section: Measured) -> str:
    """How often the commands of each method ran."""
    often = {r["case"]["method"]: len(r["runs"]) for r in section.results}
    return ", ".join(f"{JOB_NAMES.get(method, f'`{method}`')} {count}×" for method, count in often.items())


def _show_peers(section: Measured, charts: Charts) -> list[str]:
    """Replay on one core: a table and a chart of whoever trains it."""
    ours = section.find(method="er", cores=1, who="default")
    if ours is None:
        return []
    results = [r for r in section.results if r["case"]["method"] == "er" and r["case"]["cores"] == 1]
    results = sorted((r for r in results if "steps" in r["runs"][0]), key=lambda r: median(r, "seconds"))
    columns: dict[str, Callable[[Result], str]] = {
        "experience replay on one core": _who,
        "seconds": lambda r: format_number(median(r, "seconds")),
        "times as long as `cclfp`": lambda r: format_ratio(ratio(ours, r)),
        "steps/s, training": lambda r: format_number(median(r, "steps_per_second")),
        "peak memory, MiB": lambda r: format_number(median(r, "memory_bytes") / 2**20),
        "accuracy, %": lambda r: f"{r['runs'][0]['average_accuracy']:.1f}",
        "share of the core": lambda r: f"{100 * min(run['cpu_share'] for run in r['runs']):.0f} %",
    }
    points = [
        Point(_who(r).replace("`", ""), "cclfp" if r is ours else "others", median(r, "seconds")) for r in results
    ]
    title = "Experience replay from prompt to table"
    return [
        table_of(results, columns),
        charts.bars(section.chart, points, title, section.hardware, "seconds, five seeds on one core"),
    ]


def _who(result: Result) -> str:
    who, version = result["case"]["who"], result["runs"][0].get("version")
    names = {
        "default": "`cclfp`",
        "eager": "`cclfp`, eager",
        "before": f"`cclfp` at {result['commit']}, eager",
        "plain": "a plain PyTorch loop",
    }
    return names.get(who) or f"{PEERS[who]} {version}"


def _beside(section: Measured, result: Result, who: str) -> str:
    """The seconds of another command for the same, and their ratio."""
    case = result["case"]
    other = section.find(method=case["method"], cores=case["cores"], who=who)
    return "–" if other is None else f"{format_number(median(other, 'seconds'))} ({format_ratio(ratio(result, other))})"


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


def show_passes(section: Measured, charts: Charts) -> list[str]:
    whole = {r["case"]["method"]: r["step_ms"] for r in section.results if not r["case"]["without"]}
    columns: dict[str, Callable[[Result], str]] = {
        "": lambda r: f"`{r['case']['method']}`",
        "left out": lambda r: f"`{r['case']['without']}`" if r["case"]["without"] else "nothing",
        STEP_TITLE: lambda r: format_number(r["step_ms"]),
        "difference": lambda r: f"{100 * (r['step_ms'] / whole[r['case']['method']] - 1):+.0f} %",
    }
    return [
        "A traced step is a list of tensor operations, which several passes shorten "
        "(`src/cclfp/engine/operations.py`). Five runs train together in the last task of Split MNIST, each time "
        "without one of the passes, one case after the other.",
        table_of([r for r in section.results if r["case"]["method"] in whole], columns),
    ]


Show = Callable[[Measured, Charts], list[str]]
SECTIONS: dict[str, tuple[str, Show]] = {
    "first-run": ("From prompt to table", show_first_run),
    "cluster": ("The cost of Ray", show_cluster),
    "networks": ("ResNet18", show_networks),
    "stacked": ("ResNet18, stacked runs", show_stacked),
    "forked": ("Accuracy with stacked kernels", show_forked),
    "grid": ("A grid at once", show_grid),
    "methods": ("Every method", show_methods),
    "passes": ("The clean-up of traced steps", show_passes),
}
