"""What ``cclfp tune`` searches: the paper's ranges for w, α and β, the step size for all, each baseline's own."""

from __future__ import annotations

import dataclasses

from cclfp.methods import Method

Grid = dict[str, list[float]]

_LR = [0.01, 0.03, 0.1, 0.3]
_W, _WEIGHTS = [0.1, 0.3, 0.5], [0.01, 0.1, 0.5, 1.0]

GRIDS: dict[str, Grid] = {
    "joint": {"lr": _LR},
    "finetune": {"lr": _LR},
    "si": {"lr": _LR, "c": [0.3, 1.0, 3.0], "xi": [0.01, 0.1]},
    "lwf": {"lr": _LR, "lambda_o": [0.3, 1.0, 3.0]},
    "er": {"lr": _LR},
    "gem": {"lr": [0.003, 0.01, 0.03, 0.1], "gamma": [0.5, 1.0]},  # on Split MNIST, class, the smallest is best
    "a-gem": {"lr": _LR},
    "icarl": {"lr": [0.03, 0.1, 0.3, 1.0]},
    "fdr": {"lr": _LR, "alpha": [0.3, 1.0, 3.0]},
    "hal": {"lr": [0.01, 0.03, 0.1], "lam": [0.03, 0.1, 0.3]},  # lam lr^3 above 1e-4 diverges
    "ccl-fp": {"lr": [0.03, 0.1, 0.3], "w": _W, "alpha": _WEIGHTS},
    "ccl-fp+": {"lr": [0.03, 0.1, 0.3], "w": _W, "alpha": _WEIGHTS, "beta": _WEIGHTS},
}

# On the convolutional streams a run takes minutes, and the product of all ranges hours. There ER searches these. The
# others inherit what it found and search their own settings one after the other; CCL-FP+ inherits CCL-FP's and adds β.
CONVOLUTIONAL: Grid = {"lr": [0.01, 0.03, 0.1], "augment": [True, False]}


# On other data than the paper's a component of CCL-FP+ may not help: 0 switches it off, and without any it is ER.
_WITH_OFF: dict[str, Grid] = {
    name: {"lr": _LR, **{setting: [0.0, *values] for setting, values in GRIDS[name].items() if setting != "lr"}}
    for name in ("ccl-fp", "ccl-fp+")
}


def inherits(method: str) -> dict[str, list[str]]:
    """Which settings a method takes from which other methods' presets, on the convolutional streams.

    >>> inherits("ccl-fp+")
    {'er': ['lr', 'augment'], 'ccl-fp': ['w', 'alpha']}
    """
    if method == "er":
        return {}
    return {"er": list(CONVOLUTIONAL)} | ({"ccl-fp": ["w", "alpha"]} if method == "ccl-fp+" else {})


def stages(kind: type[Method], *, augment: bool, given: Grid) -> list[Grid]:
    """What is searched for any method on any benchmark, one after the other: lr and augmentation, then its own.

    A built-in method's own settings are those of ``GRIDS``; the weights of CCL-FP's components may be 0 too. A user's
    own method declares what is searched: ``setting(..., search=(...))``. ``given`` are a user's ranges; a setting with
    one value is not searched.

    >>> from cclfp.methods import METHODS
    >>> stages(METHODS["fdr"], augment=True, given={"lr": [0.1], "alpha": [1.0, 2.0]})
    [{'augment': [False, True]}, {'alpha': [1.0, 2.0]}]
    """
    declared = {field.name: list(field.metadata.get("search", ())) for field in dataclasses.fields(kind.Hyper)}
    own = _WITH_OFF.get(kind.name) or GRIDS.get(kind.name, declared)
    first: Grid = {"lr": own.get("lr") or _LR, **({"augment": [False, True]} if augment else {})}
    ranges = {**first, **{name: values for name, values in own.items() if values and name != "lr"}, **given}
    searched = {name: values for name, values in ranges.items() if len(values) > 1}
    together = {name: searched.pop(name) for name in first if name in searched}
    return ([together] if together else []) + [{name: values} for name, values in searched.items()]
