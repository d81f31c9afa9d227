"""``cclfp report``: the paper's tables and figures with our numbers, as a page and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cclfp.cli.manage_runs import warn_of_bad
from cclfp.cli.options import FORCE, INCLUDE_DIVERGED, JSON, STORE, option, parse_seeds
from cclfp.cli.output import print_answer
from cclfp.cli.progress import Progress


def report(
    out: Path = option(..., "The folder to write into, made where there is none.", "DIR"),
    store: Path | None = STORE,
    seeds: str = option("5", "How many seeds, or which.", "N or A,B,..."),
    include_diverged: bool = INCLUDE_DIVERGED,
    force: bool = FORCE,
    json: bool = JSON,
) -> None:
    """Write the paper's tables and figures with the store's runs beside the published numbers, and all other runs.

    DIR/index.html is a page that works without a network; DIR/tables has Markdown, CSV and LaTeX, DIR/figures SVG, PDF
    and PNG. Numbers that have not been trained are shown as missing. Runs that are in none of the paper's tables, such
    as those of your own images and methods, are under "Your runs" in tables, charts and confusion matrices.

    [bold]Examples[/bold]

    cclfp report --out report/
    cclfp report --out report/ --store runs.sqlite --seeds 3
    """
    chosen_seeds = parse_seeds(seeds)

    from cclfp.report import write_report
    from cclfp.report.tables import count_verdicts, tally
    from cclfp.runs.code import OTHER_CODE_RISK, is_other_code, made_by
    from cclfp.runs.jobs import check_seeds
    from cclfp.runs.results import explain_other_code
    from cclfp.runs.store import Store, StoredRow, default_store

    path = store or default_store()
    bad: list[StoredRow] = []
    opened = Store(path, read_only=True, on_bad=bad.append)
    options: dict[str, Any] = {"include_diverged": include_diverged, "force": force}
    with Progress() as shown:
        content, written = write_report(opened, out, check_seeds(chosen_seeds), **options, on_event=shown.update)
    warn_of_bad(opened, bad)
    lines = [f"the paper's {tally(content.results)} (from {content.runs:,} runs in {path})"]
    if content.other_runs:
        lines += [f"{content.about_others}: see Your runs in {out / 'index.html'}"]
    if content.held_out:
        lines += [f"{content.about_held_out}: they are in no table"]
    lines += explain_other_code(content.shown, OTHER_CODE_RISK)
    document = {
        "store": path,
        "runs": content.runs,
        "other_runs": content.other_runs,
        "held_out_runs": content.held_out,
        "other_code": {run["key"]: made_by(run) for r in content.shown for run in r.runs if is_other_code(run)},
        "counts": count_verdicts(content.results),
        "files": written,
    }
    print_answer(json, document, *lines, *(f"{file}  {file.stat().st_size / 1000:,.0f} kB" for file in written))
