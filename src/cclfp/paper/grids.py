"""What ``cclfp tune`` searches: the paper's ranges for w, α and β, the step size for all, each baseline's own."""

from __future__ import annotations

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


def inherits(method: str) -> dict[str, list[str]]:
    """Which settings a method takes from which other methods' presets, on the convolutional streams.

    >>> inherits("ccl-fp+")
    {'er': ['lr', 'augment'], 'ccl-fp': ['w', 'alpha']}
    """
    if method == "er":
        return {}
    return {"er": list(CONVOLUTIONAL)} | ({"ccl-fp": ["w", "alpha"]} if method == "ccl-fp+" else {})
