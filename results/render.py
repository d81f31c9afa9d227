"""Write RESULTS.md from the run records in results/*.jsonl.

    .venv/bin/python results/render.py                              # results/*.jsonl -> RESULTS.md
    .venv/bin/python results/render.py runs.jsonl --to build/RESULTS.md

Importing the records into a store checks them. The remarks on the numbers are in remarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checklist import describe_searches, describe_streams, describe_time, show_table

from cclfp.core.files import write_atomic
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.metrics import mean_std, plus_minus, signed
from cclfp.paper import TIMING_SEED
from cclfp.paper.numbers import LABELS, run_time_cells
from cclfp.report import Content, collect
from cclfp.report.tables import Table, column_title, count_verdicts, row_name, verdict_of
from cclfp.runs.configuration import USUAL, Configuration, show_value
from cclfp.runs.record import Record
from cclfp.runs.results import Result
from cclfp.runs.store import Store, import_runs, read_records
from cclfp.streams import BENCHMARKS
from cclfp.streams.benchmarks import show_order

RESULTS = Path(__file__).parent
EARLIER = RESULTS / "earlier"  # runs with settings of earlier presets, or classes in another order
TUNING = RESULTS / "tuning"  # runs that chose the settings
SEEDS = range(5)
DATASETS = tuple(dict.fromkeys(benchmark.dataset for benchmark in BENCHMARKS.values()))  # one file of records each
VERDICTS = {"within": "within", "above": "above", "below": "below", "unjudged": "too few seeds", "missing": "missing"}
VERDICTS |= {"diverged": "all seeds diverged"}
REMARKS = ("head", "below", "above", "accuracy", "buffer", "ablation", "missing", "settings", "runs")
# The environment of a published record: nothing that identifies a machine.
ENVIRONMENT = {"device", "device_name", "platform", "engine", "precision", "threads", "together"}
ENVIRONMENT |= {"cclfp", "torch", "commit", "source"}
PATH_PATTERN = re.compile(r"(^|[\s'\"=:(])(~?/|[A-Za-z]:\\|\\\\)")


class Results:
    """The records of some files, and the paper's tables with them."""

    def __init__(self, files: Sequence[Path], include_diverged: bool = False) -> None:
        self.records: dict[str, list[Record]] = {}
        for path in sorted(files):
            self.records[path.name] = []
            for place, record in read_records(path):
                check_public(place, record)
                self.records[path.name].append(record)
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "runs.sqlite")
            _, duplicates = import_runs(sorted(files), store)
            self.content: Content = collect(store, SEEDS, include_diverged)
        if duplicates:
            raise InputError(f"records that occur twice: {', '.join(duplicates)}")

    @property
    def runs(self) -> list[Record]:
        return [record for records in self.records.values() for record in records]

    @property
    def unused(self) -> list[Record]:
        """The records that belong to no number of the tables, for instance because a preset has changed."""
        used = {record["key"] for result in self.content.results for record in result.runs}
        used |= {cell.key(TIMING_SEED) for cell in run_time_cells()}
        return [record for record in self.runs if record["key"] not in used]


def check_public(place: str, record: Record) -> None:
    """Refuse a record with private data of the machine that made it."""
    if private := [name for name in record["environment"] if name not in ENVIRONMENT]:
        raise InputError(f"{place}: its environment has {', '.join(private)}, which must not be published")
    for text in _texts(record):
        if PATH_PATTERN.search(text):
            raise InputError(f"{place}: it has the path {text!r}, which must not be published")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


# Parts of the document ------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns whose title begins with > are aligned to the right."""
    marks = ["--:" if column.startswith(">") else ":--" for column in columns]
    lines = [[column.removeprefix(">") for column in columns], marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summarise(results: Results) -> list[str]:
    content = results.content
    mnist = [result for result in content.results if is_mnist(result)]
    parts: list[tuple[str, Callable[[Result], bool]]] = [
        ("All three tables", lambda r: True),
        ("**MNIST**", is_mnist),
        ("– accuracy", lambda r: is_mnist(r) and r.table == "accuracy"),
        ("– buffer, Rotated MNIST", lambda r: is_mnist(r) and r.table == "buffer"),
        ("– ablation", lambda r: is_mnist(r) and r.table == "ablation"),
    ]
    shown = count_verdicts(content.results, shown=True)
    rows = []
    for title, belongs in parts:
        results_of_part = [result for result in content.results if belongs(result)]
        counts = count_verdicts(results_of_part)
        rows.append([title, str(len(results_of_part)), *(str(counts[name]) for name in shown)])
    counts = count_verdicts(mnist)
    return [
        f"{counts['within'] + counts['above']} of the {len(mnist)} MNIST numbers are within two standard deviations of "
        f"the paper's or above that range, and {counts['below']} are below it.",
        table(["", ">numbers", *(f">{VERDICTS[name]}" for name in shown)], rows),
        "The standard deviations are the paper's. It gives none for the ablation, so the ablation uses ours.",
    ]


def is_mnist(result: Result) -> bool:
    return BENCHMARKS[result.configuration.benchmark].dataset == "mnist"


def gain_over_er(accuracy: Table) -> list[str]:
    """The gain of CCL-FP+ over ER in each column, seed by seed."""
    rows = []
    for benchmark, scenario in accuracy.columns:
        by_label = {r.label: r for r in accuracy.results if r.column == (benchmark, scenario)}
        er, ours = (by_label.get(LABELS[method]) for method in ("er", "ccl-fp+"))
        if er is None or ours is None or er.published is None or ours.published is None:
            continue
        before, after = er.accuracies, ours.accuracies
        gains = [accuracy - before[seed] for seed, accuracy in after.items() if seed in before]
        found = mean_std(gains)
        mean = "missing" if found["mean"] is None else signed(found["mean"], found["std"])
        above = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
        papers = signed(ours.published.mean - er.published.mean)
        rows.append([column_title((benchmark, scenario)), mean, above, papers])
    return [
        "The gain of CCL-FP+ over ER: the mean of the differences per seed, and the number of seeds with a gain.",
        table(["column", ">ours", ">seeds", ">paper"], rows),
    ]


def list_results(results: Iterable[Result]) -> str:
    """A table of numbers that differ from the paper's, one per line."""
    rows = []
    for result in results:
        assert result.difference is not None
        assert result.published is not None
        spread = result.std if result.published.std is None else result.published.std
        rows.append(
            [
                result.table,
                column_title(result.column),
                row_name(result),
                result.text(),
                plus_minus(*result.published),
                signed(result.difference),
                f"{abs(result.difference) / spread:.1f}" if spread else "–",
            ]
        )
    columns = ["table", "column", "row", ">ours", ">paper", ">difference", ">in std"]
    return table(columns, rows) if rows else "None."


def list_missing(content: Content) -> list[str]:
    """The numbers with too few runs, one line per column of a table."""
    rows, counts = [], []
    for one in content.tables:
        counts.append(f"{one.name} {count_verdicts(one.results)['missing']} of {len(one.results)}")
        for column in one.columns:
            entries = [result for result in one.results if result.column == column]
            without = [result for result in entries if not result.runs]
            partial = [result for result in entries if 0 < len(result.runs) < len(content.seeds)]
            named = [row_name(result) for result in without] if len(without) < len(entries) else ["all"]
            named += [f"{row_name(result)} ({len(result.runs)} of {len(content.seeds)} seeds)" for result in partial]
            if without or partial:
                rows.append([one.name, column_title(column), f"{len(without)} of {len(entries)}", "; ".join(named)])
    listed = [table(["table", "column", ">missing", "which"], rows)] if rows else []
    return [f"Numbers without runs: {', '.join(counts)}.", *listed]


def compare_earlier(files: Sequence[Path], accuracy: Table, include_diverged: bool) -> list[str]:
    """The numbers of runs with other settings, or another order of the classes, beside those of the table."""
    before: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    now = {(*result.column, result.label): result for result in accuracy.results}
    for path in sorted(files):
        for where, record in read_records(path):
            place = (record["benchmark"], record["scenario"], LABELS[record["method"]])
            then = Configuration.from_dict({**USUAL, **record["configuration"]})  # a record may be older than a setting
            different = _differences(then, now[place].configuration)
            if not different:
                raise InputError(f"{where}: neither its settings nor its class order differ from those of the table")
            if record["seed"] in SEEDS:  # others were made for their time
                before.setdefault(place, {}).setdefault(different, []).append(record)
    rows = []
    in_order = [*dict.fromkeys(place[:2] for place in now)]
    for place in sorted(now, key=lambda place: in_order.index(place[:2])):
        for different, found in before.get(place, {}).items():
            one = now[place]
            then_and_now = [dataclasses.replace(one, runs=found, include_diverged=include_diverged), one]
            numbers = [*(result.text() for result in then_and_now), plus_minus(*(one.published or (None, None)))]
            rows.append([column_title(place[:2]), place[2], different, *numbers])
    columns = ["column", "row", "what was different", ">then", ">now", ">paper"]
    text = (
        f"The runs in `results/{EARLIER.name}/` were made with settings of earlier presets, or before Split Tiny "
        "ImageNet had its present class order."
    )
    return ["### Earlier numbers", text, table(columns, rows)] if rows else []


def _differences(then: Configuration, now: Configuration) -> str:
    """How runs were configured where that is not so now: their settings, and the order of their classes."""
    added = METHODS[then.method].earlier_values(then.to_dict())  # hyperparameters that the method did not have yet
    settings = added | then.hyperparameters | {"augment": then.augment}
    present = now.hyperparameters | {"augment": now.augment}
    changed = " ".join(f"{name}={show_value(value)}" for name, value in settings.items() if value != present[name])
    return ", ".join(filter(None, [changed, show_order(then.benchmark, then.class_order)]))


def list_environments(results: Results) -> list[str]:
    """The environments of the runs, one line per file, device, engine and precision."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for file, records in results.records.items():
        for record in records:
            used = [str(record["environment"].get(name) or "?") for name in ("device_name", "engine", "precision")]
            groups.setdefault((f"`results/{file}`", *used), []).append(record)
    rows = []
    for group, records in sorted(groups.items()):
        environments = [record["environment"] for record in records]
        days = sorted({record["finished_at"][:10] for record in records})
        versions = [f"{name} {_distinct(e.get(name) for e in environments)}" for name in ("cclfp", "torch")]
        versions.append(f"code {_distinct(map(_code, environments))}")
        hours = f"{sum(record['seconds'] for record in records) / 3600:.2f}"
        finished = " to ".join(dict.fromkeys([days[0], days[-1]]))
        rows.append([*group, str(len(records)), hours, ", ".join(versions), finished])
    sentences = [f"{len(results.runs):,} runs; some of them belong to several tables."]
    if results.unused:
        sentences.append(
            f"**{len(results.unused)} of them belong to no number**: no cell of a table has their settings, or a "
            "preset has changed."
        )
    columns = ["records", "device", "engine", "precision", ">runs", ">hours", "made with", "finished"]
    return [" ".join(sentences), table(columns, rows)] if rows else ["No runs yet."]


def list_searches(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    return [
        f"The {len(records):,} runs of these searches, with their minutes in brackets: minutes of one CPU core on the "
        "MNIST streams, and of the GPU, which several searches shared, on the others.",
        *describe_searches(records, table),
    ]


def sum_hours(results: Results, old: Sequence[Record], searches: Sequence[Record]) -> list[str]:
    kinds = {"the numbers above": results.runs, "searches": searches, "earlier numbers": old}
    return [
        "Hours of all runs whose records are kept. A run that was trained together with others counts with its share "
        "of their time. Where several processes shared the GPU, the hours of all of them are added up.",
        *describe_time({kind: records for kind, records in kinds.items() if records}, table),
    ]


def _records(files: Sequence[Path]) -> list[Record]:
    return [record for path in files for _, record in read_records(path)]


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value or "?") for value in values}))


def _code(environment: dict[str, Any]) -> str:
    """The commit or, without a checkout, the first digits of the package's checksum."""
    commit = str(environment.get("commit") or "")
    checksum = str(environment.get("source") or "?")
    return commit[:10] + "+" * commit.endswith("+") if commit else f"checksum {checksum[:8]}"


def _made_with(records: Sequence[Record]) -> str:
    """The options that all of these records were made with."""
    made = {name: {record["environment"].get(name) for record in records} for name in ("engine", "precision")}
    return "".join(f" --{name} {used.pop()}" for name, used in made.items() if len(used) == 1)


def show_commands(results: Results) -> str:
    """The commands that make the records."""
    lines = []
    for dataset in DATASETS:
        names = ",".join(name for name, benchmark in BENCHMARKS.items() if benchmark.dataset == dataset)
        records = results.records.get(f"{dataset}.jsonl", [])
        trained = [record for record in records if record["seed"] != TIMING_SEED]
        lines.append(f"cclfp study all --benchmark {names}{_made_with(trained)} --store {dataset}.sqlite")
        if any(record["seed"] == TIMING_SEED for record in records):
            timed = [record for record in records if record["seed"] == TIMING_SEED]
            names = ",".join(sorted({record["benchmark"] for record in timed}))
            lines.append(f"cclfp study runtime --benchmark {names}{_made_with(timed)} --store {dataset}.sqlite")
        lines.append(f"cclfp runs export results/{dataset}.jsonl --store {dataset}.sqlite")
    return "```\n" + "\n".join([*lines, "make results"]) + "\n```"


def read_remarks(path: Path) -> dict[str, str]:
    """The texts of remarks.md by heading."""
    parts = re.split(r"^## (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {heading.strip(): text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    if unknown := [heading for heading in found if heading not in REMARKS]:
        raise InputError(f"{path}: {', '.join(unknown)}: expected headings of {', '.join(REMARKS)}")
    return {name: found.get(name, "") for name in REMARKS}


def render_document(
    files: Sequence[Path],
    remarks: dict[str, str],
    old: Sequence[Path] = (),
    searched: Sequence[Path] = (),
    include_diverged: bool = False,
) -> str:
    results = Results(files, include_diverged)
    content, searches = results.content, _records(searched)
    below = [result for result in content.results if verdict_of(result) == "below"]
    above = [result for result in content.results if verdict_of(result) == "above"]
    parts = [
        "# Results",
        "The paper's numbers and ours, written by `make results` from the run records in `results/`; do not edit.",
        remarks["head"],
        "## Summary",
        *summarise(results),
        f"### Numbers below the paper's ({len(below)})",
        list_results(below),
        remarks["below"],
        f"### Numbers above the paper's ({len(above)})",
        list_results(above),
        remarks["above"],
    ]
    for one in content.tables:
        parts += [
            "#" + show_table(one).strip(),
            *(gain_over_er(one) if one.name == "accuracy" else []),
            remarks[one.name],
        ]
    parts += [
        "## Missing",
        *list_missing(content),
        remarks["missing"],
        "## How the settings were chosen",
        remarks["settings"],
        *list_searches(searches),
        *compare_earlier(old, next(one for one in content.tables if one.name == "accuracy"), include_diverged),
        "## How the runs were made",
        *list_environments(results),
        remarks["runs"],
        "Every record contains its hyperparameters, accuracies, times and versions. The following commands make the "
        "records. They also train the missing numbers of their benchmarks, with the method's defaults where there is "
        "no preset:",
        show_commands(results),
        "`cclfp runs import results/*.jsonl --store reference.sqlite` imports the records into a store, for `cclfp "
        "report` and `cclfp runs`. If the store already has a different record of the same run, the import is refused.",
        "## Streams, networks and computing time",
        *describe_streams(table),
        *sum_hours(results, _records(old), searches),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: all in results")
    parser.add_argument("--to", type=Path, default=RESULTS.parent / "RESULTS.md", help="the file to write")
    parser.add_argument("--include-diverged", action="store_true", help="also count runs that diverged")
    arguments = parser.parse_args()
    files = arguments.files or sorted(RESULTS.glob("*.jsonl"))
    old, searched = ([] if arguments.files else sorted(folder.glob("*.jsonl")) for folder in (EARLIER, TUNING))
    try:
        remarks = read_remarks(RESULTS / "remarks.md")
        text = render_document(files, remarks, old, searched, arguments.include_diverged)
    except InputError as error:
        parser.error(str(error))
    write_atomic(arguments.to, text.encode())
    print(f"{arguments.to}: from {len(files)} files")


if __name__ == "__main__":
    main()
