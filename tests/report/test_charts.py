"""The charts of the report: what they show, how they are drawn, and that their colours can be told apart."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable

import numpy as np
import pytest
from charts import BENCH_STYLES
from hypothesis import given
from hypothesis import strategies as st
from report_records import ENVIRONMENT, add_all, add_own, cell_of, made_up_record

from cclfp.paper import TIMING_SEED, run_time_cells
from cclfp.paper.numbers import LABELS
from cclfp.report import charts, collect
from cclfp.report.charts import MISSING, Chart, Panel, Series, Value, make_charts
from cclfp.report.drawing import _apart, draw_figure, draw_panel, linear_axis, spread_out
from cclfp.report.styles import (
    CHARACTER,
    DARK_COLOURS,
    LIGHT_COLOURS,
    METHOD_STYLES,
    OWN_STYLES,
    STYLES,
    TEST,
    TRAIN,
    Style,
)
from cclfp.report.tables import Content, column_title
from cclfp.runs.store import Store


def chart_of(store: Store, name: str) -> Chart:
    """The chart of this name."""
    return next(chart for chart in make_charts(collect(store, range(5))) if chart.name == name)


@pytest.mark.slow
def test_curves_end_at_the_numbers_of_the_table(full_content: Content) -> None:
    charts = {chart.name: chart for chart in make_charts(full_content)}
    means = {(column_title(r.column), r.label): r.mean for r in full_content.tables[0].results}
    ends = [
        (means[panel.title.removesuffix(" (not in the paper)"), series.label], series.known[-1].mean)
        for panel in charts["evolution"].panels
        for series in panel.series
    ]
    assert len(ends) == 2 * 11 + 2 * 11 + 2 * 9 + 11
    assert [end for _, end in ends] == pytest.approx([mean for mean, _ in ends])
    forgetting = charts["forgetting"].panels[2]
    value = forgetting.series[0].values[forgetting.categories.index("ER-Res.")]
    er = cell_of("accuracy", "ER-Res.", "rotated-mnist", "domain")
    assert isinstance(value, Value)
    assert value.seeds == pytest.approx([made_up_record(er, seed)["forgetting"] for seed in range(5)])


def test_the_papers_figures_have_all_methods(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    content = collect(store, range(5))
    before = make_charts(content)
    monkeypatch.setattr(charts, "MOST_ROWS", 3)
    assert make_charts(content) == before


def run_times(store: Store) -> Panel:
    """The panel of Rotated MNIST."""
    return chart_of(store, "runtime").panels[-1]


@pytest.mark.slow
def test_run_times_are_those_of_methods_that_trained_alone_and_under_the_same_conditions(
    full_store: Store, store: Store
) -> None:
    cells = [cell for cell in run_time_cells() if cell.configuration.benchmark == "rotated-mnist"]
    panel, records = run_times(full_store), [made_up_record(cell, TIMING_SEED) for cell in cells]
    assert panel.categories == [cell.label for cell in cells]
    assert [(one.style.name, one.label) for one in panel.series] == [("train", "training"), ("test", "testing")]
    for series, part in zip(panel.series, ("train_seconds", "test_seconds"), strict=True):
        assert series.values == [Value(record[part]) for record in records]
    assert panel.notes == ["Each method alone on A made-up processor for tests, eager engine, float32, 1 thread"]
    # Runs of other seeds and runs that trained together are not drawn.
    er, gem, hal, si = (cell_of("accuracy", row, *cells[0].column, size) for row, size in
                        (("ER-Res.", 200), ("GEM", 200), ("HAL", 200), ("SI", None)))  # fmt: skip
    add_all(store, [made_up_record(er, 0), made_up_record(gem, TIMING_SEED, {**ENVIRONMENT, "together": 5})])
    assert run_times(store) not in chart_of(store, "runtime").drawn_panels
    assert run_times(store).notes == []
    add_all(store, [made_up_record(er, TIMING_SEED)])
    graph = {**ENVIRONMENT, "engine": "graph", "device_name": "Another", "threads": 2}
    add_all(store, [made_up_record(cell, TIMING_SEED, graph) for cell in (si, hal)])
    panel = run_times(store)
    for series in panel.series:
        drawn = [name for name, value in zip(panel.categories, series.values, strict=True) if value != MISSING]
        assert drawn == ["SI", "HAL"]
    assert panel.notes == ["Each method alone on Another, graph engine, float32, 2 threads"]
    assert draw_figure(chart_of(store, "runtime")).count(">missing<") == len(cells) - 2


def test_a_gap_in_a_curve_is_a_gap(store: Store) -> None:
    sizes = [cell_of("buffer", "HAL", "rotated-mnist", "domain", size) for size in (200, 1000, 5000)]
    add_all(store, [made_up_record(cell, 0) for cell in sizes])
    chart = chart_of(store, "buffer")
    (panel,) = chart.drawn_panels
    assert [value == MISSING for value in panel.series[2].values] == [False, True, False, False]
    (curve,) = re.findall(r'<path class="curve k-hal"[^>]* data-series="HAL" d="([^"]*)"', draw_figure(chart))
    assert curve.count("M") == 2


@given(low=st.floats(-1e4, 1e4), span=st.floats(1e-3, 1e4), count=st.integers(2, 8))
def test_ticks_enclose_their_range(low: float, span: float, count: int) -> None:
    found = list(linear_axis(low, low + span, count).ticks)
    assert 2 <= len(found) <= count + 3
    assert found[0] <= low + 1e-6 * span + 1e-9
    assert found[-1] >= low + span - 1e-6 * span - 1e-9
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-4)


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
        assert next_at - at > CHARACTER * (len(label) + len(next_label)) / 2 - 1e-9


def test_curves_have_their_names_beside_them_unless_these_are_long() -> None:
    series = Series(STYLES["er"], "ER", [Value(70.0), Value(75.0)])
    chart = Chart("c", "C", "lines", "x", "y", [panel := Panel("P", ["1", "2"], [series], [1.0, 2.0])])
    assert 'class="name k-er strong" data-series="ER">ER<' in draw_panel(chart, panel).body
    long = dataclasses.replace(series, label="a method with a long name")
    assert 'class="name' not in draw_panel(chart, dataclasses.replace(panel, series=[long])).body


def styles_of(panel: Panel) -> dict[str, str]:
    return {series.label: series.style.name for series in panel.series}


def test_a_method_looks_the_same_in_all_charts_and_joint_has_no_evolution(own: Store) -> None:
    add_own(own, "er", "split-mnist", seeds=1, settings={"lr": [0.01]})
    add_own(own, "joint", "split-mnist", level=95)
    mnist, _, pets = chart_of(own, "own-evolution").panels
    assert styles_of(mnist) == {"er lr=0.1": "er", "er lr=0.01": "own-1", "half": "own-2"}
    assert styles_of(pets) == {"er": "er", "half": "own-2"}


def test_rows_of_one_memory_chart_look_different(store: Store) -> None:
    """A search may have chosen other settings for each size of the memory."""
    for size, lr in ((200, 0.01), (500, 0.03)):
        add_own(store, "er", "split-mnist", seeds=1, memory=size, settings={"lr": [lr]})
    assert sorted(styles_of(chart_of(store, "own-memory").panels[0]).values()) == ["er", "own-1"]


def test_long_labels_leave_room_for_bars(store: Store) -> None:
    add_own(store, "ccl-fp+", "split-mnist", seeds=1, settings={"w": [0.123456, 0.5], "alpha": [0.25, 0.5]})
    chart = chart_of(store, "own-forgetting")
    (panel,) = chart.panels
    longest = max(map(len, panel.categories))
    assert longest > 20
    left, _, right, _ = draw_panel(chart, panel).frame
    assert left > CHARACTER * longest
    assert right - left > 100


# Colours on light and dark pages, with and without colour-blindness ---------------------------------------------------


def matrix(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=float).reshape(3, 3)


# How dichromats see linear RGB: Machado, Oliveira & Fernandes 2009, A Physiologically-based Model for Simulation of
# Color Vision Deficiency, table 1, severity 1.0.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": matrix("0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998"),
    "deuteranopia": matrix("0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881"),
    "tritanopia": matrix("1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.303900"),
}
# From linear RGB to cones and from their cube roots to OKLab: Ottosson 2020, A perceptual color space for image
# processing.
TO_CONES = matrix(
    "0.4122214708 0.5363325363 0.0514459929 0.2119034982 0.6806995451 0.1073969566 "
    "0.0883024619 0.2817188376 0.6299787005"
)
TO_OKLAB = matrix(
    "0.2104542553 0.7936177850 -0.0040720468 1.9779984951 -2.4285922050 0.4505937099 "
    "0.0259040371 0.7827717662 -0.8086757660"
)
PAGES = {"light": LIGHT_COLOURS["paper"], "dark": DARK_COLOURS["paper"]}


def linear_rgb(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted(float(linear_rgb(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (a, b))
    return high / low


def distance(a: str, b: str, vision: str) -> float:
    """In hundredths of OKLab's unit, in which two colours side by side can be told apart from about 2 on."""
    labs = [TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(VISIONS[vision] @ linear_rgb(colour), 0, 1)) for colour in (a, b)]
    return 100 * float(np.linalg.norm(labs[0] - labs[1]))


def least_distance(styles: Iterable[Style], page: str, vision: str) -> float:
    return min(distance(getattr(a, page), getattr(b, page), vision) for a, b in itertools.combinations(styles, 2))


def test_distances() -> None:
    assert distance("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.1)
    red_green = [distance("#d02020", "#6f7800", vision) for vision in ("normal", "deuteranopia", "tritanopia")]
    assert red_green == pytest.approx([23.7, 1.7, 22.8], abs=0.1)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("page", PAGES)
def test_colours_stand_out_from_the_page(page: str) -> None:
    for name, style in (STYLES | BENCH_STYLES).items():
        assert contrast(getattr(style, page), PAGES[page]) >= 3, name
    texts = LIGHT_COLOURS if page == "light" else DARK_COLOURS
    assert all(contrast(texts[name], PAGES[page]) >= 4.5 for name in ("ink", "faint"))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("page", PAGES)
def test_colours_of_methods_are_apart(page: str, vision: str) -> None:
    assert least_distance(METHOD_STYLES, page, vision) >= (12 if vision == "normal" else 8)
    assert least_distance([*METHOD_STYLES, *OWN_STYLES], page, vision) >= 5
    assert least_distance([style for style in METHOD_STYLES if style.is_strong], page, vision) >= 15
    assert least_distance([TRAIN, TEST], page, vision) >= 15


def test_methods_can_be_told_apart_without_colours() -> None:
    assert [style.name for style in METHOD_STYLES] == list(LABELS)
    looks = {(style.dashes, style.mark) for style in (*METHOD_STYLES, *OWN_STYLES)}
    assert len(looks) == len(METHOD_STYLES) + len(OWN_STYLES)
    assert [style.dashes for style in METHOD_STYLES if style.is_strong] == ["", ""]
