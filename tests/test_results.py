"""RESULTS.md is what results/render.py makes of the records in results/, and the records are complete."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from records import made_up, matrix_of

from cclfp.errors import InputError
from cclfp.paper import TABLES, cells, tuning
from cclfp.paper.tuning import tune
from cclfp.runs.events import OnEvent
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Executor
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.settings import Preset, presets, with_preset
from cclfp.runs.store import Store, export, import_runs, read_records
from cclfp.streams import BENCHMARKS

REPOSITORY = Path(__file__).parents[1]
FILES = sorted((REPOSITORY / "results").glob("*.jsonl"))
ENVIRONMENT = {
    "engine": "eager",
    "precision": "float32",
    "device": "cpu",
    "device_name": "A Processor",
    "cclfp": "0.1.0",
    "torch": "2.0",
    "source": "0123456789abcdef",
    "commit": None,
    "platform": "Linux-6.1-x86_64",
}


def load_renderer() -> Any:
    """By its path: bench has a module of the same name."""
    spec = importlib.util.spec_from_file_location("results_render", REPOSITORY / "results" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render = load_renderer()
TINY = "split-tiny-imagenet"
IN_LABEL_ORDER = "; classes in the order of the labels"  # Split Tiny ImageNet was searched before it had its own order
# ER's preset there before; iCaRL, CCL-FP and CCL-FP+ inherited its step size, and are still to be tuned again.
ER_IN_LABEL_ORDER = Preset(
    "er",
    TINY,
    "task",
    {"lr": 0.03},
    augment=False,
    chosen="by cclfp tune on held-out training data, seeds 100 and 101 (30.09 %): lr from 0.01 0.03 0.1, augment from "
    "on off; by successive halving in 20 min, 6 settings tried; classes in the order of the labels",
)
NO_REMARKS = dict.fromkeys(render.REMARKS, "")


# The records that ship ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_is_what_the_records_make() -> None:
    remarks = render.read_remarks(REPOSITORY / "results" / "remarks.md")
    old, searched = (sorted(folder.glob("*.jsonl")) for folder in (render.EARLIER, render.TUNING))
    made = render.render_document(FILES, remarks, old, searched)
    assert (REPOSITORY / "RESULTS.md").read_text(encoding="utf-8") == made, "make results writes it again"


@pytest.mark.slow
def test_every_record_passes_and_belongs_to_a_number(tmp_path: Path) -> None:
    if FILES:
        _, duplicates = import_runs(FILES, Store(tmp_path / "runs.sqlite"))
        assert duplicates == []
    results = render.Results(FILES)
    assert results.unused == [], "a preset has changed since these records were made"
    for file, records in results.records.items():
        assert {BENCHMARKS[record["benchmark"]].dataset for record in records} == {file.removesuffix(".jsonl")}


@pytest.mark.slow
def test_presets_are_what_tune_makes_of_the_records_of_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted((REPOSITORY / "results" / "tuning").glob("*.jsonl"))
    store = Store(tmp_path / "runs.sqlite")
    import_runs(files, store)
    for file in [*files, *render.EARLIER.glob("*.jsonl")]:
        for place, record in read_records(file):
            render.check_public(place, record)
            assert record["configuration"]["validation"] == (file in files)

    def stored(jobs: Sequence[Job], on_event: OnEvent, executor: Executor, earlier: object) -> dict[str, Record]:
        found = {job.key: record for job in jobs if (record := store.find(job.key)) is not None}
        if len(found) < len(jobs):
            raise LookupError
        return found

    monkeypatch.setattr(tuning, "run_jobs", stored)
    without = []
    for preset in [*presets(), ER_IN_LABEL_ORDER]:
        limited = re.search(r"successive halving in (\S+) min", preset.chosen)
        how: dict[str, Any] = {
            "budget": float(limited.group(1)) if limited else None,
            "halving": preset.halved,
            "seeds": 1 if "data, seed 100 (" in preset.chosen else 2,
        }
        chosen = preset.chosen.removesuffix(IN_LABEL_ORDER)
        benchmark = BENCHMARKS[preset.benchmark]
        if chosen != preset.chosen:
            benchmark = dataclasses.replace(benchmark, class_order="labels")
            how["known"] = with_preset(presets(), ER_IN_LABEL_ORDER)
        try:
            with monkeypatch.context() as patch:
                patch.setitem(BENCHMARKS, preset.benchmark, benchmark)
                tuned = tune(preset.method, preset.benchmark, preset.scenario, **how, store=store.path)
        except LookupError:
            without.append((preset.method, preset.benchmark, preset.scenario))
        else:
            assert tuned.preset == dataclasses.replace(preset, chosen=chosen)
    assert without == [("ccl-fp+", "split-cifar100", "class")]  # lost with the machine that made them
    in_present_order = [p for p in presets() if p.benchmark == TINY and not p.chosen.endswith(IN_LABEL_ORDER)]
    assert [(p.method, p.scenario) for p in in_present_order] == [("er", "task"), ("a-gem", "task")]


@pytest.mark.slow
def test_every_mnist_number_has_its_five_seeds_once_there_are_records() -> None:
    seeds = [0, 1, 2, 3, 4] if REPOSITORY / "results" / "mnist.jsonl" in FILES else []
    found = [result for result in render.Results(FILES).content.results if render.is_mnist(result)]
    assert len(found) == 80
    assert [result for result in found if [record["seed"] for record in result.runs] != seeds] == []


@pytest.mark.slow
def test_as_the_readme_says_ccl_fp_plus_is_above_er_wherever_classes_are_added() -> None:
    results = [r for r in render.Results(FILES).content.tables[0].results if r.configuration.scenario == "class"]
    er, ours = (
        {r.configuration.benchmark: r.mean for r in results if r.label == row} for row in ("ER-Res.", "CCL-FP+")
    )
    assert {benchmark for benchmark in er if ours[benchmark] > er[benchmark]} == {
        "split-mnist",
        "split-cifar10",
        "split-cifar100",
        "split-tiny-imagenet",
    }


# How they are rendered ------------------------------------------------------------------------------------------------


def record_of(cell: Result, seed: int, accuracy: float, **changes: Any) -> Any:
    tasks = BENCHMARKS[cell.configuration.benchmark].num_tasks
    assert tasks is not None
    configuration = dataclasses.replace(cell.configuration, **changes)
    return made_up(configuration, seed, matrix_of([accuracy] * tasks, configuration.scenario), **ENVIRONMENT)


def find(table: str, row: str, benchmark: str, scenario: str, buffer: int | None = 200) -> Result:
    wanted = (row, benchmark, scenario, buffer)
    (cell,) = [c for c in cells(table) if (c.label, *c.column, c.configuration.buffer) == wanted]
    return cell


def published_mean(cell: Result) -> float:
    assert cell.published is not None
    return cell.published.mean


def write(path: Path, records: Iterable[Record]) -> Path:
    export(list({record["key"]: record for record in records}.values()), path)  # tables share some
    return path


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All MNIST numbers as in the paper, except for five: three below, Joint and ER above."""
    changed = {
        ("accuracy", "Joint", "split-mnist", "class", None): 99.0,
        ("accuracy", "ER-Res.", "permuted-mnist", "domain", 200): 75.0,
        ("accuracy", "SI", "rotated-mnist", "domain", None): 50.0,
        ("buffer", "HAL", "rotated-mnist", "domain", 500): 60.0,
        ("ablation", "α, β", "split-mnist", "task", 200): 90.0,
    }
    every = [c for table in TABLES for c in cells(table) if BENCHMARKS[c.configuration.benchmark].dataset == "mnist"]
    # These offsets leave the mean unchanged and give a standard deviation of 0.1.
    spread = [-0.1265, -0.0632, 0.0, 0.0632, 0.1265]
    found = [
        record_of(
            cell,
            seed,
            changed.get((cell.table, cell.label, *cell.column, cell.configuration.buffer), published_mean(cell))
            + spread[seed],
        )
        for cell in every
        for seed in range(5)
    ]
    # Cells that tables share have the number of the first table.
    return write(tmp_path_factory.mktemp("records") / "mnist.jsonl", reversed(found))


@pytest.fixture(scope="module")
def text(mnist: Path) -> str:
    return str(render.render_document([mnist], NO_REMARKS))


def section(text: str, heading: str) -> str:
    """The text from a heading to the next one."""
    _, _, rest = text.partition(f"# {heading}")
    assert rest, heading
    return rest.partition("\n#")[0]


def lines(text: str) -> list[list[str]]:
    """The cells of the lines of a Markdown table, without its header."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"][2:]


@pytest.mark.slow
def test_the_counts(text: str) -> None:
    summary = section(text, "Summary")
    assert (
        "77 of the 80 MNIST numbers are within two standard deviations of the paper's or above that range, and 3 are "
        "below it." in summary
    )
    assert lines(summary) == [
        ["All three tables", "216", "75", "2", "3", "136"],
        ["**MNIST**", "80", "75", "2", "3", "0"],
        ["– accuracy", "44", "41", "2", "1", "0"],
        ["– buffer, Rotated MNIST", "12", "11", "0", "1", "0"],
        ["– ablation", "24", "23", "0", "1", "0"],
    ]


def test_what_lies_outside_is_listed(text: str) -> None:
    below = lines(section(text, "Numbers below the paper's (3)"))
    assert [line[:3] for line in below] == [
        ["accuracy", "Rotated MNIST, domain", "SI"],
        ["buffer", "Rotated MNIST, domain", "HAL, memory 500"],
        ["ablation", "Split MNIST, task", "α, β"],
    ]
    joint, er = lines(section(text, "Numbers above the paper's (2)"))
    assert er[:3] == ["accuracy", "Permuted MNIST, domain", "ER-Res."]
    assert joint == ["accuracy", "Split MNIST, class", "Joint", "99.00 ± 0.10", "95.59 ± 0.31", "+3.41", "11.0"]


def test_the_tables_are_those_of_the_report(text: str) -> None:
    for title in TABLES.values():
        assert f"\n## {title}\n" in text
    assert "99.00 ± 0.10 (95.59 ± 0.31) ↑" in section(text, TABLES["accuracy"])


@pytest.mark.slow
def test_what_is_missing_is_named(text: str, mnist: Path, tmp_path: Path) -> None:
    assert "\nNumbers without runs: accuracy 72 of 116, buffer 48 of 60, ablation 16 of 40.\n" in text
    found = lines(section(text, "Missing"))
    assert len(found) == 6 + 4 + 2
    assert ["accuracy", "Split CIFAR-100, class", "12 of 12", "all"] in found
    gem, si = (("gem", "split-mnist", "task"), ("si", "split-mnist", "task"))
    records = [json.loads(line) for line in mnist.read_text().splitlines()]
    what = {id(r): (r["method"], r["benchmark"], r["scenario"]) for r in records}
    kept = [r for r in records if what[id(r)] != gem and (what[id(r)] != si or r["seed"] > 1)]
    less = render.render_document([write(tmp_path / "mnist.jsonl", kept)], NO_REMARKS)
    found = lines(section(less, "Missing"))
    assert ["accuracy", "Split MNIST, task", "1 of 12", "GEM; SI (3 of 5 seeds)"] in found
    assert "| **MNIST** | 80 | 74 | 2 | 3 | 1 |" in less


def test_how_the_runs_were_made(text: str, mnist: Path) -> None:
    count = len(mnist.read_text().splitlines())
    shown = section(text, "How the runs were made")
    assert f"\n{count} runs;" in shown
    made_with = "cclfp 0.1.0, torch 2.0, code checksum 01234567"
    hours = f"{count * 3 / 3600:.2f}"
    assert lines(shown) == [
        ["`results/mnist.jsonl`", "A Processor", "eager", "float32", str(count), hours, made_with, "2026-01-01"]
    ]
    assert "rotated-mnist --engine eager --precision float32 --store mnist.sqlite\ncclfp runs export results/" in shown
    assert "belong to no number" not in shown


def test_streams_networks_and_hours(text: str, mnist: Path) -> None:
    found = {line[0]: line[1:] for line in lines(section(text, "Streams, networks and computing time"))}
    mlp = 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10
    assert found["Rotated MNIST"] == ["1×28×28", "10", "20 × 10", "20,000", "200,000", "mlp", f"{mlp:,}"]
    assert found["Split CIFAR-100"][:5] == ["3×32×32", "100", "20 × 5", "50,000", "10,000"]
    count = len(mnist.read_text().splitlines())
    assert found["all"] == [str(count), f"{count * 3 / 3600:.1f}"]


@pytest.mark.slow
def test_searches_are_counted_with_their_minutes(tmp_path: Path) -> None:
    cell = find("accuracy", "ER-Res.", "split-mnist", "class")
    searched = write(tmp_path / "mnist.jsonl", [record_of(cell, seed, 80.0) for seed in range(4)])
    text = render.render_document([], NO_REMARKS, searched=[searched])
    shown = section(text, "How the settings were chosen")
    assert "The 4 runs of these searches" in shown
    assert next(line for line in lines(shown) if line[0] == "ER-Res.")[1:3] == ["4 (0.2)", "–"]


def test_earlier_numbers_say_what_was_different_then(tmp_path: Path) -> None:
    a_gem = find("accuracy", "A-GEM", "split-mnist", "class")
    er, ccl_fp = (find("accuracy", row, TINY, "class") for row in ("ER-Res.", "CCL-FP"))
    records = [
        record
        for seed, accuracy in ((0, 7.0), (1, 8.0), (200, 50.0))  # 200: made for its time
        for record in (
            record_of(a_gem, seed, accuracy, hyperparameters={"lr": 0.5}),  # reference was 10, and not in records
            record_of(er, seed, accuracy, class_order=None),
            record_of(er, seed, accuracy + 1, class_order=None, augment=False),
            record_of(ccl_fp, seed, accuracy + 1, class_order="random"),
        )
    ]
    text = render.render_document([], NO_REMARKS, [write(tmp_path / "old.jsonl", records)])
    tiny = "Split Tiny ImageNet, class"
    assert lines(section(text, "Earlier numbers")) == [
        ["Split MNIST, class", "A-GEM", "reference=10 lr=0.5", "7.50 ± 0.71", "–", "45.69 ± 3.77"],
        [tiny, "ER-Res.", "classes by label", "7.50 ± 0.71", "–", "7.21 ± 0.29"],
        [tiny, "ER-Res.", "augment=off, classes by label", "8.50 ± 0.71", "–", "7.21 ± 0.29"],
        [tiny, "CCL-FP", "other class order", "8.50 ± 0.71", "–", "10.52 ± 0.28"],
    ]
    with pytest.raises(InputError, match=r"old.jsonl, line 1: neither its settings nor its class order differ"):
        render.render_document([], NO_REMARKS, [write(tmp_path / "old.jsonl", [record_of(er, 0, 7.0)])])


@pytest.mark.slow
def test_runs_that_belong_to_no_number_are_counted(tmp_path: Path) -> None:
    records = [record_of(find("accuracy", "ER-Res.", "split-mnist", "class"), seed, 80.0) for seed in range(6)]
    text = render.render_document([write(tmp_path / "mnist.jsonl", records)], NO_REMARKS)
    assert "6 runs; some of them belong to several tables. **1 of them belong to no number**" in text


PRIVATE: dict[str, dict[str, object]] = {
    "/home/me/net.py": {"platform": "/home/me/net.py"},
    "C:": {"platform": "on C:\\Users\\me"},
    "its environment has host": {"host": "box-17"},
}


@pytest.mark.parametrize("what", PRIVATE)
def test_private_data_of_a_machine_is_not_published(what: str, tmp_path: Path) -> None:
    record = record_of(find("accuracy", "ER-Res.", "split-mnist", "class"), 0, 80.0)
    record["environment"] |= PRIVATE[what]
    with pytest.raises(InputError, match=f"mnist.jsonl, line 1: .*{what}.* must not be published"):
        render.Results([write(tmp_path / "mnist.jsonl", [record])])


@pytest.mark.slow
def test_a_record_in_two_files_is_refused(tmp_path: Path) -> None:
    record = record_of(find("accuracy", "ER-Res.", "split-mnist", "class"), 0, 80.0)
    files = [write(tmp_path / name, [record]) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(InputError, match="records that occur twice: .*b.jsonl, line 1"):
        render.Results(files)


@pytest.mark.slow
def test_remarks_stand_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "remarks.md"
    path.write_text("# For the reader of this file\n\n## head\n\nFirst.\n\n## buffer\n\nOf memories.\n")
    remarks = render.read_remarks(path)
    text = render.render_document([], remarks)
    assert text.index("First.") < text.index("## Summary")
    assert section(text, TABLES["buffer"]).endswith("Of memories.\n")
    assert "For the reader" not in text
    assert "No runs yet." in text
    path.write_text("## bufer\n\nOf memories.\n")
    with pytest.raises(InputError, match="remarks.md: bufer: expected headings of head, "):
        render.read_remarks(path)


@pytest.mark.slow
def test_the_command(mnist: Path, tmp_path: Path) -> None:
    script, to = REPOSITORY / "results" / "render.py", tmp_path / "R.md"
    subprocess.run([sys.executable, script, mnist, "--to", to], check=True)
    remarks = render.read_remarks(REPOSITORY / "results" / "remarks.md")
    assert to.read_text(encoding="utf-8") == render.render_document([mnist], remarks)


def test_the_command_with_a_file_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["render.py", str(tmp_path / "bad.jsonl"), "--to", str(tmp_path / "R.md")])
    with pytest.raises(SystemExit) as stop:
        render.main()
    assert stop.value.code == 2
    assert "bad.jsonl, line 1: not a run record" in capsys.readouterr().err
    assert not (tmp_path / "R.md").exists()
