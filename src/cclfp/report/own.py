"""The runs that are in none of the paper's tables, as tables: one per benchmark, scenario, protocol and memory."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cclfp.core.userfiles import show_reference
from cclfp.methods import METHODS
from cclfp.metrics import signed
from cclfp.nets.backbones import show_backbone
from cclfp.paper.ranking import Standing, rank, show_p
from cclfp.report.entries import ENVIRONMENT, distinct, format_exactly, seeds_option
from cclfp.runs.configuration import PROTOCOL, USUAL, method_labels, show_value
from cclfp.runs.record import Record
from cclfp.runs.seeds import Seeds
from cclfp.streams.benchmarks import benchmark_names, get_benchmark, has_usual_order, show_order
from cclfp.streams.split import even_sizes

# What the runs of one table share, besides the size of the memory.
SHARED = ("benchmark", "scenario", "class_order", "tasks", "backbone", "batch", "epochs", "max_classes")


@dataclasses.dataclass(frozen=True)
class OwnRow:
    """One configuration with its runs, and how it stands among those of its table."""

    label: str
    configuration: Mapping[str, Any]
    seeds: Seeds
    standing: Standing

    @property
    def settings(self) -> dict[str, float]:
        return _settings(self.configuration)

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The environments of its runs, each once."""
        return distinct([{name: run["environment"].get(name) for name in ENVIRONMENT} for run in self.seeds.runs])

    @property
    def difference(self) -> str:
        """From the best, in words."""
        s = self.standing
        if s.best or s.difference is None:
            return "best" if s.best else "–"
        return signed(s.difference) + ("" if s.std is None else f" ± {s.std:.2f}")

    @property
    def explanation(self) -> str:
        """How it compares with the best."""
        s = self.standing
        test = f"paired t-test over {s.common} common seeds, p {'' if (s.p or 0) < 0.001 else '= '}{show_p(s.p)}"
        return {
            "best": "the best of its table",
            "worse": f"worse than the best beyond chance ({test})",
            "similar": f"not different from the best beyond chance ({test})",
            "unknown": "too few common seeds to compare it with the best" if s.common else "not compared with others",
        }[s.verdict]

    @property
    def confusion(self) -> list[list[int]] | None:
        """How often each class was predicted as each, in all runs that counted it; None where none did."""
        found = [run["confusion"] for run in self.seeds.counted if "confusion" in run]
        if not found:
            return None
        return [[sum(counts) for counts in zip(*rows, strict=True)] for rows in zip(*found, strict=True)]

    @property
    def command(self) -> str:
        """The command that makes its runs; a user's file is named without its folder."""
        c = self.configuration
        method = c["method"] if c["method_file"] is None else show_reference(c["method_file"])
        words = ["cclfp", "run", method, c["benchmark"]]
        words += [f"{name}={_show(value)}" for name, value in self.settings.items()]
        words += ["--scenario", c["scenario"], *([] if c["buffer"] is None else ["--memory", str(c["buffer"])])]
        words += _split_options(c["benchmark"], c["class_order"], c["tasks"])
        if c["backbone"] is not None:
            is_file = "file" in c["backbone"]
            words += ["--backbone", show_reference(c["backbone"]) if is_file else show_backbone(c["backbone"])]
        words += [] if c["max_classes"] is None else ["--max-classes", str(c["max_classes"])]
        return shlex.join([*words, "--seeds", seeds_option([run["seed"] for run in self.seeds.runs])])


@dataclasses.dataclass(frozen=True)
class OwnTable:
    """Runs that can be compared with each other."""

    shared: Mapping[str, Any]  # the values of SHARED
    memory: int | None
    rows: list[OwnRow]

    @property
    def title(self) -> str:
        return ", ".join([self.name, *self.details])

    @property
    def name(self) -> str:
        """Its benchmark and scenario."""
        return f"{title_of(self.shared['benchmark'])}, {self.shared['scenario']}"

    @property
    def place(self) -> str:
        """What its runs are trained on, whatever their memory."""
        return ", ".join([self.name, *self._protocol])

    @property
    def details(self) -> list[str]:
        """How it differs from others on the same benchmark."""
        return self._protocol + ([] if self.memory is None else [f"memory {self.memory}"])

    @property
    def _protocol(self) -> list[str]:
        s = self.shared
        parts = [order] if (order := show_order(s["benchmark"], s["class_order"])) else []
        parts += [] if s["tasks"] is None else [f"{len(s['tasks'])} tasks"]
        parts += [] if s["backbone"] is None else [show_backbone(s["backbone"])]
        parts += [] if s["max_classes"] is None else [f"room for {s['max_classes']} classes"]
        return parts + [f"{name}={s[name]}" for name in ("batch", "epochs") if s[name] != PROTOCOL[name]]

    @property
    def classes(self) -> list[str] | None:
        """The names of its classes; None where its images are not on this machine."""
        name = self.shared["benchmark"]
        return list(get_benchmark(name).classes) if name in benchmark_names() else None


@dataclasses.dataclass(frozen=True)
class OwnRuns:
    """The tables of one's own, how many runs are in no table of the paper, and how many only chose hyperparameters."""

    tables: list[OwnTable]
    runs: int
    held_out: int

    @property
    def sentence(self) -> str:
        """``12 runs are not in the paper's tables``; empty where all are."""
        return f"{_count(self.runs)} not in the paper's tables" if self.runs else ""

    @property
    def held_out_sentence(self) -> str:
        """About the runs that no table shows."""
        return f"{_count(self.held_out)} on held-out images, made to choose hyperparameters" if self.held_out else ""


def collect_own(records: Sequence[Record], in_tables: Collection[str], include_diverged: bool) -> OwnRuns:
    """The tables of all records that share their benchmark and protocol with one that is in no table of the paper."""
    tested = [(record, {**USUAL, **record["configuration"]}) for record in records]
    others = [(record, values) for record, values in tested if record["key"] not in in_tables]
    outside = {_identity(values) for _, values in others if not values["validation"]}
    places: dict[str, list[tuple[Record, dict[str, Any]]]] = {}
    for record, values in tested:
        if not values["validation"] and _identity(values) in outside:
            places.setdefault(_identity(values), []).append((record, values))
    tables = [table for several in places.values() for table in _tables(several, include_diverged)]
    held_out = sum(values["validation"] for _, values in others)
    return OwnRuns(tables, len(others) - held_out, held_out)


def is_joint(configuration: Mapping[str, Any]) -> bool:
    """Whether its method trains on all tasks at once."""
    return configuration["method"] in METHODS and METHODS[configuration["method"]].joint


def title_of(benchmark: str) -> str:
    """A benchmark's title, also of images that are not on this machine."""
    return get_benchmark(benchmark).title if benchmark in benchmark_names() else benchmark


def _tables(several: Sequence[tuple[Record, dict[str, Any]]], include_diverged: bool) -> list[OwnTable]:
    """A table per size of the memory; methods without a memory are in each."""
    rows: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for record, values in several:
        file = values["method_file"]
        identity = _as_text({**values, "method_file": None if file is None else file["sha256"]})
        rows.setdefault(identity, (values, []))[1].append(record)
    sizes = sorted({values["buffer"] for values, _ in rows.values() if values["buffer"] is not None})
    shared = {name: several[0][1][name] for name in SHARED}
    tables = []
    labels = _labels([values for values, _ in rows.values()])
    named = [(label, *row) for label, row in zip(labels, rows.values(), strict=True)]
    for size in sizes or [None]:
        chosen = [one for one in named if one[1]["buffer"] in (size, None)]
        tables.append(OwnTable(shared, size, _rows(chosen, include_diverged)))
    return tables


def _rows(chosen: Sequence[tuple[str, dict[str, Any], list[Record]]], include_diverged: bool) -> list[OwnRow]:
    """The rows of one table, in the paper's order of methods; a user's own come last."""
    seeds = [Seeds(sorted(runs, key=lambda run: run["seed"]), include_diverged) for _, _, runs in chosen]
    candidates = [
        bool(one.accuracies) and not is_joint(values) for one, (_, values, _) in zip(seeds, chosen, strict=True)
    ]
    standings = rank([one.accuracies for one in seeds], candidates)
    rows = [
        OwnRow(label, values, one, standing)
        for (label, values, _), one, standing in zip(chosen, seeds, standings, strict=True)
    ]
    order = {name: place for place, name in enumerate(METHODS)}
    return sorted(rows, key=lambda row: order.get(row.configuration["method"], len(order)))


def _labels(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per configuration: the method, its version where there are several, and the settings that vary."""
    labels = []
    for name, values in zip(method_labels(several), several, strict=True):
        alike = [_settings(other) for other in several if other["method"] == values["method"]]
        own = _settings(values)
        varied = [setting for setting in own if len({other.get(setting) for other in alike}) > 1]
        labels.append(" ".join([name, *(f"{setting}={show_value(own[setting])}" for setting in varied)]))
    return labels


def _settings(values: Mapping[str, Any]) -> dict[str, float]:
    """The settings of a configuration that are not the usual ones, and all hyperparameters."""
    protocol = {name: values[name] for name in PROTOCOL if values[name] not in (None, PROTOCOL[name])}
    return {**values["hyperparameters"], **protocol, "augment": values["augment"]}


def _identity(values: Mapping[str, Any]) -> str:
    return _as_text({name: values[name] for name in SHARED})


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _split_options(benchmark: str, order: Any, sizes: Sequence[int] | None) -> list[str]:
    """The options of ``cclfp run`` that split a benchmark's classes like this."""
    is_even = sizes is None or tuple(sizes) == even_sizes(sum(sizes), len(sizes))
    is_usual = has_usual_order(benchmark, order)
    if order == "random" or (is_even and (is_usual or order is None)):
        tasks = [] if sizes is None else ["--tasks", str(len(sizes))]
        return tasks + ([] if is_usual else ["--class-order", order or "labels"])
    numbers = iter(map(str, range(sum(sizes or ())) if order is None else order))
    groups = [",".join(next(numbers) for _ in range(size)) for size in sizes or [len(order)]]
    return ["--class-order", "/".join(groups)]


def _show(value: float) -> str:
    return show_value(value) if isinstance(value, bool) else format_exactly(value)


def _count(number: int) -> str:
    return f"{number:,} run is" if number == 1 else f"{number:,} runs are"
