"""The tab "Your runs" in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from own import write_images, write_method
from playwright.sync_api import Browser, expect, sync_playwright
from test_own_runs import add

from cclfp.data import import_images
from cclfp.report import write_report
from cclfp.runs.store import Store

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")]


@pytest.fixture
def browser() -> Iterator[Browser]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1360, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_your_runs(width: int, scheme: str, browser: Browser, tmp_path: Path) -> None:
    store, half = Store(tmp_path / "runs.sqlite"), write_method(tmp_path / "half.py")
    pets = import_images(write_images(tmp_path / "pets.npz"))
    for method, level in (("er", 60.0), ("ccl-fp+", 64.0), (half, 62.0)):
        add(store, method, pets, level=level, tasks=2, backbone="mlp")
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
