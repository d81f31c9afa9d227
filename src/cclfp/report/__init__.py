"""The report: the paper's tables and figures with our numbers, as a page, as texts and as pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cclfp.core.files import check_output, write_atomic
from cclfp.core.workers import Died, work
from cclfp.errors import InputError, RunError
from cclfp.events import OnEvent, ignore
from cclfp.report import converting
from cclfp.report.charts import Chart, make_charts
from cclfp.report.drawing import draw_figure
from cclfp.report.tables import Content, collect
from cclfp.report.text import render, render_page, to_csv
from cclfp.runs.store import Store, files_of

__all__ = ["Content", "collect", "write_report"]

LIST = ".cclfp-report"  # the file in a report's folder that lists the others
LIST_BEGINS = "cclfp report wrote these files, and replaces them:"


def write_report(
    store: Store,
    out: Path,
    seeds: Sequence[int] = range(5),
    *,
    include_diverged: bool = False,
    force: bool = False,
    skip_bad: bool = False,
    on_event: OnEvent = ignore,
) -> tuple[Content, list[Path]]:
    """Write ``index.html``, ``tables/`` and ``figures/`` into a folder; each file is written completely or not at all.

    Files of these names that no report has written are replaced with ``force`` only. A bad record is an
    InputError or, with ``skip_bad``, left out with a note.

    The same runs give the same files, byte for byte, except for the PDFs: the order of their parts varies.
    """
    content = collect(store, seeds, include_diverged, on_event, skip_bad=skip_bad)
    charts = make_charts(content)
    files = {Path("tables") / name: text.encode() for name, text in _render_tables(content)}
    files |= {Path("figures") / name: picture for name, picture in _render_figures(charts)}
    page = render_page(content, charts, {path.name: data for path, data in files.items()})
    files[Path("index.html")] = page.encode()  # the last, so that it is never newer than the files beside it
    try:
        out.mkdir(parents=True, exist_ok=True)
        _claim(out, list(files), store, force)
        for name, data in files.items():
            write_atomic(out / name, data)
    except OSError as error:
        raise InputError(f"--out {out}: expected a folder that can be written: {error}") from error
    return content, [out / name for name in files]


def _claim(out: Path, names: Sequence[Path], store: Store, force: bool) -> None:
    """List the report's files in the folder, before they are written; refuse to replace others."""
    wanted, listed = list(map(str, names)), out / LIST
    check_output(listed, lambda head: head.startswith(LIST_BEGINS.encode()), force=force, inputs=files_of(store.path))
    known = listed.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if listed.is_file() else []
    for name in wanted:
        check_output(out / name, lambda _, name=name: name in known, force=force, inputs=files_of(store.path))  # type: ignore[misc]
    text = "\n".join([LIST_BEGINS, *sorted({*known, *wanted}), ""])
    write_atomic(listed, text.encode())


def _render_tables(content: Content) -> Iterator[tuple[str, str]]:
    if content.own:
        yield "own.md", render("own.md", several=content.own)
        yield "own.csv", to_csv(content.own)
    for table in content.tables:
        yield f"{table.name}.md", render("table.md", table=table)
        yield f"{table.name}.csv", to_csv([table])
        yield f"{table.name}.tex", render("table.tex", table=table)


def _render_figures(charts: Sequence[Chart]) -> Iterator[tuple[str, bytes]]:
    """Each figure as SVG, PDF and PNG. The library that writes the latter aborts its process when memory is short."""
    drawn = [draw_figure(chart) for chart in charts]
    with contextlib.closing(work(converting.__file__, "convert", [{}], drawn)) as answers:
        for number, answer in answers:
            if isinstance(answer, Died):
                raise RunError(f"the process that converts figures {answer.how}")
            kinds = {"svg": drawn[number].encode(), **answer}
            yield from ((f"{charts[number].name}.{kind}", picture) for kind, picture in kinds.items())
