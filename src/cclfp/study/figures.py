"""The paper's figures: which panels they have. Their data were not published, so ours stand alone."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from cclfp.methods import METHODS


class Panel(NamedTuple):
    benchmark: str
    scenario: str
    methods: list[str]


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    title: str
    panels: list[Panel]


def figures() -> list[Figure]:
    """Evolution and forgetting are of the methods that see one task after the other, run time of all of them.

    The paper does not say in which scenario it took the time; a step costs the same in all.

    >>> [(figure.name, len(figure.panels)) for figure in figures()]
    [('evolution', 6), ('forgetting', 3), ('runtime', 3)]
    """
    return [
        Figure(
            "evolution",
            "Average accuracy on all tasks seen so far",
            [
                _panel("split-cifar10", "class"),
                _panel("split-cifar10", "task"),
                _panel("split-cifar100", "class"),
                _panel("split-cifar100", "task"),
                _panel("permuted-mnist", "domain"),
                _panel("rotated-mnist", "domain"),
            ],
        ),
        Figure(
            "forgetting",
            "Average forgetting by the end of training",
            [_panel("split-mnist", "class"), _panel("split-cifar10", "task"), _panel("rotated-mnist", "domain")],
        ),
        Figure(
            "runtime",
            "Run time, training and testing",
            [
                _panel("split-cifar10", "class", joint=True),
                _panel("split-tiny-imagenet", "class", joint=True),
                _panel("rotated-mnist", "domain", joint=True),
            ],
        ),
    ]


def _panel(benchmark: str, scenario: str, joint: bool = False) -> Panel:
    methods = [m.name for m in METHODS.values() if scenario in m.scenarios() and (joint or not m.joint)]
    return Panel(benchmark, scenario, methods)
