"""The benchmark: what it counts, and RESULTS.md, its charts and README.md from its committed measurements."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from case import Case, Run, Task, make_stream
from charts import Charts
from flops import count
from growth import read_bends
from measure import chosen_sections, take_turns
from measured import FORMAT, read
from render import ORDER, quote, render_document
from suites import SECTIONS

BENCH = Path(__file__).parents[1] / "bench"
LITTLE = Case("methods", "er", "split-mnist", "eager", seeds=2, tasks=3, examples=30, last=200)


def test_results_charts_and_readme_are_those_of_the_committed_measurements(tmp_path: Path) -> None:
    sections = read(sorted((BENCH / "results").glob("*.json")), ORDER)
    text = render_document(sections, Charts(tmp_path))
    assert (BENCH / "RESULTS.md").read_text(encoding="utf-8") == text, "bench/render.py writes it again"
    drawn = {path.name: path.read_text() for path in (tmp_path / "charts").iterdir()}
    assert {path.name: path.read_text() for path in (BENCH / "charts").iterdir()} == drawn
    quoted = quote(sections)
    assert quoted is None or quoted in " ".join((BENCH.parent / "README.md").read_text(encoding="utf-8").split())


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
    assert set(read_bends()) == {f"{s.name}, {device}" for s in SECTIONS if s.is_scaling for device in s.devices}


def whole(who: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    """The measurements of a command, which repeats with these times."""
    run = {"steps": 1, "steps_per_second": 9.0, "average_accuracy": 80.0, "memory_bytes": 2**20, "cpu_share": 1.0}
    runs = [{**run, "seconds": each, "again_seconds": 1.5, "version": "1.0"} for each in seconds]
    case = {"section": "first-run", "method": "er", "who": who, "cores": 1}
    return {"case": case, "runs": runs, "commit": "4fb7fee", **more}


def test_commands_are_compared_with_those_beside_them(tmp_path: Path) -> None:
    """The ratio is the median of the repetitions' ratios, not that of the medians."""
    ours, plain, peer = (whole("default", [2, 4, 8]), whole("plain", [4, 12, 40]), whole("capymoa", [20, 20, 80]))
    write_measured(tmp_path, 1, [ours, plain, peer, whole("before", [4, 4, 9])], section="first-run")
    sections = read(tmp_path.glob("*.json"), ORDER)
    text = render_document(sections, Charts(tmp_path))
    assert "| a plain PyTorch loop | 12.0 | 3.00× | 9.00 |" in text
    assert "| CapyMOA 1.0 | 20.0 | 10.0× |" in text
    assert "| `er` | 1 | 4.00 | 1.50 | – | 4.00 (1.12×) | 12.0 (3.00×) |" in text
    assert quote(sections) is None
    others = [whole(who, [2, 4, 8]) for who in ("avalanche", "mammoth")]
    write_measured(tmp_path, 2, [ours, plain, peer, *others], section="first-run")
    quoted = quote(read(tmp_path.glob("*.json"), ORDER))
    assert quoted is not None
    assert "takes 4.00 s" in quoted
    assert "10.0 times that of CapyMOA" in quoted


@pytest.mark.parametrize("reports", [[1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 3, 4], [2, 4]])
def test_replica_steps_are_counted_however_an_engine_reports_them(reports: list[int]) -> None:
    task = Task(steps=4)
    for i, step in enumerate(reports):
        task.add_progress(step)
        task.edges.append((float(i), task.reported))
    a_report = 8 / len(reports)  # replica-steps of two replicas
    assert task.windows(replicas=2, shortest=0.5) == pytest.approx([1 / a_report] * (len(reports) - 1))


def test_the_last_task_is_measured_without_the_turns_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper:
        turns = 0

        def turn(self) -> dict[str, Any] | None:
            time.sleep(0.2)
            self.turns += 1
            return {} if self.turns == 4 else None

    sleeper: Any = Sleeper()
    measured, _ = take_turns([Run(LITTLE, "random", window=0.0), sleeper])
    assert measured["steps"] == 20  # of each replica
    assert measured["windows"] > 1
    assert measured["whole_seconds"] < 0.7
    assert 0 < measured["step_ms"] < 100
    assert measured["engine_used"] == "eager"
    with pytest.raises(ValueError, match="nonsense"):
        take_turns([Run(dataclasses.replace(LITTLE, method="nonsense"), "random", window=1.0)])


def test_streams_have_the_sizes_asked_for(small_mnist: Path) -> None:
    for images in ("real", "random"):
        stream = make_stream(LITTLE, images, 0)
        assert [len(rows) for rows in stream.train_rows] == [30, 30, 200, 30, 30]
        assert all(
            set(stream.train.y[rows].tolist()) == set(c)
            for rows, c in zip(stream.train_rows, stream.classes, strict=True)
        )
    many = Case("tasks", "er", "permuted-mnist", "eager", scenario="domain", stream_tasks=30, examples=10, last=50)
    assert [len(rows) for rows in make_stream(many, "real", 0).train_rows] == [10] * 29 + [50]


def test_operations_of_a_step_are_those_of_its_convolutions() -> None:
    """20 images: forwards, and backwards twice that, except that nobody wants the gradient of the images."""
    operations = [2 * 9 * 3 * 64 * 32**2, *([2 * 9 * 64 * 64 * 32**2] * 4)]
    for width, side in ((128, 16), (256, 8), (512, 4)):
        operations += [2 * (9 + 1) * (width // 2) * width * side**2, *([2 * 9 * width * width * side**2] * 3)]
    expected = 20 * (3 * sum(operations) - operations[0])
    assert count(Case("stacked", "er", "split-cifar10", "graph", "cuda", tasks=1)) == pytest.approx(expected, rel=1e-3)


def write_measured(folder: Path, day: int, results: list[Any], section: str = "stacked", **more: Any) -> None:
    sections = [{"name": section, "device": "cpu", "seconds": 1, "results": results}]
    machine = {"processor": "A CPU", "cores": 2, "memory_bytes": 0, "gpu": None, "commit": None, "load": None}
    machine |= dict.fromkeys(("python", "torch", "numpy", "cclfp"), "1")
    top = {"format": FORMAT, "started_at": f"2026-01-0{day}", "quick": False, "images": "real", "command": "measure"}
    (folder / f"{day}.json").write_text(json.dumps({**top, "machine": machine, "sections": sections, **more}))


def steps_of(**steps: float) -> list[Any]:
    return [{"case": {"method": method}, "step_ms": step} for method, step in steps.items()]


def test_the_newest_counts_and_some_methods_are_put_into_the_one_before(tmp_path: Path) -> None:
    def steps() -> dict[str, float]:
        (kept,) = read(tmp_path.glob("*.json"), ORDER)
        return {r["case"]["method"]: r["step_ms"] for r in kept.results}

    write_measured(tmp_path, 2, steps_of(er=1.0, hal=9.0))
    write_measured(tmp_path, 1, steps_of(er=5.0, si=5.0))
    assert steps() == {"er": 1.0, "hal": 9.0}
    write_measured(tmp_path, 3, steps_of(hal=2.0, gem=3.0), method="gem,hal")
    assert steps() == {"er": 1.0, "hal": 2.0, "gem": 3.0}
    write_measured(tmp_path, 4, steps_of(hal=6.0), method="hal", images="random")
    assert steps() == {"hal": 6.0}
