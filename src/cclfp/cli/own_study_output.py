"""What ``cclfp study mine`` prints: a table per column, each method compared with the best, and one of all columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cclfp.cli.output import hyperparameters, number, plus_minus, print_json, print_table, print_text, signed

if TYPE_CHECKING:
    from cclfp.paper.own_study import OwnResult, OwnStudy

MARKS = {"best": " *", "similar": " =", "worse": "", "unknown": ""}


def print_results(study: OwnStudy, include_diverged: bool, json: bool) -> None:
    """All that the store has of the study; nothing where it has none of its runs."""
    columns = [several for several in study.results(include_diverged).values() if any(r.seeds.runs for r in several)]
    if not columns:
        return
    if json:
        cells = [_to_dict(result) for several in columns for result in several]
        print_json({"store": str(study.execution.store), "cells": cells})
        return
    for several in columns:
        _print_column(several, study.seeds)
    if len(columns) > 1:
        _print_all(columns)
    _print_explanation(columns)


def _print_column(results: Sequence[OwnResult], seeds: Sequence[int]) -> None:
    from cclfp.paper.ranking import show_p

    title = f"{', '.join(_parts(results))}, seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}: mean ± std, %"
    rows = [
        [
            label,
            _accuracy(r),
            "best" if r.standing.best else _difference(r),
            show_p(r.standing.p),
            plus_minus(**r.seeds.mean_std("forgetting")),
            number(r.seeds.mean_std("seconds")["mean"], 1),
        ]
        for label, r in zip(_labels(results), results, strict=True)
    ]
    columns = ["method", ">average accuracy", ">to the best", ">p", ">forgetting", ">seconds per run"]
    print_table(columns, rows, title, drop=("seconds per run", "forgetting"))
    for label, r in zip(_labels(results), results, strict=True):
        configuration = r.cell.configuration()
        settings = hyperparameters(configuration.hyperparameters | {"augment": configuration.augment})
        print_text(f"  {label}: {settings} ({r.cell.chosen})")


def _print_all(columns: Sequence[Sequence[OwnResult]]) -> None:
    labels = _labels(_flat(columns))
    methods = list(dict.fromkeys(labels))
    found = {(r.cell.column, method): r for method, r in zip(labels, _flat(columns), strict=True)}
    rows = [
        [method, *(_accuracy(found[several[0].cell.column, method], mark=True) for several in columns)]
        for method in methods
    ]
    names = [_parts(several) for several in columns]
    same = [part for part in names[0] if all(part in other for other in names)]
    heads = [", ".join(part for part in parts if part not in same) for parts in names]
    title = ", ".join(["All columns", *same])
    print_table(["method", *(f">{head}" for head in heads)], rows, f"{title}: mean ± std, %")


def _print_explanation(columns: Sequence[Sequence[OwnResult]]) -> None:
    from cclfp.paper.ranking import LEVEL, TEST

    if any(len(several) > 1 for several in columns):
        print_text(TEST)
    if len(columns) > 1:
        print_text(f"* the best of its column, = not different from it beyond chance (p of {LEVEL:g} or more)")
    untuned = [r for r in _flat(columns) if not r.cell.has_preset]
    if untuned:
        names = ", ".join(dict.fromkeys(f"{r.cell.place.name}" for r in untuned))
        print_text(f"not tuned, trained with the defaults: {names} (cclfp tune, or --auto MINUTES)")


def _flat(columns: Sequence[Sequence[OwnResult]]) -> list[OwnResult]:
    return [result for several in columns for result in several]


def _parts(results: Sequence[OwnResult]) -> list[str]:
    """What a column is trained on."""
    from cclfp.nets.backbones import show_backbone
    from cclfp.streams.benchmarks import get_benchmark, show_order

    place, c = results[0].cell.place, results[0].cell.configuration()
    parts = [get_benchmark(place.benchmark).title, f"{place.scenario}-incremental", f"memory {place.memory}"]
    parts += [order] if (order := show_order(c.benchmark, c.class_order)) else []
    parts += [] if c.tasks is None else [f"{len(c.tasks)} tasks"]
    return parts + ([] if c.backbone is None else [show_backbone(c.backbone)])


def _labels(results: Sequence[OwnResult]) -> list[str]:
    from cclfp.runs.naming import method_labels

    return method_labels([r.cell.configuration().to_dict() for r in results])


def _accuracy(result: OwnResult, *, mark: bool = False) -> str:
    if not result.seeds.runs:
        return "–"
    return result.seeds.text("average_accuracy", between="\n") + (MARKS[result.standing.verdict] if mark else "")


def _difference(result: OwnResult) -> str:
    s = result.standing
    if s.difference is None:
        return "–"
    return signed(s.difference) + ("" if s.std is None else f" ± {s.std:.2f}")


def _to_dict(result: OwnResult) -> dict[str, Any]:
    place, s = result.cell.place, result.standing
    configuration = result.cell.configuration()
    return {
        "method": configuration.method,
        "given": place.method,
        "benchmark": place.benchmark,
        "scenario": place.scenario,
        "buffer": configuration.buffer,
        "settings": configuration.hyperparameters | {"augment": configuration.augment},
        "chosen": result.cell.chosen,
        "runs": len(result.seeds.runs),
        **{name: result.seeds.mean_std(name) for name in ("average_accuracy", "forgetting", "seconds")},
        "accuracies": {str(seed): accuracy for seed, accuracy in result.seeds.accuracies.items()},
        "diverged": result.seeds.diverged,
        "standing": s.verdict,
        "difference": s.difference,
        "difference_std": s.std,
        "common_seeds": s.common,
        "p": s.p,
    }
