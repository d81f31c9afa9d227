"""A result: one configuration over its seeds, beside what was published or compared with the best of its column."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cclfp import metrics
from cclfp.core.userfiles import show_reference
from cclfp.methods import METHODS
from cclfp.nets.backbones import show_backbone
from cclfp.runs.code import OTHER_CODE, OTHER_CODE_HINT, describe_other_code, is_other_code, made_by
from cclfp.runs.configuration import Configuration, show_value
from cclfp.runs.execution import GONE, MADE_WITH
from cclfp.runs.record import MEASURES, Record
from cclfp.streams.benchmarks import BENCHMARKS, get_benchmark, has_usual_order, show_order
from cclfp.streams.tasks import even_sizes

DEFAULTS = "defaults"  # where the settings come from if nobody tuned them
WITHIN = 2  # standard deviations
ROUNDING = 1e-9
LEVEL = 0.05  # a smaller p is beyond chance


class Published(NamedTuple):
    """An average accuracy of the paper, in percent."""

    mean: float
    std: float | None


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a result stands in its column; ``best_published`` is about the paper's number.

    ``difference`` is the mean difference from the best over ``common`` seeds and ``std`` its standard deviation; ``p``
    is None for the best itself and where there are too few seeds.
    """

    best: bool = False
    difference: float | None = None
    std: float | None = None
    common: int = 0
    p: float | None = None
    best_published: bool = False

    @property
    def verdict(self) -> str:
        """``"best"``, ``"worse"``, ``"similar"`` (no difference beyond chance), or ``"unknown"``."""
        if self.best:
            return "best"
        return "unknown" if self.p is None else "worse" if self.p < LEVEL else "similar"


@dataclasses.dataclass(frozen=True)
class Result:
    """One configuration over its seeds; all numbers leave out runs that diverged, unless ``include_diverged``.

    >>> runs = [{"seed": 0, "average_accuracy": 80.0}, {"seed": 1, "average_accuracy": 9.8, "diverged": 2}]
    >>> result = Result(None, runs)
    >>> result.mean_std("average_accuracy"), result.text()
    ({'mean': 80.0, 'std': None}, '80.00, 1 of 2 seeds diverged')
    """

    configuration: Configuration
    runs: list[Record]  # in the order of their seeds
    label: str = ""  # its name in a table; for a cell of the paper the name of its row
    published: Published | None = None
    chosen: str = ""  # where the settings come from: "preset", "defaults", "tuned"
    standing: Standing = Standing()  # among the others of its column
    include_diverged: bool = False
    table: str = ""  # the paper's table that it belongs to; in a study of one's own the size of the memory in words
    doubts: tuple[str, ...] = ()  # why settings that a search chose may not be the best

    def find_runs(
        self, find: Callable[[str], Record | None], seeds: Sequence[int], include_diverged: bool = False
    ) -> Result:
        """The same with its runs, which ``find`` finds by their keys, as a store does."""
        runs = [run for seed in seeds if (run := find(self.key(seed))) is not None]
        return dataclasses.replace(self, runs=runs, include_diverged=include_diverged)

    def key(self, seed: int) -> str:
        return self.configuration.key(seed)

    @property
    def column(self) -> tuple[str, str]:
        return self.configuration.benchmark, self.configuration.scenario

    @property
    def is_tuned(self) -> bool:
        """Whether its settings were chosen for the benchmark and scenario; else they are the method's defaults."""
        return self.chosen != DEFAULTS

    @property
    def is_joint(self) -> bool:
        """Whether its method trains on all tasks at once: an upper bound.

        The file of a user's own method may be missing. Its runs tell instead: they tested nothing between the tasks.
        """
        if self.configuration.method_file is None:
            return METHODS[self.configuration.method].joint
        between = [row for run in self.runs for row in run["accuracy_matrix"][1:-1]]
        return bool(between) and all(accuracy is None for row in between for accuracy in row)

    # Its numbers ------------------------------------------------------------------------------------------------------

    @property
    def counted(self) -> list[Record]:
        """The runs that the means are over."""
        return [run for run in self.runs if self.include_diverged or run.get("diverged") is None]

    @property
    def diverged(self) -> list[int]:
        """The seeds whose runs diverged: their weights were not finite after a task."""
        return [run["seed"] for run in self.runs if run.get("diverged") is not None]

    @property
    def other_code(self) -> dict[int, str]:
        """The seeds whose runs were made by other code than this, with its version."""
        return {run["seed"]: made_by(run) for run in self.runs if is_other_code(run)}

    @property
    def remark(self) -> str:
        """``2 of 5 seeds diverged``, and whether they are included; empty where none did."""
        remark = metrics.of_seeds_diverged(len(self.diverged), len(self.runs))
        return f"{remark}, included" if remark and self.include_diverged else remark

    @property
    def accuracies(self) -> dict[int, float]:
        """The average accuracy of each seed that is counted."""
        return {run["seed"]: accuracy for run in self.counted if (accuracy := run["average_accuracy"]) is not None}

    def mean_std(self, measure: str) -> dict[str, float | None]:
        """Mean and standard deviation over seeds of ``"forgetting"``, ``"seconds"``, ... or ``"average_accuracy"``."""
        return metrics.mean_std([run[measure] for run in self.counted])  # type: ignore[literal-required]

    @functools.cached_property
    def mean(self) -> float | None:
        return self.mean_std("average_accuracy")["mean"]

    @functools.cached_property
    def std(self) -> float | None:
        return self.mean_std("average_accuracy")["std"]

    def text(self, between: str = ", ") -> str:
        """``79.47 ± 1.49``, followed by how many seeds diverged; only the latter if there is no mean."""
        parts = [] if self.mean is None and self.remark else [metrics.plus_minus(self.mean, self.std)]
        return between.join(parts + [self.remark] * bool(self.remark))

    @property
    def confusion(self) -> list[list[int]] | None:
        """How often each class was predicted as each, in all runs that counted it; None where none did."""
        found = [run["confusion"] for run in self.counted if "confusion" in run]
        return [[sum(of) for of in zip(*rows, strict=True)] for rows in zip(*found, strict=True)] or None

    def to_dict(self) -> dict[str, Any]:
        """As ``cclfp run --json`` prints it, which adds the published number."""
        measures = (*MEASURES, "seconds")
        per_run = ("seed", *measures, "accuracy_matrix", "diverged")
        return {
            **self.configuration.to_dict(),
            **{measure: self.mean_std(measure) for measure in measures},
            "diverged": self.diverged,
            "other_code": self.other_code,
            "runs": [{name: dict(run)[name] for name in per_run if name in run} for run in self.runs],
        }

    # Beside the paper's -----------------------------------------------------------------------------------------------

    @property
    def difference(self) -> float | None:
        """Our mean minus the published one."""
        return None if self.mean is None or self.published is None else self.mean - self.published.mean

    @property
    def verdict(self) -> str | None:
        """``"within"`` two published standard deviations of the published mean, ``"above"`` or ``"below"``.

        They are two of our own where the paper gives none, as in the ablation. None where there are too few numbers.
        """
        spread = self.std if self.published is None or self.published.std is None else self.published.std
        if self.difference is None or spread is None:
            return None
        outside = "above" if self.difference > 0 else "below"
        return "within" if abs(self.difference) <= WITHIN * spread + ROUNDING else outside

    # How it was made --------------------------------------------------------------------------------------------------

    def command(self, seeds: Sequence[int] = ()) -> str:
        """The command that reproduces the number; ``seeds`` where it has no runs. A user's file goes by its name.

        It names every hyperparameter, so that a later change of the preset does not affect it. That of a number beside
        the paper's also names what its runs were made with.
        """
        c, is_papers = self.configuration, self.published is not None
        is_fixed = is_papers and get_benchmark(c.benchmark).no_augmentation is not None
        settings = {name: value for name, value in c.settings.items() if name != "augment" or not is_fixed}
        used = {name: {run["environment"].get(name) for run in self.runs} for name in MADE_WITH}
        made_with = {name: values.pop() for name, values in used.items() if len(values) == 1 and values != {GONE}}
        options = {
            "scenario": c.scenario,
            "memory": c.buffer,
            **_split_options(c),
            "backbone": None if c.backbone is None else show_backbone(c.backbone),
            "max-classes": c.max_classes,
            "seeds": _show_seeds([run["seed"] for run in self.runs] or seeds),
            **(made_with if is_papers else {}),
        }
        words = ["cclfp", "run", c.method if c.method_file is None else show_reference(c.method_file), c.benchmark]
        words += [f"{name}={show_value(value)}" for name, value in settings.items()]
        words += [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
        if is_papers and self.runs:  # a store that has the runs would return them
            words += ["--fresh"] + ["--include-diverged"] * bool(self.include_diverged and self.diverged)
        return shlex.join(words)


def explain_other_code(results: Sequence[Result], hint: str = OTHER_CODE_HINT) -> list[str]:
    """What the mark means, below the tables that have one."""
    text = describe_other_code({run["key"]: run for result in results for run in result.runs}.values())
    return [f"{OTHER_CODE} {text}: {hint}"] if text else []


def benchmark_title(benchmark: str) -> str:
    """A benchmark's title, also of images that are not on this machine."""
    return BENCHMARKS[benchmark].title if benchmark in BENCHMARKS else benchmark


def describe_protocol(c: Configuration) -> list[str]:
    """How the stream differs from the usual one of its benchmark, in words."""
    parts = [order] if (order := show_order(c.benchmark, c.class_order)) else []
    parts += [] if c.tasks is None else [metrics.count_of(len(c.tasks), "task")]
    parts += [] if c.backbone is None else [show_backbone(c.backbone)]
    return parts + ([] if c.max_classes is None else [f"room for {c.max_classes} classes"])


def _show_seeds(seeds: Sequence[int]) -> str:
    """The value of ``--seeds``: how many, or which; a trailing comma tells one seed from a count."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def _split_options(c: Configuration) -> dict[str, Any]:
    """The options of ``cclfp run`` that split a benchmark's classes like this."""
    order, sizes = c.class_order, c.tasks
    is_even = sizes is None or tuple(sizes) == even_sizes(sum(sizes), len(sizes))
    is_usual = has_usual_order(c.benchmark, order)
    if order == "random" or (is_even and (is_usual or order is None)):
        return {"tasks": sizes and len(sizes), "class-order": None if is_usual else order or "labels"}
    numbers = iter(map(str, range(sum(sizes or ())) if order is None else order))
    groups = [",".join(itertools.islice(numbers, size)) for size in sizes or [len(order or ())]]
    return {"class-order": "/".join(groups)}
