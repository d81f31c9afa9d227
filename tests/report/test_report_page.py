"""The report's page in a real browser: Debian's chromium, if it is installed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from own import write_images, write_method
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_records import ENVIRONMENT, add_all, add_own, cell_of, made_up_record

from cclfp.data import import_images
from cclfp.paper import cells as paper_cells
from cclfp.report import write_report
from cclfp.runs.store import Store

CHROMIUM = shutil.which("chromium")
TABS = ["accuracy", "buffer", "ablation", "evolution", "forgetting", "runtime", "provenance"]
CELLS = {"accuracy": 116, "buffer": 60, "ablation": 40}
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
    """A report with made-up runs of every number, and one with two: ER, and GEM untuned and trained together."""
    folder = tmp_path_factory.mktemp("reports")
    write_report(full_store, folder / "full")
    few = Store(folder / "few.sqlite")
    er, gem = (cell_of("accuracy", row, "split-mnist", "class") for row in ("ER-Res.", "GEM"))
    add_all(few, [made_up_record(er, seed) for seed in range(5)])
    add_all(few, [made_up_record(gem, seed, {**ENVIRONMENT, "together": 5}) for seed in range(5)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cclfp.paper.numbers.find_preset", lambda method, *column: None if method == "gem" else object())
        write_report(few, folder / "few")
    return {name: folder / name / "index.html" for name in ("full", "few")}


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, reports: dict[str, Path]) -> Iterator[Open]:
    """Opens a report; at the end, there must be no console message, error or request for another file."""
    opened, complaints, asked = [], list[str](), list[str]()

    def open_one(report: str = "full", tab: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, "offline": True, **options})
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
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


def test_it_says_how_many_numbers_agree(open_page: Open) -> None:
    page = open_page()
    counts = [int(text) for text in page.locator(".counts b").all_inner_texts()]
    assert sum(counts) == 216
    assert counts[-1] == 0
    expect(page.locator("h1")).to_be_visible()
    page = open_page("few")
    assert page.locator(".counts b").all_inner_texts()[-1] == "214"


def test_figures_keep_their_texts_inside(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    er = cell_of("accuracy", "ER-Res.", "split-cifar100", "class")
    add_all(store, [made_up_record(er, 0)])  # the note below the panel on the right names all others as missing
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


def test_every_cell_is_shown(open_page: Open) -> None:
    page = open_page()
    for table, count in CELLS.items():
        page.click(f"#tab-{table}")
        cells = page.locator(f"#table-{table} td[data-cell]")
        assert cells.count() == count
        shown = cells.evaluate_all("cells => cells.filter(c => c.checkVisibility() && c.offsetWidth > 40).length")
        assert shown == count
        texts = cells.all_inner_texts()
        for text in texts:
            assert re.match(r"[\d.]+ ± [\d.]+†?\n", text), text
        assert sum("†" in text for text in texts) == sum(not cell.is_tuned for cell in paper_cells(table))
    page = open_page("few")
    missing = page.locator("td.v-missing .ours")
    assert missing.count() == 214
    assert set(missing.all_text_contents()) == {"missing"}


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
    for key, tab in [("ArrowRight", "provenance"), ("ArrowRight", "accuracy"), ("ArrowLeft", "provenance")]:
        page.keyboard.press(key)
        check(tab)
    for key, tab in [("Home", "accuracy"), ("End", "provenance")]:
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
    for _ in range(2):
        page.locator("#table-accuracy th[data-sort='0'] button").click()
        assert "missing" not in column(page, "accuracy", 0)[:2]
        assert set(column(page, "accuracy", 0)[2:]) == {"missing"}


def test_best_is_bold(open_page: Open) -> None:
    page = open_page()
    bold = page.locator("#table-accuracy td:nth-of-type(1) .ours:has(b)")
    assert bold.count() == 1
    assert int(bold.locator("b").evaluate("b => getComputedStyle(b).fontWeight")) >= 600
    rows = page.locator("#table-accuracy tbody tr").all()
    first = [(row.locator("th").inner_text(), row.locator("td").first.inner_text().split()[0]) for row in rows]
    best = max((float(value), name) for name, value in first if name != "Joint")
    assert bold.inner_text().split()[0] == f"{best[0]:.2f}"


def test_seeds_on_hover_and_on_focus(open_page: Open) -> None:
    page, tip = open_page(), "#tip"
    cell = page.locator("#table-accuracy td[data-cell='accuracy/ER-Res./200/split-mnist/class']")
    seeds = [
        f"{made_up_record(cell_of('accuracy', 'ER-Res.', 'split-mnist', 'class'), s)['average_accuracy']:.2f}"
        for s in range(5)
    ]
    cell.scroll_into_view_if_needed()
    cell.hover()
    expect(page.locator(tip)).to_be_visible()
    assert page.locator(f"{tip} td:last-child").all_inner_texts() == seeds
    page.mouse.move(0, 0)
    expect(page.locator(tip)).to_be_hidden()
    # The table is one stop of the tab key; arrow keys move from there.
    page.focus("#table-accuracy th[data-sort='9'] button")
    page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.cell") == "accuracy/ER-Res./200/split-mnist/class"
    expect(page.locator(tip)).to_be_visible()
    assert page.locator(f"{tip} td:last-child").all_inner_texts() == seeds
    page.keyboard.press("Escape")
    expect(page.locator(tip)).to_be_hidden()
    # Undefined cells (LwF in the domain scenario) are skipped.
    page.focus("#table-accuracy td[data-cell='accuracy/SI//permuted-mnist/domain']")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.cell") == "accuracy/ER-Res./200/permuted-mnist/domain"


def test_how_a_number_was_made(open_page: Open) -> None:
    page = open_page()
    cell = "accuracy/CCL-FP+/200/split-mnist/class"
    page.focus(f"td[data-cell='{cell}']")
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    text = dialog.inner_text()
    assert "cclfp run ccl-fp+ split-mnist" in dialog.locator("pre").inner_text()
    for said in ("A made-up processor for tests", "torch", "2.13.0", "eager", "commit", "alpha", "± "):
        assert said in text
    seeds = [made_up_record(cell_of("accuracy", "CCL-FP+", "split-mnist", "class"), seed) for seed in range(5)]
    parts = ("average_accuracy", "forgetting", "train_seconds", "test_seconds")
    assert dialog.locator(".plain thead th").all_inner_texts() == [
        "seed",
        "accuracy",
        "forgetting",
        "train s",
        "test s",
    ]
    assert dialog.locator(".heat tbody tr").count() == 5  # the accuracy on each task after each
    assert dialog.locator(".heat tbody td").all_inner_texts()[1:5] == [""] * 4
    for seed, row in zip(seeds, dialog.locator(".plain tbody tr").all(), strict=True):
        shown = row.locator("th, td").all_inner_texts()
        assert shown == [str(seed["seed"]), *(f"{seed[part]:.2f}".replace("-", "−") for part in parts)]
    assert "Hyperparameters (preset)" in text
    assert "its share of the total" not in text
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.cell") == cell
    page.click("td[data-cell='accuracy/Joint//split-mnist/class']")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    page.click("#tab-provenance")
    assert page.locator(".commands tbody tr").count() == 216
    chosen = page.locator(".commands tbody td:nth-of-type(3)").all_inner_texts()
    assert len(chosen) == 216
    assert {text.partition(",")[0] for text in chosen} == {"preset", "defaults"}
    page = open_page("few")
    page.click("td[data-cell='accuracy/Joint//split-mnist/class']")
    assert "The command that trains it" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.click("td[data-cell='accuracy/GEM/200/split-mnist/class']")
    text = page.locator("dialog").inner_text()
    assert "Hyperparameters (defaults, not tuned)" in text
    assert "its share of the total" in text


def test_what_components_are_worth_is_a_table_below_the_ablation(open_page: Open) -> None:
    page = open_page(tab="ablation")
    rows = page.locator("#ablation .worth tbody tr")
    assert rows.count() == 5
    assert rows.last.is_visible()
    assert rows.last.locator("th").inner_text() == "Rotated MNIST, domain"
    assert re.fullmatch(r"[−+]\d+\.\d\d ± \d+\.\d\d \([−+]\d+\.\d\d\)", rows.last.locator("td").first.inner_text())
    assert page.locator(".worth").count() == 1


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
    title = row.locator("td").nth(2).evaluate("cell => getComputedStyle(cell, '::before').content")
    assert title.replace('" "', "").strip('"') in ("settings: ", "settings")
    page = open_page(tab="provenance")
    assert page.locator("#provenance details").evaluate_all("lists => lists.every(list => list.open)")


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


def test_dark_mode(open_page: Open) -> None:
    light, dark = (open_page(tab="evolution", color_scheme=scheme) for scheme in ("light", "dark"))
    assert colours(light) == (765, 28 + 28 + 30)
    assert colours(dark)[0] < 90
    assert colours(dark)[1] > 690
    curve = "#evolution path.k-er"
    shown = [page.locator(curve).first.evaluate("e => getComputedStyle(e).stroke") for page in (light, dark)]
    assert shown == ["rgb(0, 105, 168)", "rgb(87, 180, 234)"]
    dark.emulate_media(media="print")
    assert colours(dark)[0] == 765


@pytest.mark.parametrize("width", [320, 390, 820])
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


def test_print_shows_everything(open_page: Open) -> None:
    page = open_page(tab="evolution")
    page.emulate_media(media="print")
    for tab in TABS:
        assert page.locator(f"#{tab}").is_visible()
    assert not page.locator("[role=tablist]").is_visible()
    assert page.locator("td[data-cell]").evaluate_all("cells => cells.every(c => c.checkVisibility())")
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 10


def test_without_scripts_everything_is_there(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    for tab in TABS:
        assert page.locator(f"#{tab}").is_visible()
    assert page.locator("td[data-cell] .ours").count() == 216


def test_saved_files_are_those_of_the_folder(open_page: Open, reports: dict[str, Path], tmp_path: Path) -> None:
    page = open_page()
    for tab, name in [("accuracy", "tables/accuracy.csv"), ("ablation", "figures/ablation.svg")]:
        page.click(f"#tab-{tab}")
        with page.expect_download() as download:
            page.click(f"#{tab} a[download='{Path(name).name}']")
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == (reports["full"].parent / name).read_bytes()


@pytest.mark.parametrize("width", [1360, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_your_runs(width: int, scheme: str, browser: Browser, tmp_path: Path) -> None:
    store, half = Store(tmp_path / "runs.sqlite"), write_method(tmp_path / "half.py")
    pets = import_images(write_images(tmp_path / "pets.npz"))
    for method, level in (("er", 60.0), ("ccl-fp+", 64.0), (half, 62.0)):
        add_own(store, method, pets, level=level, tasks=2, backbone="mlp")
    write_report(store, tmp_path / "out")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(10_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "out/index.html").as_uri())
    page.get_by_role("link", name="Your runs").click()
    expect(page.locator("#own")).to_be_visible()
    rows = page.locator("#table-own-0 tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == ["er", "ccl-fp+", "half"]
    assert "best" in rows.nth(1).inner_text()
    page.locator("#table-own-0 th[data-sort='0'] button").click()  # by accuracy, the best first
    assert [row.locator("th").inner_text() for row in rows.all()] == ["ccl-fp+", "half", "er"]
    rows.nth(2).locator("td[data-cell]").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("worse than the best beyond chance (paired t-test over 5 common seeds")
    assert dialog.locator(".heat tbody tr").count() == 2
    expect(dialog).to_contain_text(f"cclfp run er {pets}")
    dialog.get_by_role("button", name="Close").click()
    heat = page.locator("#own details[open] .heat")
    assert heat.count() == 1  # the best row's; the others are folded
    assert heat.locator("tbody th").all_inner_texts() == ["cat", "dog", "fish", "owl"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert complaints == []
    context.close()
