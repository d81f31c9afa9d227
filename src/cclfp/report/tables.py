"""Tables: the paper's and one's own. Their cells are results; here is also what is said about them in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cclfp.metrics import signed
from cclfp.paper.compare import Change, Effects, effects
from cclfp.paper.numbers import COMPONENTS
from cclfp.runs.configuration import PROTOCOL
from cclfp.runs.results import Result, benchmark_title, describe_protocol

Column = tuple[str, str]  # a benchmark and a scenario
OWN = "own"  # the name of tables of one's own
VERDICTS = {
    "within": "within two standard deviations of the paper's number",
    "above": "above the paper's number by more than two standard deviations",
    "below": "below the paper's number by more than two standard deviations",
    "unjudged": "only one seed, and no published standard deviation to compare with",
    "missing": "not trained yet",
    "diverged": "all seeds diverged, so there is no mean",
}
RARE_VERDICTS = ("unjudged", "diverged")  # shown only where a number has them
UNTUNED = "†"
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
NOTES = {
    "accuracy": "In complete columns, the best number is bold; Joint, which trains on all tasks at once, does not "
    "count.",
    "buffer": "In complete columns, the best number for each memory size is bold. The hyperparameters are those tuned "
    "with a memory of 200.",
    "ablation": "In complete columns, the best number is bold. All rows use CCL-FP+'s hyperparameters, with 0 for the "
    "components that are left out; no row was tuned separately.",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """Results in rows and columns; None where a number is not defined. One of one's own has one column."""

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Result | None]]
    seeds: Sequence[int] = ()  # that were asked for

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows for result in row if result is not None]

    @property
    def heads(self) -> list[str]:
        """The titles of the columns before the numbers."""
        return {"buffer": ["Memory", "Method"], "ablation": ["Components"]}.get(self.name, ["Method"])

    def labels(self, row: Sequence[Result | None]) -> list[str]:
        """The contents of these columns."""
        first = next(result for result in row if result is not None)
        memory = [str(first.configuration.buffer)] if self.name == "buffer" else []
        return [*memory, variant_name(first.label) if self.name == "ablation" else first.label]

    @property
    def notes(self) -> list[str]:
        """What to know about its rows: why settings that a search chose may not be the best."""
        return [f"{result.label}: {'; '.join(result.doubts)}" for result in self.results if result.doubts]

    def explain(self, published: str = "with the paper's number in brackets", marks: str = "↑ and ↓") -> str:
        """What the numbers and marks mean, in a few sentences."""
        count = len(self.seeds)
        own = all(result.published is None or result.published.std is None for result in self.results)
        spread = "of our own standard deviations (the paper gives none)" if own else "published standard deviations"
        sentences = [
            f"Mean ± standard deviation (%) over {count} seed{'s' * (count != 1)}, {published}.",
            f"{marks} mark numbers that are more than two {spread} above or below the paper's.",
            NOTES[self.name],
        ]
        if any(is_untuned(result) for result in self.results):
            sentences.append(f"{UNTUNED}: with the method's default hyperparameters, not tuned.")
        if any(result.diverged for result in self.results):
            means = "Means include" if any(result.include_diverged for result in self.results) else "Means leave out"
            sentences.append(
                f"{means} runs that diverged (their weights are not finite); each cell gives their number."
            )
        return " ".join(sentences)


# What each component is worth -----------------------------------------------------------------------------------------

Worth = tuple[str, list[tuple[str, str]]]  # a column, and texts of our runs and of the paper in the order of WORTH_HEAD
WORTH_TITLE = "What each component is worth"
WORTH_EXPLANATION = (
    "The change of the average accuracy (%) when one component is removed from CCL-FP+ (without) and when one is added "
    "to none (alone); all else is as in CCL-FP+. Mean ± standard deviation over the seeds that both variants have, "
    "with the paper's in brackets. The component whose removal costs most matters most."
)
WORTH_HEAD = (
    *(f"without {component}" for component in COMPONENTS),
    *(f"{component} alone" for component in COMPONENTS),
    "matters most",
)


def component_worths(table: Table) -> list[Worth]:
    """One row per column of the ablation; none for other tables."""
    found = []
    for column in table.columns if table.name == "ablation" else []:
        cells = [result for result in table.results if result.column == column]
        ours = effects({cell.label: cell.accuracies for cell in cells})
        paper = effects({cell.label: {0: cell.published.mean} for cell in cells if cell.published is not None})
        found.append((column_title(column), list(zip(_show_effects(ours), _show_effects(paper), strict=True))))
    return found


def _show_effects(found: Effects) -> list[str]:
    unknown = None in found.without.values()
    most = found.most or ("not known yet" if unknown else "none: no removal costs anything")
    return [*map(_show_change, [*found.without.values(), *found.alone.values()]), most]


def _show_change(change: Change | None) -> str:
    if change is None:
        return "missing"
    return signed(change.mean) + ("" if change.std is None else f" ± {change.std:.2f}")


# In words -------------------------------------------------------------------------------------------------------------


def verdict_of(result: Result) -> str:
    """A key of ``VERDICTS``."""
    if result.mean is None:
        return "diverged" if result.diverged else "missing"
    return result.verdict or "unjudged"


def count_verdicts(results: Sequence[Result]) -> dict[str, int]:
    """How many results have each verdict."""
    verdicts = [verdict_of(result) for result in results]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def tally(results: Sequence[Result]) -> str:
    """``44 numbers: 35 within, 5 above, 4 below, 0 missing``; rare verdicts only where a number has them."""
    counts = count_verdicts(results)
    parts = [f"{counts[name]} {name}" for name in counts if counts[name] or name not in RARE_VERDICTS]
    return f"{len(results)} numbers: {', '.join(parts)}"


def is_untuned(result: Result) -> bool:
    """Whether our number was made with the method's default hyperparameters; tables mark it."""
    return result.mean is not None and not result.is_tuned


def describe_choice(result: Result) -> str:
    """Where the hyperparameters come from."""
    if not result.table:
        return "; ".join([result.chosen, *result.doubts])
    if not result.is_tuned:
        return "defaults, not tuned"
    if result.table == "ablation" and result.label != ", ".join(COMPONENTS):
        return "preset, except for the components left out"
    return "preset" if result.configuration.buffer in (None, 200) else "preset, tuned with memory 200"


def row_name(result: Result) -> str:
    """A row in words: ``ER-Res., memory 200``."""
    if result.table == "ablation":
        return variant_name(result.label)
    return f"{result.label}, memory {result.configuration.buffer}" if result.table == "buffer" else result.label


def variant_name(label: str) -> str:
    """A row of the ablation, with the method that it is equivalent to.

    >>> variant_name("w, α")
    'w, α (CCL-FP)'
    """
    known = {"none": "ER", "w, α": "CCL-FP", "w, α, β": "CCL-FP+"}
    return f"{label} ({known[label]})" if label in known else label


def place_title(result: Result) -> str:
    """What a run was trained on, whatever its memory."""
    c = result.configuration
    protocol = [f"{name}={v}" for name in ("batch", "epochs") if (v := getattr(c, name)) != PROTOCOL[name]]
    return ", ".join([column_title(result.column), *describe_protocol(c), *protocol])


def column_title(column: Column) -> str:
    return f"{benchmark_title(column[0])}, {column[1]}"


def environments(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The environments of all runs, each once, in the order of first occurrence."""
    runs = [run for result in results for run in result.runs]
    found = ({name: run["environment"].get(name) for name in ENVIRONMENT} for run in runs)
    return list({tuple(environment.values()): environment for environment in found}.values())
