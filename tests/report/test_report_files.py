"""The files that the report writes."""

from __future__ import annotations

import errno
import json
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Cli
from report_records import ENVIRONMENT, add_all, cell_of, full_store, made_up_record

from cclfp.errors import InputError
from cclfp.paper import TABLES, TIMING_SEED
from cclfp.report import collect, write_report
from cclfp.report.content import Content
from cclfp.report.page import render_page
from cclfp.runs.store import Store


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return full_store(tmp_path_factory.mktemp("full") / "runs.sqlite")


@pytest.fixture(scope="module")
def content(full: Store) -> Content:
    return collect(full, range(5))


@pytest.mark.slow
@pytest.mark.slow
def test_nothing_in_a_record_becomes_markup(tmp_path: Path) -> None:
    evil = '</script><script>alert("1")</script><b>&amp;'
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    add_all(store, [made_up_record(er, 0, {**ENVIRONMENT, "device_name": evil, "commit": evil})])
    _, written = write_report(store, tmp_path / "out", [0])
    text = (tmp_path / "out" / "index.html").read_text()
    assert "alert(" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert "<b>&amp;amp;" not in text.replace("&lt;b&gt;", "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert data["cells"]["accuracy/ER-Res./200/rotated-mnist/domain"]["environments"][0]["device"] == evil
    for path in written:
        if path.suffix == ".svg":
            ElementTree.parse(path)


@pytest.mark.slow
def test_the_page_is_self_contained(content: Content) -> None:
    files = {
        f"{name}.{kind}": b""
        for names, kinds in (
            ([table.name for table in content.tables], ("csv", "md", "tex")),
            ([chart.name for chart in content.charts], ("svg",)),
        )
        for name in names
        for kind in kinds
    }
    text = render_page(content, files)
    for link in re.findall(r"(?:href|src|action|data|poster|srcset)=[\"']([^\"']*)", text):
        assert link.startswith(("data:", "#"))
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


@pytest.mark.slow
def test_the_same_runs_give_the_same_small_report(full: Store, cli: Cli, tmp_path: Path) -> None:
    answer = cli("report", "--out", tmp_path / "a", "--store", full.path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("the paper's 216 numbers: ")
    listed = [line.split("  ")[0] for line in answer.out.splitlines()[1:]]
    kinds = [("tables", TABLES, ("md", "csv", "tex"))]
    kinds.append(("figures", ("evolution", "forgetting", "runtime", "buffer", "ablation"), ("svg", "pdf", "png")))  # type: ignore[arg-type]
    expected = {f"{folder}/{name}.{kind}" for folder, names, several in kinds for name in names for kind in several}
    expected.add("index.html")
    found = {
        path.relative_to(tmp_path / "a").as_posix(): path for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    listing = found.pop(".cclfp-report").read_text().splitlines()
    assert set(listing[1:]) == expected
    assert set(found) == expected
    assert set(listed) == {str(path) for path in found.values()}
    assert found["index.html"].stat().st_size < 5_000_000
    for name, path in found.items():
        data = path.read_bytes()
        if name.endswith(".pdf"):
            assert data.startswith(b"%PDF-")
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG")
            width, height = struct.unpack(">II", data[16:24])
            drawn = ElementTree.parse(path.with_suffix(".svg")).getroot()
            assert (width, height) == (2 * float(drawn.attrib["width"]), 2 * float(drawn.attrib["height"]))
    again = cli("report", "--out", tmp_path / "b", "--store", full.path, "--json")
    assert again.json["counts"]["missing"] == 0
    assert again.json["runs"] == len([record for record in full.records() if record["seed"] != TIMING_SEED])
    assert sorted(again.json["files"]) == sorted(str(tmp_path / "b" / name) for name in expected)
    for name, path in found.items():
        assert path.suffix == ".pdf" or path.read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.slow
def test_a_full_disk_leaves_the_old_report(full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_report(Store(tmp_path / "empty.sqlite"), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full_disk(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cclfp.core.files.os.fsync", full_disk)
    with pytest.raises(InputError, match="the report cannot be written there: .*No space left"):
        write_report(full, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way_is_refused(full: Store, cli: Cli, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    answer = cli("report", "--out", tmp_path / place, "--store", full.path)
    assert answer.code == 2
    assert str(tmp_path / place) in answer.err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_does_not_exist_is_refused_and_not_created(cli: Cli, tmp_path: Path) -> None:
    answer = cli("report", "--out", tmp_path / "out", "--store", tmp_path / "none.sqlite")
    assert answer.code == 2
    assert "there is no store of runs" in answer.err
    assert cli("report", "--out", tmp_path / "out").code == 2  # nor the default one
    assert list(tmp_path.iterdir()) == []
    assert cli("report", "--out", tmp_path / "out", "--store", tmp_path, "--seeds", "0").code == 2
