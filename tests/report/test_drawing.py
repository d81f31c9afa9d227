"""The charts of the report: what they show, and how they are drawn."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import ENVIRONMENT, add_all, add_own, cell_of, full_store, made_up_record, own_store

from cclfp.paper import TIMING_SEED, run_time_cells
from cclfp.report import collect, styles
from cclfp.report.charts import ChartPanel, Value
from cclfp.report.content import Content
from cclfp.report.drawing import _apart, draw_figure, draw_panel, linear_ticks, log_scale, log_ticks, spread_out
from cclfp.report.figures import accuracy_so_far, make_charts, own_charts
from cclfp.runs.store import Store
from cclfp.streams import get_benchmark


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return full_store(tmp_path_factory.mktemp("full") / "runs.sqlite")


@pytest.fixture(scope="module")
def content(full: Store) -> Content:
    return collect(full, range(5))


@pytest.mark.slow
def test_curves_end_at_the_numbers_of_the_table(content: Content) -> None:
    charts = {chart.name: chart for chart in make_charts(content)}
    means = {(*result.column, result.label): result.mean for result in content.results if result.table == "accuracy"}
    titles = {f"{get_benchmark(b).title}, {s}": (b, s) for b, s, _ in means}
    checked = 0
    for panel in charts["evolution"].panels:
        for series in panel.series:
            last = series.values[-1]
            assert last is not None
            title = panel.title.removesuffix(" (not in the paper)")
            assert last.mean == pytest.approx(means[*titles[title], series.label])
            checked += 1
    assert checked == 2 * 11 + 2 * 11 + 2 * 9 + 11
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    forgetting = charts["forgetting"].panels[2]
    value = forgetting.series[0].values[forgetting.categories.index("ER-Res.")]
    assert value is not None
    assert value.seeds == pytest.approx([made_up_record(er, seed)["forgetting"] for seed in range(5)])
    assert accuracy_so_far([[None, None], [90.0, None], [70.0, None]], 2) is None


def run_time_panel(store: Store) -> ChartPanel:
    """The panel of Rotated MNIST."""
    chart = next(chart for chart in make_charts(collect(store, [0])) if chart.name == "runtime")
    return next(panel for panel in chart.panels if panel.title == "Rotated MNIST, domain")


@pytest.mark.slow
def test_run_times_are_those_of_methods_that_trained_alone(full: Store, tmp_path: Path) -> None:
    panel, shown = run_time_panel(full), [c for c in run_time_cells() if c.configuration.benchmark == "rotated-mnist"]
    assert panel.categories == [cell.label for cell in shown]
    assert [(series.key, series.label) for series in panel.series] == [("train", "training"), ("test", "testing")]
    for i, cell in enumerate(shown):
        record = made_up_record(cell, TIMING_SEED)
        assert record["train_seconds"] > 2 * record["test_seconds"]
        assert [series.values[i] for series in panel.series] == [
            Value(record["train_seconds"], None),
            Value(record["test_seconds"], None),
        ]
    assert panel.note == "Each method alone on A made-up processor for tests, eager engine, float32, 1 thread"
    # Runs of other seeds and runs that trained together are not drawn.
    store = Store(tmp_path / "runs.sqlite")
    er, gem, hal = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "HAL"))
    together = {**ENVIRONMENT, "together": 5}
    add_all(store, [made_up_record(er, 0), made_up_record(gem, TIMING_SEED, together)])
    assert run_time_panel(store).is_empty
    assert run_time_panel(store).note == ""
    add_all(store, [made_up_record(hal, TIMING_SEED)])
    panel = run_time_panel(store)
    for series in panel.series:
        assert [stop for stop, value in zip(panel.categories, series.values, strict=True) if value is not None] == [
            "HAL"
        ]
    chart = next(chart for chart in make_charts(collect(store, [0])) if chart.name == "runtime")
    assert draw_figure(chart).count(">missing<") == 9
    assert "alone, one run at a time" in chart.caption


def test_run_times_of_different_devices_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er, gem, hal = (cell_of("accuracy", row, "rotated-mnist", "domain") for row in ("ER-Res.", "GEM", "HAL"))
    add_all(store, [made_up_record(er, TIMING_SEED)])
    graph = {**ENVIRONMENT, "engine": "graph", "device_name": "Another", "threads": 2}
    add_all(store, [made_up_record(cell, TIMING_SEED, graph) for cell in (gem, hal)])
    panel = run_time_panel(store)
    for series in panel.series:
        drawn = [stop for stop, value in zip(panel.categories, series.values, strict=True) if value is not None]
        assert drawn == ["GEM", "HAL"]
    assert panel.note == (
        "Each method alone on Another, graph engine, float32, 2 threads; left out, because they were measured under "
        "other conditions: ER-Res."
    )


def test_figures_are_well_formed_and_self_contained(content: Content) -> None:
    for chart in make_charts(content):
        drawn = draw_figure(chart)
        root = ElementTree.fromstring(drawn)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert re.findall(r"https?://[^\"]*", drawn) == ["http://www.w3.org/2000/svg"]
        assert "NaN" not in drawn
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {chart.title, *(panel.title for panel in chart.panels)} <= set(texts)
        for panel in chart.panels:
            for series in panel.series:
                assert chart.kind == "bars" or series.label in texts


def test_a_gap_in_a_curve_is_a_gap(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    sizes = [cell_of("buffer", "HAL", "rotated-mnist", "domain", size) for size in (200, 1000, 5000)]
    add_all(store, [made_up_record(cell, 0) for cell in sizes])
    chart = make_charts(collect(store, [0]))[3]
    panel = chart.panels[-1]
    assert [value is None for value in panel.series[2].values] == [False, True, False, False]
    assert chart.notes(panel) == ["missing: ER-Res.; HAL (500); CCL-FP+"]
    (curve,) = re.findall(
        r'<path class="curve k-hal" [^>]*data-series="HAL" d="([^"]*)"',
        "".join(part for part in draw_figure(chart).split("<g ") if "Rotated MNIST" in part or "curve k-hal" in part),
    )[-1:]
    assert curve.count("M") == 2


@given(low=st.floats(-1e4, 1e4), span=st.floats(1e-3, 1e4), count=st.integers(2, 8))
def test_linear_ticks_enclose_their_range(low: float, span: float, count: int) -> None:
    found = linear_ticks(low, low + span, count)
    assert 2 <= len(found) <= count + 3
    assert found[0] <= low + 1e-6 * span + 1e-9
    assert found[-1] >= low + span - 1e-6 * span - 1e-9
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-4)


@given(low=st.floats(1e-4, 1e4), ratio=st.floats(2, 1e5))
def test_logarithmic_ticks_lie_in_their_range(low: float, ratio: float) -> None:
    found = log_ticks(low, low * ratio)
    assert found == sorted(set(found))
    assert found
    assert low <= found[0]
    assert found[-1] <= low * ratio
    scale = log_scale(low, low * ratio, 100.0, 0.0)
    assert [scale(scale.low), scale(scale.high)] == pytest.approx([100.0, 0.0])
    assert scale((scale.low * scale.high) ** 0.5) == pytest.approx(50.0)


def test_curves_have_their_names_beside_them(content: Content) -> None:
    evolution = make_charts(content)[0]
    drawn = draw_figure(evolution)
    for panel in evolution.panels:
        for series in panel.series:
            assert f'class="name {styles.series_classes(series)}" data-series="{series.label}">{series.label}<' in drawn
    long = [dataclasses.replace(series, label="a method with a long name") for series in evolution.panels[0].series]
    panel = dataclasses.replace(evolution.panels[0], series=long)
    assert 'class="name' not in draw_panel(evolution, panel).body


@given(st.lists(st.floats(0, 150), max_size=12))
def test_names_do_not_touch_each_other(wanted: list[float]) -> None:
    places = spread_out(sorted(wanted), gap=12, start=0, end=150)
    assert all(b - a >= 12 - 1e-9 for a, b in itertools.pairwise(places))
    assert all(0 <= place <= 150 + 1e-9 for place in places)
    if all(b - a >= 12 for a, b in itertools.pairwise(sorted(wanted))):
        assert places == pytest.approx(sorted(wanted))


@given(st.lists(st.tuples(st.floats(0, 400), st.text("0123456789", min_size=1, max_size=6)), min_size=1, max_size=12))
def test_axis_labels_do_not_touch_each_other(labels: list[tuple[float, str]]) -> None:
    labels = sorted(labels)
    kept = _apart(labels)
    assert kept[-1] == labels[-1]
    for (at, label), (next_at, next_label) in itertools.pairwise(kept):
        assert next_at - at > styles.CHARACTER * (len(label) + len(next_label)) / 2 - 1e-9


def test_a_method_looks_the_same_in_all_charts_and_joint_has_no_evolution(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    add_own(store, "er", "split-mnist", seeds=1, settings={"lr": [0.01]})
    add_own(store, "joint", "split-mnist", level=95)
    evolution = own_charts(collect(store, range(5)).own)[0]
    keys = {panel.title: {series.label: series.key for series in panel.series} for panel in evolution.panels}
    assert keys["Split MNIST, class, memory 200"] == {"er lr=0.1": "er", "er lr=0.01": "own-1", "half": "own-2"}
    assert next(keys[title] for title in keys if title.startswith("pets")) == {"er": "er", "half": "own-2"}


def test_rows_of_one_memory_chart_look_different(tmp_path: Path) -> None:
    """A search may have chosen other settings for each size of the memory."""
    store = Store(tmp_path / "runs.sqlite")
    for size, lr in ((200, 0.01), (500, 0.03)):
        add_own(store, "er", "split-mnist", seeds=1, memory=size, settings={"lr": [lr]})
    chart = next(chart for chart in own_charts(collect(store, range(5)).own) if chart.name == "own-memory")
    keys = [series.key for series in chart.panels[0].series]
    assert sorted(keys) == ["er", "own-1"]


def test_long_labels_leave_room_for_bars(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    add_own(store, "ccl-fp+", "split-mnist", seeds=1, settings={"w": [0.123456, 0.5], "alpha": [0.25, 0.5]})
    _, forgetting, *_ = own_charts(collect(store, range(5)).own)
    longest = max(len(label) for panel in forgetting.panels for label in panel.categories)
    assert longest > 20
    for panel in forgetting.panels:
        left, _, right, _ = draw_panel(forgetting, panel).frame
        assert left > styles.CHARACTER * max(map(len, panel.categories))
        assert right - left > 100
