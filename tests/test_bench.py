"""The benchmark counts steps, time and ratios correctly."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import measure
import pytest
import scaling
from case import Case, Run, Task, make_stream
from charts import BENCH_STYLES, Charts, Point
from estimate import StepModel, fixed_part, minutes, step_times
from flops import count
from formatting import format_number
from growth import read_bends
from measure import chosen_sections, take_turns
from measured import FORMAT, Measured, read
from render import ORDER, quote, render_document, show_machines
from suites import SECTIONS
from whole import ROWS, Row, _command, _time

from cclfp.engine import compiled
from cclfp.learner import Learner
from cclfp.methods import METHODS
from cclfp.paper.numbers import cells
from cclfp.report.styles import DARK_COLOURS, LIGHT_COLOURS
from cclfp.streams import BENCHMARKS

BENCH = Path(__file__).parents[1] / "bench"
TINY = {"er": 3.0, "gem": 7.0}  # milliseconds per step on Split Tiny ImageNet
LITTLE = Case("peers", "er", "split-mnist", "eager", seeds=2, tasks=3, examples=30, last=200)


@pytest.mark.parametrize(
    "reports", [[1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 3, 4], [2, 4]], ids=["together", "in turn", "two"]
)
def test_replica_steps_are_counted_however_an_engine_reports_them(reports: list[int]) -> None:
    task = Task(steps=4)
    for i, step in enumerate(reports):
        task.add_progress(step)
        task.edges.append((float(i), task.reported))
    a_report = 8 / len(reports)  # replica-steps of two replicas
    assert task.windows(replicas=2, shortest=0.5) == pytest.approx([1 / a_report] * (len(reports) - 1))


def test_short_windows_count_only_where_there_is_no_other() -> None:
    task = Task(steps=3)
    task.add_progress(3)
    task.edges = [(0.0, 0), (1.0, 1), (1.1, 2), (1.4, 3)]
    assert task.windows(1, shortest=0.5) == pytest.approx([1.0])
    assert task.windows(1, shortest=2.0) == pytest.approx([1.0, 0.1, 0.3])


def test_a_case_is_measured_in_its_last_task(monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = Learner.train_step

    def slow_step(self: Learner, *arguments: Any) -> Any:
        time.sleep(0.002)
        return train_step(self, *arguments)

    monkeypatch.setattr(Learner, "train_step", slow_step)
    (measured,) = take_turns([Run(LITTLE, "random", window=0.05)])
    assert measured["steps"] == 20  # of each replica
    assert measured["windows"] > 1
    assert measured["step_ms"] > 2
    assert measured["train_rate"] < 500
    assert measured["whole_seconds"] > 2 * (3 + 3 + 20) * 0.002
    assert measured["engine_used"] == "eager"


def test_the_turns_of_others_are_not_counted() -> None:
    class Sleeper:
        turns = 0

        def turn(self) -> dict[str, Any] | None:
            time.sleep(0.2)
            self.turns += 1
            return {} if self.turns == 4 else None

    case = dataclasses.replace(LITTLE, tasks=2, last=None)
    measured, _ = take_turns([Run(case, "random", window=0.0), Sleeper()])
    assert measured["whole_seconds"] < 0.7
    assert measured["step_ms"] < 100


def test_an_error_in_a_case_is_raised() -> None:
    run = Run(dataclasses.replace(LITTLE, method="nonsense"), "random", window=1.0)
    with pytest.raises(ValueError, match="nonsense"):
        take_turns([run])


def test_streams_have_the_sizes_asked_for(small_mnist: Path) -> None:
    for images in ("real", "random"):
        stream = make_stream(LITTLE, images, 0)
        assert [len(rows) for rows in stream.train_rows] == [30, 30, 200, 30, 30]
        assert all(
            set(stream.train.y[rows].tolist()) == set(c)
            for rows, c in zip(stream.train_rows, stream.classes, strict=True)
        )
        whole = make_stream(dataclasses.replace(LITTLE, examples=None, last=None), images, 0)
        assert sum(map(len, whole.train_rows)) == len(whole.train.y) == (1500 if images == "real" else 60_000)
    side = Case("side", "er", "split-cifar10", "eager", side=40, examples=20)
    assert make_stream(side, "real", 0).train.x.shape[1:] == (3, 40, 40)
    many = Case("tasks", "er", "permuted-mnist", "eager", scenario="domain", stream_tasks=30, examples=10, last=50)
    assert [len(rows) for rows in make_stream(many, "real", 0).train_rows] == [10] * 29 + [50]


def test_the_classes_of_a_real_stream_come_in_the_benchmarks_own_order(small_data: Path) -> None:
    stream = make_stream(Case("stacked", "er", "split-tiny-imagenet", "eager", examples=5), "real", 0)
    order = BENCHMARKS["split-tiny-imagenet"].usual_order
    assert order is not None
    assert [c for classes in stream.classes for c in classes] == list(order)


def test_all_cases_can_be_asked_for() -> None:
    for device in ("cpu", "cuda"):
        for section, _ in chosen_sections(["all"], [device]):
            for quick in (True, False):
                cases = [case for group in section.groups(device, quick) for case in group]
                assert all(case.section == section.name and case.device == device for case in cases)
                assert len({str(case.to_dict()) for case in cases}) == len(cases)
    (grid,) = (section for section in SECTIONS if section.name == "grid")
    assert grid.groups("cuda", False)[-1][0].replicas == 240
    assert [s.name for s, _ in chosen_sections(["scaling"], ["cpu"])] == ["replicas", "memory", "tasks", "side"]
    assert {s.name for s, _ in chosen_sections(["cuda"], ["cpu", "cuda"])} == {
        "networks",
        "stacked",
        "forked",
        "compiled",
        "grid",
        "methods",
    }


@pytest.mark.slow
def test_measuring_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys\n"
        "for name in ('jinja2', 'platformdirs', 'rich', 'typer'): sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(BENCH)!r})\n"
        "import measure\n"
        "print(measure.machine())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def fake(section: str, device: str, cases: list[tuple[Case, float]]) -> Measured:
    speeds = dict.fromkeys(("between_ms", "test_ms", "compile_seconds", "setup_seconds", "accuracy"), 0.0)
    results = [
        {
            "case": case.to_dict(),
            **speeds,
            "step_ms": step,
            "train_rate": 900 / step,
            "whole_rate": 800 / step,
            "whole_seconds": 1.0,
            "cpu_share": 1.0,
            "memory_bytes": 2**30,
            "engine_used": case.engine,
            "notes": ["it was hard"],
        }
        for case, step in cases
    ]
    machine = {"processor": "A CPU", "gpu": "A GPU", "cuda": "13", "cores": 2, "memory_bytes": 2**34, "load": 0.1}
    machine |= {"commit": "0123456789abcdef+", "cclfp": "0", "python": "3", "torch": "2", "numpy": "2"}
    top = {"started_at": "2026-01-01", "quick": False, "images": "real", "machine": machine, "command": "measure"}
    return Measured(section, device, results, top, (top,) * len(results))


def test_ratios_are_of_the_same_run(tmp_path: Path) -> None:
    peers = fake("peers", "cpu", [(LITTLE, 1.0), (dataclasses.replace(LITTLE, engine="compiled", seeds=5), 0.25)])
    avalanche = {"version": "0.6.0", "seconds": 10.0, "cpu_seconds": 9.0, "average_accuracy": 80.0, "tasks": 5}
    for data, rate in (("tensors", 300.0), ("images", 150.0)):
        peers.results.append({"case": {"method": "avalanche"}, "data": data, "train_rate": rate, **avalanche})
    text = render_document([peers], Charts(tmp_path))
    assert "3,600 steps/s, 12.0× (tensors) and 24.0× (images) the speed of Avalanche's replay" in text
    assert "| 3,600 | 4.00× | 12.0× | 24.0× |" in text
    assert "A CPU, 2 cores, 16 GiB" in text


def whole(who: str, rates: list[float], seeds: int = 5, how: str = "") -> dict[str, Any]:
    runs = [
        {"whole_seconds": 6002 * seeds / rate, "whole_rate": rate, "train_rate": 2 * rate, "memory_bytes": 2**29}
        | {"average_accuracy": 80.0, "cpu_share": 0.98, "version": "1.2"}
        for rate in rates
    ]
    return {"case": Row(who, "er", seeds, how).to_dict(), "runs": runs}


def test_whole_runs_have_a_range_of_ratios(tmp_path: Path) -> None:
    shown = fake("whole", "cpu", [])
    shown.results.append(whole("plain", [1000.0, 500.0, 800.0]))
    shown.results.append(whole("plain", [900.0], seeds=1))
    shown.results.append(whole("mammoth", [100.0], seeds=1))
    shown.results.append(whole("mammoth", [90.0], seeds=5))
    shown.results.append(whole("cclfp", [2500.0, 2000.0, 2400.0], how="compiled, warm"))
    text = render_document([shown], Charts(tmp_path))
    assert (
        "warm, from prompt to table: 12.0–15.0 s; its speed is 2.50–4.00× a plain PyTorch loop; 20.0–25.0× Mammoth 1.2"
        in text
    )
    assert text.count("× Mammoth 1.2") == 1  # ratios are to a run with one seed
    assert "| Mammoth 1.2, `er` | 1 | 60.0 | 100 | 200 | 0.111× | 1.00× | 512 | 80.0 | 98 % |" in text
    assert "| Mammoth 1.2, `er` | 5 | 333 | 90.0 | 180 | 0.0900× | 0.900× | 512 | 80.0 | 98 % |" in text
    ours = "| 5 | 12.0–15.0 | 2,000–2,500 | 4,000–5,000 | 2.50–4.00× | 20.0–25.0× | 512 | 80.0 | 98 % |"
    assert f"| cclfp `er`, compiled, warm {ours}" in text


def test_accuracies_are_compared_seed_by_seed(tmp_path: Path) -> None:
    shown = fake("forked", "cuda", [])
    for how, accuracies in (("stacked", [40.0, 44.0]), ("forked", [41.0, 43.0])):
        case = {"method": "er", "scenario": "class", "how": how}
        shown.results.append({"case": case, "accuracies": accuracies})
    text = render_document([shown], Charts(tmp_path))
    assert "| `er` | class | 42.00 ± 2.83 | 42.00 ± 1.41 | 0.00 ± 1.41 |" in text


def test_a_measurement_that_is_stopped_is_kept_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "measured.json"
    groups = iter([[{"case": {}, "step_ms": 1.0}], [{"case": {}, "step_ms": 2.0}]])

    def stopping(*arguments: Any) -> Any:
        yield next(groups)
        assert json.loads(out.read_text())["stopped"] == "before its end"
        if stops:
            raise KeyboardInterrupt
        yield next(groups)

    monkeypatch.setattr(measure, "measure", stopping)
    monkeypatch.setattr(sys, "argv", ["measure.py", "--suite", "peers", "--device", "cpu", "--out", str(out)])
    stops = True
    with pytest.raises(KeyboardInterrupt):
        measure.main()
    document = json.loads(out.read_text())
    assert (len(document["sections"][0]["results"]), document["stopped"]) == (1, "before its end")
    stops, groups = False, iter([[{"case": {}}], [{"case": {}}]])
    measure.main()
    document = json.loads(out.read_text())
    assert (len(document["sections"][0]["results"]), "stopped" in document) == (2, False)


def test_the_readme_quotes_the_whole_runs() -> None:
    quoted = quote(read(sorted((BENCH / "results").glob("*.json")), ORDER))
    readme = " ".join((BENCH.parent / "README.md").read_text(encoding="utf-8").split())
    assert quoted is None or quoted in readme


def test_what_is_quoted() -> None:
    shown = fake("whole", "cpu", [])
    shown.results.append(whole("plain", [1000.0, 500.0, 800.0]))
    shown.results.append(whole("plain", [900.0], seeds=1))
    shown.results.append(whole("cclfp", [1000.0], how="compiled, cold"))
    shown.results.append(whole("cclfp", [2500.0, 2000.0, 2400.0], how="compiled, warm"))
    assert quote([shown]) is None
    shown.results.append(whole("cclfp", [1800.0, 2700.0], seeds=1, how="compiled, warm"))
    quoted = str(quote([shown]))
    assert "five seeds that train together takes 12.0–15.0 s from prompt to table (30.0 s the first time" in quoted
    assert "2.50–4.00 times the speed of a plain PyTorch loop, – times that of Avalanche" in quoted
    assert "A single seed runs at 2.00–3.00 times the speed of the plain loop." in quoted


def test_a_command_is_timed() -> None:
    times, printed = _time([sys.executable, "-c", "import time; time.sleep(0.2); print('done')"], dict(os.environ))
    assert printed == "done\n"
    assert 0.2 < times["whole_seconds"] < 20
    assert times["memory_bytes"] > 2**20
    with pytest.raises(SystemExit, match="no such thing"):
        _time([sys.executable, "-c", "raise SystemExit('no such thing')"], dict(os.environ))


def test_every_command_of_ours_can_be_read() -> None:
    for row in ROWS:
        if row.who == "cclfp":
            _, *given = _command(row, Path("runs.sqlite"))[_command(row, Path("runs.sqlite")).index("run") :]
            assert given[:4] == [row.method, "split-mnist", "--seeds", str(row.seeds)]


def test_every_section_is_shown(tmp_path: Path) -> None:
    sections = []
    for device in ("cpu", "cuda"):
        for section, _ in chosen_sections(["all"], [device]):
            cases = [case for group in section.groups(device, False) for case in group]
            if cases:
                sections.append(fake(section.name, device, [(case, 2.0) for case in cases]))
    text = render_document(sections, Charts(tmp_path))
    for title in (
        "Comparison with Avalanche",
        "ResNet18",
        "ResNet18, stacked runs",
        "ResNet18, compiled",
        "A grid at once",
        "Every method",
        "The paper's accuracy table",
        "How cost grows",
    ):
        assert f"## {title}" in text
    for shown in sections:
        has_chart = shown.name not in ("grid", "stacked", "compiled")
        assert (f"(charts/{shown.chart}.svg)" in text) == has_chart
        assert (tmp_path / "charts" / f"{shown.chart}.svg").exists() == has_chart
    assert "240 runs of `ccl-fp+` on Split MNIST: 400 steps/s" in text
    assert "- `gem` at 20: it was hard" in text
    assert "- `gem`: it was hard" in text
    assert "nan" not in text


def test_the_cost_of_ray_is_shown(tmp_path: Path) -> None:
    idle = {"section": "cluster", "method": "idle", "device": "cpu"}
    cluster = dataclasses.replace(fake("cluster", "cpu", []), results=[])
    for part in range(1, 11):
        rate = 500.0 if part % 2 else 250.0
        cluster.results.append({"case": idle, "cohorts": 100 * part, "cohorts_per_second": rate, "driver_bytes": 2**28})
    for place, seconds in (("local", 100.0), ("ray", 104.0), ("ray", 102.0), ("local", 100.0)):
        case = {**idle, "method": "er", "place": place}
        cluster.results.append({"case": case, "runs": 100, "seconds": seconds, "startup_seconds": 5.0})
    text = render_document([cluster], Charts(tmp_path))
    assert "Cohorts that do nothing, 1,000 of them" in text
    assert "333 cohorts per second in all" in text
    assert "256 MiB of memory after the first tenth, 256 MiB in the end" in text
    assert "On Ray this takes 3.0 % longer." in text
    assert "| ray | 103 | 5.00 |" in text
    assert (tmp_path / "charts" / f"{cluster.chart}.svg").exists()


def test_cohorts_go_to_the_card_that_is_free_first() -> None:
    assert scaling.schedule([5.0, 4.0, 3.0, 2.0], cards=1) == 14.0
    assert scaling.schedule([5.0, 4.0, 3.0, 2.0], cards=2) == 7.0
    assert scaling.schedule([5.0, 4.0, 3.0, 2.0], cards=9) == 5.0


def test_the_time_of_a_step_without_replicas() -> None:
    small, large = (dataclasses.replace(LITTLE, seeds=seeds) for seeds in (1, 5))
    section = fake("replicas", "cuda", [(small, 4.0), (large, 1.6)])  # per replica: 4 ms for one, 8 ms for five
    assert fixed_part(section, "split-mnist", 1, 5) == pytest.approx(3.0)  # 3 ms, and 1 ms per replica


def test_the_estimate_of_scaling_is_that_of_the_committed_measurements() -> None:
    page = scaling.PAGE.read_text(encoding="utf-8")
    assert scaling.table(scaling.measured()) in page, "bench/scaling.py --write"


def texts_of(path: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_a_bar_has_its_value_beside_it(tmp_path: Path) -> None:
    points = [Point("Avalanche", "Avalanche", 302.4), Point("ours & fast", "cclfp", 5210.0)]
    shown = Charts(tmp_path).bars("peers", points, "Speed", "A CPU", "steps per second")
    assert shown == "![Speed](charts/peers.svg)"
    texts = texts_of(tmp_path / "charts" / "peers.svg")
    assert {"Speed", "A CPU", "steps per second", "Avalanche", "ours & fast", "302", "5,210"} <= set(texts)
    assert "missing" not in texts


@pytest.mark.parametrize("same_scale", [True, False])
def test_lines_are_logarithmic_and_leave_out_what_is_not_positive(tmp_path: Path, same_scale: bool) -> None:
    rows = [{"x": x, "series": "er", "a": 10.0 * x, "b": 7.0 / x} for x in (1, 10, 100)]
    rows += [{"x": x, "series": "gem", "a": 5.0, "b": 0.0} for x in (1, 10, 100)]
    Charts(tmp_path).lines("growth", rows, "Growth", "runs", [("a", "first"), ("b", "second")], same_scale=same_scale)
    drawn = (tmp_path / "charts" / "growth.svg").read_text()
    lines = re.findall(r'<path class="curve k-(\w+)[^>]* data-series="\w+" d="([^"]*)"', drawn)
    assert [name for name, _ in lines] == ["gem", "er", "er"]  # gem is not in the second panel
    points = [[float(part) for part in point.split()] for point in re.findall(r"[ML]([\d. ]+)", lines[1][1])]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    texts = texts_of(tmp_path / "charts" / "growth.svg")
    assert {"Growth", "first", "second", "1", "10", "100", "runs (log scale)", "log scale"} <= set(texts)
    assert not any("missing" in text for text in texts)
    assert (texts.count("1,000") == 2) == same_scale  # a tick of the first panel's axis


def test_charts_have_dark_colours_for_dark_pages(tmp_path: Path) -> None:
    Charts(tmp_path).dots("methods", [Point("er", "eager", 1.0), Point("er", "graph", 0.1)], "T", "A GPU", "ms")
    light, _, dark = (tmp_path / "charts" / "methods.svg").read_text().partition("@media (prefers-color-scheme:dark)")
    for colours, drawn in ((LIGHT_COLOURS, light), (DARK_COLOURS, dark)):
        assert f"svg.chart .page{{fill:{colours['paper']}}}" in drawn
        assert f"svg.chart .heading{{font-size:15px;font-weight:600;fill:{colours['ink']}}}" in drawn
    assert f".k-eager{{color:{BENCH_STYLES['eager'].dark}}}" in dark
    assert '<rect class="page"' in dark


def test_lines_of_two_engines_are_told_apart(tmp_path: Path) -> None:
    engines, sizes = ("compiled", "eager"), (200, 500)
    cases = [Case("memory", "gem", "split-mnist", engine, memory=size) for engine in engines for size in sizes]
    text = render_document([fake("memory", "cpu", [(case, 2.0) for case in cases])], Charts(tmp_path))
    assert "| gem: one training step, ms per run | 2.00 | 2.00 |" in text
    assert "| gem, eager: one training step, ms per run | 2.00 | 2.00 |" in text


def test_gem_has_enough_steps_to_be_compiled() -> None:
    (section,) = (section for section in SECTIONS if section.name == "memory")
    cases = [case for group in section.groups("cpu", False) for case in group if case.method == "gem"]
    for case in cases:
        steps = (case.last or 0) // 10 * case.replicas
        assert (steps >= compiled.WORTH) == (case.engine == "compiled")


def test_an_estimate_is_of_measured_steps() -> None:
    """Here all steps take a millisecond, but on Split Tiny ImageNet those of ER take three, and GEM's take seven."""
    stacked = [Case("stacked", method, "split-cifar10", "graph", "cuda", seeds=10) for method in METHODS]
    tiny = [(dataclasses.replace(stacked[0], method=m, benchmark="split-tiny-imagenet"), ms) for m, ms in TINY.items()]
    mlp = [Case("methods", method, "split-mnist", "graph", "cuda", seeds=5) for method in METHODS]
    times = step_times(
        fake("stacked", "cuda", [*((case, 1.0) for case in stacked), *tiny]),
        fake("methods", "cuda", [(case, 1.0) for case in mlp]),
    )
    model = StepModel(times, {"mlp": 0.0, "resnet18": 0.0})
    several = [c for c in cells("accuracy") if c.configuration.scenario == "class"]
    found = {(c.configuration.method, c.configuration.benchmark): minutes(c, model) for c in several}
    assert found["er", "split-mnist"] == pytest.approx(5 * 6_000 / 60_000)
    assert found["er", "split-cifar100"] == pytest.approx(5 * 5_000 / 60_000)
    assert found["er", "split-tiny-imagenet"] == pytest.approx(3 * 5 * 10_000 / 60_000)
    assert found["gem", "split-tiny-imagenet"] == pytest.approx(7 * 5 * 10_000 / 60_000)
    assert found["si", "split-tiny-imagenet"] == pytest.approx(3 * 5 * 10_000 / 60_000)  # by ER's factor
    idle = StepModel(times, {"mlp": 0.0, "resnet18": 5.0})  # a step without runs would take as long as 5 of them do
    er = {c.configuration.benchmark: c for c in several if c.configuration.method == "er"}
    assert [idle.milliseconds(er["split-cifar10"], runs) for runs in (10, 5, 1)] == pytest.approx([10, 20 / 3, 4])
    assert minutes(er["split-cifar10"], idle) == pytest.approx(5_000 * 20 / 3 / 60_000)
    assert minutes(er["split-mnist"], idle) == found["er", "split-mnist"]


def test_operations_of_a_step_are_those_of_its_convolutions() -> None:
    """20 images: forwards, and backwards twice that, except that nobody wants the gradient of the images."""
    operations = [2 * 9 * 3 * 64 * 32**2, *([2 * 9 * 64 * 64 * 32**2] * 4)]
    for width, side in ((128, 16), (256, 8), (512, 4)):
        operations += [2 * (9 + 1) * (width // 2) * width * side**2, *([2 * 9 * width * width * side**2] * 3)]
    expected = 20 * (3 * sum(operations) - operations[0])
    assert count(Case("stacked", "er", "split-cifar10", "graph", "cuda", tasks=1)) == pytest.approx(expected, rel=1e-3)


def write_measured(folder: Path, day: int, cases: list[tuple[Case, float]], **more: Any) -> None:
    one = fake("stacked", "cpu", cases)
    sections = [{"name": "stacked", "device": "cpu", "seconds": 1, "results": more.pop("results", one.results)}]
    top = {**one.document, "format": FORMAT, "started_at": f"2026-01-0{day}", "sections": sections, **more}
    (folder / f"{day}.json").write_text(json.dumps(top), encoding="utf-8")


ER, HAL, GEM = (dataclasses.replace(LITTLE, section="stacked", method=method) for method in ("er", "hal", "gem"))


def test_the_newest_of_a_section_counts(tmp_path: Path) -> None:
    write_measured(tmp_path, 2, [(ER, 2.0)])
    write_measured(tmp_path, 1, [(ER, 1.0), (HAL, 1.0)])
    (kept,) = read(tmp_path.glob("*.json"), ORDER)
    assert [r["step_ms"] for r in kept.results] == [2.0]
    assert re.findall(r"2026-01-\d\d", show_machines([kept])) == ["2026-01-02"]


def test_measured_again_for_some_methods_only(tmp_path: Path) -> None:
    def steps() -> list[tuple[str, float]]:
        (kept,) = read(tmp_path.glob("*.json"), ORDER)
        days.append(re.findall(r"2026-01-\d\d", show_machines([kept])))
        return [(r["case"]["method"], r["step_ms"]) for r in kept.results]

    days: list[list[str]] = []
    write_measured(tmp_path, 1, [(ER, 1.0), (HAL, 9.0)])
    write_measured(tmp_path, 2, [(HAL, 2.0), (GEM, 3.0)], method="gem,hal")
    assert steps() == [("er", 1.0), ("hal", 2.0), ("gem", 3.0)]
    write_measured(tmp_path, 3, [(GEM, 4.0), (HAL, 5.0)], method="gem,hal")
    assert steps() == [("er", 1.0), ("hal", 5.0), ("gem", 4.0)]
    assert days == [["2026-01-01", "2026-01-02"], ["2026-01-01", "2026-01-03"]]
    write_measured(tmp_path, 4, [(HAL, 6.0)], method="hal", images="random")
    assert steps() == [("hal", 6.0)]


def test_rows_of_one_case_that_differ_in_their_data_stay_apart(tmp_path: Path) -> None:
    peers = [
        {"case": {"method": "avalanche"}, "step_ms": ms, "data": d} for ms, d in ((1.0, "tensors"), (2.0, "images"))
    ]
    write_measured(tmp_path, 1, [], results=peers)
    write_measured(tmp_path, 2, [], results=[{**peers[1], "step_ms": 3.0}], method="er")
    (kept,) = read(tmp_path.glob("*.json"), ORDER)
    assert [(r["data"], r["step_ms"]) for r in kept.results] == [("tensors", 1.0), ("images", 3.0)]


def test_only_the_cases_of_some_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "Run", lambda case, *_: case)
    monkeypatch.setattr(measure, "take_turns", lambda runs: [{"step_ms": 1.0} for _ in runs])
    out = tmp_path / "some.json"
    command = ["measure.py", "--suite", "methods,whole", "--device", "cpu", "--method", "hal,er", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    measure.main()
    written = json.loads(out.read_text())
    assert [section["name"] for section in written["sections"]] == ["methods"]
    assert {r["case"]["method"] for r in written["sections"][0]["results"]} == {"er", "hal"}
    assert written["method"] == "hal,er"
    assert "--method hal,er" in written["command"]
    wrong = {
        "--method nix: expected some of": [*command, "--method", "hal,nix"],
        "--method needs --out": command[:-2],
        "no section for cpu whose cases have a method": [*command, "--suite", "whole"],
    }
    for message, arguments in wrong.items():
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit):
            measure.main()
        assert message in capsys.readouterr().err


def test_numbers_have_three_digits() -> None:
    assert [format_number(x) for x in (0, 0.99996, 0.01234, 12.34, 99.96, 1234.5)] == [
        "0",
        "1.00",
        "0.0123",
        "12.3",
        "100",
        "1,230",
    ]


def test_bends_are_of_charts_that_exist() -> None:
    known = {f"{s.name}, {device}" for s in SECTIONS if s.is_scaling for device in s.devices}
    assert set(read_bends()) == known


def test_results_and_charts_are_those_of_the_committed_measurements(tmp_path: Path) -> None:
    text = render_document(read(sorted((BENCH / "results").glob("*.json")), ORDER), Charts(tmp_path))
    assert (BENCH / "RESULTS.md").read_text(encoding="utf-8") == text, "bench/render.py writes it again"
    drawn = {path.name: path.read_text() for path in (tmp_path / "charts").iterdir()}
    assert {path.name: path.read_text() for path in (BENCH / "charts").iterdir()} == drawn
