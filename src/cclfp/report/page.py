"""The page: one HTML file with everything in it, that works without a network and, but for sorting, without scripts."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

from cclfp._version import __version__
from cclfp.metrics import number, plus_minus, signed
from cclfp.report import svg
from cclfp.report.content import (
    BOUND,
    ENVIRONMENT,
    UNCOMMON,
    VERDICTS,
    Chart,
    Content,
    Entry,
    Panel,
    Row,
    Series,
    Table,
    Value,
    exact,
    title_of,
)
from cclfp.report.tables import UNTUNED, explanation, head_of, labels_of, tally, worth

SYMBOLS = {"within": "●", "above": "▲", "below": "▼", "unjudged": "◇", "missing": "○", "diverged": "✕"}
VARIABLES = {name: f"var(--{name})" for name in svg.PRINTED}
TYPES = {
    "md": "text/markdown;charset=utf-8",
    "csv": "text/csv;charset=utf-8",
    "tex": "text/x-tex;charset=utf-8",
    "svg": "image/svg+xml",
}

Files = Mapping[str, bytes]  # by name, such as accuracy.csv


def page(content: Content, files: Files) -> str:
    """The whole page; ``files`` are the tables and figures that it offers to save."""
    charts = {chart.name: _chart(chart, files) for chart in content.charts}
    tables = {table.name: _table(table, content, files) for table in content.tables}
    tabs = {
        "accuracy": ("Accuracy", tables["accuracy"]),
        "buffer": ("Memory size", tables["buffer"] + charts["buffer"]),
        "ablation": ("Ablation", tables["ablation"] + charts["ablation"]),
        "evolution": ("Evolution", charts["evolution"]),
        "forgetting": ("Forgetting", charts["forgetting"]),
        "runtime": ("Run time", charts["runtime"]),
        "provenance": ("How it was made", _provenance(content)),
    }
    parts = {
        "summary": _summary(content),
        "tabs": "".join(
            f'<button role="tab" type="button" id="tab-{name}" aria-controls="{name}">{title}</button>'
            for name, (title, _) in tabs.items()
        ),
        "panels": "".join(
            f'<section role="tabpanel" id="{name}" aria-labelledby="tab-{name}">{body}</section>'
            for name, (_, body) in tabs.items()
        ),
        "style": _asset("page.css") + svg.rules(VARIABLES, font="inherit") + _colours(),
        "script": _asset("page.js"),
        "data": _json({"cells": _cells(content), "verdicts": VERDICTS, "symbols": SYMBOLS}),
        "version": escape(__version__),
        "made": escape(_made(content)),
    }
    return string.Template(_asset("page.html")).substitute(parts)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that a script element can hold: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _colours() -> str:
    def each(of: str) -> str:
        return "".join(f".{svg.css_name(key)}{{color:{getattr(style, of)}}}" for key, style in svg.STYLES.items())

    return f"{each('light')}\n@media screen and (prefers-color-scheme:dark){{{each('dark')}}}\n"


def _made(content: Content) -> str:
    runs = f"{content.runs:,} run{'s' * (content.runs != 1)}"
    return f"From {runs}, the last finished on {content.latest}" if content.latest else "There are no runs yet"


def _summary(content: Content) -> str:
    """The bar of verdicts and what its parts are."""
    counts = {name: count for name, count in content.counts().items() if count or name not in UNCOMMON}
    bar = "".join(f'<i class="v-{name}" style="flex-grow:{count}"></i>' for name, count in counts.items() if count)
    items = "".join(
        f'<li class="v-{name}"><span class="symbol" aria-hidden="true">{SYMBOLS[name]}</span> <b>{count}</b> {name}'
        f"<small>{escape(VERDICTS[name].removeprefix(name))}</small></li>"
        for name, count in counts.items()
    )
    seeds, partial = len(content.seeds), sum(0 < e.comparison.n < len(content.seeds) for e in content.entries)
    note = f"<p><small>{partial} of them from fewer than {seeds} seeds so far.</small></p>" if partial else ""
    said = f"Of {tally(counts)}"
    return f'<div class="bar" role="img" aria-label="{said}">{bar}</div><ul class="counts">{items}</ul>{note}'


def _table(table: Table, content: Content, files: Files) -> str:
    groups = [(b, len(list(group))) for b, group in groupby(table.columns, lambda column: column[0])]
    benchmarks = "".join(f'<th scope="colgroup" colspan="{n}">{escape(title_of(b))}</th>' for b, n in groups)
    scenarios = "".join(
        f'<th scope="col" data-sort="{i}"><button type="button" aria-label="{escape(title_of(b))}, {scenario}: sort">'
        f"{scenario}</button></th>"
        for i, (b, scenario) in enumerate(table.columns)
    )
    before = [None, *table.rows]
    rows = "".join(_row(table, row, before[i], i, len(content.seeds)) for i, row in enumerate(table.rows))
    lead = explanation(
        table, content, "below it the paper’s number and the difference", f"{SYMBOLS['above']} and {SYMBOLS['below']}"
    )
    counts = tally(content.counts(table.entries))
    orders = {"ours": "ours", "paper": "the paper’s", "difference": "difference"}
    options = "".join(f'<option value="{value}">{text}</option>' for value, text in orders.items())
    return (
        f'<h2>{escape(table.title)}</h2><p class="lead">{escape(f"{lead} {counts}.")}</p>'
        f'<div class="tools"><label>Columns sort by <select data-by="{table.name}">{options}</select></label>'
        f"{_saves(table.name, ('csv', 'md', 'tex'), files)}</div>"
        f'<div class="scroll"><table class="numbers" id="table-{table.name}" role="grid" '
        f'aria-label="{escape(table.title)}"><thead><tr><th scope="col" rowspan="2" class="stick" data-sort="label">'
        f'<button type="button">{head_of(table)[-1]}</button></th>{benchmarks}</tr><tr>{scenarios}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{_worth(table)}"
    )


def _worth(table: Table) -> str:
    if not (said := worth(table)):
        return ""
    first, *columns = map(escape, said)
    listed = "".join(f"<li>{sentence}</li>" for sentence in columns)
    return f'<h3>What each component is worth</h3><p class="lead">{first}</p><ul class="worth">{listed}</ul>'


def _row(table: Table, row: Row, before: Row | None, order: int, seeds: int) -> str:
    *memory, label = labels_of(table, row)
    small = f"<small>memory {memory[0]}</small>" if memory else ""
    starts = before is not None and (row.buffer, _group(row)) != (before.buffer, _group(before))
    cells = "".join(_cell(entry, seeds) for entry in row.entries)
    return (
        f'<tr data-order="{order}"{" class=starts" if starts else ""}>'
        f'<th scope="row" class="stick">{escape(label)}{small}</th>{cells}</tr>'
    )


def _group(row: Row) -> str | None:
    """Of the accuracy table's rows: the bounds, the paper's own methods, the others."""
    methods = {entry.cell.method for entry in row.entries if entry is not None and entry.cell.table == "accuracy"}
    return (
        None if not methods else "bound" if methods & {BOUND, "finetune"} else "own" if "ccl-fp" in str(methods) else ""
    )


def cell_id(entry: Entry) -> str:
    c = entry.cell
    return "/".join([c.table, c.row, str(c.buffer or ""), c.benchmark, c.scenario])


def _cell(entry: Entry | None, seeds: int) -> str:
    if entry is None:
        return '<td class="none" aria-label="not defined in this scenario">–</td>'
    c, published, verdict = entry.comparison, entry.cell.published, entry.verdict
    remark = c.seeds.remark
    papers = _bold(plus_minus(*published), entry.best_published)
    if c.mean is None or c.difference is None:
        ours, difference, sortable = remark or "missing", "", ""
    else:
        ours = f"{number(c.mean)}<small> ± {number(c.std)}</small>" if c.std is not None else number(c.mean)
        ours = _bold(ours, entry.best) + UNTUNED * entry.untuned
        ours += f'<small class="n">{c.n} of {seeds} seeds</small>' if c.n < seeds else ""
        ours += f'<small class="n">{remark}</small>' if remark else ""
        difference = (
            f'<span class="difference"><span aria-hidden="true">{SYMBOLS[verdict]}</span> {signed(c.difference)}'
            f'<span class="unseen"> {verdict}</span></span>'
        )
        sortable = f' data-ours="{c.mean!r}" data-difference="{c.difference!r}"'
    return (
        f'<td class="v-{verdict}" data-cell="{escape(cell_id(entry))}" data-paper="{published.mean!r}"{sortable}>'
        f'<span class="ours">{ours}</span>'
        f'<span class="paper"><span class="unseen">paper </span>{papers}</span>{difference}</td>'
    )


def _bold(text: str, best: bool) -> str:
    return f"<b>{text}</b>" if best else text


def _cells(content: Content) -> dict[str, Any]:
    """What the page shows of a cell when asked."""
    found = {}
    for entry in content.entries:
        c, comparison = entry.cell, entry.comparison
        found[cell_id(entry)] = {
            "row": entry.name,
            "column": f"{title_of(c.benchmark)}, {c.scenario}-incremental",
            "verdict": entry.verdict,
            "mean": comparison.mean,
            "std": comparison.std,
            "difference": comparison.difference,
            "published": list(c.published),
            "seeds": [
                [r["seed"], *(r[name] for name in ("average_accuracy", "forgetting", "train_seconds", "test_seconds"))]
                for r in entry.records
            ],
            "counted": list(comparison.seeds.accuracies),
            "diverged": {r["seed"]: r["diverged"] for r in entry.records if r.get("diverged") is not None},
            "remark": comparison.seeds.remark,
            "alone": all(r["environment"].get("together") == 1 for r in entry.records),
            "command": entry.command(content.seeds),
            "hyperparameters": _settings(entry),
            "chosen": entry.chosen,
            "environments": [
                {ENVIRONMENT[name]: value for name, value in environment.items() if value is not None}
                for environment in entry.environments
            ],
            "finished": max((r["finished_at"] for r in entry.records), default=None),
        }
    return found


def _settings(entry: Entry) -> dict[str, str]:
    c = entry.cell.configuration()
    settings = {name: exact(value) for name, value in c.hyperparameters.items()}
    protocol = ("batch", "replay", "epochs", "buffer") if c.kind.replays is True else ("batch", "epochs", "buffer")
    settings |= {name: str(value) for name in protocol if (value := getattr(c, name))}
    return settings | {"augment": "on" if c.augment else "off"}


def _chart(chart: Chart, files: Files) -> str:
    entries = svg.legend(chart)
    legend = f'<div class="legend" role="group" aria-label="Series">{"".join(_key(chart, s) for s in entries)}</div>'
    return (
        f'<figure class="charts" id="figure-{chart.name}"><h2>{escape(chart.title)}</h2>'
        f'<p class="lead">{escape(chart.caption)}</p>'
        f'<div class="tools">{legend if len(entries) > 1 else "<span></span>"}'
        f"{_saves(chart.name, ['svg'], files)}</div>"
        f'<div class="grid">{"".join(_panel(chart, panel) for panel in chart.panels)}</div>'
        f"<details><summary>These numbers as a table</summary>{_numbers(chart)}</details></figure>"
    )


def _key(chart: Chart, series: Series) -> str:
    """An entry of the legend: a switch, but where series are stacked."""
    size = 'viewBox="-2 -3 30 18" width="30" height="18"'
    sample = f'<svg class="chart" {size} aria-hidden="true">{svg.sample(chart, series)}</svg>'
    label = escape(series.label)
    if chart.kind == "bars":
        return f"<span>{sample}{label}</span>"
    return f'<button type="button" aria-pressed="true" data-series="{label}">{sample}{label}</button>'


def _panel(chart: Chart, panel: Panel) -> str:
    drawing = svg.draw(chart, panel)
    stops = [
        {"at": round(at, 1), "title": _stop_title(chart, stop), "lines": _stop_lines(panel, i)}
        for i, (at, stop) in enumerate(zip(drawing.at, panel.stops, strict=True))
    ]
    hover = _json({"axis": drawing.axis, "frame": [round(x, 1) for x in drawing.frame], "stops": stops})
    notes = "".join(f'<p class="note">{escape(note[0].upper() + note[1:])}.</p>' for note in chart.notes(panel))
    said = f"{chart.title}: {panel.title} ({'no runs yet' if panel.is_empty else 'arrow keys read its values'})"
    return (
        f'<div class="panel"><svg class="chart" viewBox="0 0 {svg.WIDTH:g} {drawing.height:g}" tabindex="0" role="img" '
        f'aria-label="{escape(said)}" data-hover="{escape(hover)}">{drawing.body}</svg>{notes}</div>'
    )


def _stop_title(chart: Chart, stop: str) -> str:
    return {"evolution": f"after {stop} task{'s' * (stop != '1')}", "buffer": f"{stop} examples"}.get(chart.name, stop)


def _stop_lines(panel: Panel, i: int) -> list[list[Any]]:
    """The values at a stop, the largest first: series, colour, text, seeds."""
    known = [(series, value) for series in panel.series if (value := series.values[i]) is not None]
    known.sort(key=lambda pair: -pair[1].mean)
    return [
        [series.label, svg.css_name(series.key), plus_minus(value.mean, value.std), [round(s, 2) for s in value.seeds]]
        for series, value in known
    ]


def _numbers(chart: Chart) -> str:
    """What a chart shows, as a table for each panel."""
    tables = []
    for panel in chart.panels:
        head = [chart.stop_title, *(series.label for series in panel.series)]
        rows = [
            [stop, *(_shown(s.values[i], panel.lacking(s, stop)) for s in panel.series)]
            for i, stop in enumerate(panel.stops)
        ]
        tables.append(_plain(f"{panel.title}: {chart.value_title}", head, rows))
    return "".join(tables)


def _shown(value: Value | None, lacking: str) -> str:
    return lacking if value is None else plus_minus(value.mean, value.std)


def _plain(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in others)}</tr>'
        for first, *others in rows
    )
    return (
        f'<div class="scroll"><table class="plain"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _provenance(content: Content) -> str:
    """The command behind every number, and what it was run with."""
    environments = [
        f"<li><b>{escape(str(e['device_name'] or 'unknown device'))}</b> "
        + escape(", ".join(f"{ENVIRONMENT[n]} {v}" for n, v in e.items() if v is not None and n != "device_name"))
        + "</li>"
        for e in content.environments
    ]
    listed = f'<ol class="environments">{"".join(environments)}</ol>' if environments else "<p>No runs yet.</p>"
    return (
        '<h2>How it was made</h2><p class="lead">Each command says all hyperparameters, so that it gives the same '
        "number whatever the presets become. With the eager engine on a CPU that is so to the last bit.</p>"
        f"<h3>Environments</h3>{listed}{''.join(_commands(table, content) for table in content.tables)}"
    )


def _commands(table: Table, content: Content) -> str:
    lines = []
    for entry in table.entries:
        made = ", ".join(str(content.environments.index(e) + 1) for e in entry.environments)
        lines.append(
            f'<tr class="v-{entry.verdict}"><th scope="row">{escape(entry.name)} '
            f"<small>{escape(title_of(entry.cell.benchmark))}, {entry.cell.scenario}</small></th>"
            f"<td>{entry.text}</td><td>{made or '–'}</td>"
            f"<td>{entry.chosen}</td>"
            f"<td><code>{_breakable(entry.command(content.seeds))}</code></td></tr>"
        )
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("number", "ours", "environment", "settings", "command"))
    return (
        f'<details open><summary>{escape(table.title)}</summary><div class="scroll"><table class="plain commands">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _breakable(command: str) -> str:
    """A command that is not broken within an option's dashes."""
    words = [f'<span class="option">{w}</span>' if w.startswith("--") else w for w in escape(command).split(" ")]
    return " ".join(words)


def _saves(name: str, kinds: Sequence[str], files: Files) -> str:
    """Links that save files which the page carries within it."""
    links = []
    for kind in kinds:
        data = base64.b64encode(files[f"{name}.{kind}"]).decode()
        shown = {"md": "Markdown", "tex": "LaTeX"}.get(kind, kind.upper())
        links.append(f'<a download="{name}.{kind}" href="data:{TYPES[kind]};base64,{data}">{shown}</a>')
    return f'<span class="saves">Save: {" · ".join(links)}</span>'
