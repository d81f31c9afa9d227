"""What ``cclfp tune`` searches: the paper's ranges for w, α and β, the step size for all, each baseline's own."""

from __future__ import annotations

Grid = dict[str, list[float]]

_W, _WEIGHTS = [0.1, 0.3, 0.5], [0.01, 0.1, 0.5, 1.0]

GRIDS: dict[str, Grid] = {
    "joint": {"lr": [0.03, 0.1, 0.3]},
    "finetune": {"lr": [0.01, 0.03, 0.1]},
    "si": {"lr": [0.03, 0.1], "c": [0.3, 1.0, 3.0], "xi": [0.01, 0.1]},
    "lwf": {"lr": [0.03, 0.1], "lambda_o": [0.3, 1.0, 3.0]},
    "er": {"lr": [0.03, 0.1, 0.3]},
    "gem": {"lr": [0.003, 0.01, 0.03, 0.1], "gamma": [0.5, 1.0]},
    "a-gem": {"lr": [0.01, 0.03, 0.1, 0.3]},
    "icarl": {"lr": [0.03, 0.1, 0.3, 1.0]},
    "fdr": {"lr": [0.03, 0.1], "alpha": [0.3, 1.0, 3.0]},
    "hal": {"lr": [0.01, 0.03, 0.1], "lam": [0.03, 0.1, 0.3], "anchor_lr": [1.0]},  # lam lr^3 above 1e-4 diverges
    "ccl-fp": {"lr": [0.03, 0.1], "w": _W, "alpha": _WEIGHTS},
    "ccl-fp+": {"lr": [0.03, 0.1], "w": _W, "alpha": _WEIGHTS, "beta": _WEIGHTS},
}

# On the convolutional streams a run takes minutes, and the product of all ranges hours: there the step size and the
# augmentation are ER's, chosen from these, and the others are searched one after the other.
CONVOLUTIONAL: Grid = {"lr": [0.01, 0.03, 0.1], "augment": [True, False]}
