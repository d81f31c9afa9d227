"""The report's page in a real browser: Debian's chromium, if it is installed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_records import ENVIRONMENT, add_all, cell_of, made_up_record, own_store

from cclfp.paper import cells as paper_cells
from cclfp.report import write_report
from cclfp.runs.store import Store

CHROMIUM = shutil.which("chromium")
TABS = ["accuracy", "buffer", "ablation", "evolution", "forgetting", "runtime", "provenance"]
CELLS = {"accuracy": 116, "buffer": 60, "ablation": 40}
ER = "td[data-cell='accuracy/ER-Res./200/split-mnist/class']"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium to test the page"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(full_store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report with made-up runs of every number; one with two: ER, and GEM untuned and trained together; one's own."""
    folder = tmp_path_factory.mktemp("reports")
    write_report(full_store, folder / "full")
    few = Store(folder / "few.sqlite")
    er, gem = (cell_of("accuracy", row, "split-mnist", "class") for row in ("ER-Res.", "GEM"))
    add_all(few, [made_up_record(er, seed) for seed in range(5)])
    add_all(few, [made_up_record(gem, seed, {**ENVIRONMENT, "together": 5}) for seed in range(5)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cclfp.paper.numbers.find_preset", lambda method, *column: None if method == "gem" else object())
        write_report(few, folder / "few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCLFP_HOME", str(folder / "home"))
        write_report(own_store(folder), folder / "own")
    return {name: folder / name / "index.html" for name in ("full", "few", "own")}


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, reports: dict[str, Path]) -> Iterator[Open]:
    """Opens a report; at the end, there must be no console message, error or request for another file."""
    opened, complaints, asked = [], list[str](), list[str]()

    def open_one(report: str = "full", tab: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, "offline": True, **options})
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(reports[report].as_uri() + (f"#{tab}" if tab else ""))
        return page

    yield open_one
    for context in opened:
        context.close()
    assert complaints == []
    assert {url.partition("#")[0] for url in asked} <= {path.as_uri() for path in reports.values()}
    assert asked


def column(page: Page, table: str, i: int) -> list[str]:
    """Our numbers in a column, from the top, with two digits."""
    cells = page.locator(f"#table-{table} tbody tr td:nth-of-type({i + 1})").all_inner_texts()
    return [text.split()[0] for text in cells]


def numbers(texts: list[str]) -> list[float]:
    return [float(text) for text in texts if re.fullmatch(r"[\d.]+", text)]


def test_figures_keep_their_texts_inside(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "split-cifar100", "class")
    add_all(store, [made_up_record(er, 0)])
    write_report(store, tmp_path / "report")
    page = browser.new_page()
    for figure in sorted((tmp_path / "report" / "figures").glob("*.svg")):
        page.goto(figure.as_uri())
        outside = page.evaluate(
            """() => {
              const page = document.documentElement.getBoundingClientRect();
              const texts = [...document.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
              return texts.filter(([_, box]) => box.left < page.left - 1 || box.right > page.right + 1
                || box.bottom > page.bottom + 1).map(([text, box]) => [text.textContent, box.left, box.right]);
            }"""
        )
        assert outside == [], figure.name
    page.close()


def test_every_number_is_shown_and_counted_and_the_best_is_bold(open_page: Open) -> None:
    page = open_page()
    counts = [int(text) for text in page.locator(".counts b").all_inner_texts()]
    assert (sum(counts), counts[-1]) == (216, 0)
    for table, count in CELLS.items():
        page.click(f"#tab-{table}")
        cells = page.locator(f"#table-{table} td[data-cell]")
        shown = cells.evaluate_all("cells => cells.filter(c => c.checkVisibility() && c.offsetWidth > 40).length")
        assert cells.count() == shown == count
        texts = cells.all_inner_texts()
        assert [text for text in texts if not re.match(r"[\d.]+ ± [\d.]+†?\n", text)] == []
        assert sum("†" in text for text in texts) == sum(not cell.is_tuned for cell in paper_cells(table))
    page.click("#tab-accuracy")
    (bold,) = page.locator("#table-accuracy td:nth-of-type(1) .ours:has(b)").all()
    assert int(bold.locator("b").evaluate("b => getComputedStyle(b).fontWeight")) >= 600
    names = page.locator("#table-accuracy tbody th").all_inner_texts()
    rows = zip(names, column(page, "accuracy", 0), strict=True)
    assert float(bold.inner_text().split()[0]) == max(float(value) for name, value in rows if name != "Joint")
    page = open_page("few")
    assert page.locator(".counts b").all_inner_texts()[-1] == "214"
    assert page.locator("td.v-missing .ours").all_text_contents() == ["missing"] * 214


def test_tabs_by_mouse_and_by_keyboard(open_page: Open) -> None:
    page = open_page()

    def check(open_tab: str) -> None:
        for tab in TABS:
            expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", str(tab == open_tab).lower())
            assert page.locator(f"#{tab}").is_visible() == (tab == open_tab)
        assert page.evaluate("document.activeElement.id") in ("", f"tab-{open_tab}")

    check("accuracy")
    page.click("#tab-runtime")
    check("runtime")
    assert page.url.endswith("#runtime")
    keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"]
    for key, tab in zip(keys, ["provenance", "accuracy", "provenance", "accuracy", "provenance"], strict=True):
        page.keyboard.press(key)
        check(tab)
    page = open_page(tab="forgetting")
    check("forgetting")


def test_sorting_by_mouse_and_by_keyboard(open_page: Open) -> None:
    page = open_page()
    paper = column(page, "accuracy", 0)
    head = page.locator("#table-accuracy th[data-sort='0']")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers(column(page, "accuracy", 0)) == sorted(numbers(paper), reverse=True)
    page.keyboard.press("Enter")  # the button has the focus
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers(column(page, "accuracy", 0)) == sorted(numbers(paper))
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") is None
    assert column(page, "accuracy", 0) == paper
    # Cells without a published number come last in both orders.
    domain = page.locator("#table-accuracy th[data-sort='4'] button")
    for _ in range(2):
        domain.click()
        assert column(page, "accuracy", 4)[-2:] == ["–", "–"]
    # By difference.
    page.select_option("select[data-by=accuracy]", "difference")
    page.locator("#table-accuracy th[data-sort='7'] button").click()
    texts = page.locator("#table-accuracy tbody tr td:nth-of-type(8) .difference").all_inner_texts()
    differences = [float(re.findall(r"[+−]?\d+\.\d+", text)[0].replace("−", "-")) for text in texts]
    assert differences == sorted(differences, reverse=True)
    # By name.
    page.click("#tab-buffer")
    page.locator("#table-buffer th[data-sort=label] button").click()
    names = page.locator("#table-buffer tbody th").all_inner_texts()
    assert [name.split("\n")[0] for name in names] == ["CCL-FP+"] * 4 + ["ER-Res."] * 4 + ["HAL"] * 4
    page = open_page("few")
    for _ in range(2):  # missing numbers come last too
        page.locator("#table-accuracy th[data-sort='0'] button").click()
        assert "missing" not in column(page, "accuracy", 0)[:2]
        assert set(column(page, "accuracy", 0)[2:]) == {"missing"}


def test_seeds_on_hover_and_on_focus(open_page: Open) -> None:
    page = open_page()
    tip, shown = page.locator("#tip"), page.locator("#tip td:last-child")
    er = cell_of("accuracy", "ER-Res.", "split-mnist", "class")
    seeds = [f"{made_up_record(er, seed)['average_accuracy']:.2f}" for seed in range(5)]
    page.locator(ER).scroll_into_view_if_needed()
    page.locator(ER).hover()
    expect(tip).to_be_visible()
    assert shown.all_inner_texts() == seeds
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    # The table is one stop of the tab key; arrow keys move from there.
    page.focus("#table-accuracy th[data-sort='9'] button")
    page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.cell") == "accuracy/ER-Res./200/split-mnist/class"
    expect(tip).to_be_visible()
    assert shown.all_inner_texts() == seeds
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    # Undefined cells (LwF in the domain scenario) are skipped.
    page.focus("#table-accuracy td[data-cell='accuracy/SI//permuted-mnist/domain']")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.cell") == "accuracy/ER-Res./200/permuted-mnist/domain"


def test_how_a_number_was_made(open_page: Open) -> None:
    page = open_page()
    page.focus(ER)
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    text = dialog.inner_text()
    assert "cclfp run er split-mnist" in dialog.locator("pre").inner_text()
    for said in ("A made-up processor for tests", "torch", "2.13.0", "eager", "commit", "± ", "(preset)"):
        assert said in text
    parts = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")
    heads = dialog.locator(".plain thead th").all_inner_texts()
    assert heads == ["seed", "accuracy", "forgetting", "train s", "test s"]
    assert dialog.locator(".heat tbody tr").count() == 5  # the accuracy on each task after each
    assert dialog.locator(".heat tbody td").all_inner_texts()[1:5] == [""] * 4
    for i, row in enumerate(dialog.locator(".plain tbody tr").all()):
        record = made_up_record(cell_of("accuracy", "ER-Res.", "split-mnist", "class"), i)
        shown = row.locator("th, td").all_inner_texts()
        assert shown == [str(i), *(f"{record[part]:.2f}".replace("-", "−") for part in parts)]
    assert "its share of the total" not in text
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.cell") == "accuracy/ER-Res./200/split-mnist/class"
    page.click("#tab-provenance")
    assert page.locator(".commands tbody tr").count() == 216
    page = open_page("few")
    page.click("td[data-cell='accuracy/Joint//split-mnist/class']")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("The command that trains it")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    page.click("td[data-cell='accuracy/GEM/200/split-mnist/class']")
    expect(dialog).to_contain_text("Hyperparameters (defaults, not tuned)")
    expect(dialog).to_contain_text("its share of the total")


def test_legends_switch_series_off_and_charts_can_be_read_by_keyboard(open_page: Open) -> None:
    page = open_page(tab="evolution")
    curves = page.locator("#evolution .panel path.curve[data-series='GEM']")
    assert curves.count() == 7
    button = page.locator("#evolution .legend button[data-series='GEM']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(curve.is_visible() for curve in curves.all())
    chart = page.locator("#evolution .panel svg").first
    chart.scroll_into_view_if_needed()
    chart.hover()
    expect(page.locator("#tip")).to_be_visible()
    assert "GEM" not in page.locator("#tip td:first-child").all_inner_texts()
    assert page.locator("#tip tr").count() == 10
    page.mouse.move(0, 0)
    button.press("Enter")
    assert all(curve.is_visible() for curve in curves.all())
    page.keyboard.press("Tab")  # from the legend to its last entries and to the charts
    while page.evaluate("document.activeElement.tagName") != "svg":
        page.keyboard.press("Tab")
    expect(page.locator("#tip b")).to_have_text("after 5 tasks")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tip b")).to_have_text("after 4 tasks")
    assert page.locator("#live").inner_text().startswith("after 4 tasks: ")
    assert page.locator("#tip tr").count() == 11
    for tab in ("forgetting", "runtime", "ablation", "buffer"):
        page.click(f"#tab-{tab}")
        for panel in page.locator(f"#{tab} .panel svg").all():
            panel.scroll_into_view_if_needed()
            panel.hover()
            expect(page.locator("#tip")).to_be_visible()
            page.mouse.move(0, 0)


def colours(page: Page) -> tuple[int, int]:
    """The lightness of the page and of its text, from 0 to 765."""
    found = page.evaluate(
        "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3))"
    )
    paper, ink = (sum(int(part) for part in colour) for colour in found)
    return paper, ink


def test_dark_mode_and_print(open_page: Open) -> None:
    light, dark = (open_page(tab="evolution", color_scheme=scheme) for scheme in ("light", "dark"))
    assert colours(light) == (765, 28 + 28 + 30)
    assert colours(dark)[0] < 90
    assert colours(dark)[1] > 690
    curve = "#evolution path.k-er"
    shown = [page.locator(curve).first.evaluate("e => getComputedStyle(e).stroke") for page in (light, dark)]
    assert shown == ["rgb(0, 105, 168)", "rgb(87, 180, 234)"]
    dark.emulate_media(media="print")
    assert colours(dark)[0] == 765
    assert all(dark.locator(f"#{tab}").is_visible() for tab in TABS)
    assert not dark.locator("[role=tablist]").is_visible()
    assert dark.locator("td[data-cell]").evaluate_all("cells => cells.every(c => c.checkVisibility())")
    printed = dark.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 10


@pytest.mark.parametrize("width", [320, 820])
def test_a_phone_scrolls_tables_and_not_the_page(open_page: Open, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 800}, has_touch=True)
    for tab in TABS:
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    page.click("#tab-accuracy")
    scroll = page.locator("#accuracy .scroll")
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    scroll.evaluate("e => { e.scrollLeft = 300; }")
    left = scroll.evaluate("e => e.getBoundingClientRect().left")
    first = page.locator("#table-accuracy tbody th").first
    assert first.evaluate("e => e.getBoundingClientRect().left") == pytest.approx(left, abs=1)
    page.locator("#table-accuracy td[data-cell]").first.tap()
    expect(page.locator("dialog")).to_be_visible()
    assert page.locator("dialog").evaluate("e => e.getBoundingClientRect().right") <= width


def test_commands_can_be_read_on_a_phone(open_page: Open) -> None:
    page = open_page(tab="provenance", viewport={"width": 390, "height": 800})
    lists = page.locator("#provenance details")
    assert lists.evaluate_all("lists => lists.map(list => list.open)") == [False] * 3  # long: folded
    lists.first.locator("summary").click()
    row = lists.first.locator("tbody tr").first
    assert row.inner_text().splitlines()[0] == "Joint Split MNIST, class"
    for cell in row.locator("th, td").all():  # one below the other, within the screen
        box = cell.bounding_box()
        assert box is not None
        assert [box["x"], box["x"] + box["width"]] == pytest.approx([16, 374], abs=1)


def test_without_scripts_everything_is_there_and_files_can_be_saved(
    open_page: Open, reports: dict[str, Path], tmp_path: Path
) -> None:
    page = open_page(java_script_enabled=False)
    assert all(page.locator(f"#{tab}").is_visible() for tab in TABS)
    assert page.locator("td[data-cell] .ours").count() == 216
    for tab, name in [("accuracy", "tables/accuracy.csv"), ("ablation", "figures/ablation.svg")]:
        with page.expect_download() as download:
            page.click(f"#{tab} a[download='{Path(name).name}']")
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == (reports["full"].parent / name).read_bytes()


@pytest.mark.parametrize(("width", "scheme"), [(1360, "light"), (390, "dark")])
def test_your_runs(width: int, scheme: str, open_page: Open) -> None:
    page = open_page("own", viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.get_by_role("link", name="Your runs").click()
    expect(page.locator("#own")).to_be_visible()
    rows = page.locator("#table-own-0 tbody tr")
    assert rows.locator("th").all_inner_texts() == ["er", "half"]
    assert "best" in rows.nth(1).inner_text()
    page.locator("#table-own-0 th[data-sort='0'] button").click()  # by accuracy, the best first
    assert rows.locator("th").all_inner_texts() == ["half", "er"]
    rows.nth(1).locator("td[data-cell]").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("worse than the best beyond chance (paired t-test over 5 common seeds")
    assert dialog.locator(".heat tbody tr").count() == 5
    expect(dialog).to_contain_text("cclfp run er split-mnist")
    dialog.get_by_role("button", name="Close").click()
    (heat,) = page.locator("#own details[open] .heat").all()  # the best row's; the others are folded
    assert heat.locator("tbody th").all_inner_texts() == ["cat", "dog", "fish", "owl"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
