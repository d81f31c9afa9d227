"""The report: its files are those of before, its numbers are those of the runs, its commands make them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import statistics
import struct
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Cli
from own import CLASSES, write_images
from records import with_accuracy, write
from report_records import (
    ENVIRONMENT,
    add_all,
    add_own,
    cell_of,
    diverged_record,
    made_up_record,
    own_store,
    rows_of,
    uneven_store,
)

from cclfp.data import import_images
from cclfp.errors import InputError, RunError
from cclfp.events import Event, Note
from cclfp.paper import TABLES, TIMING_SEED, cells
from cclfp.report import collect, write_report
from cclfp.report.tables import VERDICTS, Content, Table, count_verdicts, environments, verdict_of
from cclfp.report.text import render, to_csv
from cclfp.runs.configuration import show_value
from cclfp.runs.results import Result
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

PDFLATEX = shutil.which("pdflatex")
GOLDEN = Path(__file__).parent / "golden"


# Golden files ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("which", "texts"), [("uneven", 6), ("own", 1)])
def test_the_files_are_those_of_before(which: str, texts: int, full_store: Store, tmp_path: Path) -> None:
    """Uneven runs of the paper's cells, some of which are missing or diverged, and runs of one's own.

    With RENEW_GOLDEN in the environment the files are written; look at their differences before you commit them.
    """
    store = uneven_store(full_store, tmp_path / "runs.sqlite") if which == "uneven" else own_store(tmp_path)
    out, golden = tmp_path / "out", GOLDEN / which
    write_report(store, out)
    files = sorted([*out.glob("tables/*.csv"), *out.glob("figures/*.svg")])  # whose checksums are kept, not their texts
    checksums = json.dumps({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}, indent=1)
    made = {path.name: (out / "tables" / path.name).read_text() for path in golden.glob("*.[mt]*")}
    made["digests.json"] = f"{checksums}\n"
    if "RENEW_GOLDEN" in os.environ:
        for name, text in made.items():
            (golden / name).write_text(text)
    assert made == {path.name: path.read_text() for path in golden.iterdir()}
    assert len(made) == texts + 1
    page = (out / "index.html").read_text()
    if which == "own":
        assert page.count('data-cell="own/') == 5
        assert page.count('<table class="heat">') == 2
        assert all(page.count(f'<th scope="row">{name}</th>') == 2 for name in CLASSES)
        return
    assert '"counted":[0,2,4],"diverged":{"1":2,"3":2},"remark":"2 of 5 seeds diverged"' in page
    assert '<small class="n">2 of 5 seeds diverged</small>' in page
    assert re.search(r'<td class="v-diverged"[^>]*><span class="ours">5 of 5 seeds diverged</span>', page)
    included = collect(store, range(5), include_diverged=True)
    assert count_verdicts(included.results)["diverged"] == 0
    er = next(result for result in included.results if result.diverged)
    assert "2 of 5 seeds diverged, included" in render("table.md", table=included.tables[0])
    assert er.command().endswith("--include-diverged")


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_number_is_that_of_the_runs(full_content: Content) -> None:
    lines = [line for table in full_content.tables for line in rows_of(to_csv([table]))]
    for result, line in zip(full_content.results, lines, strict=True):
        c, published = result.configuration, result.published
        assert published is not None
        assert [run["key"] for run in result.runs] == [result.key(seed) for seed in range(5)]
        ours = [run["average_accuracy"] or 0.0 for run in result.runs]
        assert (line["table"], line["row"], line["benchmark"]) == (result.table, result.label, c.benchmark)
        assert line["seeds"] == "5"
        difference = statistics.fmean(ours) - published.mean
        expected = [statistics.fmean(ours), statistics.stdev(ours), published.mean, difference]
        numbers = [float(line[name]) for name in ("mean", "std", "published_mean", "difference")]
        assert numbers == pytest.approx(expected, abs=1e-4)
        within = abs(difference) <= 2 * (published.std or statistics.stdev(ours))
        assert line["verdict"] == ("within" if within else "above" if difference > 0 else "below")
        each = [float(pair.partition(":")[2]) for pair in line["accuracies"].split()]
        assert each == pytest.approx(ours, abs=1e-4)
    assert sum(count_verdicts(full_content.results).values()) == 216


def test_the_best_number_of_a_column_is_marked_without_joint(full_content: Content, store: Store) -> None:
    published = [r for r in full_content.tables[0].results if r.standing.best_published]
    tied = [r.configuration.method for r in published if r.published is not None and r.published.mean == 65.19]
    assert tied == ["ccl-fp", "ccl-fp+"]
    accuracies = {"joint": 81.0, "er": 80.001, "gem": 79.999, "hal": 79.9}
    here = [cell for cell in cells("accuracy") if cell.configuration.benchmark == "rotated-mnist"]
    records = [with_accuracy(made_up_record(cell, 0), accuracies.get(cell.configuration.method, 50.0)) for cell in here]
    add_all(store, records[:-1])
    assert [r.label for r in collect(store, [0]).tables[0].results if r.standing.best] == []  # it is not complete
    add_all(store, records[-1:])
    assert [r.label for r in collect(store, [0]).tables[0].results if r.standing.best] == ["ER-Res.", "GEM"]


def test_missing_numbers_are_shown_as_missing(store: Store) -> None:
    empty = collect(store, range(5))
    assert count_verdicts(empty.results) == {**dict.fromkeys(VERDICTS, 0), "missing": 216}
    for table in empty.tables:
        text = render("table.md", table=table)
        assert text.count("| missing (") == len(table.results) + 30 * (table.name == "ablation")  # and of components
        assert render("table.tex", table=table).count(r"\textit{missing}") == len(table.results)
        assert {line["mean"] for line in rows_of(to_csv([table]))} == {""}
        assert not any(result.standing.best for result in table.results)
        assert "†" not in text  # there is nothing to mark
    assert text.splitlines()[-1].endswith(" missing (+0.12) | missing (+1.24) | not known yet (β) |")
    assert environments(empty.results) == []
    none = cell_of("ablation", "none", "split-mnist", "class")
    add_all(store, [made_up_record(none, seed) for seed in range(3)])
    assert verdict_of(collect(store, range(5)).tables[2].results[0]) not in ("missing", "unjudged")
    assert verdict_of(collect(store, [0]).tables[2].results[0]) == "unjudged"  # no spread, neither ours nor published


# Commands -------------------------------------------------------------------------------------------------------------


def test_each_command_trains_the_runs_of_its_number(
    full_content: Content, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def run(names: list[str], **options: Any) -> list[Any]:
        asked.update(options, names=names)
        return [asked["result"]]

    monkeypatch.setattr("cclfp.runs.run.run", run)
    for result in full_content.results:
        asked["result"] = result
        words = shlex.split(result.command(full_content.seeds))
        assert cli(*words[1:], "--json").code == 0
        settings = {
            name: [v == "on" for v in values] if name == "augment" else values
            for name, values in asked["settings"].items()
        }
        (made,) = configurations(asked["names"], asked["problem"], settings=settings)
        assert [made.key(seed) for seed in range(asked["seeds"])] == [record["key"] for record in result.runs]
        used = asked["execution"]
        assert (used.engine, used.precision, used.device, used.threads) == ("eager", "float32", "cpu", 1)
        assert used.fresh  # otherwise a store that has the run would return it
        # The command does not depend on the presets, which may change.
        named = {*result.configuration.hyperparameters, *(["augment"] if "mnist" not in made.benchmark else [])}
        assert set(asked["settings"]) == named
    assert [show_value(value) for value in (0.1, 1.0, 1e-5, 0.123456789)] == ["0.1", "1", "1e-05", "0.123456789"]


def test_commands_are_quoted_for_the_shell() -> None:
    """The fields of an imported record become part of a command that users paste."""
    er, gem = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM"))
    record = made_up_record(er, 0, {**ENVIRONMENT, "engine": "eager; echo $HOME 'x'", "threads": 2})
    words = shlex.split(Result(er.configuration, [record], published=er.published).command([0]))
    assert words[words.index("--engine") + 1] == "eager; echo $HOME 'x'"
    assert words[-3:] == ["--threads", "2", "--fresh"]
    assert not {"--fresh", "--threads", "--engine"} & set(shlex.split(gem.command([0])))  # it has no run yet


# Runs of other code, and bad ones -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_with_runs_of_other_code_are_marked_and_explained(store: Store, cli: Cli, tmp_path: Path) -> None:
    """Of ER one seed of two, of FDR one that diverged, and one of one's own; those of GEM are of this code."""
    other = {**ENVIRONMENT, "cclfp": "0.0.9", "commit": None, "source": "f" * 16}
    er, gem, fdr = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "FDR"))
    diverged = diverged_record(fdr, 0) | {"environment": other}
    add_all(store, [made_up_record(gem, 0), made_up_record(er, 0), made_up_record(er, 1, other), diverged])
    add_own(store, "er", "split-mnist", seeds=2, settings={"lr": [0.3, 0.4]})
    mine: Any = store.find(configurations(["er"], "split-mnist", settings={"lr": [0.4]})[0].key(0))
    store.add(mine | {"environment": other}, replace=True)
    out = tmp_path / "out"
    answer = cli("report", "--out", out, "--store", store.path, "--seeds", "2")
    risk = "their numbers may not be those of this code"
    what = f"runs are of other code (cclfp 0.0.9, code ffffffff): {risk}"
    assert f"‡ 3 of 8 {what}\n" in answer.out
    assert len(cli("report", "--out", out, "--store", store.path, "--seeds", "2", "--json").json["other_code"]) == 3
    papers = ["ER-Res.", "FDR"]
    for name, mark, marked in (
        ("accuracy.md", "‡", papers),
        ("accuracy.tex", "ddagger", papers),
        ("own.md", "‡", ["er lr=0.4"]),
    ):
        text = (out / "tables" / name).read_text()
        assert f"{'1' if name == 'own.md' else '2'} of 4 {what}" in text
        rows = [line.strip("| ") for line in text.splitlines() if mark in line and what not in line]
        assert [re.split(r" [|&] ", row)[0] for row in rows] == marked
    for name, seeds in (("accuracy", {"1", "0", ""}), ("own", {"0", ""})):
        assert {line["other_code"] for line in rows_of((out / f"tables/{name}.csv").read_text())} == seeds
    page = (out / "index.html").read_text()
    assert re.findall(rf"‡ (\d of \d) {re.escape(what)}\.", page) == ["3 of 8", "2 of 4", "1 of 2", "1 of 4"]
    cells = re.findall(r'data-cell="(\w+)/([^/]*)[^"]*"[^>]*><span class="ours">(?:(?!</span>)[^‡])*‡', page)
    assert cells == [("accuracy", "ER-Res."), ("accuracy", "FDR"), ("buffer", "ER-Res."), ("own", "0")]


def test_a_bad_record_is_left_out_with_one_note(store: Store) -> None:
    """Also where several tables would show it. Unless that is asked for, it is an error."""
    store.add(made_up_record(cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain"), 0))
    write(store.path, "UPDATE runs SET average_accuracy = 99")
    events: list[Event] = []
    assert collect(store, [0], on_event=events.append, skip_bad=True).runs == 0
    (note,) = events
    assert isinstance(note, Note)
    assert note.text.startswith(f"warning: 1 bad record in {store.path} left out: cclfp runs check ")
    with pytest.raises(InputError, match="has a bad record"):
        collect(store, [0])


# One's own runs -------------------------------------------------------------------------------------------------------


def table_of(store: Store, title: str) -> Table:
    (table,) = [table for table in collect(store, range(5)).own if table.title.startswith(title)]
    return table


def test_runs_outside_the_tables_are_counted_and_those_of_the_tables_stand_beside_them(own: Store, cli: Cli) -> None:
    content = collect(own, range(5))
    assert (content.other_runs, content.held_out) == (20, 3)
    table = table_of(own, "Split MNIST, class, memory 200")
    assert [(row.label, row.standing.verdict) for row in table.results] == [("er", "worse"), ("half", "best")]
    confusion = table_of(own, "pets").results[0].confusion
    assert confusion is not None
    assert confusion[0] == [8 * 5 + 10, 5, 5, 5]  # all seeds together
    for folder in (own.path.parent / "home/data").iterdir():  # images that are not on this machine
        folder.rename(own.path.parent / folder.name)
    answer = cli("report", "--out", own.path.parent / "out", "--store", own.path)
    assert "20 runs are not in the paper's tables: see Your runs in" in answer.out
    assert "3 runs are on held-out images, made to choose hyperparameters: they are in no table" in answer.out
    assert 'data-cell="own/2/0"' in (own.path.parent / "out" / "index.html").read_text()


def test_versions_and_settings_tell_rows_apart(own: Store, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text((tmp_path / "half.py").read_text() + "\n# changed\n")
    add_own(own, f"{tmp_path / 'half.py'}:Half", "split-mnist", seeds=1)
    add_own(own, "er", "split-mnist", seeds=1, settings={"lr": [0.01, 0.02]})
    labels = [row.label for row in table_of(own, "Split MNIST, class, memory 200").results]
    assert labels[:3] == ["er lr=0.1", "er lr=0.01", "er lr=0.02"]
    assert all(label.startswith("half@") for label in labels[3:])
    assert len(set(labels)) == len(labels) == 5


@pytest.mark.parametrize(
    ("benchmark", "options", "title", "words"),
    [
        ("pets", {"tasks": 2}, ", class, 2 tasks, ", "--memory 200 --tasks 2 --backbone"),
        ("pets", {"class_order": "random", "tasks": 2}, "other class order", "--tasks 2 --class-order random"),
        ("pets", {"class_order": "owl,cat/dog,fish"}, "other class order", "--class-order 3,0/1,2"),
        ("pets", {"class_order": "cat/dog,fish,owl"}, ", class, 2 tasks, ", "--class-order 0/1,2,3"),
        ("split-tiny-imagenet", {}, ", class, 5 tasks, ", "--memory 200 --tasks 5 --backbone"),
        ("split-tiny-imagenet", {"class_order": "wnids"}, ", class, 5 tasks, ", "--memory 200 --tasks 5 --backbone"),
        ("split-tiny-imagenet", {"class_order": "labels"}, "classes by label", " --class-order labels"),
        ("split-tiny-imagenet", {"class_order": range(199, -1, -1)}, "other class order", " 199,198,"),
    ],
)
def test_a_table_the_commands_of_its_rows_and_the_list_of_runs_say_how_the_classes_were_split(
    benchmark: str, options: dict[str, Any], title: str, words: str, store: Store, cli: Cli, tmp_path: Path
) -> None:
    if benchmark == "pets":
        benchmark = import_images(write_images(tmp_path / "pets.npz"))
    else:
        options = {"tasks": 5, **options}
    add_own(store, "er", benchmark, seeds=1, backbone="resnet18:width=16", settings={"epochs": [2]}, **options)
    (table,) = collect(store, range(5)).own
    assert title in table.title
    assert words in table.results[0].command()
    assert " epochs=2 " in table.results[0].command()
    assert "--backbone resnet18:width=16 --seeds 1" in table.results[0].command()
    _, run = cli("runs", "--store", store.path).rows
    for order in ("classes by label", "other class order"):
        assert (order in run[7]) == (order in title)


# Texts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex here: apt-get install texlive-latex-recommended")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_tables_fit_a_page(full_content: Content, columns: str, tmp_path: Path) -> None:
    tables = "".join(render("table.tex", table=table) for table in full_content.tables)
    head = rf"\documentclass[{columns}]{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}"
    (tmp_path / "tables.tex").write_text(head + tables + r"\end{document}")
    command = [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    log = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, errors="replace").stdout
    assert "Output written on tables.pdf" in log
    assert "Overfull" not in log
    assert "too large" not in log


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_in_a_record_becomes_markup(store: Store, tmp_path: Path) -> None:
    evil = '</script><script>alert("1")</script><b>&amp;'
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    add_all(store, [made_up_record(er, 0, {**ENVIRONMENT, "device_name": evil, "commit": evil})])
    content, written = write_report(store, tmp_path / "out", [0])
    text = (tmp_path / "out" / "index.html").read_text()
    assert "alert(" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert "<b>&amp;amp;" not in text.replace("&lt;b&gt;", "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert data["cells"]["accuracy/ER-Res./200/rotated-mnist/domain"]["environments"][0]["device"] == evil
    for path in (tmp_path / "out").glob("figures/*.svg"):
        ElementTree.parse(path)
    # Without other runs nothing is said of them.
    assert (content.other_runs, content.own) == (0, [])
    assert not [file for file in written if "own" in file.name]
    assert "Your runs" not in text
    assert "not in the paper's tables" not in text


@pytest.mark.slow
def test_the_same_runs_give_the_same_small_report(full_store: Store, cli: Cli, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answer = cli("report", "--out", a, "--store", full_store.path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("the paper's 216 numbers: ")
    figures = ("evolution", "forgetting", "runtime", "buffer", "ablation")
    expected = {f"tables/{name}.{kind}" for name in TABLES for kind in ("md", "csv", "tex")}
    expected |= {f"figures/{name}.{kind}" for name in figures for kind in ("svg", "pdf", "png")} | {"index.html"}
    assert set((a / ".cclfp-report").read_text().splitlines()[1:]) == expected
    assert {line.split("  ")[0] for line in answer.out.splitlines()[1:]} == {str(a / name) for name in expected}
    assert {path for path in a.rglob("*") if path.is_file()} == {a / name for name in (*expected, ".cclfp-report")}
    for name in figures:
        assert (a / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF-")
        size = struct.unpack(">II", (a / f"figures/{name}.png").read_bytes()[16:24])
        drawn = ElementTree.parse(a / f"figures/{name}.svg").getroot()
        assert size == (2 * float(drawn.attrib["width"]), 2 * float(drawn.attrib["height"]))
    again = cli("report", "--out", b, "--store", full_store.path, "--json")
    assert again.json["counts"]["missing"] == 0
    assert again.json["runs"] == len([record for record in full_store.records() if record["seed"] != TIMING_SEED])
    for name in expected:
        assert name.endswith(".pdf") or (a / name).read_bytes() == (b / name).read_bytes(), name
    page = (a / "index.html").read_text()  # self-contained
    assert len(page) < 5_000_000
    links = re.findall(r"(?:href|src|action|data|poster|srcset)=[\"']([^\"']*)", page)
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_report(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_report(store, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    add_all(store, [made_up_record(cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain"), 0)])

    def full_disk(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cclfp.core.files.os.fsync", full_disk)
    with pytest.raises(InputError, match="expected a folder that can be written: .*No space left"):
        write_report(store, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_library_that_aborts_leaves_no_report(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vl_convert does where memory is short."""
    (tmp_path / "aborts.py").write_text("import os\ndef convert(drawn, answer):\n    os.abort()\n")
    monkeypatch.setattr("cclfp.report.converting.__file__", str(tmp_path / "aborts.py"))
    with pytest.raises(RunError, match="the process that converts figures was killed by signal 6"):
        write_report(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--out file --store runs.sqlite", "--out file: expected a folder that can be written"),
        ("--out file/below --store runs.sqlite", "--out file/below: expected a folder that can be written"),
        ("--out out --store none.sqlite", "there is no store of runs"),
        ("--out out", "there is no store of runs"),  # nor the default one
    ],
)
def test_a_file_in_the_way_and_a_store_that_is_not_there_are_refused(
    arguments: str, words: str, store: Store, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    store.add(made_up_record(cell_of("accuracy", "GEM", "rotated-mnist", "domain"), 0))
    before = sorted(tmp_path.iterdir())
    answer = cli("report", *arguments.split())
    assert (answer.code, words in answer.err) == (2, True)
    assert sorted(tmp_path.iterdir()) == before
    assert Path("file").read_text() == "mine"
