"""The report: the paper's tables and figures with our numbers, as a page, as texts and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cclfp.core.files import write_atomic
from cclfp.errors import InputError
from cclfp.report.content import Content, collect
from cclfp.report.page import page
from cclfp.report.svg import figure
from cclfp.report.tables import comma_separated, latex, markdown
from cclfp.runs.store import Store

__all__ = ["Content", "collect", "write_report"]

PNG_SCALE = 2.0


def write_report(
    store: Store, out: Path, seeds: Sequence[int] = range(5), *, include_diverged: bool = False
) -> tuple[Content, list[Path]]:
    """Write ``index.html``, ``tables/`` and ``figures/`` into a folder, each file whole or not at all.

    The same runs give the same files, byte for byte but for the PDFs, whose parts come in any order.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: expected a folder, or the name of one to be made: {error}") from error
    content = collect(store, seeds, include_diverged)
    tables, figures = _tables(content), _figures(content)
    files = {
        **{Path("tables") / name: text for name, text in tables.items()},
        **{Path("figures") / name: picture for name, picture in figures.items()},
        # The last, so that a page is not newer than what lies beside it.
        Path("index.html"): page(content, {**tables, **figures}).encode(),
    }
    try:
        for name, data in files.items():
            write_atomic(out / name, lambda file: file.write(data))  # noqa: B023  called at once
    except OSError as error:
        raise InputError(f"--out {out}: the report cannot be written there: {error}") from error
    return content, [out / name for name in files]


def _tables(content: Content) -> dict[str, bytes]:
    kinds = {"md": markdown, "csv": comma_separated, "tex": latex}
    return {
        f"{table.name}.{kind}": write(table, content).encode()
        for table in content.tables
        for kind, write in kinds.items()
    }


def _figures(content: Content) -> dict[str, bytes]:
    import vl_convert  # only needed here

    found = {}
    for chart in content.charts:
        drawn = figure(chart)
        found[f"{chart.name}.svg"] = drawn.encode()
        found[f"{chart.name}.pdf"] = vl_convert.svg_to_pdf(drawn)
        found[f"{chart.name}.png"] = vl_convert.svg_to_png(drawn, scale=PNG_SCALE)
    return found
