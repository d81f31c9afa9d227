"""``cclfp report``: the paper's tables and figures with our numbers, as a page and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cclfp.cli.manage_runs import warn_of_bad
from cclfp.cli.options import ForceOption, IncludeDivergedOption, JsonOption, StoreOption, parse_seeds
from cclfp.cli.output import print_json, print_text
from cclfp.errors import InputError


def report(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write into, made where there is none.")],
    store: StoreOption = None,
    seeds: Annotated[str, typer.Option(metavar="N or A,B,...", help="How many seeds, or which.")] = "5",
    include_diverged: IncludeDivergedOption = False,
    force: ForceOption = False,
    json: JsonOption = False,
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
    from cclfp.runs.jobs import check_seeds
    from cclfp.runs.store import Store, StoredRow, default_store, exists

    path = store or default_store()
    bad: list[StoredRow] = []
    if not exists(path):
        raise InputError(f"{path}: there is no store of runs; cclfp run makes one, --store FILE names another")
    opened = Store(path, read_only=True, on_bad=bad.append)
    content, written = write_report(
        opened, out, check_seeds(chosen_seeds), include_diverged=include_diverged, force=force
    )
    warn_of_bad(opened, bad)
    if json:
        print_json(
            {
                "store": str(path),
                "runs": content.runs,
                "other_runs": content.other_runs,
                "held_out_runs": content.held_out,
                "counts": count_verdicts(content.results),
                "files": [str(file) for file in written],
            }
        )
        return
    print_text(f"the paper's {tally(content.results)} (from {content.runs:,} runs in {path})")
    if content.other_runs:
        print_text(f"{content.about_others}: see Your runs in {out / 'index.html'}")
    if content.held_out:
        print_text(f"{content.about_held_out}: they are in no table")
    for file in written:
        typer.echo(f"{file}  {file.stat().st_size / 1000:,.0f} kB")
