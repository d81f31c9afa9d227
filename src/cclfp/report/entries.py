"""The paper's tables with our runs beside the published numbers, and the command behind every number."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cclfp.paper import TABLES, Cell, Comparison, cells, columns, compare
from cclfp.runs.record import Record
from cclfp.streams import get_benchmark

Column = tuple[str, str]  # a benchmark and a scenario
UPPER_BOUND = "joint"  # trains on all tasks at once, so it is not a candidate for the best of a column
VERDICTS = {
    "within": "within two standard deviations of the paper's number",
    "above": "above the paper's number by more than two standard deviations",
    "below": "below the paper's number by more than two standard deviations",
    "unjudged": "only one seed, and no published standard deviation to compare with",
    "missing": "not trained yet",
    "diverged": "all seeds diverged, so there is no mean",
}
RARE_VERDICTS = ("unjudged", "diverged")  # shown only where a number has them
# The fields of a record's environment that the report shows, with their titles, the most important first.
ENVIRONMENT = {
    "device_name": "device",
    "device": "kind of device",
    "engine": "engine",
    "precision": "precision",
    "threads": "threads",
    "cclfp": "cclfp",
    "torch": "torch",
    "commit": "commit",
    "source": "source",
    "platform": "platform",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of a table with our runs of it. ``best`` and ``best_published`` refer to its column (and memory size)."""

    cell: Cell
    records: list[Record]
    comparison: Comparison
    best: bool = False
    best_published: bool = False

    @property
    def name(self) -> str:
        """Its row in words: ``ER-Res., memory 200``."""
        row, memory = self.cell.row, self.cell.buffer
        return {"buffer": f"{row}, memory {memory}", "ablation": variant_name(row)}.get(self.cell.table, row)

    @property
    def column(self) -> Column:
        return self.cell.benchmark, self.cell.scenario

    @property
    def verdict(self) -> str:
        """A key of ``VERDICTS``."""
        if self.comparison.mean is None:
            return "diverged" if self.comparison.seeds.diverged else "missing"
        return self.comparison.verdict or "unjudged"

    @property
    def text(self) -> str:
        """Our number and how many of its seeds diverged; "missing" where there are no runs."""
        return self.comparison.text() if self.records else "missing"

    @property
    def untuned(self) -> bool:
        """Whether our number was made with the method's default hyperparameters; tables mark it."""
        return self.comparison.mean is not None and not self.cell.has_preset

    @property
    def chosen(self) -> str:
        """Where its hyperparameters come from."""
        if not self.cell.has_preset:
            return "defaults, not tuned"
        if self.cell.settings:
            return "preset, except for the components left out"
        return "preset" if self.cell.buffer in (None, 200) else "preset, tuned with memory 200"

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The environments of its runs, each once."""
        return distinct([{name: run["environment"].get(name) for name in ENVIRONMENT} for run in self.records])

    def command(self, seeds: Sequence[int]) -> str:
        """The command that reproduces the number.

        It names every hyperparameter, so that a later change of the preset does not affect it.
        """
        c, benchmark = self.cell.configuration(), get_benchmark(self.cell.benchmark)
        words = ["cclfp", "run", c.method, c.benchmark]
        words += [f"{name}={format_exactly(value)}" for name, value in c.hyperparameters.items()]
        words += [] if benchmark.no_augmentation else [f"augment={'on' if c.augment else 'off'}"]
        words += ["--scenario", c.scenario]
        words += [] if c.buffer is None else ["--memory", str(c.buffer)]
        words += ["--seeds", seeds_option([record["seed"] for record in self.records] or seeds)]
        for option in ("engine", "precision", "device", "threads"):
            used = {record["environment"].get(option) for record in self.records}
            words += [f"--{option}", str(used.pop())] if len(used) == 1 and None not in used else []
        words += ["--fresh"] if self.records else []  # otherwise a store that has the runs would return them
        ours = self.comparison.seeds
        words += ["--include-diverged"] if ours.include_diverged and ours.diverged else []
        return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class TableRow:
    label: str
    buffer: int | None  # the memory size, in the table whose rows differ in it
    entries: list[Entry | None]  # by column; None where the paper has no number


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: list[Column]
    rows: list[TableRow]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.entries if entry is not None]


def compare_table(name: str, records: dict[Cell, list[Record]], include_diverged: bool) -> Table:
    """A table of the paper with these records in its cells."""
    compared = {cell: compare(cell, records[cell], include_diverged) for cell in cells(name)}
    means = {cell: comparison.mean for cell, comparison in compared.items()}
    published = {cell: cell.published.mean for cell in compared}
    by_row: dict[tuple[str, int | None], dict[Column, Entry]] = {}
    for cell, comparison in compared.items():
        entry = Entry(cell, records[cell], comparison, _is_best(cell, means), _is_best(cell, published))
        buffer = cell.buffer if name == "buffer" else None
        by_row.setdefault((cell.row, buffer), {})[entry.column] = entry
    rows = [TableRow(label, buffer, [row.get(c) for c in columns(name)]) for (label, buffer), row in by_row.items()]
    return Table(name, TABLES[name], columns(name), rows)


def _is_best(cell: Cell, means: Mapping[Cell, float | None]) -> bool:
    """Whether a cell has the highest mean of its column (and memory size), as displayed, leaving out Joint.

    Nothing is the best of a column with a missing mean.
    """
    candidates = [
        mean
        for other, mean in means.items()
        if (other.benchmark, other.scenario) == (cell.benchmark, cell.scenario)
        and (cell.table != "buffer" or other.buffer == cell.buffer)
        and other.method != UPPER_BOUND
    ]
    known = [round(mean, 2) for mean in candidates if mean is not None]
    mean = means[cell]
    complete = len(known) == len(candidates)
    return cell.method != UPPER_BOUND and mean is not None and complete and round(mean, 2) == max(known)


def seeds_option(seeds: Sequence[int]) -> str:
    """The value of ``--seeds``: how many, or which; a trailing comma tells one seed from a count."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


@functools.cache
def benchmark_title(benchmark: str) -> str:
    return get_benchmark(benchmark).title


def column_title(column: Column) -> str:
    return f"{benchmark_title(column[0])}, {column[1]}"


def variant_name(label: str) -> str:
    """A row of the ablation, with the method that it is equivalent to.

    >>> variant_name("w, α")
    'w, α (CCL-FP)'
    """
    known = {"none": "ER", "w, α": "CCL-FP", "w, α, β": "CCL-FP+"}
    return f"{label} ({known[label]})" if label in known else label


def format_exactly(value: float) -> str:
    """A hyperparameter as users write it, with all its digits: ``0.1``, ``1``."""
    return repr(float(value)).removesuffix(".0")


def distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each value once, in the order of first occurrence."""
    return [value for i, value in enumerate(values) if value not in values[:i]]
